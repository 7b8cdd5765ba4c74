"""Cases of joins from seeds: records of two inputs whose times are hard for their windows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

KINDS = ("join-inner", "join-left", "join-outer")
BATCH = 10
LEFT, RIGHT = 0, 1
SPARE_MS = (None, 0, 1, 1)
"""How long before the close of its window a record of a case comes at least; None if some come later.

What is late, or just in time, is where both sides differ: with a millisecond to spare they have to be equal.
"""
_LATER_MS = 1_600_000_000_000


@dataclass(frozen=True, slots=True)
class Config:
    """What a join is declared with, in milliseconds: a right record matches from `before` to `after` a left one."""

    kind: str
    before_ms: int
    after_ms: int
    grace_ms: int

    def span_ms(self, side: int) -> int:
        """Return how long after a record its last match may be."""
        return self.after_ms if side == LEFT else self.before_ms

    @property
    def retention_ms(self) -> int:
        """How long records can be matched."""
        return self.before_ms + self.after_ms + self.grace_ms


@dataclass(frozen=True, slots=True)
class Record:
    """A record; its value, if it has one, is its number in the case. Records without a key match none."""

    key: str | None
    value: int | None
    timestamp_ms: int
    side: int


@dataclass(frozen=True, slots=True)
class Case:
    """Records for one partition of a join, in the order in which both sides get them."""

    seed: str
    config: Config
    records: tuple[Record, ...]

    def question(self, store: str) -> dict[str, Any]:
        """Return the case as the judge reads it."""
        config = self.config
        return {
            "kind": config.kind,
            "before": config.before_ms,
            "after": config.after_ms,
            "grace": config.grace_ms,
            "store": store,
            "records": [(one.key, one.value, one.timestamp_ms, one.side) for one in self.records],
        }

    @property
    def stream_ms(self) -> list[int]:
        """Stream time with each record."""
        found, now_ms = [], -1
        for one in self.records:
            now_ms = max(now_ms, one.timestamp_ms)
            found.append(now_ms)
        return found

    @property
    def late(self) -> list[bool]:
        """Whether the own window of each record is closed when it comes; records without a key have none."""
        config = self.config
        return [
            one.key is not None and stream_ms > one.timestamp_ms + config.span_ms(one.side) + config.grace_ms
            for one, stream_ms in zip(self.records, self.stream_ms, strict=True)
        ]

    def in_time(self) -> Case:
        """Return the case without the records that are late."""
        left = (one for one, is_late in zip(self.records, self.late, strict=True) if not is_late)
        return replace(self, records=tuple(left))


@dataclass(frozen=True, slots=True)
class Batch:
    """Cases of one configuration, which run in one app, each in a partition of its own.

    Attributes:
        cases: the cases.
        crashes: with which records the worker is killed and started again while it handles them.
    """

    cases: tuple[Case, ...]
    crashes: frozenset[int] = frozenset()

    @property
    def config(self) -> Config:
        """What all of them have in common."""
        return self.cases[0].config


def batches(seed: int, cases: int, *, kinds: tuple[str, ...] = KINDS) -> Iterator[Batch]:
    """Return so many cases, in batches; kinds take turns."""
    for number, first in enumerate(range(0, cases, BATCH)):
        yield batch(f"{seed}-{number}", kinds[number % len(kinds)], min(BATCH, cases - first))


def batch(seed: str, kind: str, cases: int = BATCH) -> Batch:
    """Return the cases of a seed."""
    rng = random.Random(f"{seed}-{kind}")
    size_ms = rng.choice((1, 2, 5, 10, 10, 100))
    is_even = rng.random() < 0.6
    before_ms, after_ms = (size_ms, size_ms) if is_even else (rng.randint(0, size_ms), rng.randint(1, size_ms))
    grace_ms = rng.choice((0, 0, 1, size_ms // 2, size_ms, 3 * size_ms))
    config = Config(kind, before_ms, after_ms, grace_ms)
    length = rng.randint(5, 40)
    found = tuple(
        Case(f"{seed}/{at}", config, _without_keys(f"{seed}-{kind}-{at}", _records(rng, config, length)))
        for at in range(cases)
    )
    return Batch(found, frozenset(rng.sample(range(length), rng.choice((0, 0, 0, 1, 2)))))


def _without_keys(seed: str, records: tuple[Record, ...]) -> tuple[Record, ...]:
    """Take the keys from a tenth of the records of a third of the cases; the last one closes what is open."""
    rng = random.Random(f"{seed}-keys")
    share = rng.choice((0, 0, 0.1))
    return (*(replace(one, key=None) if rng.random() < share else one for one in records[:-1]), records[-1])


def _records(rng: random.Random, config: Config, length: int) -> tuple[Record, ...]:
    now_ms = rng.choice((0, 0, _LATER_MS))
    keys = "abc"[: rng.randint(1, 3)]
    null_share, spare_ms = rng.choice((0, 0, 0.1)), rng.choice(SPARE_MS)
    found: list[Record] = []
    for number in range(length):
        side = rng.randrange(2)
        at_ms = max(0, _time(rng, config, now_ms, found))
        if spare_ms is not None:
            at_ms = max(at_ms, now_ms - config.span_ms(side) - config.grace_ms + spare_ms)
        now_ms = max(now_ms, at_ms)
        value = None if rng.random() < null_share else number
        found.append(Record(rng.choice(keys), value, at_ms, side))
    # What is open closes.
    far_ms = now_ms + 2 * config.retention_ms + 10
    return (*found, Record("end", length, far_ms, LEFT))


def _time(rng: random.Random, config: Config, now_ms: int, before: list[Record]) -> int:
    """Return the next timestamp: a little on, at the bound of a record's window, again, late, or after a gap."""
    size, grace = max(config.before_ms, config.after_ms), config.grace_ms
    choice = rng.random()
    if choice < 0.35:
        return now_ms + rng.randint(0, max(1, size // 2))
    if choice < 0.65 and before:
        near = rng.choice(before[-6:]).timestamp_ms
        return near + rng.choice((0, 0, config.after_ms, -config.before_ms, size)) + rng.choice((-1, 0, 0, 1))
    if choice < 0.8:
        return now_ms - rng.randint(0, size + grace)
    if choice < 0.92:
        return now_ms - grace - size + rng.choice((-1, 0, 1)) - rng.choice((0, 0, rng.randint(0, 3 * size)))
    return now_ms + rng.randint(0, 4 * (size + grace))
