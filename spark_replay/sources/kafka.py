"""Kafka as a source, alone or after an archive."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

from spark_replay.errors import LogTooShortError, ReadError, ReplayError, WrongTopicError
from spark_replay.session import require_classic
from spark_replay.sources.archives.archive import ArchiveSource
from spark_replay.sources.archives.ledger import escaped_deletes
from spark_replay.sources.base import LiveSource, Source, first_since
from spark_replay.sources.brokers import tailing
from spark_replay.sources.brokers.topic import (
    Admin,
    Retention,
    Topic,
    asking,
    client_options,
)
from spark_replay.sources.reading import reading, with_limit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FIRST_LOOK = 1000
FETCHING = {"max.poll.records": "5000", "max.partition.fetch.bytes": "8388608"}
"""Kafka settings that a bulk reader wants; the user's go before."""


@dataclass(frozen=True)
class KafkaSource(LiveSource):
    """A topic as the brokers hold it, read committed.

    Attributes:
        spark: A session with the Kafka connector, as `spark_session` returns it.
        brokers: `host:port,…`.
        topic: The topic.
        options: Settings of the Kafka client, such as `security.protocol`.
    """

    spark: SparkSession = field(repr=False)
    brokers: str
    topic: str
    # may hold passwords
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def live(self) -> KafkaSource:
        """The source itself."""
        return self

    def asking(self) -> AbstractContextManager[Admin]:
        """Ask the brokers about the topic; raises as `spark_replay.sources.brokers.topic.asking` does."""
        return asking(self.spark, self.brokers, self.options, f"topic {self.topic}")

    def describe(self) -> Topic:
        """Ask the brokers."""
        with self.asking() as admin:
            return admin.describe(self.topic)

    def records(self, topic: Topic) -> DataFrame:
        """Read with Spark's own Kafka source."""
        return self._read(topic, minPartitions=self._shares(topic))

    def in_order(self, topic: Topic) -> DataFrame:
        """Read as `records` does, each partition of the topic as one of Spark's, in the order of its offsets."""
        return self._read(topic)

    def uncommitted(self, topic: Topic) -> DataFrame:
        """Read what was aborted, and what is under way, too."""
        whole = replace(topic, ends=topic.high_watermarks)
        return self._read(whole, "read_uncommitted", minPartitions=self._shares(topic))

    def catch_up(self, topic: Topic, numbers: Iterable[int]) -> tuple[tuple[int, ...], list[tailing.Record]]:
        """Read on with a consumer of its own."""
        return tailing.catch_up(self.spark, client_options(self.brokers, self.options), topic, numbers)

    def keep_out(self, group: str) -> AbstractContextManager[None]:
        """Keep workers out of their group during the block."""
        return tailing.keep_out(self.spark, client_options(self.brokers, self.options), group)

    def keeps_deletes(self, reading_s: float) -> bool:
        """Compare with the topic's `delete.retention.ms`."""
        return reading_s * 1000 < self.retention().delete_retention_ms

    def require_deletes_kept(self, reading_s: float) -> None:
        """Check that compaction has removed no tombstone during a read that took so long.

        Raises:
            ReadError: It may have.
        """
        if not self.keeps_deletes(reading_s):
            raise ReadError(
                f"reading {self} took longer than its delete.retention.ms={self.retention().delete_retention_ms}: "
                "deletes may have escaped it, raise the topic's setting or use more executors"
            )

    def retention(self) -> Retention:
        """Ask the brokers what the topic's settings allow to be removed."""
        with self.asking() as admin:
            return admin.retention(self.topic)

    def _shares(self, topic: Topic) -> str:
        return str(max(self.spark.sparkContext.defaultParallelism, topic.partition_count))

    def _read(self, topic: Topic, isolation_level: str = "read_committed", **options: str) -> DataFrame:
        client = {**self.options, "isolation.level": isolation_level}
        with reading(str(self)):
            return read_topics(self.spark, self.brokers, client, [topic], **options).drop("topic")

    def offsets_at(self, topic: Topic, timestamp_ms: int) -> tuple[int, ...]:
        """Ask the brokers, and look from there on.

        Brokers count aborted records and the ends of transactions too: theirs is that offset or an earlier one.
        """
        with self.asking() as admin:
            at = admin.offsets_at(topic, timestamp_ms)
        offsets = {number: end for number, end in enumerate(topic.ends) if at[number] == end}
        width = _FIRST_LOOK
        while len(offsets) < topic.partition_count:
            ends = [
                at[number] if number in offsets else min(at[number] + width, end)
                for number, end in enumerate(topic.ends)
            ]
            look = self.records(replace(topic, starts=at, ends=tuple(ends)))
            offsets |= first_since(look, timestamp_ms, str(self))
            offsets |= {
                number: offsets.get(number, end) for number, end in enumerate(ends) if end == topic.ends[number]
            }
            width *= 100
        return tuple(offsets[number] for number in range(topic.partition_count))

    def after(self, older: ArchiveSource) -> JoinedSource:
        """Return the archive up to its end and Kafka from there on.

        Raises:
            ReplayError: The archive is of another topic.
        """
        if older.topic != self.topic:
            raise ReplayError(f"{self} can't follow {older}: give both the same topic")
        return JoinedSource(self.spark, self.topic, older, self)

    def __str__(self) -> str:
        """Name the topic."""
        return f"topic {self.topic}"


@dataclass(frozen=True)
class JoinedSource(Source):
    """An archive up to its end in each partition, and Kafka from there on; what both hold is taken once."""

    spark: SparkSession = field(repr=False)
    topic: str
    older: ArchiveSource
    newer: KafkaSource

    @property
    def live(self) -> KafkaSource:
        """Kafka's part."""
        return self.newer

    def describe(self) -> Topic:
        """Ask both, and check that nothing is missing between them."""
        old, new = self.older.describe(), self.newer.describe()
        require_following(old, new, archive=f"the archive {self.older.where}", brokers=self.newer.brokers)
        return _stitched(old, new)

    def records(self, topic: Topic) -> DataFrame:
        """Read both."""
        old, new = self._parts(topic)
        return self.older.records(old).unionByName(self.newer.records(new))

    def uncommitted(self, topic: Topic) -> DataFrame:
        """Read what Kafka has: an archive holds nothing that was aborted."""
        return self.newer.uncommitted(self._parts(topic)[1])

    def _parts(self, topic: Topic) -> tuple[Topic, Topic]:
        """Return the part that is read from the archive, and the part from Kafka."""
        old = replace(topic, ends=_at_most(topic.ends, topic.joints))
        old = replace(old, starts=_at_most(topic.starts, old.ends))
        new = replace(topic, starts=tuple(map(max, topic.starts, topic.joints)))
        return old, replace(new, ends=tuple(map(max, new.starts, topic.ends)))

    def doubts(self, ends: Sequence[int]) -> tuple[str, ...]:
        """Return the archive's warnings, and one if it may be too old for the log that follows it."""
        ledger = self.older.described.ledgers[self.topic]
        retention = self.newer.retention()
        told = escaped_deletes(ledger, ends, retention, time.time_ns() // 1_000_000)
        return (*self.older.doubts(ends), *(() if told is None else (told,)))

    def offsets_at(self, topic: Topic, timestamp_ms: int) -> tuple[int, ...]:
        """Look into the archive first, and ask the brokers about partitions where it isn't that late."""
        joints = topic.joints
        offsets = self.older.offsets_at(replace(topic, ends=_at_most(topic.ends, joints)), timestamp_ms)
        later = self.newer.offsets_at(topic, timestamp_ms)
        return tuple(
            at if at < joint else max(joint, other) for at, joint, other in zip(offsets, joints, later, strict=True)
        )

    def __str__(self) -> str:
        """Name both."""
        return f"{self.older}, then {self.newer}"


def read_topics(
    spark: SparkSession, brokers: str, kafka_options: Mapping[str, str], topics: Sequence[Topic], **options: str
) -> DataFrame:
    """Return the records of several topics between `starts` and `ends`, with the column `topic`.

    Read committed, unless `kafka_options` has another `isolation.level`; `options` are those of Spark's source.
    """
    client = FETCHING | {"isolation.level": "read_committed"} | client_options(brokers, kafka_options)
    # aborted, compacted and marker offsets are gaps that the source steps over by itself; with failOnDataLoss
    # it stops only where the log was cut off while it was being read, which would pass for missing keys
    source = {f"kafka.{key}": value for key, value in client.items()} | {
        "subscribe": ",".join(topic.name for topic in topics),
        "includeHeaders": "true",
        "failOnDataLoss": "true",
        "startingOffsets": json.dumps({topic.name: dict(enumerate(topic.starts)) for topic in topics}),
        "endingOffsets": json.dumps({topic.name: dict(enumerate(topic.ends)) for topic in topics}),
    }
    records = spark.read.format("kafka").options(**(source | options)).load()
    records = records.select("topic", "partition", "offset", "key", "value", "timestamp", "headers")
    return with_limit(records, F.col("topic"))


def kafka(spark: SparkSession, brokers: str, topic: str, options: Mapping[str, str] | None = None) -> KafkaSource:
    """Return a topic of a Kafka cluster as a source.

    Args:
        spark: A session with the Kafka connector, as `spark_session` returns it.
        brokers: `host:port,…`.
        topic: The topic.
        options: Settings of the Kafka client, such as `security.protocol`, by Kafka's names.

    Raises:
        ReplayError: It is a session of Spark Connect.
    """
    require_classic(spark)
    return KafkaSource(spark, brokers, topic, dict(options or {}))


def read_properties(spark: SparkSession, file: Path) -> dict[str, str]:
    """Read a file of Kafka client settings, `name=value` a line, as Kafka's own tools do.

    Raises:
        ReplayError: It can't be read.
    """
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    jvm: Any = spark._jvm
    try:
        text = file.read_text()
        properties = jvm.java.util.Properties()
        properties.load(jvm.java.io.StringReader(text))
    except (OSError, UnicodeDecodeError, Py4JJavaError) as error:
        reason = error if isinstance(error, OSError) else "it isn't a properties file"
        raise ReplayError(f"the Kafka settings in {file} can't be read: {reason}") from error
    return {str(key): str(properties.getProperty(key)) for key in properties.stringPropertyNames()}


def require_following(old: Topic, new: Topic, *, archive: object, brokers: str) -> None:
    """Check that a log goes on where an archive of it ends.

    Raises:
        WrongTopicError: The topic was re-created since, or has lost records that the archive has.
        LogTooShortError: Kafka deleted what comes right behind the archive.
    """
    if old.topic_id and new.topic_id and old.topic_id != new.topic_id:
        raise WrongTopicError(
            f"{archive} is of a topic {old.name} with the id {old.topic_id}, that of the brokers {brokers} has "
            f"{new.topic_id}: the topic was re-created since, or this is another cluster"
        )
    for number, end in enumerate(old.ends):
        where = f"{old.name} partition {number}: {archive}"
        if number >= new.partition_count or end > new.high_watermarks[number]:
            high = new.high_watermarks[number] if number < new.partition_count else "nothing"
            raise WrongTopicError(f"{where} reaches {end}, the brokers' log {high}: is this another cluster?")
        if end < new.starts[number]:
            raise LogTooShortError(
                f"{where} ends at offset {end}, and the brokers' log begins at {new.starts[number]}: what was between "
                "is in neither. Begin another archive"
            )


def _stitched(old: Topic, new: Topic) -> Topic:
    rest = range(len(old.ends), new.partition_count)
    joints = (*old.ends, *(new.starts[number] for number in rest))
    ends = tuple(map(max, joints, new.ends))
    older = (*old.spans, *(() for _ in rest))
    return replace(
        new,
        starts=(*old.starts, *(new.starts[number] for number in rest)),
        ends=ends,
        spans=tuple(
            (*spans, replace(kafkas[-1], start=joint, end=end))
            for spans, kafkas, joint, end in zip(older, new.spans, joints, ends, strict=True)
        ),
        joints=joints,
    )


def _at_most(ends: Sequence[int], limits: Sequence[int]) -> tuple[int, ...]:
    return tuple(map(min, ends, limits))
