"""A changelog as a DataFrame: Spark's own Kafka source, and the stamp decoded by built-in functions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from spark_replay.topic import Topic, client_options, describe_topic
from stores._core.record import STAMP_BYTES, STAMP_HEADER, STAMP_VERSION

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession

_FETCHING = {"max.poll.records": "5000", "max.partition.fetch.bytes": "8388608"}
# (position from 1, bytes) of each field in the stamp
_STAMP_FIELDS = {"epoch": 2, "source_offset": 10, "expires_at_ms": 18}


def read_changelog(
    spark: SparkSession, brokers: str, topic: str, kafka_options: Mapping[str, str] | None = None
) -> DataFrame:
    """Read all that is committed in a changelog.

    Args:
        spark: A session with the Kafka connector, as `spark_session` gives it.
        brokers: `host:port,…`.
        topic: The changelog.
        kafka_options: Settings of the Kafka client, such as `security.protocol`.

    Returns:
        One row a record: `partition` int, `offset` bigint, `key` binary, `value` binary (null in a
        tombstone), `timestamp` timestamp, `epoch` bigint, `source_offset` bigint, `expires_at_ms` bigint (0:
        never), `tombstone` boolean. A record without a key, or without a stamp of this release's version, has
        null in the stamp's three columns.

    Raises:
        BrokerError: The brokers don't answer.
        UnknownTopicError: They have no such topic.
    """
    options = kafka_options or {}
    described = describe_topic(spark, brokers, topic, options)
    rows = read_rows(spark, brokers, described, options)
    decoded = stamp_fields(F.col("stamp"))
    return rows.select(
        "partition",
        "offset",
        "key",
        "value",
        "timestamp",
        *(column.alias(name) for name, column in decoded.items()),
        F.col("value").isNull().alias("tombstone"),
    )


def read_rows(spark: SparkSession, brokers: str, topic: Topic, kafka_options: Mapping[str, str]) -> DataFrame:
    """Read the committed records of a topic between its `starts` and `ends`.

    Returns:
        `partition`, `offset`, `key`, `value`, `timestamp` and `stamp`, the header's 25 bytes, or null where
        the record has no key or no such header: a row with a null stamp is damage.
    """
    reader = client_reader(spark, brokers, topic.name, kafka_options, starts=topic.starts, ends=topic.ends)
    records = reader.option(
        "minPartitions", str(max(spark.sparkContext.defaultParallelism, topic.partition_count))
    ).load()
    return records.select("partition", "offset", "key", "value", "timestamp", _stamp().alias("stamp"))


def client_reader(
    spark: SparkSession,
    brokers: str,
    topic: str,
    kafka_options: Mapping[str, str],
    *,
    starts: tuple[int, ...],
    ends: tuple[int, ...],
) -> DataFrameReader:
    """Give what reads the committed records of a topic, with headers, from `starts` to before `ends`."""
    client = client_options(brokers, kafka_options) | {"isolation.level": "read_committed"}
    reader = spark.read.format("kafka")
    for key, value in (_FETCHING | client).items():
        reader = reader.option(f"kafka.{key}", value)
    # aborted, compacted and marker offsets are gaps that the source steps over by itself; with failOnDataLoss
    # it stops only where the log was cut off while it was being read, which would pass for missing keys
    return (
        reader.option("subscribe", topic)
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "true")
        .option("startingOffsets", _offsets_json(topic, starts))
        .option("endingOffsets", _offsets_json(topic, ends))
    )


def stamp_fields(stamp: Column) -> dict[str, Column]:
    """Give the stamp's `epoch`, `source_offset` and `expires_at_ms` as bigints; null of a null stamp."""
    return {name: _int64(stamp, first) for name, first in _STAMP_FIELDS.items()}


def _int64(raw: Column, first: int) -> Column:
    # to base -10 conv reads 64 bits as a signed number
    return F.conv(F.hex(F.substring(raw, first, 8)), 16, -10).cast("bigint")


def _stamp() -> Column:
    headers = F.col("headers")
    first = F.get(headers, F.lit(0))
    found = F.get(F.filter(headers, lambda header: header["key"] == STAMP_HEADER), F.lit(0))
    # the framework writes one header; looking there first keeps the search out of the usual record's way
    raw = F.when(first["key"] == STAMP_HEADER, first["value"]).otherwise(found["value"])
    valid = (
        F.col("key").isNotNull()
        & (F.octet_length(raw) == STAMP_BYTES)
        & (F.substring(raw, 1, 1) == F.lit(bytes([STAMP_VERSION])))
    )
    return F.when(valid, raw)


def _offsets_json(topic: str, offsets: tuple[int, ...]) -> str:
    return json.dumps({topic: {str(partition): offset for partition, offset in enumerate(offsets)}})
