"""A restore from a snapshot and the changelog's tail ends as one from the changelog alone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from actors._core.task.takeover import LostChangelog
from actors.ports import TopicPartition
from actors.runtime.state.restore import Changelog, Restored, Restorer
from stores._core.record import METADATA_HEADER, Position, encode_metadata
from stores._core.replay import NO_METADATA
from stores.errors import SnapshotError
from stores.memory import MemoryStore
from tests.logs import NOW_MS, Clock, Log, Record

DAY_MS = 86_400_000
CHANGELOG = Changelog("store", "app--store-changelog", "id", DAY_MS, 1_000_000, 4)


@dataclass(frozen=True)
class Snapshot:
    """A partition's snapshot, and itself the place where it lies."""

    content: dict[bytes, bytes]
    position: Position
    changelog: str = CHANGELOG.topic
    partition_count: int = CHANGELOG.partition_count
    error: str = ""

    @property
    def keys(self) -> int:
        return len(self.content)

    @asynccontextmanager
    async def fetched(self) -> AsyncIterator[Snapshot]:
        yield self

    def place(self, folder: object) -> list:
        raise NotImplementedError

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        yield from sorted(self.content.items())
        if self.error:
            raise SnapshotError(self.error)

    def find(self, store: str, partition: int) -> Snapshot:
        assert (store, partition) == ("store", 1)
        return self


def fold(records: Sequence[Record], end: int) -> Snapshot:
    """What a snapshot of the log up to `end` holds: the plain way, from the words of docs/design/0001-formats.md."""
    content: dict[bytes, bytes] = {}
    owner = (0, -1)
    for record in records:
        if record.offset >= end or record.key is None:
            continue
        metadata = dict(record.headers).get(METADATA_HEADER, NO_METADATA)
        content.pop(record.key, None)
        if record.value is not None:
            content[record.key] = metadata + record.value
        epoch, source_offset = int.from_bytes(metadata[1:9], "big"), int.from_bytes(metadata[9:17], "big")
        if epoch:
            owner = max(owner, (epoch, source_offset))
    return Snapshot(content, Position(owner[1] + 1, end, NOW_MS - 1000, owner[0], CHANGELOG.topic_id))


def restore(
    log: Log, snapshot: Snapshot | None, store: MemoryStore | None = None, clock: Clock | None = None
) -> Restored:
    restorer = Restorer(
        log, clock or Clock(), clock_skew_margin_ms=1000, snapshots=snapshot, lost=LostChangelog.REBUILD
    )
    return asyncio.run(restorer.restore(store or MemoryStore(), CHANGELOG, 1))


KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
METADATA = st.none() | st.builds(
    encode_metadata, st.integers(0, 3), st.integers(0, 5), st.sampled_from([0, 5, NOW_MS * 2])
)


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    offset, records = draw(st.integers(0, 3)), []
    for key, value, metadata in draw(
        st.lists(st.tuples(st.none() | KEYS, st.none() | st.binary(max_size=2), METADATA), max_size=20)
    ):
        records.append(Record(offset, key, value, () if metadata is None else ((METADATA_HEADER, metadata),)))
        offset += draw(st.integers(1, 3))
    return records


@given(records=logs(), cut=st.integers(0, 40), chunks=st.tuples(st.integers(1, 5), st.integers(1, 5)))
def test_a_snapshot_and_the_tail_are_the_changelog(records: list[Record], cut: int, chunks: tuple[int, int]) -> None:
    whole, rest = Log(records, chunk=chunks[0]), Log(records, chunk=chunks[1])
    cut = min(cut, whole.end)
    from_log, from_snapshot = restore(whole, None), restore(rest, fold(records, cut))
    assert list(from_snapshot.store.scan()) == list(from_log.store.scan())
    assert from_snapshot.position == from_log.position
    assert rest.given_from(cut) == [record.offset for record in records if record.offset >= cut]
    on_disk = [held.store.position() for held in (from_snapshot, from_log)]
    assert replace(on_disk[0], wall_time_ms=0, changelog_offset=0) == replace(
        on_disk[1], wall_time_ms=0, changelog_offset=0
    )


def put(offset: int, key: bytes, value: bytes | None, *, epoch: int = 1) -> Record:
    return Record(offset, key, value, ((METADATA_HEADER, encode_metadata(epoch, offset * 10)),))


RECORDS = [put(0, b"a", b"1"), put(1, b"b", b"1"), put(2, b"a", None), put(3, b"c", b"1"), put(4, b"b", b"2")]


@pytest.mark.parametrize(
    ("changes", "log", "text"),
    [
        ({"changelog": "other"}, {}, "it is of topic other"),
        ({"partition_count": 8}, {}, "it is of 8 partitions, the topic has 4"),
        ({"changelog_id": "another"}, {}, "the changelog was the topic with the id another"),
        ({"changelog_offset": 6}, {}, "the changelog ends at 5, before"),
        ({}, {"start": 4}, "the changelog starts at 4, after"),
        ({"wall_time_ms": NOW_MS - DAY_MS + 900}, {}, "older than deletes are kept"),
        ({"error": "damaged"}, {}, "damaged"),
    ],
)
def test_a_snapshot_that_does_not_fit_costs_one_line(
    caplog: pytest.LogCaptureFixture, changes: dict, log: dict, text: str
) -> None:
    snapshot = fold(RECORDS, 3)
    of_position = {name: changes.pop(name) for name in list(changes) if hasattr(snapshot.position, name)}
    snapshot = replace(snapshot, position=replace(snapshot.position, **of_position), **changes)
    with caplog.at_level(logging.WARNING):
        found = restore(Log(RECORDS, **log), snapshot)
    [line] = caplog.messages
    assert line.startswith("app--store-changelog[1]: the snapshot isn't used, the changelog has everything: ")
    assert text in line
    expected = restore(Log(RECORDS, **log), None)
    assert (list(found.store.scan()), found.position) == (list(expected.store.scan()), expected.position)


def test_an_old_snapshot_without_a_tail_is_as_good_as_a_new_one() -> None:
    snapshot, log = fold(RECORDS, 5), Log(RECORDS)
    assert (
        restore(log, replace(snapshot, position=replace(snapshot.position, wall_time_ms=0))).position.changelog_offset
        == 5
    )
    assert log.given_from(5) == []


def test_deletes_that_escaped_a_snapshot_while_the_tail_was_read_give_it_up(caplog: pytest.LogCaptureFixture) -> None:
    """The snapshot is young enough when it is taken, and too old when the tail, without the tombstone of `b`, was
    read."""
    snapshot, clock = fold(RECORDS, 2), Clock()

    class Slow(Log):
        async def read(self, partition: TopicPartition, start: int, end: int, topic_id: str) -> AsyncIterator:
            clock.now_ms += 0 if self.given else DAY_MS // 2
            async for chunk in super().read(partition, start, end):
                yield chunk

    compacted = Slow([RECORDS[3], put(5, b"d", b"1")], end=6)
    clock.now_ms = snapshot.position.wall_time_ms + DAY_MS // 2
    found = restore(compacted, snapshot, clock=clock)
    assert [key for key, _ in found.store.scan()] == [b"c", b"d"]
    assert "some may have escaped it" in caplog.text
    clock.now_ms = snapshot.position.wall_time_ms
    assert [key for key, _ in restore(compacted, snapshot, clock=clock).store.scan()] == [b"a", b"b", b"c", b"d"]


def test_a_store_that_holds_something_takes_no_snapshot() -> None:
    store, log = MemoryStore(), Log(RECORDS)
    store.apply([(b"a", NO_METADATA)], replace(fold(RECORDS, 1).position))
    restore(log, replace(fold(RECORDS, 5), content={b"z": NO_METADATA}), store)
    assert [key for key, _ in store.scan()] == [b"b", b"c"]
    assert log.given_from(1) == [1, 2, 3, 4]


def test_a_store_that_is_rebuilt_begins_from_a_snapshot() -> None:
    store, log = MemoryStore(), Log(RECORDS)
    store.apply([(b"z", NO_METADATA)], replace(fold(RECORDS, 1).position, changelog_id="former"))
    restore(log, fold(RECORDS, 4), store)
    assert [key for key, _ in store.scan()] == [b"b", b"c"]
    assert log.given_from(4) == [4]


def test_no_snapshot_is_no_reason_to_warn(caplog: pytest.LogCaptureFixture) -> None:
    class Nothing:
        def find(self, store: str, partition: int) -> None:
            return None

    found = asyncio.run(
        Restorer(Log(RECORDS), Clock(), clock_skew_margin_ms=1000, snapshots=Nothing()).restore(
            MemoryStore(), CHANGELOG, 1
        )
    )
    assert [key for key, _ in found.store.scan()] == [b"b", b"c"]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
