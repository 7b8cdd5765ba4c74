"""What must have happened in a run, from its inputs alone: independent of the code under test.

Everything that has to happen has a kind, a place that no other of its kind has, a value, and the number of the input
with which it came due.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import NamedTuple
from zoneinfo import ZoneInfo

from tests.crash.checks import Record, in_order
from tests.inhand import rules

WINDOWS = ("spans", "emits", "shifts", "hops", "slides", "sittings", "days")
JOINS = ("matched pairs", "matched lone", "paid pairs", "paid lone")
SAID = ("handled", "rang", "expired", "left", "done", "told", "heard")
KINDS = (*WINDOWS, *JOINS, *SAID)
TIMED = ("clicks", *rules.HALVES)
"""The inputs whose records have a time of their own."""
OUTPUTS = ("finals", "matched", "paid", "late-match", "late-pay", "said")
FLAWS = ("lost", "doubled", "wrong")
REPEATS = ("ended", "cut off", "excused")
NOWHERE = -1
"""The number of what nothing asked for."""
START = "start"
"""Stands for a fault before there was any: workers join one after the other."""
EXAMPLES = 3
"""So many of each kind and flaw are kept."""


class Due(NamedTuple):
    """Something that has to happen: when, and with one of which values."""

    number: int
    values: Sequence[Hashable] = (None,)


class Flaw(NamedTuple):
    """Something that was lost, doubled or wrong, and the number of the input with which it came due."""

    kind: str
    name: str
    number: int


@dataclass(slots=True)
class Ledger:
    """What has to happen by kind and place, and what did."""

    due: dict[str, dict[Hashable, Due]] = field(default_factory=lambda: {kind: {} for kind in KINDS})
    happened: dict[str, list[tuple[Hashable, Hashable]]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    examples: list[str] = field(default_factory=list)

    def flaws(self) -> Counter[Flaw]:
        """Compare, and count."""
        counts: Counter[Flaw] = Counter()
        for kind in KINDS:
            due, times = self.due[kind], Counter(place for place, _ in self.happened[kind])
            for place, (number, _) in due.items():
                if not times[place]:
                    self._note(counts, Flaw(kind, "lost", number), place)
                elif times[place] > 1:
                    self._note(counts, Flaw(kind, "doubled", number), place, times[place] - 1)
            for place, value in self.happened[kind]:
                number, values = due.get(place, Due(NOWHERE, ()))
                if value not in values:
                    self._note(counts, Flaw(kind, "wrong", number), f"{place}: {value}, not one of {values[:3]}")
        return counts

    def _note(self, counts: Counter[Flaw], flaw: Flaw, text: object, times: int = 1) -> None:
        noted = sum(count for other, count in counts.items() if other[:2] == flaw[:2])
        counts[flaw] += times
        if noted < EXAMPLES:
            self.examples.append(f"{flaw.kind} {flaw.name}: {text}, due with input {flaw.number}")


@dataclass(frozen=True, slots=True)
class Clock:
    """The event time of a run's numbers."""

    begin_ms: int

    def number_at(self, at_ms: int) -> int:
        """Return the first number whose record may have that time."""
        return max(0, -(-(at_ms - self.begin_ms) // rules.STEP_MS))


def account(records: Mapping[str, Sequence[Record]], begin_ms: int, numbers: Iterable[int]) -> tuple[Ledger, int]:
    """Compare what is in the topics, by name; return the account and how many records were late for a join.

    `begin_ms` is the time of the number 0, `numbers` are those of which there was a job and a question.
    """
    ledger, clock = Ledger(), Clock(begin_ms)
    _expect_windows(ledger, clock, records["clicks"])
    _note_finals(ledger, records["finals"])
    sides = {"matched": ("offers", "bids", "late-match"), "paid": ("orders", "payments", "late-pay")}
    joins = [
        _Join(
            name=name,
            left=records[left],
            right=records[right],
            called=records[name],
            late=records[late],
            is_outer=name == "matched",
        )
        for name, (left, right, late) in sides.items()
    ]
    late_count = sum(_check_join(ledger, clock, join) for join in joins)
    _check_said(ledger, numbers, records["said"])
    return ledger, late_count


def decoded(record: Record) -> dict[str, int]:
    """Return a record's value."""
    value: dict[str, int] = json.loads(record.value or b"")
    return value


# --- windows -----------------------------------------------------------------------------------------------------

Span = tuple[int, int]
_Click = tuple[int, int]
"""Time, number."""


def spans_of(at_ms: int, length_ms: int, advance_ms: int) -> Iterator[Span]:
    """Yield the windows at multiples of `advance_ms` that a time lies in."""
    start_ms = at_ms - at_ms % advance_ms
    while start_ms > at_ms - length_ms:
        yield start_ms, start_ms + length_ms
        start_ms -= advance_ms


def day_of(at_ms: int) -> Span:
    """Return the day of the calendar that a time lies in."""
    zone = ZoneInfo(rules.ZONE)
    day = datetime.fromtimestamp(at_ms / 1000, zone).date()
    midnights = (datetime(date.year, date.month, date.day, tzinfo=zone) for date in (day, day + timedelta(days=1)))
    start_ms, end_ms = (int(midnight.timestamp() * 1000) for midnight in midnights)
    return start_ms, end_ms


def slides_of(clicks: Sequence[_Click]) -> dict[Span, list[int]]:
    """Return the windows that begin behind a click, or end with one, and the numbers in each that has some."""
    times = [at_ms for at_ms, _ in clicks]
    starts = {at_ms - rules.SLIDE_MS for at_ms in times} | {at_ms + 1 for at_ms in times}
    slides = {}
    for start_ms in starts:
        end_ms = start_ms + rules.SLIDE_MS
        numbers = [number for _, number in clicks[bisect_left(times, start_ms) : bisect_left(times, end_ms + 1)]]
        if numbers:
            slides[start_ms, end_ms] = numbers
    return slides


def sittings_of(clicks: Sequence[_Click]) -> dict[Span, list[int]]:
    """Return the sessions, and the numbers in each."""
    groups: list[list[_Click]] = []
    for click in clicks:
        if groups and click[0] - groups[-1][-1][0] <= rules.GAP_MS:
            groups[-1].append(click)
        else:
            groups.append([click])
    return {(group[0][0], group[-1][0]): [number for _, number in group] for group in groups}


def _expect_windows(ledger: Ledger, clock: Clock, clicks: Iterable[Record]) -> None:
    """Enter what has to come of the clicks."""
    partitions: dict[int, list[tuple[bytes, int, int]]] = defaultdict(list)
    for record in in_order(clicks):
        click = decoded(record)
        partitions[record.partition].append((record.key or b"", click["at_ms"], click["number"]))
    for partition, records in partitions.items():
        end_ms = max(at_ms for _, at_ms, _ in records)
        by_key: dict[bytes, list[_Click]] = defaultdict(list)
        for key, at_ms, number in records:
            by_key[key].append((at_ms, number))
        for key, of_key in by_key.items():
            for store, window, numbers, close_ms in _closes(sorted(of_key)):
                if close_ms <= end_ms:
                    value = (len(numbers), sum(numbers))
                    ledger.due[store][partition, key, *window] = Due(clock.number_at(close_ms), (value,))
        _expect_emits(ledger, clock, partition, records)


def _closes(clicks: Sequence[_Click]) -> Iterator[tuple[str, Span, list[int], int]]:
    """Yield store, window, numbers in it and the stream time of the close, for one key."""
    aligned: dict[tuple[str, Span], list[int]] = defaultdict(list)
    for at_ms, number in clicks:
        for span in spans_of(at_ms, rules.SPAN_MS, rules.SPAN_MS):
            aligned["spans", span].append(number)
        for span in spans_of(at_ms, rules.HOP_MS, rules.SPAN_MS):
            aligned["hops", span].append(number)
        aligned["days", day_of(at_ms)].append(number)
    for (store, (start_ms, _)), numbers in list(aligned.items()):
        if store == "spans":
            (shift,) = spans_of(start_ms, rules.SHIFT_MS, rules.SHIFT_MS)
            aligned["shifts", shift].append(sum(numbers))
    for (store, span), numbers in aligned.items():
        yield store, span, numbers, span[1] + rules.GRACE_MS
    for span, numbers in slides_of(clicks).items():
        yield "slides", span, numbers, span[1] + rules.GRACE_MS + 1
    for span, numbers in sittings_of(clicks).items():
        yield "sittings", span, numbers, span[1] + rules.GAP_MS + rules.GRACE_MS + 1


def _expect_emits(ledger: Ledger, clock: Clock, partition: int, records: Sequence[tuple[bytes, int, int]]) -> None:
    """Enter the changes of spans: each once an interval, with what was in it at the interval's end or later."""
    stream_ms = -1
    values: dict[tuple[bytes, Span], list[tuple[int, int]]] = defaultdict(lambda: [(0, 0)])
    firsts: dict[tuple[int, bytes, Span], int] = {}
    for key, at_ms, number in records:
        stream_ms = max(stream_ms, at_ms)
        (span,) = spans_of(at_ms, rules.SPAN_MS, rules.SPAN_MS)
        count, total = values[key, span][-1]
        values[key, span].append((count + 1, total + number))
        until_ms = stream_ms - stream_ms % rules.EVERY_MS + rules.EVERY_MS
        firsts[until_ms, key, span] = count + 1
    for (until_ms, key, span), first in firsts.items():
        if until_ms <= stream_ms:
            place = (partition, key, *span, until_ms)
            ledger.due["emits"][place] = Due(clock.number_at(until_ms), values[key, span][first:])


def _note_finals(ledger: Ledger, finals: Iterable[Record]) -> None:
    """Enter what was said of windows."""
    for record in in_order(finals):
        final = json.loads(record.value or b"")
        place = [record.partition, record.key, final["start_ms"], final["end_ms"]]
        if final["store"] == "emits":
            place.append(final["until_ms"])
        ledger.happened[final["store"]].append((tuple(place), (final["count"], final["sum"])))


# --- joins -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Half:
    """A record of a join.

    Attributes:
        closed_ms: the last stream time at which its window is open.
        paired_ms: the stream time of its first pair.
    """

    number: int
    at_ms: int
    closed_ms: int
    paired_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Join:
    """What the run left of a join. Which records were late depends on how far the other input was: those say it."""

    name: str
    left: Sequence[Record]
    right: Sequence[Record]
    called: Sequence[Record]
    late: Sequence[Record]
    is_outer: bool


def _check_join(ledger: Ledger, clock: Clock, join: _Join) -> int:
    """Enter what a join had to be called for, and what it was called for; return how many records were late."""
    ends = Counter[int]()
    for record in (*join.left, *join.right):
        ends[record.partition] = max(ends[record.partition], decoded(record)["at_ms"])
    late = Counter(_late_place(record) for record in join.late)
    sides = [_halves(join.left, rules.AFTER_MS, late), _halves(join.right, rules.BEFORE_MS, late)]
    calls = [(record, decoded(record)) for record in in_order(join.called)]
    for record, call in calls:
        numbers = (call["left"], call["right"])
        is_pair = None not in numbers
        ledger.happened[f"{join.name} {'pairs' if is_pair else 'lone'}"].append((numbers, record.partition))
        for halves, number in zip(sides, numbers, strict=True):
            half = halves.get((record.partition, record.key or b""), {}).get(number)
            if half is not None and is_pair:
                half.paired_ms = min(call["stream_ms"], half.paired_ms or call["stream_ms"])
    for left, right, partition in _pairs(*sides):
        number = clock.number_at(max(left.at_ms, right.at_ms))
        ledger.due[f"{join.name} pairs"][left.number, right.number] = Due(number, (partition,))
    for side, halves in enumerate(sides[: 1 + join.is_outer]):
        for (partition, _), of_key in halves.items():
            for half in of_key.values():
                is_over = half.closed_ms < ends[partition]
                if is_over and (half.paired_ms is None or half.paired_ms > half.closed_ms):
                    place = (None, half.number) if side else (half.number, None)
                    ledger.due[f"{join.name} lone"][place] = Due(clock.number_at(half.closed_ms + 1), (partition,))
    return late.total()


_Halves = dict[tuple[int, bytes], dict[int, _Half]]


def _late_place(record: Record) -> tuple[bytes | None, int, int]:
    click = decoded(record)
    return record.key, click["number"], click["at_ms"]


def _halves(records: Iterable[Record], span_ms: int, late: Counter[tuple[bytes | None, int, int]]) -> _Halves:
    """Return the records in time, by partition and key, and by number."""
    halves: _Halves = defaultdict(dict)
    for record in in_order(records):
        click = decoded(record)
        if not late[_late_place(record)]:
            closed_ms = click["at_ms"] + span_ms + rules.GRACE_MS
            halves[record.partition, record.key or b""][click["number"]] = _Half(
                click["number"], click["at_ms"], closed_ms
            )
    return halves


def _pairs(left: _Halves, right: _Halves) -> Iterator[tuple[_Half, _Half, int]]:
    for (partition, key), lefts in left.items():
        rights = sorted(right.get((partition, key), {}).values(), key=lambda half: half.at_ms)
        times = [half.at_ms for half in rights]
        for half in lefts.values():
            first = bisect_left(times, half.at_ms - rules.BEFORE_MS)
            for other in rights[first : bisect_left(times, half.at_ms + rules.AFTER_MS + 1)]:
                yield half, other, partition


# --- chores and asks ---------------------------------------------------------------------------------------------


def _check_said(ledger: Ledger, numbers: Iterable[int], said: Iterable[Record]) -> None:
    """Enter what has to come of the jobs and questions of these numbers, and what was said."""
    last: dict[bytes, int] = {}
    answers: dict[bytes, list[int]] = defaultdict(list)
    for number in numbers:
        for what in SAID:
            ledger.due[what][number] = Due(number)
    for record in in_order(said):
        word, key = json.loads(record.value or b""), record.key or b""
        what, number = word["what"], word["number"]
        value = None
        if what == "handled":
            # Messages of one key are handled in their order, also behind one that is parked.
            value = None if number > last.get(key, -1) else "out of order"
            last[key] = max(number, last.get(key, -1))
        elif what == "told":
            answers[key].append(number)
        elif what == "heard":
            value = word["value"]
        ledger.happened[what].append((number, value))
    # The count of a key's questions follows from the order in which they were told, each of which is an answer.
    for asked in answers.values():
        for place, number in enumerate(asked, 1):
            ledger.due["heard"][number] = Due(number, (place,))


# --- effects -----------------------------------------------------------------------------------------------------


class Call(NamedTuple):
    """A call of an effect, as its function wrote it down; `ended_ns` is None if it didn't end."""

    id: str
    pid: int
    begun_ns: int
    ended_ns: int | None


class Mark(NamedTuple):
    """The time of a fault: its begin, its name, and what a fault that isn't clean excuses.

    Attributes:
        excuses_ns: calls that ended until then may be made again.
        pids: of these processes only; of all if there are none.
    """

    at_ns: int
    fault: str
    excuses_ns: int = 0
    pids: frozenset[int] = frozenset()

    def excuses(self, former: Call, again: Call) -> bool:
        """Return whether a call may have been made again because of it."""
        is_between = self.at_ns <= again.begun_ns and self.excuses_ns >= (former.ended_ns or 0)
        return is_between and self.excuses_ns > 0 and (not self.pids or former.pid in self.pids)


def read_calls(raw: bytes) -> list[Call]:
    """Return the calls, in the order of their begin."""
    calls: list[Call] = []
    under_way: dict[tuple[str, int], int] = {}
    for line in raw.splitlines():
        entry = json.loads(line)
        place = entry["id"], entry["pid"]
        if entry["what"] == "begun":
            under_way[place] = len(calls)
            calls.append(Call(*place, entry["at_ns"], None))
        else:
            index = under_way.pop(place)
            calls[index] = calls[index]._replace(ended_ns=entry["at_ns"])
    return calls


def repeats(calls: Iterable[Call], marks: Sequence[Mark]) -> Counter[tuple[str, str]]:
    """Count calls that were made again, by fault and as one of `REPEATS`.

    "ended" had ended, and no fault excuses that it was made again: a task that leaves cancels its calls before its last
    commit. "cut off" had not ended.
    """
    counts: Counter[tuple[str, str]] = Counter()
    by_id: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        by_id[call.id].append(call)
    for of_id in by_id.values():
        for former, again in pairwise(of_id):
            excuse = next((mark for mark in marks if mark.excuses(former, again)), None)
            last = max((mark for mark in marks if mark.at_ns <= again.begun_ns), default=Mark(again.begun_ns, START))
            if excuse is not None:
                counts[excuse.fault, "excused"] += 1
            elif former.ended_ns is None:
                counts[last.fault, "cut off"] += 1
            else:
                counts[last.fault, "ended"] += 1
    return counts
