"""The handles of map, list and set stores, by which handlers reach the rows below a key."""

from __future__ import annotations

from typing import Generic, TypeVar

from actors._core.values.rows import place_of, place_row, rows_prefix
from actors.runtime.rows.contents import ListRows, MapRows, SetRows
from actors.runtime.rows.row_store import RowStore
from stores._core.overlay import Overlay

K = TypeVar("K")
R = TypeVar("R")
V = TypeVar("V")


class MapStore(RowStore, Generic[K, R, V]):
    """A handle to a map for each key, made by `app.map_store(...)` and used in handlers of the actor that lists it.

    Examples:
        >>> from actors import App, Context
        >>> from actors.testing import ActorTestDriver
        >>> app = App("shop", broker="kafka://127.0.0.1:9092")
        >>> scans = app.topic("scans", key_type=str, value_type=str)
        >>> carts = app.map_store("carts", key_type=str, row_type=str, value_type=int)
        >>> @app.actor(scans, stores=[carts])
        ... async def scan(ctx: Context, article: str) -> None:
        ...     cart = carts.at(ctx.key)
        ...     cart[article] = cart.get(article, 0) + 1
        >>> with ActorTestDriver(app) as driver:
        ...     for article in ("hat", "pen", "hat"):
        ...         driver.send(scans, key="ada", value=article)
        ...     driver.get(carts, "ada")
        {'hat': 2, 'pen': 1}
    """

    kind = "map"

    def at(self, key: K) -> MapRows[R, V]:
        """Return the map of a key, for the message that is handled."""
        return MapRows(self, key)


class SetStore(RowStore, Generic[K, R]):
    """A handle to a set for each key, made by `app.set_store(...)` and used in handlers of the actor that lists it.

    Examples:
        >>> from actors import App, Context
        >>> from actors.testing import ActorTestDriver
        >>> app = App("shop", broker="kafka://127.0.0.1:9092")
        >>> visits = app.topic("visits", key_type=str, value_type=str)
        >>> visitors = app.set_store("visitors", key_type=str, row_type=str)
        >>> @app.actor(visits, stores=[visitors])
        ... async def visit(ctx: Context, visitor: str) -> None:
        ...     visitors.at(ctx.key).add(visitor)
        >>> with ActorTestDriver(app) as driver:
        ...     for visitor in ("ada", "alan", "ada"):
        ...         driver.send(visits, key="start page", value=visitor)
        ...     sorted(driver.get(visitors, "start page"))
        ['ada', 'alan']
    """

    kind = "set"

    def at(self, key: K) -> SetRows[R]:
        """Return the set of a key, for the message that is handled."""
        return SetRows(self, key)


class ListStore(RowStore, Generic[K, V]):
    """A handle to a list for each key, made by `app.list_store(...)` and used in handlers of the actor that lists it.

    Examples:
        >>> from actors import App, Context
        >>> from actors.testing import ActorTestDriver
        >>> app = App("shop", broker="kafka://127.0.0.1:9092")
        >>> chat = app.topic("chat", key_type=str, value_type=str)
        >>> lines = app.list_store("lines", key_type=str, value_type=str)
        >>> @app.actor(chat, stores=[lines])
        ... async def say(ctx: Context, line: str) -> None:
        ...     lines.at(ctx.key).append(line)
        >>> with ActorTestDriver(app) as driver:
        ...     for line in ("hello", "anybody there?"):
        ...         driver.send(chat, key="room 1", value=line)
        ...     driver.get(lines, "room 1")
        ['hello', 'anybody there?']
    """

    kind = "list"

    def at(self, key: K) -> ListRows[V]:
        """Return the list of a key, for the message that is handled."""
        return ListRows(self, key)

    def _span_without(self, overlay: Overlay, raw_key: bytes, row: bytes, first: int, end: int) -> tuple[int, int]:
        # With another ttl than before rows don't expire in their order: what is older stays the first.
        prefix = rows_prefix(raw_key)
        if place_of(row) == first:
            first += 1
            while first < end and not overlay.is_kept(prefix + place_row(first)):
                first += 1
        return first, end
