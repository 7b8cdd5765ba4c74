"""Copies whose store fails: what is mended by itself, and what readers see meanwhile."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from actors._core.group.placement import Copies
from actors._core.task.takeover import LogBounds
from actors.ports import TopicPartition
from actors.runtime.replicas import standbys as module
from actors.runtime.replicas.standbys import Standbys, StandbyStore
from actors.testing.fakes.views import FakeTopicLogs
from stores.errors import StoreCorruptedError, StoreUnavailableError
from stores.memory import MemoryStore
from tests.unit.runtime.replicas.test_standbys import LOG, ONE, ZERO, World, standby

LOG_0 = TopicPartition(LOG, 0)


class Disk:
    """Stores as RocksDB's are: one that was closed is opened as a new object, with what was written."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.kind: type[MemoryStore] = MemoryStore
        self.deleted: list[tuple[str, int]] = []
        world.cache._open_store = self.open
        world.cache._delete_store = self.delete

    def open(self, store: str, partition: int) -> MemoryStore:
        fresh, before = self.kind(), self.world.disk.get((store, partition))
        if before is not None:
            fresh._data, fresh._position = before._data, before._position
        self.world.disk[store, partition] = fresh
        return fresh

    def delete(self, store: str, partition: int) -> None:
        self.deleted.append((store, partition))
        self.world.disk.pop((store, partition), None)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.loop.close()


def failing(name: str, failures: list[int]) -> type[MemoryStore]:
    """Give a kind of store of which a method closes it and fails, as long as there are failures left."""

    class Failing(MemoryStore):
        pass

    def method(self: MemoryStore) -> None:
        if failures:
            failures.pop()
            self.close()
            raise StoreUnavailableError("no space left")
        getattr(MemoryStore, name)(self)

    setattr(Failing, name, method)
    return Failing


def build_anew(world: World) -> None:
    """Make a copy one that was behind for too long."""
    held = world.copies._follower.held[LOG_0]
    held.position = replace(held.position, wall_time_ms=0)
    held.store.apply((), held.position)
    world.fill(10)


def all_followed(world: World) -> Callable[[], bool]:
    return lambda: (
        len(world.copies.copies) == 2 and all(world.position(number) == world.end(number) for number in (0, 1))
    )


def test_a_wipe_that_fails_is_tried_again_with_another_store(world: World) -> None:
    failures = [1, 2]
    Disk(world).kind = failing("wipe", failures)

    async def test() -> None:
        world.fill(120)
        world.fill(120, 1)
        world.copies.assign(standby(ZERO, ONE))
        await world.until(lambda: all(one.current_ms for one in world.copies.copies) and all_followed(world)())
        while failures:
            build_anew(world)
            left = len(failures)
            await world.until(lambda left=left: len(failures) < left)
            await world.until(all_followed(world))
        world.fill(10, 1)
        await world.until(all_followed(world))

    world.run(test())


@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_load_that_cant_be_kept_is_followed_on(
    world: World, monkeypatch: pytest.MonkeyPatch, is_dropped: bool
) -> None:
    monkeypatch.setattr(module, "LONG_READ", 100)
    failures = [1]
    Disk(world).kind = failing("settle", failures)

    async def test() -> None:
        world.fill(2_000)
        world.fill(10, 1)
        world.copies.assign(standby(ZERO, ONE))
        await world.until(lambda: world.position() > 100)
        if is_dropped:
            world.copies.assign(Copies())
            await world.until(lambda: not failures)
            world.copies.assign(standby(ZERO, ONE))
        await world.until(lambda: not failures and all_followed(world)())

    world.run(test())


def test_a_damaged_store_is_deleted_and_built_anew(world: World) -> None:
    disk = Disk(world)

    class Damaged(MemoryStore):
        def apply(self, writes: object, position: object) -> None:
            raise StoreCorruptedError(self.path, "bad block")

    disk.kind = Damaged

    async def test() -> None:
        world.fill(120)
        world.copies.assign(standby(ZERO))
        await world.until(lambda: ("counts", 0) in world.disk)
        disk.kind = MemoryStore
        held = world.disk["counts", 0]
        await world.until(lambda: disk.deleted)
        world.fill(120, 1)
        world.copies.assign(standby(ZERO, ONE))
        await world.until(all_followed(world))
        assert world.disk["counts", 0] is not held
        assert disk.deleted == [("counts", 0)]

    world.run(test())


def test_what_an_owner_made_anew_isnt_deleted(world: World) -> None:
    disk = Disk(world)

    async def test() -> None:
        world.fill(120)
        world.copies.assign(standby(ZERO))
        await world.until(lambda: world.position() == world.end())
        world.copies._follower.fail(LOG_0, StoreCorruptedError(world.disk["counts", 0].path, "bad block"))
        await world.copies.release("count", 0)
        world.copies.assign(standby(ZERO))
        await world.until(lambda: world.position() == world.end())
        assert disk.deleted == []

    world.run(test())


def test_readers_dont_get_a_copy_that_is_wiped(world: World) -> None:
    given: list[bool] = []

    class Watched(MemoryStore):
        def wipe(self) -> None:
            given.append(world.copies.stores_of("count", 0) is not None)
            super().wipe()
            given.append(world.copies.stores_of("count", 0) is not None)

    Disk(world).kind = Watched

    async def test() -> None:
        world.fill(120)
        world.copies.assign(standby(ZERO))
        await world.until(lambda: world.copies.stores_of("count", 0) is not None)
        build_anew(world)
        await world.until(lambda: len(given) == 2)
        assert given == [False, False]
        await world.until(lambda: world.copies.stores_of("count", 0) is not None)
        assert world.position() == world.end()

    world.run(test())


def test_a_store_that_fails_for_ever_stops_nothing_but_its_own_copy(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk(world)
    tried: list[float] = []

    class Full(MemoryStore):
        def apply(self, writes: object, position: object) -> None:
            tried.append(world.clock.monotonic())
            raise StoreUnavailableError("no space left")

    def open_one(store: str, partition: int) -> MemoryStore:
        disk.kind = Full if partition == 0 and not mended else MemoryStore
        return Disk.open(disk, store, partition)

    mended: list[bool] = []
    world.cache._open_store = open_one

    async def test() -> None:
        world.fill(10)
        world.copies.assign(standby(ZERO, ONE))
        for number in range(300):
            world.put(f"k{number}", "1", 1)
            await world.until(lambda: world.position(1) == world.end(1), 2)
            await asyncio.sleep(1)
        assert len(tried) < 20
        mended.append(True)
        await world.until(all_followed(world), 40)

    world.run(test())
    assert "count[0]: the copy can't be kept: no space left; it is tried again in 1 s" in caplog.text
    assert "copies can't be" not in caplog.text, "that would stop all"


def test_an_idle_copy_whose_store_fails_is_opened_anew(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its disk is told how old it is: RocksDB takes nothing more after the first write that fails."""
    disk, opened, asked = Disk(world), [], []
    bounds = FakeTopicLogs.bounds

    async def then_a_record_comes(logs: FakeTopicLogs, partition: TopicPartition) -> LogBounds:
        found = await bounds(logs, partition)
        asked.append(partition)
        if len(asked) == 2:
            world.fill(1)
        return found

    monkeypatch.setattr(FakeTopicLogs, "bounds", then_a_record_comes)

    class Broken(MemoryStore):
        def apply(self, writes: object, position: object) -> None:
            raise StoreUnavailableError("the database is read-only since its first error")

    def open_one(store: str, partition: int) -> MemoryStore:
        opened.append(partition)
        disk.kind = Broken if len(opened) == 1 else MemoryStore
        return Disk.open(disk, store, partition)

    world.cache._open_store = open_one

    async def test() -> None:
        world.copies.assign(standby(ZERO))
        await world.until(lambda: world.copies.stores_of("count", 0) is not None and opened == [0, 0])
        assert world.position() == 1

    world.run(test())
    assert "copies can't be" not in caplog.text, "that would stop all"


def test_a_copy_that_was_released_while_it_was_opened_isnt_followed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it is wanted again by then: its owner may have written to it, and may still."""
    opening, go_on = asyncio.Event(), asyncio.Event()
    original = Standbys.open_store

    async def slow(self: Standbys, *args: Any) -> StandbyStore:
        copy = await original(self, *args)
        opening.set()
        await go_on.wait()
        return copy

    async def test() -> None:
        world.fill(10)
        monkeypatch.setattr(Standbys, "open_store", slow)
        world.copies.assign(standby(ZERO))
        await opening.wait()
        releasing = asyncio.create_task(world.copies.release("count", 0))
        await asyncio.sleep(0)
        world.owned.add(0)
        world.copies.assign(standby(ZERO))
        go_on.set()
        await releasing
        await asyncio.sleep(5)
        assert world.copies.copies == []
        assert world.position() == -1
        world.owned.clear()
        await world.until(lambda: world.position() == 10)

    world.run(test())
