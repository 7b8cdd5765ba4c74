"""Damaged databases: only the one that is damaged is built again, and no message is lost to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors import App, Context
from actors.testing import ActorTestDriver
from stores.errors import StoreCorruptedError, StoreError, StoreUnavailableError


class World:
    """An actor with two stores, whose handler raises `error` once."""

    def __init__(self) -> None:
        self.app = App("shop", broker="kafka://127.0.0.1:1")
        self.topic = self.app.topic("in", key_type=str, value_type=str)
        self.counts = self.app.store("counts", key_type=str, value_type=int)
        self.names = self.app.store("names", key_type=str, value_type=str)
        self.error: StoreError | None = None

        @self.app.actor(self.topic, stores=[self.counts, self.names])
        async def count(ctx: Context, value: str) -> None:
            self.counts.set(ctx.key, (self.counts.get(ctx.key) or 0) + 1)
            self.names.set(ctx.key, value)
            error, self.error = self.error, None
            if error is not None:
                raise error


@pytest.mark.parametrize(
    ("error", "deleted"),
    [
        (StoreCorruptedError(Path("of a view"), "bad block"), []),
        (StoreCorruptedError(Path("counts-0"), "bad block"), ["counts"]),
        (StoreCorruptedError(Path("names-0"), "bad block"), ["names"]),
        (StoreCorruptedError(Path("names-1"), "bad block"), []),
        (StoreUnavailableError("no space"), []),
    ],
)
def test_only_the_database_that_an_error_names_is_deleted(error: StoreError, deleted: list[str]) -> None:
    world = World()
    with ActorTestDriver(world.app) as driver:
        driver.send(world.topic, key="a", value="1")
        files = {held.store: held for held in driver._disk.files()}
        world.error = error
        driver.send(world.topic, key="a", value="2")
        assert driver.get(world.counts, "a") == 2
        assert driver.get(world.names, "a") == "2"
        now = {held.store: held for held in driver._disk.files()}
        assert [store for store in ("counts", "names") if now[store] is not files[store]] == deleted
