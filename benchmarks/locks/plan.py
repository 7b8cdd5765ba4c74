"""What a measurement is, and what comes of it: shared by the one that runs it and its client processes."""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

WARM_S = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """So many clients at a time on so many locks; with several locks, each client has some of its own."""

    name: str
    title: str
    clients: int
    locks: int

    def names(self, client: int) -> list[str]:
        """Return the locks that a client uses: with several, none that another one does."""
        if self.locks == 1:
            return [self.name]
        return [f"lock-{number}" for number in range(client, self.locks, self.clients)]


SCENARIOS = (
    Scenario(name="alone", title="1 lock, 1 client", clients=1, locks=1),
    Scenario(name="contended", title="1 lock, 16 clients", clients=16, locks=1),
    Scenario(name="many16", title="1,000 locks, 16 clients", clients=16, locks=1_000),
    Scenario(name="many64", title="1,000 locks, 64 clients", clients=64, locks=1_000),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one process does of a scenario: these clients, from a moment of the machine's monotonic clock on.

    With `seconds` 0 every lock is taken and released once: so that each exists before it is measured.
    """

    scenario: str
    clients: Sequence[int]
    begin_s: float
    seconds: float

    @property
    def plan(self) -> Scenario:
        """Return the scenario."""
        return next(one for one in SCENARIOS if one.name == self.scenario)

    def turns(self, client: int) -> Iterator[str]:
        """Yield the lock for each turn of a client, as long as there is time."""
        names = self.plan.names(client)
        if not self.seconds:
            yield from names
            return
        random.Random(client).shuffle(names)
        end_s = self.begin_s + WARM_S + self.seconds
        for name in itertools.cycle(names):
            if time.monotonic() >= end_s:
                return
            yield name

    def counts(self, ended_s: float) -> bool:
        """Tell whether a turn ended in the time that is measured; it may have begun to wait earlier."""
        return 0.0 <= ended_s - self.begin_s - WARM_S < self.seconds


class Took(NamedTuple):
    """What a process hands back of its turns: the seconds of each acquire, of those that count, and of the others."""

    counted_s: list[float]
    others_s: list[float]

    def note(self, job: Job, begin_s: float, acquired_s: float, released_s: float) -> None:
        """Add a turn, by when it began, had the lock, and was over."""
        chosen = self.counted_s if job.counts(released_s) else self.others_s
        chosen.append(acquired_s - begin_s)


@dataclass(frozen=True, slots=True)
class Result:
    """Of one measurement: acquire+release per second, what an acquire took, in ms, and the servers' CPU for a pair."""

    pairs_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float

    @classmethod
    def of(cls, acquires_s: Sequence[float], seconds: float, cpu_ms: float) -> Result:
        """Return it for the seconds that each acquire took, and the CPU time that a pair cost the servers.

        Raises:
            RuntimeError: there was none.
        """
        if not acquires_s:
            raise RuntimeError("no lock was acquired and released in the time that is measured: measure longer")
        ordered = sorted(acquires_s)
        return cls(len(ordered) / seconds, _quantile_ms(ordered, 0.5), _quantile_ms(ordered, 0.99), cpu_ms)

    @classmethod
    def median(cls, results: Sequence[Result]) -> Result:
        """Return the median of each figure."""
        return cls(
            statistics.median(one.pairs_per_s for one in results),
            statistics.median(one.p50_ms for one in results),
            statistics.median(one.p99_ms for one in results),
            statistics.median(one.cpu_ms for one in results),
        )


def _quantile_ms(ordered: Sequence[float], part: float) -> float:
    """Return the least value that so large a part isn't above."""
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)] * 1000
