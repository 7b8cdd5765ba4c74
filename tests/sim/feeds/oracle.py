"""What the program of a run has to say, from all records of its sources by their times; no code of the product's."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter

from tests.sim.feeds.program import CLICKS, DIRECT, ONE_MANY, Event, Shape

Result = tuple[str, int, int, tuple[int, ...]]
"""User, from, to, ids: a window, a pair or a fired timer."""


@dataclass(frozen=True, slots=True)
class Read:
    """A committed record of a source."""

    id: int
    user: str
    topic: str
    partition: int
    offset: int
    at_ms: int


def first_stage(shape: Shape, records: Iterable[Read]) -> dict[str, Counter[Result]]:
    """Return by user what the first stage sends, each as often as it has to; with `emit`, what it sends last."""
    by_user: defaultdict[str, list[Read]] = defaultdict(list)
    for record in records:
        by_user[record.user].append(record)
    return {user: Counter(_results(shape, user, sorted(own, key=_time))) for user, own in by_user.items()}


def _time(record: Read) -> int:
    return record.at_ms


def _results(shape: Shape, user: str, records: list[Read]) -> list[Result]:
    span_ms = shape.span_ms
    if shape.kind == "timers":
        return [(user, record.at_ms + span_ms, 0, (record.id,)) for record in records]
    if shape.kind == "join":
        return _pairs(user, records, span_ms)
    if shape.kind == ONE_MANY:
        return _ones(shape, user, records)
    if shape.kind == "history":
        return [_history(user, record, records) for record in records]
    if shape.kind == "session":
        spans = _sessions(records, span_ms)
    elif shape.kind == "sliding":
        starts = {record.at_ms - span_ms for record in records} | {record.at_ms + 1 for record in records}
        spans = [(start, start + span_ms) for start in starts]
    else:
        starts = {record.at_ms // span_ms * span_ms for record in records}
        spans = [(start, start + span_ms) for start in starts]
    is_closed = shape.kind in ("session", "sliding")
    found = []
    for start, end in spans:
        ids = [one.id for one in records if start <= one.at_ms and (one.at_ms <= end if is_closed else one.at_ms < end)]
        if ids:
            found.append((user, start, end, tuple(sorted(ids))))
    return found


def _history(user: str, record: Read, records: list[Read]) -> Result:
    former = sorted(other.id for other in records if other.at_ms < record.at_ms)
    return user, record.at_ms, len(former), (record.id, *former[-8:])


def _sessions(records: list[Read], gap_ms: int) -> list[tuple[int, int]]:
    times = [record.at_ms for record in records]
    breaks = [(before, after) for before, after in pairwise(times) if after - before > gap_ms]
    return list(
        zip([times[0], *(after for _, after in breaks)], [*(before for before, _ in breaks), times[-1]], strict=True)
    )


def _pairs(user: str, records: list[Read], within_ms: int) -> list[Result]:
    found = list[Result]()
    for left in records:
        if left.topic == DIRECT:
            matches = [
                right.id for right in records if right.topic != DIRECT and abs(left.at_ms - right.at_ms) <= within_ms
            ]
            found += [(user, 0, 0, (left.id, match)) for match in matches] or [(user, 0, 0, (left.id,))]
    return found


def _ones(shape: Shape, user: str, records: list[Read]) -> list[Result]:
    found = list[Result]()
    for one in records:
        if one.topic == DIRECT:
            matches = [many.id for many in records if many.topic != DIRECT and _is_of(shape, one, many)]
            found += [(user, 0, 0, (one.id, match)) for match in matches] or [(user, 0, 0, (one.id,))]
    return found


def _is_of(shape: Shape, one: Read, many: Read) -> bool:
    return one.at_ms - 2 * shape.span_ms <= many.at_ms < end_ms(shape, one)


def end_ms(shape: Shape, one: Read) -> int:
    """Return the end of the one of a join of one with many."""
    declared_ms = shape.end_ms(Event(one.id, "", one.at_ms))
    return one.at_ms + 2 * shape.span_ms if declared_ms is None else declared_ms


def waits_in_vain(shape: Shape, many: Read, records: Iterable[Read]) -> bool:
    """Whether a record of many has no one, so that it is late in the end."""
    if shape.kind != ONE_MANY or many.topic != CLICKS:
        return False
    own = (one for one in records if one.topic == DIRECT and one.user == many.user)
    return not any(_is_of(shape, one, many) for one in own)


def second_stage(shape: Shape, inputs: Iterable[tuple[str, int, list[int]]]) -> dict[tuple[str, int], list[list[int]]]:
    """Return the windows of the second stage by group and start, from (group, time, entry) of its inputs."""
    windows: defaultdict[tuple[str, int], list[list[int]]] = defaultdict(list)
    for group, at_ms, entry in inputs:
        windows[group, at_ms // shape.second_ms * shape.second_ms].append(entry)
    return {window: sorted(entries) for window, entries in windows.items()}


class Promise:
    """Says which records may be late: by (a) an earlier record of their own source, or (b) a silence of it.

    With `clock_s`, which returns when the clock came to a time, a silence that lasts until then makes late, too.

    Attributes:
        records: of all sources.
    """

    def __init__(
        self,
        records: Iterable[Read],
        written_s: Mapping[tuple[str, int], list[float]],
        reached: list[tuple[float, int]],
        *,
        idle_after_s: float = 1.0,
        clock_s: Callable[[int], float] | None = None,
    ) -> None:
        """Take all records, when each offset of a source was written, and from when on a time had been committed."""
        self.records = list(records)
        self._written_s = written_s
        self._reached = reached
        self._idle_after_s = idle_after_s
        self._clock_s = clock_s
        self._earlier_ms: dict[tuple[str, int, int], int] = {}
        tops: defaultdict[tuple[str, int], int] = defaultdict(lambda: -1)
        for record in sorted(self.records, key=lambda read: read.offset):
            source = record.topic, record.partition
            self._earlier_ms[(*source, record.offset)] = tops[source]
            tops[source] = max(tops[source], record.at_ms)

    def allows(self, record: Read, behind_ms: int) -> bool:
        """Return whether a record may find stream time later than `behind_ms`."""
        if self._is_late_by_itself(record, behind_ms) or self._followed_silence(record, behind_ms):
            return True
        return self._clock_s is not None and self._followed_clock(record, self._clock_s(behind_ms))

    def _is_late_by_itself(self, record: Read, behind_ms: int) -> bool:
        return self._earlier_ms[record.topic, record.partition, record.offset] > behind_ms

    def _followed_silence(self, record: Read, behind_ms: int) -> bool:
        place = bisect_right(self._reached, behind_ms, key=itemgetter(1))
        if place == len(self._reached):
            return False
        reached_s = self._reached[place][0]
        times_s = self._written_s[record.topic, record.partition]
        first = bisect_right(times_s, reached_s, hi=record.offset)
        before_s = times_s[first - 1] if first else 0.0
        times_s = [max(before_s, reached_s), *times_s[first : record.offset + 1]]
        return any(after_s - before_s >= self._idle_after_s for before_s, after_s in pairwise(times_s))

    def _followed_clock(self, record: Read, reached_s: float) -> bool:
        times_s = [0.0, *self._written_s[record.topic, record.partition][: record.offset + 1]]
        return any(
            after_s - before_s >= self._idle_after_s and after_s > reached_s for before_s, after_s in pairwise(times_s)
        )
