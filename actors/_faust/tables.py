"""Tables and joins of an app."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from actors.declare.arguments import check_arguments
from actors.declare.tables import join_tables, make_table
from actors.errors import ConfigurationError
from actors.runtime.message.context import Context
from actors.runtime.message.store import Store
from actors.runtime.message.table import Table
from actors.runtime.windows.store import WindowStore

Joined = TypeVar("Joined", bound=Callable[[Context, Any, Any], Any])


class TableMethods:
    """The methods of `App` for tables."""

    @check_arguments
    def table(self, topic: Any, *, name: str | None = None, history: timedelta | None = None) -> Table[Any, Any]:
        """Declare a table: the latest value of each key of a compacted topic, for handlers of the actor that lists it.

        The topic becomes an input of that actor: it has as many partitions as the others, and the same keys.

        Args:
            topic: a topic of `app.topic(...)`, the input of no other actor.
            name: of the store of its rows; the topic's by default.
            history: how far behind the newest record former values are kept, for `table.get(key, as_of=…)`.

        Raises:
            ConfigurationError: the name can't be used, or the topic isn't one.
        """
        return make_table(self, topic, name=name, history=history)

    def join(
        self,
        left: Any,
        right: Any,
        *,
        how: str = "inner",
        stores: Sequence[Store[Any, Any] | WindowStore[Any, Any]] = (),
        **options: Any,
    ) -> Callable[[Joined], Joined]:
        """Make a function the actor of the join of two tables by key.

        It is called as `(ctx, left, right)` after each change of either table for which there is a result, and once as
        `(ctx, None, None)` when there is none any more. It may write and send, as a handler does.

        Args:
            left: a table of `app.table(...)`, listed by no other actor.
            right: likewise.
            how: for which keys there is a result: "inner" for those in both tables, "left" for those in the left one,
                where the value of the right one may be None, "outer" for those in either.
            stores: further stores that it owns.
            options: those of `actor`.

        Raises:
            ConfigurationError: an argument can't be meant.
        """
        if isinstance(left, Table) and isinstance(right, Table):
            return join_tables(self, left, right, how=how, stores=stores, **options)
        raise ConfigurationError(
            f"app.join({left!r}, {right!r}): give two tables of app.table(topic). To join a topic's records with a "
            "table, list the table in the stores= of the topic's actor"
        )
