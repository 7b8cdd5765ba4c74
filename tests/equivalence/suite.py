"""Runs batches on both sides, and counts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.equivalence.compare import alone, difference, known_difference
from tests.equivalence.generate import Batch, Case
from tests.equivalence.judge import MEMORY, ROCKSDB, Judge
from tests.equivalence.ours import Answer, answer

ROCKSDB_EVERY = 40
"""One batch of so many is judged with RocksDB, Kafka Streams' default, which takes 20 times as long as memory."""


@dataclass(slots=True)
class Outcome:
    """What a run found.

    Attributes:
        cases: how many were compared.
        equal: how many of them have no difference.
        known: those with a known difference only, by its name.
        unexplained: the others, each with the first difference.
        failed: those of them that the product had no answer for, with what was raised.
        judge_s: how long Kafka Streams took.
        ours_s: how long the product took.
    """

    cases: int = 0
    equal: int = 0
    known: Counter[str] = field(default_factory=Counter)
    unexplained: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    judge_s: float = 0.0
    ours_s: float = 0.0

    def add(self, other: Outcome) -> None:
        """Count what another run found, too."""
        self.cases += other.cases
        self.equal += other.equal
        self.known += other.known
        self.unexplained += other.unexplained
        self.failed += other.failed
        self.judge_s += other.judge_s
        self.ours_s += other.ours_s

    def summary(self) -> dict[str, Any]:
        """Return it as the last line of a run has it."""
        return {
            "cases": self.cases,
            "equal": self.equal,
            "known_differences": sum(self.known.values()),
            "unexplained": len(self.unexplained),
            "judge_cases_per_s": round(self.cases / max(self.judge_s, 1e-9)),
            "our_cases_per_s": round(self.cases / max(self.ours_s, 1e-9)),
        }


def run(judge: Judge, batches: Iterable[Batch], *, stop_at: int | None = None) -> Outcome:
    """Compare both sides, up to so many unexplained cases."""
    outcome = Outcome()
    for number, batch in enumerate(batches):
        began_s = time.perf_counter()
        judged = judge.ask(batch.cases, store=ROCKSDB if number % ROCKSDB_EVERY == ROCKSDB_EVERY - 1 else MEMORY)
        asked_s = time.perf_counter()
        ours = _answers(batch)
        outcome.judge_s += asked_s - began_s
        outcome.ours_s += time.perf_counter() - asked_s
        for case, theirs, here in zip(batch.cases, judged, ours, strict=True):
            _count(outcome, batch, case, theirs, here)
            if stop_at is not None and len(outcome.unexplained) >= stop_at:
                return outcome
    return outcome


def _answers(batch: Batch) -> list[Answer | str]:
    """Return the answers, or what failed: a case must not take down its neighbours."""
    try:
        return list(answer(batch))
    except Exception as error:
        if len(batch.cases) == 1:
            return [f"{type(error).__name__}: {error}"]
        return [one for case in batch.cases for one in _answers(alone(batch, case))]


def _count(outcome: Outcome, batch: Batch, case: Case, judged: Any, ours: Answer | str) -> None:
    outcome.cases += 1
    found = ours if isinstance(ours, str) else difference(case, judged, ours)
    if found is None:
        outcome.equal += 1
        return
    known = None if isinstance(ours, str) else known_difference(case, judged, lambda one: answer(alone(batch, one))[0])
    if known is not None:
        outcome.known[known.name] += 1
        return
    outcome.unexplained.append(f"{case.seed} {case.config}: {found}")
    if isinstance(ours, str):
        outcome.failed.append(outcome.unexplained[-1])
