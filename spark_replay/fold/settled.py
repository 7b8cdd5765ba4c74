"""The fold of a log that others write to, and compact, while it is read.

A reader of a compacted topic knows the state at an offset if it has read everything below, and the log still ended at
that offset afterwards. Then each key's last record was there the whole time: compaction takes a record only when a
later one of its key is in the log, and there was none. While others write, the log doesn't end where it did. So what
came meanwhile is read too, in ever shorter rounds, the last one by a consumer that stops at the moment at which it has
caught up. The state is that of the offset where it stood.

For a point below the log's end that isn't enough. A key's last write below the point may go while it is read, and an
older one have been read before. So where anything was written at or above the point, the records are counted again: a
log that has as many as were read lost none meanwhile. If it has fewer, it is read again. The same is done where reading
took so long that a tombstone may have gone after an older write of its key was read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from spark_replay.errors import ReadError, WrongTopicError
from spark_replay.fold.fold import last_offsets, last_writes, live, merged, only_writes, with_writes
from spark_replay.fold.points import Point, point_at
from spark_replay.sources.base import RECORDS, LiveSource, Source
from spark_replay.sources.brokers.topic import Topic
from spark_replay.sources.changelog import read_rows, with_metadata
from spark_replay.sources.reading import keep, reading

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ATTEMPTS = 3
_FEW_OFFSETS = 20_000
_ROUNDS = 8

Select = Callable[["DataFrame"], "DataFrame"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The state of a log at a point, as of one moment.

    Attributes:
        topic: The topic; its ends are where the log ended at that moment.
        point: The point, with the hazards of that moment.
        facts: What `spark_replay.fold.fold.last_writes` returns; of a log that doesn't change `last_offsets`.
        records: The log, where it doesn't change: to be read again for the writes themselves. Else None.
    """

    topic: Topic
    point: Point
    facts: DataFrame
    records: DataFrame | None = None

    @property
    def folded(self) -> DataFrame:
        """The last write of each key, as `spark_replay.fold.fold.last_writes` returns it."""
        return self.with_writes(self.facts)

    @property
    def marked(self) -> DataFrame:
        """The rows of `facts`, and `unknown`: the state of the key is unknown."""
        return self.facts.withColumn("unknown", self.point.unknown())

    @property
    def unknown(self) -> DataFrame:
        """The keys whose state is unknown, as `spark_replay.fold.rebuild.unknown_keys` shapes them."""
        return self.marked.where("unknown").select("partition", "key", "later_offset")

    def state(self, past: Column) -> DataFrame:
        """Return the state as `spark_replay.fold.fold.live` shapes it, without rows that are `past` their retention."""
        writes = self.writes(self.marked.where(~F.col("unknown")))
        return live(writes.where(~past), self.point.times_ms)

    def with_writes(self, facts: DataFrame) -> DataFrame:
        """Return some rows of `facts` as `folded` has them."""
        return facts if self.records is None else with_writes(facts, self.records)

    def writes(self, facts: DataFrame) -> DataFrame:
        """Return `partition`, `key` and `last` of some rows of `facts`; those without a last write may be missing."""
        return facts if self.records is None else only_writes(facts, self.records)


def settle(
    source: Source,
    topic: Topic,
    point: Point,
    *,
    to_the_end: bool = False,
    select: Select | None = None,
    position: Column | None = None,
    since: Sequence[int] = (),
) -> Settled:
    """Fold a log at a point.

    The rows of a broker's log are read when this is called, and kept on the executors. Of others the offsets of the
    last writes are, and the writes themselves when an action asks for them.

    Args:
        source: The log.
        topic: Its description.
        point: Where to fold.
        to_the_end: Whether to read all records behind the point; else only those that show which keys are unknown.
        select: Applied to the rows of the log before they are folded.
        position: A column of the selected rows with each key's own position, in place of the point's offsets.
        since: In each partition the offset to read from, in place of the log's start.

    Raises:
        ReadError: Spark couldn't read the log to its end, or compaction went on under each attempt.
        WrongTopicError: The topic was re-created meanwhile.
        ReplayError: What `Source.describe` raises.
    """
    if since:
        # in this form Parquet's statistics leave out pages of files
        ranges = ((F.col("partition") == number) & (F.col("offset") >= at) for number, at in enumerate(since))
        is_later = reduce(Column.__or__, ranges)
        topic, select = replace(topic, starts=tuple(since)), lambda rows: rows.where(is_later)
    fold = _Fold(source, select or (lambda rows: rows), position, to_the_end)
    risky = _at_risk(source, topic, fold.read(topic, point))
    if source.live is None or not risky:
        with reading(str(source)):
            return fold.lazily(topic, point)
    for attempt in range(ATTEMPTS):
        if attempt:
            topic = _described_again(source, topic)
            topic = replace(topic, starts=tuple(since) or topic.starts)
            point = point_at(topic, point.before, point.times_ms)
        with reading(str(source)):
            settled = fold.settled(source.live, topic, point, risky)
        if settled is not None:
            return settled
    raise ReadError(
        f"{source} was compacted while it was read, {ATTEMPTS} times: its state at the point is unknown. Try "
        "again, raise the topic's min.compaction.lag.ms, or give an archive that was begun before the point (--archive)"
    )


def _at_risk(source: Source, topic: Topic, read: Topic) -> tuple[int, ...]:
    """Return the partitions that are read, in part at least, from a log that may be compacted meanwhile."""
    if source.live is None or not topic.spans:
        return ()
    firsts = topic.joints or topic.starts
    return tuple(
        number
        for number, (spans, first, end) in enumerate(zip(topic.spans, firsts, read.ends, strict=True))
        # an empty log may have been written to, and compacted, when it is looked at again
        if spans and not spans[-1].exact and (end > first or end == topic.ends[number])
    )


@dataclass(frozen=True, slots=True)
class _Fold:
    source: Source
    select: Select
    position: Column | None
    to_the_end: bool

    def read(self, topic: Topic, point: Point) -> Topic:
        return topic if self.to_the_end else point.narrowed(topic)

    def of(self, topic: Topic, point: Point) -> DataFrame:
        return self._folded(read_rows(self.source, self.read(topic, point)), point)

    def lazily(self, topic: Topic, point: Point) -> Settled:
        # compaction may run between two reads of a broker's log
        if self.source.live is not None or self.position is not None:
            return Settled(topic=topic, point=point, facts=keep(self.of(topic, point)))
        records = self.select(self.source.records(self.read(topic, point)))
        facts = last_offsets(with_metadata(records), point.before)
        return Settled(topic=topic, point=point, facts=facts, records=records)

    def settled(self, live: LiveSource, topic: Topic, point: Point, risky: Collection[int]) -> Settled | None:
        """Fold as of one moment; None if compaction came in between."""
        began_s, read = time.monotonic(), self.read(topic, point)
        first = keep(self.of(topic, point))
        now, tails = self._caught_up(live, topic, point, risky)
        is_quick = live.keeps_deletes(time.monotonic() - began_s)
        folded = reduce(merged, tails, first) if tails else first
        if tails:
            folded = keep(folded)
        later = folded.where(F.col("later_offset").isNotNull()).select("partition").distinct()
        doubtful = {row["partition"] for row in later.collect()} & set(risky) if is_quick else risky
        if doubtful and not self._is_whole(read, first, doubtful):
            return None
        return Settled(topic=now, point=point_at(now, point.before, point.times_ms), facts=folded)

    def _caught_up(
        self, live: LiveSource, topic: Topic, point: Point, risky: Collection[int]
    ) -> tuple[Topic, list[DataFrame]]:
        """Read what came meanwhile, until nothing is left to read at one moment."""
        tails: list[DataFrame] = []
        for _ in range(_ROUNDS):
            later = _moved(topic, _described_again(live, topic).ends, risky)
            count = sum(later.ends) - sum(topic.ends)
            if not count:
                return topic, tails
            if count <= _FEW_OFFSETS:
                break
            rows = read_rows(live, replace(later, starts=topic.ends))
            tails.append(keep(self._folded(rows, point)))
            topic = later
        ends, records = live.catch_up(topic, risky)
        if records:
            rows = with_metadata(live.spark.createDataFrame(records, RECORDS))
            tails.append(keep(self._folded(rows, point)))
        return _moved(topic, ends, risky), tails

    def _folded(self, rows: DataFrame, point: Point) -> DataFrame:
        return last_writes(self.select(rows), point.before if self.position is None else self.position)

    def _is_whole(self, read: Topic, first: DataFrame, doubtful: Collection[int]) -> bool:
        """Return whether the log still has all records that were read of some partitions."""
        ends = tuple(end if number in doubtful else read.starts[number] for number, end in enumerate(read.ends))
        rows = self.select(read_rows(self.source, replace(read, ends=ends)))
        left = {row["partition"]: row["count"] for row in rows.groupBy("partition").count().collect()}
        counts = first.groupBy("partition").agg(F.sum("records").alias("count")).collect()
        return all(left.get(row["partition"], 0) == row["count"] for row in counts if row["partition"] in doubtful)


def _described_again(source: Source, topic: Topic) -> Topic:
    now = source.describe()
    if (now.topic_id, now.partition_count) != (topic.topic_id, topic.partition_count):
        raise WrongTopicError(f"{source} was re-created, or got more partitions, while it was read: try again")
    return now


def _moved(topic: Topic, ends: Sequence[int], risky: Collection[int]) -> Topic:
    moved = tuple(max(end, ends[number]) if number in risky else end for number, end in enumerate(topic.ends))
    return replace(
        topic,
        ends=moved,
        high_watermarks=tuple(map(max, topic.high_watermarks, moved)),
        spans=tuple(
            (*spans[:-1], replace(spans[-1], end=end)) if spans else spans
            for spans, end in zip(topic.spans, moved, strict=True)
        ),
    )
