"""Damaged databases: only the one that is damaged is built again, and no message is lost to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from actors import App, Context, ViewFailedError
from actors._core.partitioner import partition_for
from actors.errors import UnreadableLogError
from actors.runtime.state.restore import Restorer
from actors.testing import ActorTestDriver
from actors.testing.fakes.views import FakeFollowing
from stores.errors import StoreCorruptedError, StoreError, StoreUnavailableError
from tests.unit.runtime.replicas.test_views import HOUR_MS, World, changes_of


class Shop:
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
    shop = Shop()
    with ActorTestDriver(shop.app, partitions=1) as driver:
        driver.send(shop.topic, key="a", value="1")
        files = {held.store: held for held in driver._disk.files()}
        shop.error = error
        driver.send(shop.topic, key="a", value="2")
        assert driver.get(shop.counts, "a") == 2
        assert driver.get(shop.names, "a") == "2"
        now = {held.store: held for held in driver._disk.files()}
        assert [store for store in ("counts", "names") if now[store] is not files[store]] == deleted


# --- views ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def world() -> Iterator[World]:
    made = World(delete_retention_ms=HOUR_MS)
    yield made
    made.loop.close()


@pytest.mark.parametrize("how", ["get", "items", "following"])
def test_a_damaged_database_is_built_again_from_the_topic(world: World, how: str, monkeypatch: pytest.MonkeyPatch):
    async def test() -> None:
        for number in range(10):
            world.put(f"k{number}", "1")
        mine = next(key for number in range(10) if partition_for((key := f"k{number}").encode(), 2) == 0)
        async with world.view() as view:
            seen, store, other = changes_of(view), view._running().store(0), view._running().store(1)
            damage = StoreCorruptedError(store.path, "bad block")

            def fail(*_: object, **__: object) -> Iterator[Any]:
                raise damage

            for name in ("scan", "get"):
                monkeypatch.setattr(store, name, fail)
            if how == "following":
                world.put(mine, "2")
            else:
                with pytest.raises(StoreCorruptedError):
                    view.get(mine) if how == "get" else len(view)
            while view._running().store(0) is store:
                await view._running().moved()
            await view.caught_up()
            await view.callbacks_done()
            assert view._running().store(1) is other
            assert view.get(mine) == ("2" if how == "following" else "1")
            assert len(view) == 10
            assert seen[0] == (mine, None, view.get(mine))

    world.run(asyncio.wait_for(test(), 60))


def test_a_database_that_is_damaged_when_the_view_is_opened_is_built_again(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    restore, failed = Restorer.restore, []

    async def damaged(self: Restorer, store: Any, changelog: Any, partition: int, meter: Any = None) -> Any:
        if partition == 0 and not failed:
            failed.append(store)
            raise StoreCorruptedError(store.path, "bad block")
        return await restore(self, store, changelog, partition, meter)

    async def test() -> None:
        world.put("a", "1", partition=0)
        monkeypatch.setattr(Restorer, "restore", damaged)
        async with world.view() as view:
            assert view.get("a") == "1"
            assert view._running().store(0) is not failed[0]

    with caplog.at_level(logging.WARNING):
        world.run(test())
    assert "t[0]: rebuilding the view" in caplog.text


def test_a_view_whose_topic_cannot_be_read_ends_and_says_why(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async def polled(*_: object) -> Any:
        raise UnreadableLogError("t[0]: the records are damaged", source=("t", 0), next_offset=1)

    async def test() -> None:
        world.put("a", "1", partition=0)
        async with world.view() as view:
            assert view.get("a") == "1"
            monkeypatch.setattr(FakeFollowing, "poll", polled)
            with pytest.raises(ViewFailedError, match=r"t\[0\]: the records are damaged"):
                await view.wait_for("b", timeout=timedelta(seconds=30))
            view.fail(ViewFailedError("t[0]: can't be read"))
        with pytest.raises(ViewFailedError, match=r"isn't open: t\[0\]: can't be read"):
            view.get("a")
        monkeypatch.undo()
        async with view:
            assert view.get("a") == "1"

    world.run(test())
    assert "Traceback" not in caplog.text
