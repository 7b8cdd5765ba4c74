"""Points in a log: what `--as-of` says, and the offsets and the time that it means.

A point is an offset in each partition: the state at that point is that of the records below it. On a log that is
compacted, or was before it was archived, that state can't be known for every key. Compaction takes a record because a
later one of its key is there. So a key is `unknown` at a point where all of this holds:

* The point lies inside of a span of offsets that compaction may have been at before they were read. With Kafka alone
  the whole log is one such span; an archive has one for each of its batches, or none if the topic's
  `min.compaction.lag.ms` was longer than the time between batches.
* The key was written again in the rest of the span, at or above the point.
* No write of it is left in the span below the point. (Compaction takes older writes first: if one is left, no later one
  was taken. An earlier span proves nothing: it was read at another time.)
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

from spark_replay.errors import LogTooShortError, PointError
from spark_replay.sources.base import Source
from spark_replay.sources.brokers.topic import Span, Topic
from spark_replay.sources.columns import by_partition
from spark_replay.sources.reading import reading
from stores._core.outside import MISSHAPEN
from stores._core.printable import moment_ms

if TYPE_CHECKING:
    from pyspark.sql import Column

_HOW = (
    'latest, offset:0=500,1=480, offset:@FILE with JSON such as {"0": 500}, either also with topic_id, the id of the '
    "topic that the offsets are of, or timestamp:2026-01-31T12:00:00Z (or Unix milliseconds)"
)
_FIRST_LOOK = 1000
_TOPIC_ID = "topic_id"


@dataclass(frozen=True, slots=True)
class AsOf:
    """A requested point: offsets, or a time, or neither, which means the log's end.

    Attributes:
        offsets: By partition the first offset that doesn't count any more; other partitions are read to their end.
        timestamp_ms: In each partition the point is its first record of this time or later; Unix milliseconds.
        topic_id: The id of the topic that the offsets are of; empty if unknown.
    """

    offsets: Mapping[int, int] = field(default_factory=dict)
    timestamp_ms: int | None = None
    topic_id: str = ""

    @classmethod
    def of(cls, point: AsOf | str) -> AsOf:
        """Return a point, by itself or as `parse` reads it."""
        return cls.parse(point) if isinstance(point, str) else point

    @classmethod
    def parse(cls, text: str) -> AsOf:
        """Read `latest`, `offset:…` or `timestamp:…`.

        Raises:
            PointError: It is none of these.
        """
        kind, _, rest = text.partition(":")
        if text == "latest":
            return cls()
        if kind == "offset":
            offsets, topic_id = _parse_offsets(rest)
            return cls(offsets=offsets, topic_id=topic_id)
        return cls(timestamp_ms=_parse_time(rest if kind == "timestamp" else text))

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        if self.timestamp_ms is not None:
            return f"timestamp:{self.timestamp_ms}"
        if self.offsets:
            of = [f"{_TOPIC_ID}={self.topic_id}"] if self.topic_id else []
            return "offset:" + ",".join(
                [*(f"{number}={offset}" for number, offset in sorted(self.offsets.items())), *of]
            )
        return "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A point of one log.

    Attributes:
        before: In each partition the offset to stop before, None for the end.
        times_ms: In each partition the time at which keys count as expired, Unix milliseconds.
        hazards: In each partition where a key is unknown: if it was written at or above `before` and below the second
            offset, and not between the first and `before`. None where every key is known.
    """

    before: tuple[int | None, ...]
    times_ms: tuple[int, ...]
    hazards: tuple[tuple[int, int] | None, ...]

    def ends(self, topic: Topic) -> tuple[int, ...]:
        """Return in each partition the offset to stop before."""
        return tuple(end if before is None else before for end, before in zip(topic.ends, self.before, strict=True))

    def narrowed(self, topic: Topic) -> Topic:
        """Return the topic with the ends up to which it has to be read."""
        ends = []
        for end, before, hazard in zip(topic.ends, self.before, self.hazards, strict=True):
            ends.append(end if before is None else before if hazard is None else min(end, hazard[1]))
        return replace(topic, ends=tuple(ends))

    def unknown(self) -> Column:
        """Return of a row of `spark_replay.fold.fold.last_writes` whether the key's state at the point is unknown."""
        since = by_partition([hazard and hazard[0] for hazard in self.hazards])
        until = by_partition([hazard and hazard[1] for hazard in self.hazards])
        left = F.coalesce(F.col("last.offset") >= since, F.lit(False))
        return F.coalesce(F.col("later_offset") < until, F.lit(False)) & ~left


def find_point(source: Source, topic: Topic, as_of: AsOf, *, as_of_ms: int | None = None) -> Point:
    """Find a point in a log.

    Args:
        source: The log.
        topic: Its description.
        as_of: What is asked for.
        as_of_ms: Unix milliseconds at which keys count as expired, in place of the point's own time: now for the log's
            end, the timestamp asked for, and of an offset the timestamp of the last record below it.

    Raises:
        PointError: The point lies beyond the log, or in the future.
        LogTooShortError: The point lies before the log's start.
        ReadError: Spark couldn't read the log.
    """
    before = find_offsets(source, topic, as_of)
    time_ms = as_of.timestamp_ms if as_of_ms is None else as_of_ms
    times = _times(source, topic, before) if time_ms is None else [time_ms] * topic.partition_count
    return point_at(topic, before, times)


def point_at(topic: Topic, before: Sequence[int | None], times_ms: Sequence[int]) -> Point:
    """Return the point at these offsets and times."""
    spans = topic.spans or ((),) * topic.partition_count
    hazards = tuple(map(_hazard, spans, before))
    return Point(before=tuple(before), times_ms=tuple(times_ms), hazards=hazards)


def find_offsets(source: Source, topic: Topic, as_of: AsOf) -> tuple[int | None, ...]:
    """Return the offset to stop before in each partition, None for its end; errors are those of `find_point`."""
    if as_of.timestamp_ms is not None:
        if as_of.timestamp_ms > now_ms():
            raise PointError(f"--as-of {as_of} is in the future")
        offsets = source.offsets_at(topic, as_of.timestamp_ms)
        for number, before in enumerate(offsets):
            _require_reached(source, topic, number, before, is_asked=before < topic.ends[number])
        return offsets
    if as_of.topic_id and topic.topic_id and as_of.topic_id != topic.topic_id:
        raise PointError(
            f"--as-of has offsets of a topic {topic.name} with the id {as_of.topic_id}, that of {source} has the id "
            f"{topic.topic_id}: the topic was re-created since, or this is another cluster. An archive of the former "
            "topic has its offsets (--archive)"
        )
    for number, before in as_of.offsets.items():
        if not 0 <= number < topic.partition_count:
            raise PointError(f"--as-of names partition {number}, {topic.name} has 0 to {topic.partition_count - 1}")
        if before > topic.ends[number]:
            end = topic.ends[number]
            why = f"ends at {end}, the point is {before}"
            if before <= topic.high_watermarks[number]:
                why = (
                    f"can be read to {end} because a transaction is open there, the point is {before}: try again later"
                )
            raise PointError(f"{topic.name} partition {number}: {why}")
        _require_reached(source, topic, number, before, is_asked=True)
    return tuple(as_of.offsets.get(number) for number in range(topic.partition_count))


def now_ms() -> int:
    """Return the wall clock in Unix milliseconds."""
    return time.time_ns() // 1_000_000


def _require_reached(source: Source, topic: Topic, number: int, before: int, *, is_asked: bool) -> None:
    start = topic.starts[number]
    if is_asked and start > 0 and before <= start:
        raise LogTooShortError(
            f"{topic.name} partition {number} begins at offset {start}, the point lies before it (offset {before}): "
            f"{source} has lost what was there; an archive that was begun earlier has it (--archive)"
        )


def _times(source: Source, topic: Topic, before: Sequence[int | None]) -> list[int]:
    """Return the timestamp of the last record below each offset; now where there is no offset."""
    now = now_ms()
    times = {number: now for number, offset in enumerate(before) if offset is None}
    width = _FIRST_LOOK
    while len(times) < len(before):
        starts, ends = list(topic.starts), list(topic.starts)
        for number, offset in enumerate(before):
            if offset is not None and number not in times:
                starts[number], ends[number] = max(topic.starts[number], offset - width), offset
        look = source.records(replace(topic, starts=tuple(starts), ends=tuple(ends)))
        last = F.max_by(F.unix_millis("timestamp"), "offset").alias("last")
        with reading(str(source)):
            times |= {row["partition"]: row["last"] for row in look.groupBy("partition").agg(last).collect()}
        # where nothing is left below the point, no key is there to expire
        times |= {
            number: times.get(number, now) for number, start in enumerate(starts) if start == topic.starts[number]
        }
        width *= 100
    return [times[number] for number in range(len(before))]


def _hazard(spans: Sequence[Span], before: int | None) -> tuple[int, int] | None:
    if before is None:
        return None
    for number in reversed(range(len(spans))):
        span = spans[number]
        if span.exact or span.start >= before:
            continue
        # what made compaction take a record was in the log when the span was read, not later
        until = next((later.end for later in spans[number:] if later.whole), spans[-1].end)
        since = min(before, span.end) if span.merged else span.start
        return (since, until) if before < until else None
    return None


def _parse_offsets(text: str) -> tuple[dict[int, int], str]:
    try:
        if text.startswith("@"):
            raw = json.loads(Path(text[1:]).read_text())
            pairs: dict[Any, Any] = dict(raw) if isinstance(raw, dict) else dict(enumerate(raw))
        else:
            pairs = dict(pair.split("=") for pair in text.split(","))
        named = pairs.pop(_TOPIC_ID, None)
        topic_id = "" if named is None else str(uuid.UUID(named))
        offsets = {int(number): int(offset) for number, offset in pairs.items()}
    except OSError as error:
        raise PointError(f"--as-of: the offsets can't be read: {error}") from error
    except MISSHAPEN as error:
        raise PointError(f"--as-of offset:{text} can't be read: give {_HOW}") from error
    if not offsets or min(offsets.values()) < 0:
        raise PointError(f"--as-of offset:{text} has {'a negative offset' if offsets else 'no offset'}: give {_HOW}")
    return offsets, topic_id


def _parse_time(text: str) -> int:
    if text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise PointError(f"--as-of {text!r} isn't a point: give {_HOW}") from error
    if moment.tzinfo is None:
        raise PointError(f"--as-of {text} has no time zone: write {text}Z for UTC, or {text}+01:00")
    return moment_ms(moment)
