"""Window stores and joins: which rows of a changelog are past their retention, and which key a row is of.

Workers remove what is past its retention from their disks by ranges of rows, and the changelog's own
retention removes the records at another time. So of two sides that are equal either may still have them: they are left
out of states, and not compared. The row `m` of each partition says which rows these are, see `stores._core.windows`.

A changelog is taken for one of these if its topic deletes old records beside compacting them, and a row `m` of it
can be read. Of others nothing is asked here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from spark_replay.fold.placement import home_partition, message_key
from spark_replay.sources.base import Source
from spark_replay.sources.brokers.topic import Topic
from spark_replay.sources.changelog import read_rows
from spark_replay.sources.reading import reading
from stores._core.windows import PROGRESS_KEY, decode_progress

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from spark_replay.fold.settled import Settled


@dataclass(frozen=True, slots=True)
class WindowLog:
    """The facts in the rows `m` of a changelog; false where it is neither a window store's nor a join's.

    Attributes:
        expired: By partition, rows with its first letter that come before it are past their retention; None where that
            is unknown, empty bytes where there are none.
        lost: Partitions whose row `m` is unknown at the point, since it was written again later.
    """

    expired: tuple[bytes | None, ...] = ()
    lost: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return any(row is not None for row in self.expired)

    def or_else(self, other: WindowLog) -> WindowLog:
        """Return these facts, and the other's for partitions without any."""
        if not self or not other:
            return self or other
        both = zip(self.expired, other.expired, strict=True)
        return WindowLog(tuple(theirs if ours is None else ours for ours, theirs in both), self.lost)

    def past(self) -> Column:
        """Return of a row with `partition` and `key` whether it is past its retention."""
        if not self:
            return F.lit(False)
        first = F.get(F.array(*(F.lit(row).cast("binary") for row in self.expired)), F.col("partition"))
        is_before = (F.substring("key", 1, 1) == F.substring(first, 1, 1)) & (F.col("key") < first)
        return F.coalesce(is_before, F.lit(False))

    def entries(self) -> Column:
        """Return of a row with `key` whether it exists only while a close or a change is pending."""
        return F.substring("key", 1, 1).isin(b"e", b"c", b"W", b"E")

    def home(self, partition_count: int, placement: str) -> Column:
        """Return the partition that a row's message belongs in, null if it is of none, or may be in any."""
        if placement == "task":
            return F.lit(None).cast("int")
        layout = "windows" if self else "sized" if placement == "row" else "key"
        return home_partition(message_key(F.col("key"), layout), partition_count)


NO_WINDOWS = WindowLog()


def folded_windows(settled: Settled) -> WindowLog:
    """Return the window facts of a fold. Of a window store's log this reads a row of each partition."""
    if not settled.topic.deletes:
        return NO_WINDOWS
    rows = settled.with_writes(settled.facts.where(is_progress()))
    return _window_log(rows.select("partition", F.col("last.value").alias("value")), settled.topic)


def held_windows(kept: DataFrame, topic: Topic) -> WindowLog:
    """Return the window facts of held rows, with `partition`, `key` and `value`."""
    return _window_log(kept.where(is_progress()), topic)


def newest_windows(source: Source, topic: Topic) -> WindowLog:
    """Return the window facts in the newest rows `m` of a log, for which it is read.

    Raises:
        ReadError: Spark couldn't read the log.
    """
    rows = read_rows(source, topic).where(is_progress()).groupBy("partition")
    with reading(str(source)):
        return _window_log(rows.agg(F.max_by("value", "offset").alias("value")), topic)


def is_progress() -> Column:
    """Return of a row with `key` whether it is the row `m`."""
    return F.col("key") == F.lit(PROGRESS_KEY)


def _window_log(rows: DataFrame, topic: Topic) -> WindowLog:
    if not topic.deletes:
        return NO_WINDOWS
    expired: list[bytes | None] = [None] * topic.partition_count
    lost = []
    for row in rows.select("partition", "value").collect():
        if row["value"] is None:
            lost.append(row["partition"])
            continue
        try:
            expired[row["partition"]] = decode_progress(bytes(row["value"])).expired
        except ValueError:
            # Another program's, or damage: it is compared like any other row.
            continue
    return WindowLog(tuple(expired), tuple(sorted(lost)))
