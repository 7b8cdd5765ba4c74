"""A rebuild from an earlier one: only what the log has behind that one's offsets is read.

Compaction takes an older write of a key before a later one, so that a write below the earlier rebuild's offsets may be
the only sign that none is missing behind them. Where a key was written again behind the point, and nothing of it is
left between, the log is therefore folded from its start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from spark_replay.errors import LogTooShortError, PointError, ReadError, TargetError, WrongTopicError
from spark_replay.fold.decoding import Codecs
from spark_replay.fold.fold import expired, fields
from spark_replay.fold.points import Point, now_ms, point_at
from spark_replay.fold.rebuilt import (
    LAYERS,
    Layer,
    Rebuilt,
    is_lost,
    link_layers,
    read_summary,
    require_sound,
    state_rows,
    without_keys,
    write_layer,
)
from spark_replay.fold.settled import Settled
from spark_replay.fold.windows import WindowLog
from spark_replay.sources.base import Source
from spark_replay.sources.brokers.topic import Topic
from spark_replay.sources.columns import by_partition
from spark_replay.sources.folders import Folder, Target
from spark_replay.sources.reading import keep
from stores._core.printable import counted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_KEYS = ("partition", "key")
MOST_LAYERS = 8
LARGEST_SHARE = 4
"""Layers are written together when they are more than so many, or have more than this part of the first one's rows."""


@dataclass(frozen=True, slots=True)
class Base:
    """A rebuild to go on from; its files are in `folder`."""

    folder: Folder
    rebuilt: Rebuilt

    @classmethod
    def of(cls, folder: Folder, *, is_decoded: bool | None = None, with_unknown: bool = False) -> Base:
        """Read the summary of a rebuild.

        Args:
            folder: The rebuild's.
            is_decoded: Whether the new one has the columns that `--app` adds; None: it has no rows.
            with_unknown: Whether it may have unknown keys, as of `write_rebuild`.

        Raises:
            ReadError: It can't be read.
            TargetError: One of its kind can't be gone on from.
        """
        rebuilt = read_summary(folder)
        if is_decoded not in (None, rebuilt.undecodable is not None):
            raise TargetError(
                f"one of the rebuild in {folder} and the new one is made with --app: choose the same for both"
            )
        if rebuilt.unknown and not with_unknown:
            raise TargetError(
                f"the rebuild in {folder} lacks {rebuilt.unknown} keys whose state at its point is unknown: choose "
                "another one, or rebuild from the start"
            )
        return cls(folder, rebuilt)

    def linked(self, target: Target) -> Base:
        """Return the same after a check of its digests; between local folders with files of its own in `target`."""
        base = self
        if self.folder.local is not None and target.folder.local is not None:
            to = target.work / "base"
            rebuilt = replace(self.rebuilt, layers=link_layers(self.folder, self.rebuilt, to))
            base = Base(Folder(self.folder.spark, to, ReadError), rebuilt)
        require_sound(base.folder, base.rebuilt)
        return base

    @property
    def ends(self) -> tuple[int, ...]:
        """The offset in each partition from which on the log is read."""
        return tuple(part.end_offset for part in self.rebuilt.partitions)

    @property
    def last_offsets(self) -> dict[int, int]:
        """The last record that it has of each partition."""
        return {part.partition: part.last_offset for part in self.rebuilt.partitions}

    @property
    def starts(self) -> tuple[int, ...]:
        """Where the log began in each partition when it was read from its start."""
        return tuple(part.start_offset for part in self.rebuilt.partitions)

    @property
    def times_ms(self) -> tuple[int, ...]:
        """The time in each partition at which its keys count as expired."""
        return tuple(part.as_of_ms for part in self.rebuilt.partitions)

    def rows(self) -> DataFrame:
        """Return the rows of the state."""
        return state_rows(self.folder, self.rebuilt)

    def require_of(self, topic: Topic) -> None:
        """Check that it is a rebuild of this topic.

        Raises:
            WrongTopicError: It isn't.
        """
        rebuilt, name = self.rebuilt, topic.name
        if rebuilt.changelog != name:
            raise WrongTopicError(f"{self.folder} is a rebuild of {rebuilt.changelog}, not of {name}")
        if rebuilt.topic_id and topic.topic_id and rebuilt.topic_id != topic.topic_id:
            raise WrongTopicError(
                f"{self.folder} is a rebuild of a topic {name} with the id {rebuilt.topic_id}, this one has the id "
                f"{topic.topic_id}: the topic was re-created since, or this is another cluster. Rebuild from the start"
            )
        if len(rebuilt.partitions) != topic.partition_count:
            raise WrongTopicError(
                f"{self.folder} is a rebuild of {counted(len(rebuilt.partitions), 'partition')}, {name} has "
                f"{topic.partition_count}. Rebuild from the start"
            )

    def reached(self, topic: Topic, point: Point) -> Point:
        """Return a point with the rebuild's offset where only markers of transactions lie between the two."""
        before = tuple(
            part.end_offset if before is not None and part.last_offset < before < part.end_offset else before
            for part, before in zip(self.rebuilt.partitions, point.before, strict=True)
        )
        return point_at(topic, before, point.times_ms)

    def require_before(self, topic: Topic, point: Point) -> None:
        """Check that a point of the log isn't before the rebuild, and that the log has all that is between.

        Raises:
            LogTooShortError: The log begins behind the rebuild, or ends before it.
            PointError: The point is before the rebuild.
        """
        for number, (offset, as_of_ms) in enumerate(zip(self.ends, self.times_ms, strict=True)):
            where, folder = f"{topic.name} partition {number}", self.folder
            start, end, before = topic.starts[number], topic.ends[number], point.before[number]
            if offset > end:
                raise LogTooShortError(
                    f"{where} ends at offset {end}, and the rebuild in {folder} has the records below {offset}: is it "
                    "another cluster, or an older archive?"
                )
            if start > offset:
                raise LogTooShortError(
                    f"{where} begins at offset {start}, and the rebuild in {folder} has the records below {offset}: "
                    "what was between is lost. Rebuild from the start"
                )
            if before is not None and before < offset:
                raise PointError(
                    f"{where}: the point, offset {before}, is before the rebuild in {folder}, which has the records "
                    f"below {offset}. Go on from an earlier one, or rebuild from the start"
                )
            if point.times_ms[number] < as_of_ms:
                raise PointError(
                    f"{where}: keys count as expired at {point.times_ms[number]} ms at the point, and in the rebuild "
                    f"in {folder} as of {as_of_ms} ms, which is later. Go on from an earlier one, or rebuild from the "
                    "start"
                )

    def keeps_deletes(self, source: Source, topic: Topic) -> bool:
        """Return whether compaction can't have taken a tombstone that was written since the rebuild."""
        if source.live is None:
            return True
        # an archive warns of its own age
        joints = topic.joints or (0,) * topic.partition_count
        later = zip(self.ends, joints, topic.ends, strict=True)
        is_read = any(offset >= joint and end > offset for offset, joint, end in later)
        return not is_read or source.live.keeps_deletes((now_ms() - self.rebuilt.made_ms) / 1000)

    def require_deletes_kept(self, source: Source, topic: Topic) -> None:
        """Check the same.

        Raises:
            ReadError: It doesn't.
        """
        if not self.keeps_deletes(source, topic):
            raise ReadError(
                f"the rebuild in {self.folder} is older than the delete.retention.ms of {topic.name}: keys "
                "that were deleted since may be without a tombstone. Rebuild from the start"
            )


def extend(
    base: Base, settled: Settled, windows: WindowLog, target: Target, *, codecs: Codecs | None
) -> tuple[tuple[Layer, ...], Mapping[int, int], int]:
    """Write what changed since a rebuild, or all where there are too many layers, or it is of another storage.

    Args:
        base: The rebuild.
        settled: The fold of what the log has behind it, without unknown keys.
        windows: Of the state at the new point.
        target: The new rebuild's.
        codecs: As `--app` names them.

    Returns:
        All layers, of each partition how many rows the state has, and how many keys and values don't decode.
    """
    to, is_local = target.folder, base.folder.local is not None and target.folder.local is not None
    times = by_partition(settled.point.times_ms)
    is_over = expired(F.col("expires_at_ms"), times) | windows.past()
    written = fields(settled.writes(settled.facts.where(F.col("last").isNotNull())))
    changed = keep(written.withColumn("is_live", F.col("value").isNotNull() & ~is_over))
    live = _by_partition(changed, F.count(F.lit(1)), F.count_if("is_live"))
    count = sum(rows for rows, _ in live.values())
    rest = without_keys(base.rows(), changed, count)
    is_undecoded = F.lit(False) if codecs is None else ~is_over & is_lost()
    kept = _by_partition(rest, F.count_if(is_over), F.count_if(~is_over), F.count_if(is_undecoded))
    gone = sum(rows for rows, _, _ in kept.values())
    keys = Counter({number: rows for number, (_, rows) in live.items()})
    keys.update({number: rows for number, (_, rows, _) in kept.items()})
    ends = settled.point.ends(settled.topic)
    first, *later = base.rebuilt.layers
    names = [name for name in changed.columns if name != "is_live"]
    is_large = (sum(layer.rows for layer in later) + count + gone) * LARGEST_SHARE > first.rows
    if len(later) >= MOST_LAYERS or is_large or not (is_local or base.folder.uri == to.uri):
        rows = rest.where(~is_over).select(names).unionByName(changed.where("is_live").select(names))
        layer, digests = write_layer(rows, to, Layer(folder=target.attempt, ends=ends), codecs=codecs)
        return (layer,), keys, sum(digest.more for digest in digests.values())
    name = target.attempt or f"{LAYERS}/{len(later) + 1}"
    new, undecoded = Layer(folder=name, ends=ends), sum(lost for _, _, lost in kept.values())
    if count + gone:
        null = [F.when(F.col("is_live"), F.col(name)).alias(name) for name in names if name not in _KEYS]
        rows = changed.select(*_KEYS, *null)
        if gone:
            rows = rows.unionByName(rest.where(is_over).select(*_KEYS), allowMissingColumns=True)
        new, digests = write_layer(rows, to, new, codecs=codecs)
        undecoded += sum(digest.more for digest in digests.values())
    if is_local:
        Path(f"{to}/{LAYERS}").mkdir(parents=True, exist_ok=True)
        for layer in base.rebuilt.layers:
            Path(f"{base.folder}/{layer.folder}").rename(f"{to}/{layer.folder}")
    return (*base.rebuilt.layers, *([new] if new.rows else [])), keys, undecoded


def _by_partition(rows: DataFrame, *counts: Column) -> dict[int, tuple[int, ...]]:
    groups = (
        rows.groupBy("partition").agg(*(count.alias(f"n{number}") for number, count in enumerate(counts))).collect()
    )
    return {row["partition"]: tuple(row)[1:] for row in groups}
