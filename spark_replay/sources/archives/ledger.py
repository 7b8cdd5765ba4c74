"""The content of an archive for a topic: the offsets that its batches cover.

The rows alone don't show it: a log may end with transaction markers and aborted records, which have offsets and no
rows. So the manifest's entry of a batch has the span that the batch read of each partition.

A batch's span is `exact` when compaction can't have taken anything of it before it was read. A record that compaction
takes is older than the topic's `min.compaction.lag.ms`. Everything in a span was written after the batch before it
asked for the log's end, so it is exact if that was a shorter time ago than this lag. What is known of a point inside of
a span that isn't exact, `spark_replay.fold.points` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import reduce

from spark_replay.sources.brokers.topic import Retention, Span, Topic
from stores._core.printable import counted

_LONGEST = 1000
_CLOCK_MARGIN_MS = 300_000
"""The default of `clock_skew_margin`: brokers take a record's age from the time that its worker gave it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The content of an archive, or of one of its batches, for one topic.

    Attributes:
        topic: The topic.
        topic_id: What Kafka gave it when it was made.
        asked_ms: A moment before the last batch asked for the log's end, Unix milliseconds.
        starts: Of each partition the first offset that the archive covers.
        spans: Of each partition the spans of its batches; older ones are put together when there are many.
        deletes: What `Topic.deletes` was when the last batch was read.
    """

    topic: str
    topic_id: str
    asked_ms: int = 0
    starts: tuple[int, ...] = ()
    spans: tuple[tuple[Span, ...], ...] = ()
    deletes: bool = False

    @property
    def ends(self) -> tuple[int, ...]:
        """The offset after the last one that the archive covers, by partition."""
        return tuple(spans[-1].end if spans else start for start, spans in zip(self.starts, self.spans, strict=True))

    @property
    def described(self) -> Topic:
        """The topic as far as the archive covers it."""
        return Topic(
            name=self.topic,
            starts=self.starts,
            ends=self.ends,
            high_watermarks=self.ends,
            topic_id=self.topic_id,
            spans=self.spans,
            deletes=self.deletes,
        )

    def check(self) -> None:
        """Check that spans have neither a hole nor an overlap; `ValueError` if they have."""
        for number, (start, spans) in enumerate(zip(self.starts, self.spans, strict=True)):
            at = start
            for span in spans:
                if span.start != at or span.end < at:
                    raise ValueError(f"partition {number} has a gap or an overlap at offset {at}")
                at = span.end

    def batch(
        self,
        *,
        starts: Sequence[int],
        ends: Sequence[int],
        asked_ms: int,
        read_ms: int,
        whole: bool,
        retention: Retention,
    ) -> Ledger:
        """Return the content of the batch that follows.

        Args:
            starts: Where partitions begin; counts for those only that are new.
            ends: Up to where it read each partition.
            asked_ms: A moment before which all that lies below the ends was written, and nothing above.
            read_ms: A moment after it was read.
            whole: Whether the log ended there when it was read.
            retention: What compaction and retention may remove from the topic.
        """
        count, spans = len(self.spans), []
        starts = (*self.ends, *starts[count:])
        for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
            # how long ago the first records of a partition were written is unknown
            oldest_ms = read_ms - (self.asked_ms if number < count else 0) + _CLOCK_MARGIN_MS
            exact = not retention.compacted or oldest_ms <= retention.min_compaction_lag_ms
            spans.append((Span(start, end, exact, whole),) if end > start else ())
        return replace(self, asked_ms=asked_ms, starts=starts, spans=tuple(spans), deletes=retention.deletes)

    def joined(self, later: Ledger) -> Ledger:
        """Return the content of this and of what follows.

        Raises:
            ValueError: That is of another topic, or there is a hole or an overlap between both.
        """
        if (later.topic, later.topic_id) != (self.topic, self.topic_id):
            raise ValueError(f"{later.topic} has the id {later.topic_id}, and had {self.topic_id} before")
        for number, (end, start) in enumerate(zip(self.ends, later.starts, strict=False)):
            if end != start:
                what = "a hole" if end < start else "an overlap"
                raise ValueError(f"{self.topic} partition {number} has {what} between the offsets {end} and {start}")
        if len(later.starts) < len(self.starts):
            partitions = counted(len(later.starts), "partition")
            raise ValueError(f"{self.topic} has {partitions}, and had {len(self.starts)} before")
        starts = (*self.starts, *later.starts[len(self.starts) :])
        before = (*self.spans, *(() for _ in starts[len(self.spans) :]))
        spans = tuple(reduce(_grown, new, old) for old, new in zip(before, later.spans, strict=True))
        return replace(later, starts=starts, spans=spans)


def escaped_deletes(ledger: Ledger, ends: Sequence[int], retention: Retention, now_ms: int) -> str | None:
    """Return a warning if compaction may have removed tombstones that came after an archive's last batch, else None.

    Args:
        ledger: What the archive holds of the topic.
        ends: Up to where the topic's log is read now.
        retention: What compaction and retention may remove from the topic.
        now_ms: A moment after it was read, Unix milliseconds.
    """
    if not retention.compacted or now_ms - ledger.asked_ms <= retention.delete_retention_ms:
        return None
    later = [number for number, (old, end) in enumerate(zip(ledger.ends, ends, strict=False)) if end > old]
    if not later:
        return None
    # of batches that an older run planned it is unknown
    at = datetime.fromtimestamp(ledger.asked_ms / 1000, UTC).isoformat(timespec="seconds") if ledger.asked_ms else "?"
    return (
        f"the archive was last brought up to date at {at}, longer ago than the delete.retention.ms="
        f"{retention.delete_retention_ms} of {ledger.topic}: keys of the partitions {', '.join(map(str, later))} that "
        "were deleted since may still be in states from it; begin another archive"
    )


def _grown(spans: tuple[Span, ...], new: Span) -> tuple[Span, ...]:
    if new.end <= new.start:
        return spans
    if spans and new.exact and spans[-1].exact:
        return (*spans[:-1], replace(new, start=spans[-1].start))
    spans = (*spans, new)
    return spans if len(spans) <= _LONGEST else _coarser(spans)


def _coarser(spans: tuple[Span, ...]) -> tuple[Span, ...]:
    """Put the older half together in pairs."""
    half = len(spans) // 2 // 2 * 2
    pairs = zip(spans[:half:2], spans[1:half:2], strict=True)
    together = (
        Span(one.start, two.end, one.exact and two.exact, two.whole, merged=not (one.exact and two.exact))
        for one, two in pairs
    )
    return (*together, *spans[half:])
