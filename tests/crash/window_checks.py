"""What must be true of the windows of a run, from what is in Kafka alone: independent of the code under test.

The clicks in the order of their partition say what is in each window, when it is over, and which of them are too late.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from tests.crash import rules
from tests.crash.checks import Record, in_order
from tests.crash.chore_checks import ChoreFindings

COUNTS = (
    "finals_lost",
    "finals_doubled",
    "finals_unasked",
    "finals_out_of_order",
    "late_lost",
    "late_doubled",
    "late_unasked",
)
SPANS, SITTINGS = "spans", "sittings"


class Final(NamedTuple):
    """What a window held when it closed."""

    partition: int
    key: bytes
    store: str
    start_ms: int
    end_ms: int
    count: int
    sum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowEvidence:
    """What a run left: the clicks, what was said of windows that closed, and the clicks that were too late."""

    clicks: Sequence[Record]
    finals: Sequence[Record]
    late: Sequence[Record]


@dataclass(slots=True)
class _Sitting:
    start_ms: int
    end_ms: int
    count: int = 0
    sum: int = 0
    is_closed: bool = False


@dataclass(slots=True)
class _Partition:
    """The windows of a partition, click by click.

    Attributes:
        finals: what has to be said, in no order.
        late: the numbers of the clicks that are too late.
    """

    partition: int
    finals: list[Final] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    merged: int = 0
    _stream_ms: int = -1
    _spans: dict[tuple[bytes, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    _sittings: dict[bytes, list[_Sitting]] = field(default_factory=lambda: defaultdict(list))

    def take(self, key: bytes, click: rules.Click) -> None:
        """Count a click, after all that are over by its time have closed."""
        self._stream_ms = max(self._stream_ms, click.at_ms)
        self._close_sittings()
        start_ms = click.at_ms - click.at_ms % rules.SPAN_MS
        is_in_time = start_ms + rules.SPAN_MS + rules.GRACE_MS > self._stream_ms
        if is_in_time:
            self._spans[key, start_ms].append(click.number)
        if not self._sit(key, click) and not is_in_time:
            self.late.append(click.number)

    def _sit(self, key: bytes, click: rules.Click) -> bool:
        near, away = [], []
        for one in self._sittings[key]:
            is_near = one.start_ms - rules.GAP_MS <= click.at_ms <= one.end_ms + rules.GAP_MS
            (near if is_near else away).append(one)
        new = _Sitting(
            min([click.at_ms, *(one.start_ms for one in near)]), max([click.at_ms, *(one.end_ms for one in near)])
        )
        if self._is_over(new):
            return False
        new.count, new.sum = 1 + sum(one.count for one in near), click.number + sum(one.sum for one in near)
        self.merged += len(near) > 1
        self._sittings[key] = [*away, new]
        return True

    def _is_over(self, sitting: _Sitting) -> bool:
        return sitting.end_ms + rules.GAP_MS + rules.GRACE_MS < self._stream_ms

    def _close_sittings(self) -> None:
        for key, sittings in self._sittings.items():
            for one in sittings:
                if not one.is_closed and self._is_over(one):
                    one.is_closed = True
                    place = one.start_ms, one.end_ms
                    self.finals.append(Final(self.partition, key, SITTINGS, *place, one.count, one.sum))

    def close_spans(self) -> None:
        """Close the spans that are over; what is in them doesn't depend on when that was."""
        for (key, start_ms), numbers in self._spans.items():
            end_ms = start_ms + rules.SPAN_MS
            if end_ms + rules.GRACE_MS <= self._stream_ms:
                self.finals.append(Final(self.partition, key, SPANS, start_ms, end_ms, len(numbers), sum(numbers)))


def check_windows(evidence: WindowEvidence) -> ChoreFindings:
    """Compare what was said of windows with what was in them: each final once, and in the order of their ends."""
    findings = ChoreFindings.of(COUNTS)
    partitions: dict[int, _Partition] = {}
    for record in in_order(evidence.clicks):
        part = partitions.setdefault(record.partition, _Partition(record.partition))
        part.take(record.key or b"", msgspec.json.decode(record.value or b"", type=rules.Click))
    for part in partitions.values():
        part.close_spans()
    said = [_said(record) for record in in_order(evidence.finals)]
    findings.once("finals", (final for part in partitions.values() for final in part.finals), Counter(said))
    late = [json.loads(record.value or b"")["number"] for record in evidence.late]
    findings.once("late", (number for part in partitions.values() for number in part.late), Counter(late))
    for text in _out_of_order(said):
        findings.note("finals_out_of_order", text)
    findings.seen.update(final.store for final in said)
    findings.seen["late"] = len(late)
    findings.seen["merged"] = sum(part.merged for part in partitions.values())
    return findings


def _said(record: Record) -> Final:
    told = json.loads(record.value or b"")
    return Final(record.partition, record.key or b"", **told)


def _out_of_order(said: Sequence[Final]) -> Iterator[str]:
    """Name the finals that come after one of their store and partition that ends later."""
    last: dict[tuple[int, str], Final] = {}
    for final in said:
        before = last.get((final.partition, final.store), final)
        if final.end_ms < before.end_ms:
            yield f"{final} came after {before}"
        last[final.partition, final.store] = final
