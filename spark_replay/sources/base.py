"""The interface of all sources."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from spark_replay.sources.brokers.tailing import Record
from spark_replay.sources.brokers.topic import Topic
from spark_replay.sources.reading import reading

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS = (
    "partition int, offset bigint, key binary, value binary, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>"
)
"""The columns of `Source.records`; `headers` is null in a record that has none."""


class Source(ABC):
    """The committed records of one topic.

    Attributes:
        spark: The session that reads them.
        topic: The topic's name.
    """

    spark: SparkSession
    topic: str

    @property
    def live(self) -> LiveSource | None:
        """The log that others may write to and compact while it is read, None if there is none."""
        return None

    @abstractmethod
    def describe(self) -> Topic:
        """Return the partitions, and how far each reaches now.

        Raises:
            BrokerError: The brokers don't answer.
            UnknownTopicError: There is no such topic.
            ArchiveError: The archive can't be read.
            LogTooShortError: Kafka has already deleted what comes right after the archive.
            WrongTopicError: Archive and brokers hold different topics of this name.
        """

    @abstractmethod
    def records(self, topic: Topic) -> DataFrame:
        """Return the records between `starts` and `ends` of what `describe` gave, or of a narrower copy of it.

        Returns:
            `RECORDS`. Offsets have gaps where records were aborted or compacted, and where transactions end.

        Raises:
            ReadError: Spark refuses, for example because of a setting.
        """

    def uncommitted(self, topic: Topic) -> DataFrame | None:
        """Return all records up to the high watermarks, those of aborted and open transactions too.

        Returns:
            `RECORDS`, or None where only what was committed is kept.
        """
        return None

    def doubts(self, ends: Sequence[int]) -> tuple[str, ...]:
        """Return warnings about a state of the records below these offsets, after they were read."""
        return ()

    @abstractmethod
    def offsets_at(self, topic: Topic, timestamp_ms: int) -> tuple[int, ...]:
        """Return each partition's first offset with a record of `timestamp_ms` (Unix) or later, else its end."""

    @abstractmethod
    def __str__(self) -> str:
        """Return where the records come from, for errors."""


class LiveSource(Source):
    """A log that others may write to and compact while it is read."""

    @abstractmethod
    def catch_up(self, topic: Topic, numbers: Iterable[int]) -> tuple[tuple[int, ...], list[Record]]:
        """Read some partitions from their ends in `topic` until all that is committed has been read at one moment.

        Returns:
            Each partition's end at that moment, and the records up to there, as `RECORDS`.

        Raises:
            ReadError: More is written than can be read, or the brokers don't answer.
        """

    @abstractmethod
    def keeps_deletes(self, reading_s: float) -> bool:
        """Return whether compaction can't have removed a tombstone during a read that took `reading_s` seconds."""


def first_since(records: DataFrame, timestamp_ms: int, what: str) -> dict[int, int]:
    """Return by partition the first offset whose record is of `timestamp_ms` (Unix) or later, if there is one.

    Raises:
        ReadError: Spark couldn't read `what`.
    """
    late = records.where(F.unix_millis("timestamp") >= timestamp_ms)
    with reading(what):
        rows = late.groupBy("partition").agg(F.min("offset").alias("first")).collect()
    return {row["partition"]: row["first"] for row in rows}
