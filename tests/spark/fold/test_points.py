"""Rebuilds at points of a log: of Kafka, of an archive, and of both, against a plain fold."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_replay import (
    AsOf,
    LogTooShortError,
    PointError,
    Source,
    Wanted,
    archive,
    archive_topics,
    kafka,
    rebuild_state,
    unknown_keys,
    write_rebuild,
)
from tests.kafka.helpers import make_topics, unique
from tests.spark.helpers import (
    NOW_MS,
    PARTITIONS,
    Log,
    Transaction,
    Write,
    append,
    cut_log,
    fold,
    home,
    put,
    random_transactions,
    write_log,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Sources = dict[str, Source]
# its records are of long ago
KEPT = {"retention.ms": "-1"}


def at_times(transactions: list[Transaction], first_ms: int) -> list[Transaction]:
    """The same a second apart."""
    return [
        replace(
            transaction,
            writes=tuple(replace(write, timestamp_ms=first_ms + 1000 * number) for write in transaction.writes),
        )
        for number, transaction in enumerate(transactions)
    ]


@pytest.fixture(scope="module")
def log(brokers: str) -> Log:
    # they expire around NOW_MS, which is in the middle of the log
    return write_log(brokers, at_times(random_transactions(21, count=120, keys=60), NOW_MS - 60_000), config=KEPT)


@pytest.fixture(scope="module")
def sources(spark: SparkSession, brokers: str, log: Log, tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """The log in Kafka; an archive of all of it; an archive of a part, and Kafka behind it."""
    folder = tmp_path_factory.mktemp("archives")
    archive_topics(spark, Wanted(brokers=brokers, topics=(log.topic,)), to=folder / "all")
    limited = Wanted(brokers=brokers, topics=(log.topic,), max_offsets_per_trigger=200)
    stopped_after_one_batch(spark, limited, folder / "part")
    whole, part = (archive(spark, folder / name, log.topic) for name in ("all", "part"))
    assert 0 < sum(part.describe().ends) < sum(whole.describe().ends)
    log_now = kafka(spark, brokers, log.topic)
    return {"kafka": log_now, "archive": whole, "joined": log_now.after(part)}


def stopped_after_one_batch(spark: SparkSession, wanted: Wanted, to: Path) -> None:
    import threading

    stop = threading.Event()
    archive_topics(spark, wanted, to=to, stop=stop, tell=lambda _: stop.set())


def collected(frame: DataFrame) -> dict:
    return {(row["partition"], bytes(row["key"])): (bytes(row["value"]), row["offset"]) for row in frame.collect()}


def expected(records: list[Write], before: list[int | None], times_ms: list[int]) -> dict:
    found = {}
    for number, time_ms in enumerate(times_ms):
        state = fold([write for write in records if write.partition == number], before=before, as_of_ms=time_ms)
        found |= {place: (write.value, write.offset) for place, write in state.items()}
    return found


@pytest.mark.parametrize("name", ["kafka", "archive", pytest.param("joined", marks=pytest.mark.nightly)])
def test_state_at_offsets(sources: Sources, log: Log, name: str):
    chance = random.Random(3)
    before = [chance.randrange(end // 4, end) for end in log.ends]
    # the time at an offset is that of the last record below it
    times = [
        max((w.offset, w.timestamp_ms or 0) for w in log.records if w.partition == number and w.offset < offset)[1]
        for number, offset in enumerate(before)
    ]
    state = rebuild_state(sources[name], as_of=AsOf(offsets=dict(enumerate(before))))
    assert collected(state) == expected(log.records, list(before), times)
    assert collected(state) != expected(log.records, list(before), [0] * PARTITIONS)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["kafka", "archive", "joined"])
def test_state_at_a_time(sources: Sources, log: Log, name: str):
    time_ms = NOW_MS + 500
    before = [
        min(w.offset for w in log.records if w.partition == number and (w.timestamp_ms or 0) >= time_ms)
        for number in range(PARTITIONS)
    ]
    state = rebuild_state(sources[name], as_of=f"timestamp:{time_ms}")
    assert collected(state) == expected(log.records, list(before), [time_ms] * PARTITIONS)


@pytest.mark.nightly
def test_latest_of_every_source(sources: Sources, log: Log):
    for source in sources.values():
        state = rebuild_state(source, as_of_ms=NOW_MS)
        assert collected(state) == expected(log.records, [None] * PARTITIONS, [NOW_MS] * PARTITIONS)


@pytest.mark.nightly
def test_a_time_before_the_first_record_is_told(sources: Sources, tmp_path: Path):
    for name, source in sources.items():
        done = write_rebuild(source, to=tmp_path / name, as_of=f"timestamp:{NOW_MS - 10_000_000}")
        assert done.keys == 0
        [note] = done.notes
        assert f"timestamp:{NOW_MS - 10_000_000} lies before the first record of {source}, which is of 2025-" in note


def test_points_beyond_the_log(sources: Sources, log: Log):
    for source in sources.values():
        with pytest.raises(PointError, match=rf"partition 1: ends at \d+, the point is {log.ends[1] + 1000}"):
            rebuild_state(source, as_of=f"offset:1={log.ends[1] + 1000}")
    with pytest.raises(PointError, match=r"names partition 7, .* has 0 to 2"):
        rebuild_state(sources["kafka"], as_of="offset:7=0")
    with pytest.raises(PointError, match="is in the future"):
        rebuild_state(sources["kafka"], as_of="timestamp:2999-01-01T00:00:00Z")


@pytest.fixture
def compacted(brokers: str) -> Callable[[list[Transaction]], Log]:
    return lambda transactions: write_log(brokers, transactions, config={"cleanup.policy": "compact"})


@pytest.mark.nightly
def test_keys_that_compaction_may_have_taken_are_unknown(
    spark: SparkSession, brokers: str, compacted: Callable[[list[Transaction]], Log], tmp_path: Path
):
    """The log as compaction may leave it: of `late` there is a write behind the point only."""
    early = [put("left", "1"), put("again", "1")]
    log = compacted([Transaction(tuple(early)), Transaction((put("again", "2"), put("late", "1")))])
    point = AsOf(offsets={n: sum(1 for w in early if w.partition == n) for n in range(PARTITIONS)})
    source = kafka(spark, brokers, log.topic)
    done = write_rebuild(source, to=tmp_path / "to", as_of=point)
    late = next(write for write in log.records if write.key == b"late")
    assert (done.keys, done.unknown) == (2, 1)
    [named] = done.unknown_keys
    assert (named.partition, named.key, named.later_offset) == (home(b"late"), "late", late.offset)
    assert [bytes(row["key"]) for row in unknown_keys(source, as_of=point).collect()] == [b"late"]
    # what is never compacted is known
    free = write_log(brokers, [Transaction(tuple(early)), Transaction((put("late", "1"),))])
    assert write_rebuild(kafka(spark, brokers, free.topic), to=tmp_path / "free", as_of=point).unknown == 0


@pytest.mark.nightly
def test_an_archive_knows_what_was_at_the_end_of_a_batch(
    spark: SparkSession, brokers: str, compacted: Callable[[list[Transaction]], Log], tmp_path: Path
):
    log = compacted([Transaction((put("again", "1"),))])
    wanted = Wanted(brokers=brokers, topics=(log.topic,))
    first = archive_topics(spark, wanted, to=tmp_path / "archive")
    late = next(name for name in map(str, range(100)) if home(name.encode()) == home(b"again"))
    asyncio.run(append(brokers, log, [Transaction((put("again", "2"), put(late, "1")))]))
    archive_topics(spark, wanted, to=tmp_path / "archive")
    source = archive(spark, tmp_path / "archive", log.topic)
    point = AsOf(offsets=dict(enumerate(first.topics[log.topic])))
    done = write_rebuild(source, to=tmp_path / "to", as_of=point)
    assert (done.keys, done.unknown) == (1, 0)
    alone = write_rebuild(kafka(spark, brokers, log.topic), to=tmp_path / "alone", as_of=point)
    assert (alone.keys, alone.unknown) == (1, 1)
    # inside of the second batch nobody knows what compaction took before it was read
    within = AsOf(offsets={home(b"again"): first.topics[log.topic][home(b"again")] + 1})
    assert [bytes(row["key"]) for row in unknown_keys(source, as_of=within).collect()] == [late.encode()]


@pytest.mark.nightly
def test_a_point_before_the_log_begins(spark: SparkSession, brokers: str, tmp_path: Path):
    names = ("one", "two", "three", "four")
    topic = unique("app--store-changelog")
    asyncio.run(make_topics(brokers, topic, partitions=PARTITIONS, config=KEPT))
    log = Log(topic, [])
    # all in one partition, at one second after the other
    first = [
        Transaction((replace(put(name, "1"), partition=0, timestamp_ms=NOW_MS + 1000 * n),))
        for n, name in enumerate(names)
    ]
    asyncio.run(append(brokers, log, first))
    archive_topics(spark, Wanted(brokers=brokers, topics=(topic,)), to=tmp_path / "archive")
    cut = next(write.offset for write in log.records if write.key == b"three")
    asyncio.run(cut_log(brokers, topic, {0: cut}))
    alone = kafka(spark, brokers, topic)
    for text in ("offset:0=1", f"offset:0={cut}", f"timestamp:{NOW_MS + 500}"):
        with pytest.raises(LogTooShortError, match=rf"partition 0 begins at offset {cut}, the point lies before it"):
            rebuild_state(alone, as_of=text)
    joined = alone.after(archive(spark, tmp_path / "archive", topic))
    for source in (joined, archive(spark, tmp_path / "archive", topic)):
        state = rebuild_state(source, as_of=f"timestamp:{NOW_MS + 500}")
        assert [bytes(row["key"]) for row in state.collect()] == [b"one"]
    done = write_rebuild(alone, to=tmp_path / "to", as_of=f"offset:0={cut + 1}")
    assert done.keys == 1
    assert f"partition 0 begins at offset {cut}: what was written before" in done.notes[0]


@pytest.mark.nightly
def test_a_clock_that_goes_back(spark: SparkSession, brokers: str, tmp_path: Path):
    """A point at a time is before the first record that is so late; a key expires by the last record's clock."""
    topic = unique("app--store-changelog")
    asyncio.run(make_topics(brokers, topic, partitions=PARTITIONS, config=KEPT))
    log = Log(topic, [])

    def write(key: str, seconds: int, expires_at_ms: int = 0) -> Transaction:
        at_ms = NOW_MS + 1000 * seconds
        return Transaction((replace(put(key, "1", expires_at_ms=expires_at_ms), partition=0, timestamp_ms=at_ms),))

    asyncio.run(append(brokers, log, [write("ahead", 3, NOW_MS + 2500), write("behind", 1)]))
    archive_topics(spark, Wanted(brokers=brokers, topics=(topic,)), to=tmp_path / "part")
    asyncio.run(append(brokers, log, [write("between", 2), write("last", 5)]))
    archive_topics(spark, Wanted(brokers=brokers, topics=(topic,)), to=tmp_path / "all")
    alone = kafka(spark, brokers, topic)
    part, whole = (archive(spark, tmp_path / name, topic) for name in ("part", "all"))
    at = [write.offset for write in log.records]
    for source in (alone, whole, alone.after(part)):
        for text, seconds, before in (
            (f"timestamp:{NOW_MS + 2000}", 2, at[0]),
            (f"timestamp:{NOW_MS + 3500}", 3.5, at[3]),
            (f"offset:0={at[3]}", 2, at[3]),
            (f"offset:0={at[1]}", 3, at[1]),
        ):
            wanted = expected(log.records, [before, 0, 0], [NOW_MS + int(1000 * seconds)] * PARTITIONS)
            assert collected(rebuild_state(source, as_of=text)) == wanted, (str(source), text)
        write_rebuild(source, to=tmp_path / "base", as_of=f"offset:0={at[1]}", overwrite=True)
        text = rf"partition 0: keys count as expired at {NOW_MS + 2000} ms at the point, .* as of {NOW_MS + 3000} ms"
        with pytest.raises(PointError, match=text):
            write_rebuild(source, to=tmp_path / "to", base=tmp_path / "base", as_of=f"offset:0={at[3]}")
