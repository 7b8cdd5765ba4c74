"""Records at the edges of what Kafka takes: in an archive, rebuilt with it and without, and in a key's history."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from aiokafka import AIOKafkaProducer
from pyspark.sql import functions as F  # noqa: N812

from spark_replay import ReadError, archive, kafka, rebuild_state
from spark_replay.archiving import Wanted, archive_topics
from spark_replay.comparison.history import key_history
from spark_replay.sources import reading
from spark_replay.sources.archives.archive import ArchiveSource
from spark_replay.sources.brokers import tailing
from stores._core.record import METADATA_HEADER, encode_metadata
from tests.kafka.helpers import ROOT, make_topics, unique
from tests.spark.sources.archives import in_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

YEAR_10000_MS = 253_402_300_800_000
TIMES_MS = [0, 1, 999, YEAR_10000_MS - 1, YEAR_10000_MS, 9_007_199_254_740_991]
ANY_TIME = {
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "cleanup.policy": "delete",
    "retention.ms": "-1",
}
HEADERS: list[list[tuple[str, Any]]] = [[], [("a", b"1"), ("a", b"2"), ("", b""), ("a", b"1")], [("é\0", b"\xff\0")]]
METADATA = (METADATA_HEADER, encode_metadata(1, 2))
LARGEST_BYTES = 200_000_000

Sent = tuple[bytes | None, bytes | None, int, list[tuple[str, bytes]]]


async def send(brokers: str, topic: str, records: Iterable[Sent], compression: str | None = None) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=brokers, linger_ms=0, max_request_size=LARGEST_BYTES, compression_type=compression
    )
    await producer.start()
    try:
        for key, value, at_ms, headers in records:
            await producer.send_and_wait(topic, value, key, partition=0, timestamp_ms=at_ms, headers=headers)
    finally:
        await producer.stop()


def in_archive(source: ArchiveSource) -> list[Any]:
    from pyspark.sql import functions as F  # noqa: N812

    # Python has no time behind the year 9999
    rows = source.records(source.describe()).withColumn("timestamp", F.unix_millis("timestamp")).collect()
    return sorted(
        (
            row["partition"],
            row["offset"],
            row["key"] if row["key"] is None else bytes(row["key"]),
            row["value"] if row["value"] is None else bytes(row["value"]),
            row["timestamp"],
            tuple((header["key"], bytes(header["value"])) for header in row["headers"] or ()),
        )
        for row in rows
    )


def test_an_archive_has_what_its_topic_has(spark: SparkSession, brokers: str, tmp_path: Path):
    name, keys, values = unique("app--edges-changelog"), [None, b"", b"\0", b"\xff", b"k"], [b"", b"x", b"\xff"]
    asyncio.run(make_topics(brokers, name, config=ANY_TIME))
    records: list[Sent] = [
        (keys[n % 5], values[n % 3] if n % 5 == 0 or n % 4 else None, TIMES_MS[n % 6], [*HEADERS[n % 3], METADATA])
        for n in range(30)
    ]
    for sent in (records, records[:7]):
        asyncio.run(send(brokers, name, sent))
        archive_topics(spark, Wanted(brokers=brokers, topics=(name,)), to=tmp_path / "to", compact=True)
        source = archive(spark, tmp_path / "to", name)
        assert in_archive(source) == in_topic(brokers, name)
        live, kept = (sorted(map(str, rebuild_state(rows).collect())) for rows in (kafka(spark, brokers, name), source))
        assert live == kept
    events = key_history([source], b"k", limit=100).events
    assert {event.at_ms for event in events} > {YEAR_10000_MS, YEAR_10000_MS - 1}
    assert all(map(str, events))


def test_a_time_that_spark_lacks_is_named(spark: SparkSession, brokers: str, tmp_path: Path):
    name = unique("edges")
    asyncio.run(make_topics(brokers, name, config=ANY_TIME))
    # nanoseconds, where Kafka has milliseconds
    asyncio.run(send(brokers, name, [(b"k", b"v", 1_760_000_000_000_000_000, [])]))
    with pytest.raises(ReadError, match="a record's timestamp is behind the year 294246, which Spark can't hold"):
        archive_topics(spark, Wanted(brokers=brokers, topics=(name,)), to=tmp_path / "to")


def test_a_value_that_no_task_has_the_memory_for_is_named(spark: SparkSession, monkeypatch: pytest.MonkeyPatch):
    log = [(0, 0, b"a", b"v"), (0, 1, b"k", b"v" * 3_000), (0, 2, b"b", None)]
    records = spark.createDataFrame(log, "partition int, offset bigint, key binary, value binary")
    rows = records.withColumn("topic", F.lit("a--s-changelog"))
    assert reading.with_limit(rows, F.col("topic")).drop("topic").collect() == records.collect()
    monkeypatch.setattr(reading, "COPIES", 1_000_000)
    limited = reading.with_limit(rows, F.col("topic"))
    assert limited.select("offset").count() == 3
    text = "^a--s-changelog partition 0, offset 1, key base64:aw==: the value has 3000 bytes, and a task needs 1000000 "
    text += r"times as much memory: raise spark\.driver\.memory to more than 2861 MiB, by --spark-option$"
    with pytest.raises(ReadError, match=text), reading.reading("the log"):
        limited.collect()


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_value_of_50_mb(brokers: str, tmp_path: Path):
    """A heap of 1 GiB is enough; where a larger value isn't read, the error names its record."""
    names = [unique("app--large-changelog") for _ in range(2)]
    # a broker takes 100 MB at once, compressed
    values = [random.Random(1).randbytes(50_000_000), bytes(140_000_000)]
    asyncio.run(make_topics(brokers, *names, config=ANY_TIME | {"max.message.bytes": "100000000"}))
    for name, value in zip(names, values, strict=True):
        records: list[Sent] = [(key, key, 0, [METADATA]) for key in (b"a", b"b")]
        asyncio.run(send(brokers, name, [*records, (b"k", value, 0, [METADATA])], compression="gzip"))

    def run(memory: str, *words: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "spark_replay", *words, "--json"]
        command += ["--spark-option", f"spark.driver.memory={memory}"]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False, timeout=600)
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result

    topics = [word for name in names for word in ("--topic", name)]
    done = run("4g", "archive", "--once", "--brokers", brokers, *topics, "--to", str(tmp_path / "archive"))
    assert done["error"] is None
    log = ["--archive", str(tmp_path / "archive"), "--changelog"]
    done = run("1g", "rebuild", *log, names[0], "--to", str(tmp_path / "to"))
    assert (done["error"], done["totals"]["keys"]) == (None, 3)
    files = (tmp_path / "to").rglob("*.parquet")
    state = [row for file in files for row in pq.ParquetFile(file).read(["key", "value"]).to_pylist()]
    assert {row["key"]: row["value"] for row in state} == {b"a": b"a", b"b": b"b", b"k": values[0]}
    done = run("1g", "rebuild", *log, names[1], "--to", str(tmp_path / "other"))
    assert done["error"] == (
        f"{names[1]} partition 0, offset 2, key base64:aw==: the value has 140000000 bytes, and a task needs 8 times "
        "as much memory: raise spark.driver.memory to more than 1068 MiB, by --spark-option"
    )
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("at_ms", [0, YEAR_10000_MS - 1, YEAR_10000_MS, 2**63 - 1])
def test_a_record_of_any_time_is_read_at_the_end_of_a_log(at_ms: int):
    headers = SimpleNamespace(toArray=list)
    fields = {"partition": 0, "offset": 5, "key": b"k", "value": b"v", "timestamp": at_ms, "headers": headers}
    record = tailing._record(SimpleNamespace(**{name: lambda part=part: part for name, part in fields.items()}))
    assert record[4].timestamp() <= YEAR_10000_MS / 1000
