"""An actor with a list, a map and a set, which does what a test tells it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from actors import App, Context
from actors.testing import ActorTestDriver

Do = Callable[[Context], Any]


def extend(rows: Any, values: Iterable[Any]) -> None:
    for value in values:
        rows.append(value)


class Played:
    """An app whose actor does what it is told, with a list, a map and a set."""

    def __init__(self, **options: Any) -> None:
        self.app = App("rows", broker="kafka://127.0.0.1:1")
        expiring = {name: options.pop(name) for name in ("ttl", "expires") if name in options}
        self.inputs = self.app.topic("inputs", key_type=str, value_type=str)
        self.lines = self.app.list_store("lines", value_type=str, ttl=expiring.get("ttl"))
        self.cart = self.app.map_store("cart", row_type=str, value_type=int, **expiring)
        self.tags = self.app.set_store("tags", row_type=str, **expiring)
        self.do: dict[str, Do] = {}
        self.results: list[Any] = []

        @self.app.actor(self.inputs, stores=[self.lines, self.cart, self.tags], name="player", **options)
        async def play(ctx: Context, name: str) -> None:
            self.results.append(self.do[name](ctx))

        self.actor = play

    def run(self, driver: ActorTestDriver, do: Do, *, key: str = "ada") -> Any:
        name = str(len(self.do))
        self.do[name] = do
        driver.send(self.inputs, key=key, value=name)
        return self.results[-1] if self.results else None
