"""The content of an archive for a topic: the offsets that its finished batches cover.

The rows alone don't tell: a log may end with transaction markers and aborted records, which have offsets and no rows.
So each batch's end is written down once its files count, in `_offsets/{topic}.json` beside them. Rows at or above the
end belong to a batch that isn't written down yet; readers leave them out.

A batch's span is `exact` when compaction can't have taken anything of it before it was read. A record that compaction
takes is older than the topic's `min.compaction.lag.ms`. Everything in a span was written after the batch before it
asked for the log's end, so it is exact if that was a shorter time ago than this lag. What is known of a point inside of
a span that isn't exact, `spark_replay.fold.points` says.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from spark_replay.sources.brokers.topic import Retention, Span
from stores._core.outside import MISSHAPEN

LEDGERS = "_offsets"
_FORMAT = 1
_FLAGS = ("exact", "whole", "merged")
_LONGEST = 1000
_CLOCK_MARGIN_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The content of an archive for one topic.

    Attributes:
        topic: The topic.
        topic_id: What Kafka gave it when it was made.
        batch: The last of the archive's batches that is in here.
        asked_ms: A moment before that batch asked for the log's end, Unix milliseconds.
        starts: Of each partition the first offset that the archive covers.
        spans: Of each partition the spans of its batches; older ones are put together when there are many.
        deletes: What `Topic.deletes` was when the last batch was read.
    """

    topic: str
    topic_id: str
    batch: int
    asked_ms: int
    starts: tuple[int, ...]
    spans: tuple[tuple[Span, ...], ...]
    deletes: bool

    @property
    def ends(self) -> tuple[int, ...]:
        """The offset after the last one that the archive covers, by partition."""
        return tuple(spans[-1].end if spans else start for start, spans in zip(self.starts, self.spans, strict=True))

    def extended(self, batch: int, read: Read) -> Ledger:
        """Return the ledger with one more batch."""
        begun = (*self.starts, *read.starts[len(self.starts) :])
        parts = (*self.spans, *(() for _ in begun[len(self.spans) :]))
        grown = []
        for number, (spans, start, end) in enumerate(zip(parts, begun, read.ends, strict=True)):
            at = spans[-1].end if spans else start
            # how long ago the first records of a partition were written is unknown
            is_exact = read.is_exact(self.asked_ms if number < len(self.spans) else 0)
            grown.append(_grown(spans, Span(at, end, is_exact, read.whole)))
        return replace(
            self,
            batch=batch,
            asked_ms=read.asked_ms,
            starts=begun,
            spans=tuple(grown),
            deletes=read.retention.deletes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """The records that a batch read of one topic.

    Attributes:
        starts: Where partitions begin; counts for those only that are new.
        ends: Up to where it read each partition.
        asked_ms: A moment before which all that lies below the ends was written, and nothing above; Unix milliseconds.
        read_ms: A moment after it was read.
        whole: Whether the log ended there when it was read.
        retention: What compaction and retention may remove from the topic.
    """

    starts: Sequence[int]
    ends: Sequence[int]
    asked_ms: int
    read_ms: int
    whole: bool
    retention: Retention

    def is_exact(self, asked_before_ms: int) -> bool:
        """Return whether the span is exact, the batch before having asked for the log's end at `asked_before_ms`."""
        oldest_ms = self.read_ms - asked_before_ms + _CLOCK_MARGIN_MS
        return not self.retention.compacted or oldest_ms <= self.retention.min_compaction_lag_ms


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


def encode_ledger(ledger: Ledger) -> str:
    """Return the ledger as JSON text."""
    spans = [[[span.start, span.end, *_flags(span)] for span in spans] for spans in ledger.spans]
    fields = {name: getattr(ledger, name) for name in ("topic", "topic_id", "batch", "asked_ms", "starts", "deletes")}
    return json.dumps({"format": _FORMAT, **fields, "spans": spans}) + "\n"


def decode_ledger(text: str) -> Ledger:
    """Read what `encode_ledger` wrote.

    Raises:
        ValueError: It isn't a ledger, or of a format that this release doesn't know.
    """
    try:
        raw = json.loads(text)
        if raw["format"] != _FORMAT:
            raise ValueError(f"of format {raw['format']}, this release reads format {_FORMAT}")
        ledger = Ledger(
            topic=str(raw["topic"]),
            topic_id=str(raw["topic_id"]),
            batch=int(raw["batch"]),
            asked_ms=int(raw["asked_ms"]),
            starts=tuple(int(start) for start in raw["starts"]),
            spans=tuple(
                tuple(
                    Span(int(start), int(end), **{flag: flag in flags for flag in _FLAGS})
                    for start, end, *flags in spans
                )
                for spans in raw["spans"]
            ),
            deletes=bool(raw["deletes"]),
        )
        _check(ledger)
    except MISSHAPEN as error:
        raise ValueError(f"not a record of an archive's offsets: {error!r}") from error
    return ledger


def _check(ledger: Ledger) -> None:
    if len(ledger.starts) != len(ledger.spans):
        raise ValueError(f"{len(ledger.starts)} partitions begin, {len(ledger.spans)} have spans")
    for number, (start, spans) in enumerate(zip(ledger.starts, ledger.spans, strict=True)):
        at = start
        for span in spans:
            if span.start != at or span.end < at:
                raise ValueError(f"partition {number} has a gap or an overlap at offset {at}")
            at = span.end


def _flags(span: Span) -> list[str]:
    return [flag for flag in _FLAGS if getattr(span, flag)]


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
