"""Copies of window stores and joins: what is past its retention leaves their disks as it leaves the owner's."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest

from actors import App, Tumbling
from actors._core.windows.join_rows import segment_row
from actors._core.windows.rows import aligned_key
from actors.ports import TopicPartition
from stores._core.record import METADATA_BYTES, METADATA_HEADER, encode_metadata
from stores._core.windows import PROGRESS_KEY, Progress, encode_progress
from tests.unit.runtime.replicas.test_standbys import LOG, ZERO, Spec, World, standby

HOUR_MS = 3_600_000
APP = App("shop", broker="kafka://127.0.0.1:1")
WINDOWS = APP.window_store("counts", Tumbling(minutes=1), retention=timedelta(hours=32))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(Spec, "windows", (WINDOWS,))
    made = World()
    yield made
    made.loop.close()


def put(world: World, row: bytes, value: bytes) -> None:
    metadata = encode_metadata(1, world.end())
    world.cluster.produce(TopicPartition(LOG, 0), [(row, value, [(METADATA_HEADER, metadata)])])


def expire(world: World, hours: int) -> None:
    """Say that windows that begin before that hour are past their retention."""
    put(world, PROGRESS_KEY, encode_progress(Progress(0, expired=aligned_key(hours * HOUR_MS, b""))))


def starts(world: World) -> list[int]:
    rows = (row for row, _ in world.disk["counts", 0].scan() if row[:1] == b"w")
    return [int.from_bytes(row[1:9]) // HOUR_MS for row in rows]


def fill(world: World) -> None:
    for hour in range(48):
        put(world, aligned_key(hour * HOUR_MS, b"key"), b"v1")


def test_a_copy_removes_what_its_owner_may_have_removed(world: World) -> None:
    async def test() -> None:
        fill(world)
        world.copies.assign(standby(ZERO))
        await world.until(lambda: world.position() == world.end())
        expire(world, 10)
        await world.until(lambda: starts(world) == list(range(10, 48)))
        assert world.position() == world.end(), "it is where it was"
        expire(world, 40)
        await world.until(lambda: starts(world) == list(range(40, 48)))
        assert world.follows == 1, "nothing was read again"

    world.run(test())


def test_it_removes_many_windows_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each removal costs later reads: one is worth an hour here, a 32nd of the retention."""
    removed: list[tuple[bytes, bytes]] = []

    async def test() -> None:
        fill(world)
        world.copies.assign(standby(ZERO))
        await world.until(lambda: world.position() == world.end())
        drop = world.disk["counts", 0].drop
        monkeypatch.setattr(
            world.disk["counts", 0], "drop", lambda start, end: (removed.append((start, end)), drop(start, end))
        )
        for minute in range(1, 150):
            expired = aligned_key(minute * 60_000, b"")
            put(world, PROGRESS_KEY, encode_progress(Progress(0, expired=expired)))
            await asyncio.sleep(1.5)
        minutes = [aligned_key(minute * 60_000, b"") for minute in (1, 61, 121)]
        assert removed == [(b"w", minutes[0]), (minutes[0], minutes[1]), (minutes[1], minutes[2])]

    world.run(test())


def test_a_row_that_cannot_be_read_removes_nothing(world: World) -> None:
    async def test() -> None:
        fill(world)
        put(world, PROGRESS_KEY, b"p?")
        world.copies.assign(standby(ZERO))
        await world.until(lambda: world.position() == world.end())
        await asyncio.sleep(5)
        assert len(starts(world)) == 48
        assert world.copies.lags() == {ZERO: 0}
        assert world.disk["counts", 0].get(PROGRESS_KEY)[METADATA_BYTES:] == b"p?"

    world.run(test())


def test_records_of_a_join_are_removed_as_windows_are(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    left, right = (app.topic(name, key_type=str) for name in ("left", "right"))
    app.join(left, right, within=timedelta(minutes=1), name="counts")(lambda ctx, one, other: None)
    monkeypatch.setattr(Spec, "windows", app.actors["counts"].windows)

    async def test() -> None:
        for segment in range(10):
            put(world, segment_row(segment) + b"\0\0\0\0\0key", b"c")
        put(world, b"u" + bytes(17) + b"key", b"")
        put(world, PROGRESS_KEY, encode_progress(Progress(0, expired=segment_row(7))))
        world.copies.assign(standby(ZERO))
        await world.until(lambda: world.position() == world.end())
        await world.until(lambda: len(list(world.disk["counts", 0].scan())) == 5)
        assert [row[:1] for row, _ in world.disk["counts", 0].scan()] == [b"j", b"j", b"j", b"m", b"u"]

    world.run(test())
