"""Copies that begin from a snapshot."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from actors.runtime.state.restore import Restorer
from actors.testing.fakes.views import FakeTopicLogs
from stores._core.record import Position
from stores.memory import MemoryStore
from tests.unit.runtime.replicas.test_standbys import LOG, ONE, ZERO, World, standby


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.loop.close()


@dataclass
class Snapshot:
    """The content of partition 0 up to an offset, and itself the place where it lies."""

    content: dict[bytes, bytes]
    position: Position
    changelog: str = LOG
    partition_count: int = 2

    @property
    def keys(self) -> int:
        return len(self.content)

    @asynccontextmanager
    async def fetched(self) -> "AsyncIterator[Snapshot]":
        yield self

    def place(self, folder: object) -> list[Path]:
        raise NotImplementedError

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        yield from sorted(self.content.items())

    def find(self, store: str, partition: int) -> Any:
        return self if partition == 0 else None


@pytest.mark.parametrize("is_fit", [True, False])
def test_an_empty_copy_begins_from_a_snapshot(world: World, is_fit: bool, caplog: pytest.LogCaptureFixture) -> None:
    read: list[int] = []

    async def test() -> None:
        world.fill(200)
        world.copies.assign(standby(ZERO))
        await world.until(lambda: world.position() == 200)
        await world.copies.release("count", 0)
        whole = dict(world.disk["counts", 0].scan())
        position = world.disk["counts", 0].position()
        assert position is not None
        snapshot = Snapshot(whole, replace(position, changelog_id=position.changelog_id if is_fit else "another"))
        world.fill(10, partition=1)
        world.put("k3", None)
        world.put("new", "1")
        await world.copies.stop()
        world.cache.close()
        world.disk.clear()
        world.copies = world.start(snapshot)
        world.copies.start()
        apply = world.copies._follower._apply
        world.copies._follower._apply = lambda store, records, end: (  # type: ignore[method-assign]
            read.append(len(records)) if store.source.partition == 0 else None,
            apply(store, records, end),
        )[1]
        world.copies.assign(standby(ZERO, ONE))
        await world.until(lambda: world.position() == 202 and world.position(1) == 10)
        assert world.content() == {f"k{number}": "1" for number in range(200) if number != 3} | {"new": "1"}

    with caplog.at_level(logging.INFO):
        world.run(test())
    assert sum(read) == (2 if is_fit else 202)
    assert (
        "begun with 200 keys of" if is_fit else "the snapshot isn't used, the changelog has everything"
    ) in caplog.text


def test_a_snapshot_that_got_too_old_under_a_copy_isnt_taken_again(world: World) -> None:
    """The copy is built anew when deletes may have escaped it, and the snapshot would bring them back again."""

    async def test() -> None:
        world.fill(10)
        changelog = world.copies._specs["count"].changelogs["counts"]
        logs = FakeTopicLogs(world.cluster, world.network, chunk_records=50)
        restored = await Restorer(logs, world.clock, clock_skew_margin_ms=1000).restore(MemoryStore(), changelog, 0)
        snapshot = Snapshot(dict(restored.store.scan()), restored.position)
        world.put("k3", None)
        world.put("k4", "2")
        await world.copies.stop()
        world.copies = world.start(snapshot)
        world.copies.start()
        world.restoring = True
        world.copies.assign(standby(ZERO))
        await world.until(lambda: ("counts", 0) in world.disk)
        await asyncio.sleep(3700)
        world.compact()
        world.put("k5", "1")
        await asyncio.sleep(3700)
        world.compact()
        world.put("k6", "1")
        world.restoring = False
        await world.until(lambda: world.position() == world.end())
        assert "k3" not in world.content()

    world.run(test())
