"""Cases from seeds: records that are hard for windows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

KINDS = ("tumbling", "hopping", "sliding", "session")
EVERY = "every"
AGGREGATES = ("collect", "count", "sum")
BATCH = 10
_LATER_MS = 1_600_000_000_000
_NO_ADVANCE_MS = 1


@dataclass(frozen=True, slots=True)
class Config:
    """What a window store is declared with. Spans are milliseconds.

    Attributes:
        kind: one of `KINDS`.
        size_ms: the windows' size; of sliding ones the difference, of sessions the gap.
        advance_ms: of hopping windows.
        grace_ms: see `App.window_store`.
        emit: "updates", "final", or `EVERY`: once in an interval.
        aggregate: one of `AGGREGATES`; "collect" shows which records are in a window, and in which order they came.
        every_ms: the interval; 0 where `emit` is another one.
    """

    kind: str
    size_ms: int
    advance_ms: int
    grace_ms: int
    emit: str
    aggregate: str
    every_ms: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a case's input."""

    key: str
    value: int | None
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Case:
    """Records for one partition of a window store."""

    seed: str
    config: Config
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """Cases of one configuration, which run in one app, each in a partition of its own.

    Attributes:
        cases: the cases.
        settles: before which records the app is left to commit all that it has.
        crashes: before which records its worker is killed and started again, in the middle of what it does.
    """

    cases: tuple[Case, ...]
    settles: frozenset[int]
    crashes: frozenset[int]

    @property
    def config(self) -> Config:
        """What all of them have in common."""
        return self.cases[0].config


def batches(seed: int, cases: int, *, kinds: tuple[str, ...] = KINDS) -> Iterator[Batch]:
    """Return so many cases, in batches. Kinds and emit modes take turns, so that none is left out by chance."""
    for number, first in enumerate(range(0, cases, BATCH)):
        emit = ("updates", "final")[number // len(kinds) % 2]
        yield batch(f"{seed}-{number}", kinds[number % len(kinds)], emit, min(BATCH, cases - first))


def every_batches(seed: int, cases: int) -> Iterator[Batch]:
    """Return so many cases of windows that are emitted once in an interval, in batches; kinds take turns."""
    for number, first in enumerate(range(0, cases, BATCH)):
        yield batch(f"{seed}-{number}", KINDS[number % len(KINDS)], EVERY, min(BATCH, cases - first))


def batch(seed: str, kind: str, emit: str, cases: int = BATCH) -> Batch:
    """Return the cases of a seed."""
    rng = random.Random(f"{seed}-{kind}-{emit}")
    size_ms = rng.choice((1, 2, 5, 10, 10, 100))
    config = Config(
        kind,
        size_ms,
        rng.randint(1, size_ms) if kind == "hopping" and size_ms <= 10 else max(size_ms // 4, _NO_ADVANCE_MS),
        rng.choice((0, 0, 1, size_ms // 2, size_ms, 3 * size_ms)),
        emit,
        rng.choice(AGGREGATES),
        rng.choice((1, max(1, size_ms // 2), size_ms, 3 * size_ms)) if emit == EVERY else 0,
    )
    length = rng.randint(5, 40)
    found = tuple(Case(f"{seed}/{at}", config, _records(rng, config, length)) for at in range(cases))
    settles = frozenset(rng.sample(range(length), rng.choice((0, 0, 2, length // 2))))
    crashes = frozenset(rng.sample(range(length), rng.choice((0, 0, 0, 1, 2))))
    return Batch(found, settles, crashes)


def _records(rng: random.Random, config: Config, length: int) -> tuple[Record, ...]:
    now_ms = rng.choice((0, 0, _LATER_MS, _LATER_MS + rng.randint(0, config.size_ms)))
    keys = "abc"[: rng.randint(1, 3)]
    null_share = rng.choice((0, 0, 0.1))
    found: list[Record] = []
    for _ in range(length):
        at_ms = max(0, _time(rng, config, now_ms, found))
        now_ms = max(now_ms, at_ms)
        value = None if rng.random() < null_share else rng.randint(-9, 99)
        found.append(Record(rng.choice(keys), value, at_ms))
    if config.emit == EVERY:
        # What waits for its interval's end is emitted.
        found.append(Record("end", 0, now_ms + 10 * (config.size_ms + config.every_ms) + config.grace_ms))
    return tuple(found)


def _time(rng: random.Random, config: Config, now_ms: int, before: list[Record]) -> int:
    """Return the next timestamp: a little on, at a border of windows, again, late, too late, or after a gap."""
    size, grace = config.size_ms, config.grace_ms
    choice = rng.random()
    if choice < 0.35:
        return now_ms + rng.randint(0, max(1, size // 2))
    if choice < 0.5:
        border = now_ms - now_ms % size + rng.choice((0, size, 2 * size))
        return border + rng.choice((-1, 0, 1))
    if choice < 0.6 and before:
        near = rng.choice(before[-5:]).timestamp_ms
        return near + rng.choice((-1, 0, 0, 1, size, size + 1, -size, -size - 1))
    if choice < 0.8:
        return now_ms - rng.randint(0, size + grace)
    if choice < 0.93:
        return now_ms - grace - size + rng.choice((-1, 0, 1)) - rng.choice((0, 0, rng.randint(0, 3 * size)))
    return now_ms + rng.randint(0, 6 * (size + grace))
