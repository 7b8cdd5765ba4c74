"""A comparison of running workers with their changelog that is made again and again.

Each time the owners make digests of their rows by bucket, at a position of their own (see
`spark_replay.comparison.live`). The rebuild in a folder is extended to these positions, and Spark makes the same
digests of it. Rows are asked for only of the buckets that differ, and judged at the later position that these have.

A key that was written again behind a position may have had a write below it that compaction removed. It keeps what the
rebuild has of it: if the digests are equal that was right; else its bucket is looked at, and the next extension reads
the later write.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import Column, Row
from pyspark.sql import functions as F  # noqa: N812

from spark_replay.comparison.held import ROWS, Held, Part
from spark_replay.comparison.live import Workers, caught_up
from spark_replay.comparison.report import Report, Summary, report
from spark_replay.comparison.validate import comparable, compare_held
from spark_replay.comparison.writers import find_foreign
from spark_replay.errors import LiveError, LogTooShortError, PointError, ReadError, TargetError
from spark_replay.fold.extending import Base
from spark_replay.fold.fold import expired
from spark_replay.fold.points import AsOf, now_ms, point_at
from spark_replay.fold.rebuild import write_rebuild
from spark_replay.fold.rebuilt import SUMMARY, require_sound
from spark_replay.sources.base import Source
from spark_replay.sources.brokers.topic import Topic
from spark_replay.sources.changelog import read_rows
from spark_replay.sources.columns import by_partition
from spark_replay.sources.folders import Folder
from spark_replay.sources.reading import reading
from stores._core.digests import Digests, StoredRow
from stores._core.printable import counted
from stores._core.record import INPUT_BITS, INPUTS_VERSION, METADATA_BYTES, METADATA_VERSION, decode_metadata, place_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MOST_BUCKETS = 16
"""Of so many buckets of a partition that differ the rows are asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """A comparison that is made again and again; it keeps nothing in memory.

    Attributes:
        source: The changelog.
        workers: The workers.
        store: The store's name.
        folder: Where the rebuild is, a path or URI; only this watch writes there.
        placement: `key`, or `task` if the store may hold any key.
    """

    source: Source
    workers: Workers
    store: str
    folder: str | Path
    placement: str = "key"

    def compare(self) -> Report:
        """Compare once.

        Raises:
            LiveError: No owner answers, or not in the protocol.
            ReplayError: What `write_rebuild` and `find_foreign` raise.
        """
        began_s, as_of_ms = time.monotonic(), now_ms()
        answers, unanswered = self._answers(self.source.describe().partition_count, as_of_ms)
        topic, state = self._held(answers, as_of_ms)
        state = replace(state, unanswered={**unanswered, **state.unanswered})
        base, notes = self._extended(topic, state.positions, as_of_ms)
        with reading(f"the rebuild in {self.folder}"):
            answers = {number: answers[number] for number in state.positions}
            keys, differing = _compared(base, answers, as_of_ms)
        has_windows, none = False, dict.fromkeys(("records", "damaged", "over"), 0)
        equal = [Row(partition=at, kind="equal", count=n, held=n, live=n, **none) for at, n in keys.items()]
        summary, count = Summary(equal), sum(map(len, differing.values()))
        if differing:
            topic, has_windows, judged, late = self._judged(base, answers, differing, as_of_ms)
            summary = replace(judged, kinds=[*summary.kinds, *judged.kinds])
            state = replace(state, unanswered={**state.unanswered, **late})
        foreign, behind = find_foreign(self.source, state.parts, only_behind=True)
        result = report(
            summary,
            topic=topic,
            held=state,
            findings=(foreign,) if any(behind.values()) else (),
            seconds=time.monotonic() - began_s,
            has_windows=has_windows,
            behind=behind,
        )
        notes += _notes(count, sum(map(len, differing.values())), mismatches=result.mismatches)
        # one of an earlier time was found at the positions
        was_read = base.rebuilt.as_of_ms == as_of_ms
        return replace(result, notes=notes, records=result.records + (base.rebuilt.records if was_read else 0))

    @property
    def _place(self) -> Folder:
        return Folder(self.source.spark, self.folder, ReadError)

    def _answers(self, partition_count: int, as_of_ms: int) -> tuple[dict[int, Digests], dict[int, str]]:
        answers, unanswered = {}, {}
        for number in range(partition_count):
            try:
                answers[number] = self.workers.digests(self.store, number, as_of_ms=as_of_ms)
            except LiveError as error:
                if not error.is_unavailable:
                    raise
                unanswered[number] = str(error)
        if not answers:
            raise LiveError(next(iter(unanswered.values())), is_unavailable=True)
        return answers, unanswered

    def _extended(self, topic: Topic, offsets: Mapping[int, int], as_of_ms: int) -> tuple[Base, tuple[str, ...]]:
        """Extend the rebuild to some offsets; where that can't be done, rebuild from the log's start."""
        notes: tuple[str, ...] = ()
        if self._place.version(SUMMARY) is not None:
            try:
                self._extend(topic, offsets, as_of_ms)
            except (LogTooShortError, PointError, ReadError, TargetError) as error:
                notes = (f"the changelog was read from its start: {error}",)
        if notes or self._place.version(SUMMARY) is None:
            self._rebuild(offsets, as_of_ms, None)
        return Base.of(self._place, with_unknown=True), notes

    def _extend(self, topic: Topic, offsets: Mapping[int, int], as_of_ms: int) -> None:
        base = Base.of(self._place, with_unknown=True)
        base.require_of(topic)
        base.require_deletes_kept(self.source, topic)
        # a partition that has no answer stays where it is
        offsets = {**dict(enumerate(base.ends)), **offsets}
        base.require_before(topic, point_at(topic, tuple(offsets.values()), [as_of_ms] * topic.partition_count))
        with reading(str(self.source)):
            since = read_rows(self.source, replace(topic, starts=base.ends, ends=tuple(offsets.values())))
            # a position moves over markers of transactions too
            is_same = base.ends == tuple(offsets.values()) or since.isEmpty()
        if is_same:
            require_sound(base.folder, base.rebuilt)
        else:
            self._rebuild(offsets, as_of_ms, self.folder)

    def _rebuild(self, offsets: Mapping[int, int], as_of_ms: int, base: str | Path | None) -> None:
        write_rebuild(
            self.source,
            to=self.folder,
            overwrite=True,
            as_of=AsOf(offsets=offsets),
            as_of_ms=as_of_ms,
            base=base,
            with_unknown=True,
        )

    def _held(self, answers: Mapping[int, Digests], as_of_ms: int) -> tuple[Topic, Held]:
        """Return the log once it reaches the answers' positions, and what is held at those that it has."""
        topic = caught_up(self.source, {number: answer.position.changelog_offset for number, answer in answers.items()})
        where = ", ".join(self.workers.urls)
        parts = tuple(
            Part(
                partition=number,
                changelog_offset=answer.position.changelog_offset,
                as_of_ms=as_of_ms,
                epoch=answer.position.epoch,
                topic_id=answer.position.changelog_id,
                where=where,
                owner="the owner",
                transaction=answer.position.transaction,
            )
            for number, answer in answers.items()
        )
        rows = [_row(number, row) for number, answer in answers.items() for row in answer.rows]
        state = Held(
            kind="live workers",
            where=where,
            store=self.store,
            placement=self.placement,
            partition_count=topic.partition_count,
            parts=parts,
            read=lambda spark: spark.createDataFrame(rows, ROWS),
        )
        return topic, comparable(state, topic)

    def _judged(
        self, base: Base, answers: Mapping[int, Digests], differing: dict[int, list[int]], as_of_ms: int
    ) -> tuple[Topic, bool, Summary, Mapping[int, str]]:
        """Judge the rows of buckets that differ, and leave those of `differing` that weren't looked at.

        Returns:
            The log, whether it is of windows, what was counted, and the partitions without an answer.
        """
        rows, unanswered, only = dict[int, Digests](), dict[int, str](), F.lit(False)
        for number, buckets in list(differing.items()):
            count, chosen = len(answers[number].digests), buckets[:MOST_BUCKETS]
            while number not in rows | unanswered:
                try:
                    options = {"as_of_ms": as_of_ms, "buckets": count}
                    rows[number] = self.workers.digests(self.store, number, rows=chosen, **options)
                except LiveError as error:
                    if error.is_unavailable or len(chosen) == 1:
                        unanswered[number] = str(error)
                    # their rows are too long for one answer
                    chosen = chosen[: len(chosen) // 2]
            if number in rows:
                only |= (F.col("partition") == number) & _bucket(F.lit(count)).isin(chosen)
                differing[number] = buckets[len(chosen) :]
        topic, state = self._held(rows, as_of_ms)
        judged, summary = compare_held(self.source, topic, replace(state, only=only), base)
        return judged.topic, bool(judged.windows), summary, {**unanswered, **state.unanswered}


def validate_live(source: Source, workers: Workers, *, store: str, placement: str = "key") -> Report:
    """Compare running workers with their changelog once; arguments and errors are those of `Watch`.

    Returns:
        The report; `unanswered` names the partitions whose state couldn't be read, which aren't compared.
    """
    with tempfile.TemporaryDirectory(prefix="spark-replay-") as folder:
        place = Path(folder) / "state"
        return Watch(source=source, workers=workers, store=store, folder=place, placement=placement).compare()


def digests_of(rows: DataFrame, buckets: Column) -> DataFrame:
    """Make the digests of a state's rows as workers do, see `actors.web.queries.digests`.

    Args:
        rows: As `spark_replay.rebuild_state` returns them.
        buckets: How many buckets there are.

    Returns:
        `partition`, `bucket`, `digest` bigint, `count` bigint; no row of an empty bucket.
    """
    digest = F.conv(F.substring(F.sha2(F.concat(_key(), _stored()), 256), 1, 16), 16, -10).cast("bigint")
    sums = F.bit_xor(digest).alias("digest"), F.count(F.lit(1)).alias("count")
    return rows.groupBy("partition", _bucket(buckets).alias("bucket")).agg(*sums)


def _key() -> Column:
    # a record without a key is damage: its bucket has to differ
    return F.coalesce("key", F.lit(b""))


def _bucket(buckets: Column) -> Column:
    return F.pmod(F.crc32(_key()), buckets)


def _stored() -> Column:
    """Return the bytes that a store has of a row: the write metadata, if there is any, and the value."""
    source, place = F.col("source_offset"), F.col("input")
    numbers = {
        "version": (F.when(place.isNull(), METADATA_VERSION).otherwise(INPUTS_VERSION), 1),
        "epoch": (F.col("epoch"), 8),
        "source": (F.when(place.isNull(), source).otherwise(F.shiftleft(source, INPUT_BITS).bitwiseOR(place)), 8),
        "expiry": (F.col("expires_at_ms"), 8),
    }
    raw = F.concat(*(F.lpad(F.hex(number), 2 * size, "0") for number, size in numbers.values()))
    return F.concat(F.coalesce(F.unhex(raw), F.lit(b"")), "value")


def _compared(base: Base, answers: Mapping[int, Digests], as_of_ms: int) -> tuple[Counter[int], dict[int, list[int]]]:
    """Return by partition the number of keys in the buckets that are equal, and the buckets that differ."""
    counts = [len(answers[number].digests) if number in answers else None for number in range(len(base.ends))]
    rows = base.rows().where(F.col("partition").isin(*answers) & ~expired(F.col("expires_at_ms"), F.lit(as_of_ms)))
    sums = {(row[0], row[1]): (row[2], row[3]) for row in digests_of(rows, by_partition(counts)).collect()}
    equal, differing = Counter[int](), dict[int, list[int]]()
    for number, answer in answers.items():
        for bucket, digest in enumerate(answer.digests):
            own, keys = sums.get((number, bucket), (0, 0))
            if own == digest:
                equal[number] += keys
            else:
                differing.setdefault(number, []).append(bucket)
    return equal, differing


def _row(partition: int, row: StoredRow) -> tuple[object, ...]:
    """Return a row of `ROWS`; one whose write metadata is damaged has none."""
    try:
        metadata = decode_metadata(row.value)
    except ValueError:
        return partition, partition, row.key, row.value, None, None, None, None
    value, place = row.value[METADATA_BYTES:], place_of(row.value)
    return partition, partition, row.key, value, metadata.source_offset, metadata.epoch, metadata.expires_at_ms, place


def _notes(differing: int, left: int, *, mismatches: int) -> tuple[str, ...]:
    if left:
        return (f"not looked at: {left} of {counted(differing, 'bucket')} with differences. More keys differ",)
    if differing and not mismatches:
        return (f"{counted(differing, 'bucket')} differed, and no key there does later on: written again since",)
    return ()
