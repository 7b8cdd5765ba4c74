"""Archives in S3, by moto's server: two writers, lost and cut objects, throttling, and credentials that end."""

from __future__ import annotations

import asyncio
import itertools
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_replay import (
    ArchiveError,
    ReplayError,
    TargetError,
    Wanted,
    archive,
    archive_topics,
    kafka,
    read_table,
    rebuild_state,
    validate_exports,
    write_rebuild,
)
from spark_replay.archiving import _Run
from spark_replay.sources.archives.archive import ArchiveSource
from spark_replay.sources.folders import Folder
from tests.spark.helpers import NOW_MS, Log, append, fold, random_transactions, write_log
from tests.spark.sources.archives import ArchiveProcess, in_archive, in_topic
from tests.spark.sources.object_storage import LATE, Refusal, Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    # Hadoop's client for S3 is a download of 560 MB.
    pytest.mark.nightly,
    # moto's and botocore's own
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def log(brokers: str) -> Log:
    return write_log(brokers, random_transactions(91, count=40, keys=40))


def keep(spark: SparkSession, brokers: str, bucket: str, log: Log) -> ArchiveSource:
    to = f"s3a://{bucket}/the/archive"
    archive_topics(spark, Wanted(brokers=brokers, topics=(log.topic,)), to=to)
    return archive(spark, to, log.topic)


def test_an_archive_in_a_bucket(spark: SparkSession, brokers: str, storage: Storage, bucket: str):
    log = write_log(brokers, random_transactions(92, count=20, keys=40))
    for number in range(2):
        asyncio.run(append(brokers, log, random_transactions(93 + number, count=20, keys=40)))
        source = keep(spark, brokers, bucket, log)
        assert in_archive(source) == in_topic(brokers, log.topic)
    archive_topics(spark, Wanted(brokers=brokers, topics=(log.topic,)), to=source.where, compact=True)
    assert in_archive(source) == in_topic(brokers, log.topic)
    state = {
        (row["partition"], bytes(row["key"])): bytes(row["value"])
        for row in rebuild_state(source, as_of_ms=NOW_MS).collect()
    }
    assert state == {place: write.value for place, write in fold(log.records).items()}
    assert not any("_SUCCESS" in name or "_temporary" in name for name in storage.names(bucket))
    assert not Path("s3a:").exists()


def table_in(spark: SparkSession, bucket: str, table: str) -> str:
    """Return where a table is, in an Iceberg catalog of the bucket's own."""
    if table == "delta":
        return f"delta:s3a://{bucket}/table"
    catalog = f"of_{bucket.replace('-', '_')}"
    for name, value in (
        ("", "org.apache.iceberg.spark.SparkCatalog"),
        (".type", "hadoop"),
        (".warehouse", f"s3a://{bucket}/lake"),
    ):
        spark.conf.set(f"spark.sql.catalog.{catalog}{name}", value)
    return f"iceberg:{catalog}.rebuilt"


@pytest.mark.parametrize("table", ["delta", "iceberg"])
def test_a_table_in_a_bucket(spark: SparkSession, brokers: str, storage: Storage, bucket: str, table: str):
    where = table_in(spark, bucket, table)
    log = write_log(brokers, random_transactions(97, count=20, keys=40))
    write_rebuild(keep(spark, brokers, bucket, log), to=where, as_of_ms=NOW_MS)
    asyncio.run(append(brokers, log, random_transactions(98, count=10, keys=40)))
    source, count = keep(spark, brokers, bucket, log), itertools.count()
    with storage.refusing(lambda method, path: (503, "SlowDown") if next(count) % 8 == 0 else None):
        done = write_rebuild(source, to=where, as_of_ms=NOW_MS)
    assert 0 < done.records < len(log.records)
    rows = read_table(spark, where).collect()
    state = {(row["partition"], bytes(row["key"])): bytes(row["value"]) for row in rows}
    assert state == {place: write.value for place, write in fold(log.records).items()}
    assert not validate_exports(source, against=where).mismatches
    assert any("metadata" in name or "_delta_log" in name for name in storage.names(bucket))


def test_of_two_writers_one_is_refused(spark: SparkSession, brokers: str, bucket: str, log: Log):
    folder = Folder(spark, f"s3a://{bucket}/the/archive")
    slow = _Run(spark, Wanted(brokers=brokers, topics=(log.topic,)), folder, threading.Event(), lambda line: None)
    slow.begin()
    source = keep(spark, brokers, bucket, log)
    with pytest.raises(TargetError, match=r"another run is archiving to s3a://.*: it wrote batch 0 first"):
        slow.catch_up()
    assert in_archive(source) == in_topic(brokers, log.topic)


def test_lost_and_cut_objects(spark: SparkSession, brokers: str, storage: Storage, bucket: str, log: Log):
    source, client = keep(spark, brokers, bucket, log), storage.client
    name = next(name for name in storage.names(bucket) if name.endswith(".parquet"))
    entry = next(name for name in storage.names(bucket) if name.endswith(".json"))
    for key, content, message in (
        (name, lambda raw: raw[:-20], rf"{log.topic} partition \d, .* has \d+ bytes and was written with \d+"),
        (name, lambda raw: bytes(len(raw)), rf"{log.topic} partition \d, .* isn't what was written"),
        (name, None, rf"the archive s3a://.* has lost .*{log.topic} partition \d"),
        (entry, lambda raw: raw[:-20], "its CRC-32 is"),
        (entry, None, "no archive in s3a://"),
    ):
        whole = client.get_object(Bucket=bucket, Key=key)["Body"].read()
        if content is None:
            client.delete_object(Bucket=bucket, Key=key)
        else:
            client.put_object(Bucket=bucket, Key=key, Body=content(whole))
        with pytest.raises(ArchiveError, match=message):
            in_archive(source)
        client.put_object(Bucket=bucket, Key=key, Body=whole)
    assert in_archive(source) == in_topic(brokers, log.topic)


def test_a_throttled_server_is_waited_for(spark: SparkSession, brokers: str, storage: Storage, bucket: str, log: Log):
    count = itertools.count()
    with storage.refusing(lambda method, path: (503, "SlowDown") if next(count) % 4 == 0 else None):
        source = keep(spark, brokers, bucket, log)
        assert in_archive(source) == in_topic(brokers, log.topic)
    assert any(status == 503 for _, path, status in storage.requests if bucket in path)


@pytest.mark.parametrize("suffix", [".parquet", ".json"])
def test_credentials_that_end_while_a_batch_is_written(
    spark: SparkSession, brokers: str, storage: Storage, bucket: str, log: Log, suffix: str
):
    def expire(method: str, path: str) -> Refusal:
        return (403, "ExpiredToken") if method == "PUT" and path.endswith(suffix) else None

    with storage.refusing(expire), pytest.raises(ReplayError, match=r"ExpiredToken|403"):
        keep(spark, brokers, bucket, log)
    assert not any(name.endswith(".json") for name in storage.names(bucket))
    source = keep(spark, brokers, bucket, log)
    assert in_archive(source) == in_topic(brokers, log.topic)
    # what the first run left goes with the next one
    assert len({name.split("/")[3] for name in storage.names(bucket) if "/data/" in name}) == 1


def test_an_entry_whose_answer_was_lost_is_ours(
    spark: SparkSession, brokers: str, storage: Storage, bucket: str, log: Log
):
    puts = 0

    def lose(method: str, path: str) -> Refusal:
        nonlocal puts
        puts += method == "PUT" and path.endswith(".json")
        return (LATE, "InternalError") if method == "PUT" and path.endswith(".json") and puts == 1 else None

    with storage.refusing(lose):
        source = keep(spark, brokers, bucket, log)
    assert puts == 2
    assert in_archive(source) == in_topic(brokers, log.topic)


def test_no_bucket(spark: SparkSession, brokers: str, storage: Storage, log: Log):
    with pytest.raises(ArchiveError, match="s3a://no-such-bucket"):
        keep(spark, brokers, "no-such-bucket", log)
    with pytest.raises(ArchiveError, match="s3a://no-such-bucket"):
        archive(spark, "s3a://no-such-bucket/the/archive", log.topic).describe()


@pytest.mark.parametrize("table", ["delta", "iceberg"])
def test_no_bucket_of_a_table(spark: SparkSession, brokers: str, storage: Storage, log: Log, table: str):
    where = table_in(spark, "no-such-bucket", table)
    with pytest.raises(ReplayError, match=r"no[-_]such[-_]bucket"):
        write_rebuild(kafka(spark, brokers, log.topic), to=where, as_of_ms=NOW_MS)
    with pytest.raises(ReplayError, match=r"no[-_]such[-_]bucket"):
        read_table(spark, where)


def test_killed_while_it_writes(
    spark: SparkSession, brokers: str, storage: Storage, bucket: str, log: Log, tmp_path: Path
):
    to = f"s3a://{bucket}/the/archive"
    settings = [
        part for name, value in storage.settings.items() for part in ("--spark-option", f"spark.hadoop.{name}={value}")
    ]
    for suffix in (".parquet", ".json"):
        reached = threading.Event()

        def wait(method: str, path: str, suffix: str = suffix, reached: threading.Event = reached) -> Refusal:
            if method == "PUT" and path.endswith(suffix):
                reached.set()
                return 503, "SlowDown"
            return None

        with storage.refusing(wait):
            process = ArchiveProcess(brokers, log.topic, tmp_path / suffix, "--once", *settings, place=to)
            process.wait_for(reached.is_set, f"PUT of {suffix}")
            process.kill()
        assert not any(name.endswith(".json") for name in storage.names(bucket))
    source = keep(spark, brokers, bucket, log)
    assert in_archive(source) == in_topic(brokers, log.topic)
