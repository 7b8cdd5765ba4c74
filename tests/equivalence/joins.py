"""Joins beside Kafka Streams: the same cases on both sides, and the rules by which they are compared.

docs/explanation/equivalence.md has the rules and their reasons.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from actors import App, Context
from actors._core.windows.join_rows import LEFT
from actors.runtime.windows.joins import JoinStore
from actors.testing import ActorTestDriver
from tests.equivalence.join_cases import Batch, Case, Config
from tests.equivalence.judge import MEMORY, ROCKSDB, Judge
from tests.equivalence.ours import _names, _quiet
from tests.equivalence.suite import ROCKSDB_EVERY, Outcome

LATE = "join: a record whose window is closed"
BOUND = "join: a match as old as can be"
AT_ONCE = "join: a record behind stream time without a match yet"
AFTERWARDS = "join: a match after the close"
_MS = timedelta(milliseconds=1)
NO_KEY = ""
"""Stands for the key of records that have none."""
Output = tuple[int | None, int | None, int]
"""(left record, right record, timestamp)."""


@dataclass(slots=True)
class Answer:
    """What came of a case, by key, in order: pairs, and records without a match."""

    pairs: dict[str, list[Output]] = field(default_factory=dict)
    lone: dict[str, list[Output]] = field(default_factory=dict)

    def add(self, key: str | None, left: int | None, right: int | None, timestamp_ms: int) -> None:
        """Take an output."""
        held = self.lone if left is None or right is None else self.pairs
        held.setdefault(NO_KEY if key is None else key, []).append((left, right, timestamp_ms))


def run(judge: Judge, batches: Iterable[Batch], *, stop_at: int | None = None) -> Outcome:
    """Compare both sides, up to so many unexplained cases."""
    outcome = Outcome()
    for number, batch in enumerate(batches):
        store = ROCKSDB if number % ROCKSDB_EVERY == ROCKSDB_EVERY - 1 else MEMORY
        began_s = time.perf_counter()
        found = answers(batch)
        answered_s = time.perf_counter()
        outcome.ours_s += answered_s - began_s
        for case, ours in zip(batch.cases, found, strict=True):
            outcome.cases += 1
            text, causes = difference(judge, case, ours, store)
            if text is not None:
                outcome.unexplained.append(f"{case.seed} {case.config}: {text}")
            elif causes:
                outcome.known[" + ".join(causes)] += 1
            else:
                outcome.equal += 1
            if stop_at is not None and len(outcome.unexplained) >= stop_at:
                return outcome
        outcome.judge_s += time.perf_counter() - answered_s
    return outcome


def difference(judge: Judge, case: Case, ours: Answer, store: str) -> tuple[str | None, list[str]]:
    """Return the first difference that nothing known explains, None if there is none, and what explains the others."""
    in_time = case.in_time()
    theirs = {case: theirs_of(judge, case, store)}
    text, causes = _compare(case, theirs[case], ours)
    if text is None:
        return None, causes
    variants = [(case, [])] + ([] if in_time == case else [(in_time, [LATE])])
    for asked, late in variants:
        judged = theirs.get(asked) or theirs_of(judge, asked, store)
        found, causes = _compare(case, judged, ours)
        if found is not None:
            with _kafkas_bound(case, store, late=asked is case):
                found, causes = _compare(case, judged, answers(Batch((case,)))[0])
            causes = [BOUND, *causes]
        if found is None:
            return None, [*late, *causes]
    return text, []


def theirs_of(judge: Judge, case: Case, store: str) -> Answer:
    """Return what Kafka Streams makes of a case."""
    answer = Answer()
    for outputs in judge.ask([case], store=store)[0]:
        for output in outputs:
            answer.add(*output)
    return answer


def answers(batch: Batch) -> list[Answer]:
    """Return what the product makes of each case of a batch."""
    app, inputs, results = _declare(batch.config)
    cases = batch.cases
    with _quiet(), ActorTestDriver(app, partitions=len(cases)) as driver:
        home = app.partitioner_for("left").home
        names = [_names(case, at, lambda name: home(name.encode(), len(cases))) for at, case in enumerate(cases)]
        for number in range(max(len(case.records) for case in cases)):
            for at, case in enumerate(cases):
                if number < len(case.records):
                    one = case.records[number]
                    key = None if one.key is None else names[at][one.key]
                    driver.post(inputs[one.side], key=key, value=one.value, partition=at, timestamp_ms=one.timestamp_ms)
            if number in batch.crashes:
                driver.crash(keep_disk=bool(number % 2), settle=False)
            # Records of two inputs that wait are handled in the order of their times.
            driver.settle()
        found = [Answer() for _ in cases]
        keys = [{name: key for key, name in of_case.items()} for of_case in names]
        for sent in driver.outputs(results):
            found[sent.partition].add(None if sent.key is None else keys[sent.partition][sent.key], *sent.value)
        return found


def _declare(config: Config) -> tuple[App, Sequence[Any], Any]:
    app = App("judged", broker="kafka://127.0.0.1:1")
    left, right = (app.topic(name, key_type=str, value_type=int) for name in ("left", "right"))
    results = app.topic("results", key_type=str, value_type=list)
    before, after = config.before_ms * _MS, config.after_ms * _MS
    how: Any = config.kind.removeprefix("join-")

    @app.join(left, right, within=after if before == after else (before, after), how=how, grace=config.grace_ms * _MS)
    async def joined(ctx: Context, one: int | None, other: int | None) -> None:
        ctx.send(results, key=ctx.key, value=[one, other, ctx.timestamp_ms], partition=ctx.partition)

    return app, (left, right), results


def _compare(case: Case, theirs: Answer, ours: Answer) -> tuple[str | None, list[str]]:
    """Return the first unexplained difference, and what explains the others."""
    causes: set[str] = set()
    for key in sorted(theirs.pairs.keys() | ours.pairs.keys()):
        judged, here = theirs.pairs.get(key, []), ours.pairs.get(key, [])
        if judged != here:
            return f"pairs of key {key}: Kafka Streams {judged}, here {here}", []
    for key in sorted(theirs.lone.keys() | ours.lone.keys()):
        judged, here = theirs.lone.get(key, []), ours.lone.get(key, [])
        if key == NO_KEY:
            # These wait for nothing.
            if judged != here:
                return f"without a key: Kafka Streams {judged}, here {here}", []
            continue
        ends = [
            timestamp_ms + case.config.span_ms(LEFT if right is None else 1 - LEFT) for _, right, timestamp_ms in here
        ]
        if ends != sorted(ends) or len(set(here)) < len(here):
            return f"without a match, of key {key}: out of order, or twice: {here}", []
        paired = ours.pairs.get(key, [])
        for one in set(judged) ^ set(here):
            cause = _cause(case, one, paired, is_ours=one in here)
            if cause is None or len(set(judged)) < len(judged):
                return f"without a match, of key {key}: Kafka Streams {judged}, here {here}", []
            causes.add(cause)
    return None, sorted(causes)


def _cause(case: Case, lone: Output, pairs: Sequence[Output], *, is_ours: bool) -> str | None:
    """Return why one side alone hands out a record without a match; None if that isn't meant."""
    left, right, at_ms = lone
    number, side = (left, 0) if right is None else (right, 1)
    if number is None:
        return None
    config, stream_ms = case.config, case.stream_ms
    end_ms = at_ms + config.span_ms(side)
    partners = [pair[1 - side] for pair in pairs if pair[side] == number]
    later = [partner for partner in partners if partner is not None and partner > number]
    if is_ours:
        # Kafka Streams had not come round to it when its match came.
        return AFTERWARDS if any(stream_ms[one] > end_ms + config.grace_ms for one in later) else None
    return AT_ONCE if end_ms < stream_ms[number] and later else None


@contextmanager
def _kafkas_bound(case: Case, store: str, *, late: bool) -> Iterator[None]:
    """Let records of a case be matched a millisecond less, by the time of their own input alone.

    Stores in memory take the time of records without a value too. `late` says whether late records were there.
    """
    between, matches = JoinStore._between, JoinStore.keep_and_match
    least_ms = 0

    def noting(joined: Any, ctx: Any, side: int) -> Any:
        nonlocal least_ms
        before = zip(case.records[: int(ctx._record.value)], case.late, strict=False)
        seen = [one for one, is_late in before if one.side != side and one.key is not None and (late or not is_late)]
        times = (one.timestamp_ms for one in seen if store == MEMORY or one.value is not None)
        least_ms = max(times, default=-1) - joined.retention_ms + 1
        return matches(joined, ctx, side)

    def shorter(joined: Any, overlay: Any, raw_key: bytes, side: int, from_ms: int, to_ms: int) -> Any:
        return between(joined, overlay, raw_key, side, max(from_ms, least_ms), to_ms)

    JoinStore._between, JoinStore.keep_and_match = shorter, noting  # type: ignore[method-assign]
    try:
        yield
    finally:
        JoinStore._between, JoinStore.keep_and_match = between, matches  # type: ignore[method-assign]
