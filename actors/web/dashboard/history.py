"""The last 15 minutes of a worker's tasks, of its actors and of all together: a sample every 5 s, in bounded memory.

A sample is the difference of counters that are there anyway, so nothing is done for it when records are handled. A
partition that goes elsewhere keeps its samples until they are 15 minutes old.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from actors.ports import Clock
from actors.runtime.meters import TaskMeters
from actors.runtime.observe.status import lag_of
from actors.runtime.task.task import Task

STEP_S = 5
STEPS = 180
"""How many samples are kept: 15 minutes."""
_FIELDS = 5
_NOTHING = (math.nan,) * _FIELDS

Place = tuple[str | None, int | None]
"""An actor and a partition of it; None all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Samples of the last 15 minutes, one a step; None where nothing is known. Lists have `STEPS` entries.

    Attributes:
        first: the number of the first step, which is Unix time divided by `STEP_S`.
        records: records per second that were handled and committed.
        lag: records that wait.
        commit_s, commits: how long commits took together, seconds, and how many ended.
        errors: how often a task dropped its work for another reason than a rebalance, and how many records were in a
            wrong partition or admin commands refused.
    """

    first: int
    records: list[float | None]
    lag: list[float | None]
    commit_s: list[float | None]
    commits: list[float | None]
    errors: list[float | None]


class _Ring:
    """The samples of a place: the value of step n is at n modulo `STEPS`."""

    __slots__ = ("_values", "last")

    def __init__(self, step: int) -> None:
        self.last = step - STEPS
        self._values = array("f", [math.nan]) * (STEPS * _FIELDS)

    def put(self, step: int, sample: Iterable[float]) -> None:
        for missing in range(max(self.last + 1, step - STEPS + 1), step):
            self._set(missing, _NOTHING)
        self._set(step, sample)
        self.last = step

    def _set(self, step: int, sample: Iterable[float]) -> None:
        at = step % STEPS * _FIELDS
        self._values[at : at + _FIELDS] = array("f", sample)

    def get(self, step: int) -> Sequence[float]:
        if not self.last - STEPS < step <= self.last:
            return _NOTHING
        at = step % STEPS * _FIELDS
        return self._values[at : at + _FIELDS]


@dataclass(frozen=True, slots=True)
class _Counts:
    records: int
    commit_s: float
    commits: int
    errors: int


class History:
    """Keeps the samples of a worker."""

    def __init__(self) -> None:
        self._rings: dict[Place, _Ring] = {}
        self._counts: dict[tuple[str, int], _Counts] = {}
        self._at_ms = 0
        self._step = 0

    async def follow(self, tasks: Callable[[], Collection[Task]], clock: Clock) -> None:
        """Take samples until it is cancelled."""
        while True:
            now_ms = clock.wall_ms()
            self.sample(tasks(), now_ms)
            # At the begin of the next step, as all workers do.
            await clock.sleep(STEP_S - now_ms % (STEP_S * 1000) / 1000)

    def sample(self, tasks: Collection[Task], now_ms: int) -> None:
        """Take a sample; nothing if the step has one, as after a clock that was set back."""
        step = now_ms // (STEP_S * 1000)
        if step <= self._step:
            return
        seconds = (now_ms - self._at_ms) / 1000
        before, self._counts = self._counts, {}
        found: dict[Place, tuple[float, ...]] = {(None, None): _NOTHING}
        for task in tasks:
            place = task.spec.name, task.partition
            now = self._counts[place] = _counts(task.meters)
            lag = lag_of(task)
            sample = _difference(before.get(place), now, seconds, math.nan if lag is None else float(lag))
            places: tuple[Place, ...] = (place, (place[0], None), (None, None))
            for each in places:
                found[each] = _sum(found.get(each, _NOTHING), sample)
        for one, total in found.items():
            ring = self._rings.get(one)
            if ring is None:
                ring = self._rings[one] = _Ring(step)
            ring.put(step, total)
        self._rings = {one: ring for one, ring in self._rings.items() if ring.last > step - STEPS}
        self._at_ms, self._step = now_ms, step

    def series(self, actor: str | None = None, partition: int | None = None) -> Series:
        """Return the history of a place."""
        first, ring = self._step - STEPS + 1, self._rings.get((actor, partition))
        samples = [_NOTHING if ring is None else ring.get(step) for step in range(first, self._step + 1)]
        records, lag, commit_s, commits, errors = map(_known, zip(*samples, strict=True))
        return Series(first=first, records=records, lag=lag, commit_s=commit_s, commits=commits, errors=errors)


def _known(column: Iterable[float]) -> list[float | None]:
    return [None if math.isnan(value) else round(value, 6) for value in column]


def _counts(meters: TaskMeters) -> _Counts:
    dropped = sum(count for reason, count in meters.fences.items() if reason != "migrated")
    commits = meters.commits
    errors = dropped + meters.misplaced + meters.refused_commands
    return _Counts(meters.records, commits.total, sum(commits.counts), errors)


def _difference(before: _Counts | None, now: _Counts, seconds: float, lag: float) -> tuple[float, ...]:
    if before is None:
        return math.nan, lag, math.nan, math.nan, math.nan
    commits, commit_s = now.commits - before.commits, now.commit_s - before.commit_s
    return (now.records - before.records) / seconds, lag, commit_s, float(commits), float(now.errors - before.errors)


def _sum(some: Iterable[float], more: Iterable[float]) -> tuple[float, ...]:
    """Add what is known."""
    pairs = zip(some, more, strict=True)
    return tuple(two if math.isnan(one) else one if math.isnan(two) else one + two for one, two in pairs)
