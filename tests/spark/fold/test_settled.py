"""Logs that are written to and compacted while they are read."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from spark_replay import ReadError, Wanted, archive, archive_topics, kafka, validate_exports, write_rebuild
from spark_replay.fold import settled
from spark_replay.fold.rebuild import folded_at
from spark_replay.fold.rebuilt import read_rebuild
from spark_replay.fold.windows import NO_WINDOWS
from spark_replay.recompute import recompute
from spark_replay.sources.brokers import tailing
from spark_replay.sources.brokers.topic import Topic, java_list
from spark_replay.sources.kafka import KafkaSource
from tests.kafka.helpers import eventually, read_all
from tests.spark.helpers import (
    NOW_MS,
    PARTITIONS,
    Export,
    Log,
    Transaction,
    append,
    fold,
    put,
    random_transactions,
    write_log,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "50",
    "min.cleanable.dirty.ratio": "0.001",
    "max.compaction.lag.ms": "100",
}
KEYS = "abcdef"


@pytest.fixture(scope="module", autouse=True)
def quick_cleaner(spark: SparkSession, brokers: str) -> Iterator[None]:
    """Have the broker look for logs to compact all the time, not every 15 s."""
    set_backoff(spark, brokers, "100")
    yield
    set_backoff(spark, brokers, None)


def set_backoff(spark: SparkSession, brokers: str, backoff_ms: str | None) -> None:
    jvm = spark._jvm
    configs, admins = jvm.org.apache.kafka.common.config, jvm.org.apache.kafka.clients.admin
    kinds = getattr(admins, "AlterConfigOp$OpType")
    kind = kinds.DELETE if backoff_ms is None else kinds.SET
    setting = admins.AlterConfigOp(admins.ConfigEntry("log.cleaner.backoff.ms", backoff_ms), kind)
    every_broker = configs.ConfigResource(getattr(configs, "ConfigResource$Type").BROKER, "")
    client = jvm.java.util.HashMap()
    client.put("bootstrap.servers", brokers)
    admin = admins.AdminClient.create(client)
    try:
        asked = jvm.java.util.HashMap()
        asked.put(every_broker, java_list(jvm, [setting]))
        admin.incrementalAlterConfigs(asked).all().get()
    finally:
        admin.close()


def all_keys(value: str, source_offset: int = 0) -> Transaction:
    return Transaction(tuple(put(name, value, source_offset=source_offset) for name in KEYS))


def compact(brokers: str, log: Log, gone: str, source_offset: int = 0) -> None:
    """Overwrite all keys until compaction has taken a value of theirs."""

    async def run() -> None:
        async def is_gone() -> bool:
            # each write makes a new segment, and the cleaner leaves the last one alone
            await append(brokers, log, [all_keys("later", source_offset)])
            return all(record.value != gone.encode() for record in await read_all(brokers, log.topic))

        await eventually(is_gone, deadline_s=120, what="compaction")

    asyncio.run(run())


def before_read(monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], None]) -> None:
    """Do something when the log is described already, and right before it is read for the nth time."""
    records, calls = KafkaSource.records, []

    def hooked(source: KafkaSource, topic: Topic) -> DataFrame:
        calls.append(topic)
        if len(calls) == number:
            act()
        return records(source, topic)

    monkeypatch.setattr(KafkaSource, "records", hooked)


def rows(spark: SparkSession, folder: Path) -> dict:
    found = read_rebuild(spark, folder).collect()
    return {(row["partition"], bytes(row["key"])): (bytes(row["value"]), row["offset"]) for row in found}


def expected(log: Log, done) -> dict:
    """What the log stands for at the ends that a rebuild tells."""
    state = fold(log.records, before=[part.end_offset for part in done.partitions], as_of_ms=done.as_of_ms)
    return {place: (write.value, write.offset) for place, write in state.items()}


@pytest.mark.nightly
def test_compaction_between_the_look_at_the_ends_and_the_read(
    spark: SparkSession, brokers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    log = write_log(brokers, [all_keys("first")], config=COMPACTED)
    source = kafka(spark, brokers, log.topic)
    with monkeypatch.context() as patch:
        before_read(patch, 1, lambda: compact(brokers, log, "first"))
        done = write_rebuild(source, to=tmp_path / "latest", as_of_ms=NOW_MS)
    assert (done.keys, done.unknown) == (len(KEYS), 0)
    assert rows(spark, tmp_path / "latest") == expected(log, done)
    # an archive from before has an older value, and the log lost the one that was there at the look
    archive_topics(spark, Wanted(brokers=brokers, topics=(log.topic,)), to=tmp_path / "archive")
    asyncio.run(append(brokers, log, [all_keys("second")]))
    joined = source.after(archive(spark, tmp_path / "archive", log.topic))
    with monkeypatch.context() as patch:
        before_read(patch, 1, lambda: compact(brokers, log, "second"))
        done = write_rebuild(joined, to=tmp_path / "joined", as_of_ms=NOW_MS)
    assert (done.keys, done.unknown) == (len(KEYS), 0)
    assert rows(spark, tmp_path / "joined") == expected(log, done)


@pytest.mark.nightly
def test_compaction_under_a_point_and_a_position(
    spark: SparkSession, brokers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    log = write_log(brokers, [all_keys("first")], config=COMPACTED)
    source = kafka(spark, brokers, log.topic)
    ends = log.ends
    asyncio.run(append(brokers, log, [all_keys("second")]))
    point = "offset:" + ",".join(f"{number}={end}" for number, end in enumerate(ends))
    with monkeypatch.context() as patch:
        # what was read first is gone when it is counted: it is read again, and can't be told any more
        before_read(patch, 2 + _looks(source, point), lambda: compact(brokers, log, "first"))
        found = folded_at(source, point)
    assert (found.state(NO_WINDOWS.past()).count(), found.unknown.count()) == (0, len(KEYS))
    assert found.point.before == tuple(ends)
    with monkeypatch.context() as patch:
        patch.setattr(settled._Fold, "_is_whole", lambda *_: False)
        with pytest.raises(ReadError, match="was compacted while it was read, 3 times"):
            folded_at(source, point)
    # an export of what is gone at its position is no mismatch, and none is missed
    Export.of(log, positions=log.ends).write(tmp_path / "exports")
    with monkeypatch.context() as patch:
        before_read(patch, 1, lambda: compact(brokers, log, "later-that-never-was"))
        report = validate_exports(source, against=tmp_path / "exports")
    assert report.mismatches == 0
    assert report.compared + report.counts["superseded"] == len(KEYS)


def _looks(source: KafkaSource, point: str) -> int:
    """How many reads find the time of a point."""
    calls: list[Topic] = []
    with pytest.MonkeyPatch.context() as patch:
        records = KafkaSource.records
        patch.setattr(KafkaSource, "records", lambda self, topic: calls.append(topic) or records(self, topic))
        patch.setattr("spark_replay.fold.rebuild.settle", lambda *_, **__: None)
        folded_at(source, point)
    return len(calls)


@pytest.mark.nightly
def test_compaction_before_a_changelog_is_compared_with_what_was_recomputed(
    spark: SparkSession, brokers: str, monkeypatch: pytest.MonkeyPatch
):
    log = write_log(brokers, [all_keys("first", 3)], config=COMPACTED)
    described = kafka(spark, brokers, log.topic).describe()
    bounds = ((4,) * PARTITIONS,)
    plan = SimpleNamespace(kafka=kafka(spark, brokers, ""), changelogs={"store": described}, bounds=bounds)
    rows = recompute._logged(plan, "store").collect()
    assert {bytes(row["key"]).decode(): row["log"]["source_offset"] for row in rows} == dict.fromkeys(KEYS, 3)
    assert {bytes(row["log"]["value"]) for row in rows} == {b"first"}
    # later inputs' writes have taken the ones to be compared: only recomputed is what they aren't
    before_read(monkeypatch, 1, lambda: compact(brokers, log, "first", 9))
    rows = recompute._logged(plan, "store").collect()
    assert {bytes(row["key"]).decode(): row["log"] for row in rows} == dict.fromkeys(KEYS)
    assert all(row["later_offset"] is not None for row in rows)


@pytest.mark.nightly
def test_a_log_that_is_written_to_all_the_while(spark: SparkSession, brokers: str, tmp_path: Path):
    log = write_log(brokers, random_transactions(50, count=30, keys=40), config=COMPACTED)
    stop = threading.Event()

    def write() -> None:
        for number in range(10_000):
            if stop.is_set():
                return
            asyncio.run(append(brokers, log, random_transactions(51 + number, count=3, keys=40)))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        done = write_rebuild(kafka(spark, brokers, log.topic), to=tmp_path / "to", as_of_ms=NOW_MS)
    finally:
        stop.set()
        writer.join()
    assert done.unknown == 0
    assert rows(spark, tmp_path / "to") == expected(log, done)


@pytest.mark.nightly
def test_the_consumer_reads_what_spark_reads(spark: SparkSession, brokers: str):
    log = write_log(brokers, random_transactions(52, count=30, keys=40))
    source = kafka(spark, brokers, log.topic)
    topic = source.describe()
    ends, records = tailing.catch_up(
        spark,
        {"bootstrap.servers": brokers},
        Topic(log.topic, topic.starts, topic.starts, topic.ends),
        range(PARTITIONS),
    )
    assert ends == topic.ends
    frame = spark.createDataFrame(records, source.records(topic).schema)
    wanted = source.records(topic)
    assert frame.exceptAll(wanted).count() == wanted.exceptAll(frame).count() == 0
    assert frame.count() == len(log.records)
