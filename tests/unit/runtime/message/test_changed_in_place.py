"""Functions that change what they are given in place: nothing of it gets to another key, window or message."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from actors import App, Context, Hopping, Session, Sliding, Tumbling, aggregates
from actors.testing import ActorTestDriver

NOON_MS = 1_700_049_600_000
SECOND = timedelta(seconds=1)
KINDS = {
    "tumbling": Tumbling(minutes=1),
    "hopping": Hopping(60 * SECOND, advance=30 * SECOND),
    "session": Session(60 * SECOND),
    "sliding": Sliding(60 * SECOND),
}
EMPTY: dict[str, list[str]] = {"texts": []}


def add(held: dict[str, list[str]], text: str) -> dict[str, list[str]]:
    held["texts"].append(text)
    return held


def merge(first: dict[str, list[str]], second: dict[str, list[str]]) -> dict[str, list[str]]:
    first["texts"] += second["texts"]
    return first


class World:
    """Stores whose `initial` is mutable; a message "bad" fails once it is added."""

    def __init__(self) -> None:
        self.app = app = App("shop", broker="kafka://127.0.0.1:1")
        self.texts = app.topic("texts", key_type=str, value_type=str)
        texts = aggregates.Aggregate(EMPTY, add, merge)
        self.store = app.store("store", aggregate=texts)
        self.kinds = {name: app.window_store(name, kind, aggregate=texts) for name, kind in KINDS.items()}
        self.updated = app.window_store("updated", KINDS["hopping"], value_type=dict)
        stores: list[Any] = [self.store, *self.kinds.values(), self.updated]

        @app.actor(self.texts, stores=stores, on_error="skip")
        async def keep(ctx: Context, text: str) -> None:
            for store in (self.store, *self.kinds.values()):
                store.add(ctx.key, text)
            self.updated.update(ctx.key, lambda held: add(held, text), initial=EMPTY)
            if text == "bad":
                raise ValueError(text)

    def seen(self, driver: ActorTestDriver, key: str) -> dict[str, Any]:
        """Return all values of a key by store."""
        windowed = {store.name: list(driver.windows(store, key).values()) for store in self.kinds.values()}
        updated = list(driver.windows(self.updated, key).values())
        return {"store": driver.get(self.store, key), **windowed, "updated": updated}


@pytest.mark.parametrize("first", ["ada's", "bad"])
def test_a_mutable_initial_is_each_keys_own(first: str) -> None:
    world = World()
    with ActorTestDriver(world.app) as driver:
        driver.send(world.texts, key="ada", value=first, timestamp_ms=NOON_MS)
        driver.send(world.texts, key="bob", value="bob's", timestamp_ms=NOON_MS)
        expected = {"texts": ["bob's"]}
        assert world.seen(driver, "bob") == {
            "store": expected,
            **{key: [expected] for key in ("tumbling", "session", "sliding")},
            **{key: [expected, expected] for key in ("hopping", "updated")},
        }
        driver.send(world.texts, key="bob", value="bad", timestamp_ms=NOON_MS)
        assert world.seen(driver, "bob")["hopping"] == [expected, expected]
        assert EMPTY == {"texts": []}


def test_states_that_are_merged_in_place() -> None:
    world = World()
    with ActorTestDriver(world.app) as driver:
        for seconds in (0, 80, 40):
            driver.send(world.texts, key="ada", value=str(seconds), timestamp_ms=NOON_MS + seconds * 1000)
        assert world.seen(driver, "ada")["session"] == [{"texts": ["0", "80", "40"]}]
