"""Joins with tables, and aggregates over them: cases from seeds, and what both sides make of them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from operator import itemgetter
from typing import Any

from actors import App, Context
from actors.testing import ActorTestDriver
from tests.equivalence.judge import Judge
from tests.equivalence.suite import Outcome

STREAM, TABLES, GROUPS = "stream-table", "table-table", "table-aggregate"
CONFIGS = [
    *((STREAM, how, history_ms) for history_ms in (0, 40) for how in ("inner", "left")),
    *((TABLES, how, history_ms) for history_ms in (0, 40) for how in ("inner", "left", "outer")),
    *((GROUPS, how, history_ms) for history_ms in (0, 40) for how in ("trace", "sum", "count")),
]
"""(kind, how or what an aggregate keeps, the tables' history in milliseconds, 0 for none)."""
CASE_STEP, NO_GROUP, GROUP_COUNT = 1_000, 4, 5
"""A row that is aggregated has the number of its case, times the step, beside the value that the judge gets."""
BATCH = 10
REPEATED = "table-table: a tombstone of a key without a value"
FORGOTTEN = "versioned tables: a tombstone of the time of the value that it deletes"
_LATER_MS = 1_600_000_000_000

Output = tuple[str, str | None, int]
"""(key, "left,right" or a tombstone, timestamp); of aggregates (group, value or a tombstone, timestamp)."""


@dataclass(frozen=True, slots=True)
class TableRecord:
    """A record; `side` is 0 for the stream or the left table, 1 for the table or the right one.

    Only joins by a foreign key have records without a key.
    """

    key: str | None
    value: int | None
    timestamp_ms: int
    side: int


@dataclass(frozen=True, slots=True)
class TableBatch:
    """Cases of one configuration, each in a partition of its own; the worker is killed before the records `crashes`."""

    seed: str
    kind: str
    how: str
    history_ms: int
    cases: tuple[tuple[TableRecord, ...], ...]
    crashes: frozenset[int]

    def question(self, at: int) -> dict[str, Any]:
        """Return what the judge is asked."""
        records = [(one.key, one.value, one.timestamp_ms, one.side) for one in self.cases[at]]
        return {"kind": self.kind, "how": self.how, "history": self.history_ms, "records": records}


def join_batches(
    kind: str,
    records: Callable[[random.Random, int], tuple[TableRecord, ...]],
    *,
    name: str,
    seed: int,
    cases: int,
) -> Iterator[TableBatch]:
    """Return so many cases of a join without a history, in batches; inner and left joins take turns.

    Args:
        kind: what the judge calls the join.
        records: gives so many records of a case.
        name: makes the seed's random numbers others than those of other suites.
        seed: where the random numbers begin.
        cases: how many.
    """
    for number, first in enumerate(range(0, cases, BATCH)):
        rng, how = random.Random(f"{name}-{seed}-{number}"), ("inner", "left")[number % 2]
        length = rng.randint(5, 30)
        found = tuple(records(rng, length) for _ in range(min(BATCH, cases - first)))
        crashes = frozenset(rng.sample(range(length), rng.choice((0, 0, 1))))
        yield TableBatch(f"{seed}-{number}", kind, how, 0, found, crashes)


def table_batches(seed: int, cases: int) -> Iterator[TableBatch]:
    """Return so many cases, in batches; the configurations take turns."""
    for number, first in enumerate(range(0, cases, BATCH)):
        kind, how, history_ms = CONFIGS[number % len(CONFIGS)]
        rng = random.Random(f"tables-{seed}-{number}")
        length = rng.randint(5, 30)
        sides = 1 if kind == GROUPS else 2
        found = tuple(_records(rng, history_ms, length, sides=sides) for _ in range(min(BATCH, cases - first)))
        crashes = frozenset(rng.sample(range(length), rng.choice((0, 0, 1))))
        yield TableBatch(f"{seed}-{number}", kind, how, history_ms, found, crashes)


def _records(rng: random.Random, history_ms: int, length: int, *, sides: int) -> tuple[TableRecord, ...]:
    now_ms, keys = rng.choice((0, _LATER_MS)), "abc"[: rng.randint(1, 3)]
    null_share, far_ms = rng.choice((0.1, 0.4)), history_ms or 20
    found: list[TableRecord] = []
    for _ in range(length):
        step_ms = rng.choice(
            (0, 0, 1, rng.randint(-far_ms - 2, far_ms), -far_ms, -far_ms - 1, rng.randint(0, far_ms // 2))
        )
        at_ms = max(0, now_ms + step_ms)
        now_ms = max(now_ms, at_ms)
        value = None if rng.random() < null_share else rng.randint(0, 99)
        found.append(TableRecord(rng.choice(keys), value, at_ms, rng.randint(0, sides - 1)))
    return tuple(found)


def table_answers(batch: TableBatch) -> list[list[list[Output]]]:
    """Return the product's outputs for each record of each case. Each record is done with before the next one."""
    app, inputs, results = _declare(batch)
    cases, home = batch.cases, app.partitioner_for("left").home
    with ActorTestDriver(app, partitions=len(cases)) as driver:
        names = [
            _names(case, lambda name, at=at: home(name.encode(), len(cases)) == at) for at, case in enumerate(cases)
        ]
        keys = [{name: key for key, name in of_case.items()} for of_case in names]
        answers: list[list[list[Output]]] = [[] for _ in cases]
        for number in range(max(map(len, cases))):
            for at, case in enumerate(cases):
                if number < len(case):
                    one = case[number]
                    value = one.value if one.value is None or batch.kind != GROUPS else CASE_STEP * at + one.value
                    driver.post(inputs[one.side], key=names[at][one.key], value=value, timestamp_ms=one.timestamp_ms)
                    answers[at].append([])
            if number in batch.crashes:
                driver.crash(keep_disk=number % 2 == 0, settle=False)
            driver.settle()
            for sent in driver.outputs(results):
                key = sent.key.partition(":")[2] if batch.kind == GROUPS else keys[sent.partition][sent.key]
                answers[sent.partition][number].append((key, sent.value, sent.timestamp_ms))
        return answers


def _declare(batch: TableBatch) -> tuple[App, list[Any], Any]:
    app = App("judged", broker="kafka://127.0.0.1:1")
    left, right = (app.topic(name, key_type=str, value_type=int) for name in ("left", "right"))
    results = app.topic("results", key_type=str, value_type=str)
    history = timedelta(milliseconds=batch.history_ms) if batch.history_ms else None
    if batch.kind == GROUPS:
        _declare_groups(app, app.table(left, history=history), results, batch.how)
    elif batch.kind == STREAM:
        table = app.table(right, history=history)

        @app.actor(left, stores=[table], tombstones=True)
        async def enrich(ctx: Context, value: int | None) -> None:
            found = table.get(ctx.key, as_of=ctx.timestamp_ms if batch.history_ms else None)
            if value is not None and (found is not None or batch.how == "left"):
                ctx.send(results, key=ctx.key, value=_shown(value, found))

    else:
        sides = [app.table(topic, history=history) for topic in (left, right)]

        @app.join(*sides, how=batch.how)
        async def joined(ctx: Context, one: int | None, other: int | None) -> None:
            at_ms = max(ctx.timestamp_ms, *(side.timestamp_ms(ctx.key) or 0 for side in sides))
            value = None if one is other is None else _shown(one, other)
            ctx.send(results, key=ctx.key, value=value, timestamp_ms=at_ms)

    return app, [left, right], results


def _declare_groups(app: App, table: Any, results: Any, kept: str) -> None:
    async def send(ctx: Context, value: str | None) -> None:
        ctx.send(results, key=ctx.key, value=value, partition=int(ctx.key.partition(":")[0]))

    initial, add, remove = FOLDS[kept]
    table.aggregate(
        "groups",
        by=_group,
        of=lambda value: value % CASE_STEP,
        add=add,
        remove=remove,
        initial=initial,
        value_type=str,
        on_change=send,
    )

    @app.actor(table.topic, stores=[table])
    async def rows(ctx: Context, value: int | None) -> None:
        pass


def _group(value: int) -> str | None:
    case, of_case = divmod(value, CASE_STEP)
    group = of_case % GROUP_COUNT
    return None if group == NO_GROUP else f"{case}:{group}"


FOLDS: dict[str, tuple[str, Any, Any]] = {
    "trace": ("", lambda held, value: f"{held}+{value}", lambda held, value: f"{held}-{value}"),
    "sum": ("0", lambda held, value: str(int(held) + value), lambda held, value: str(int(held) - value)),
    "count": ("0", lambda held, _: str(int(held) + 1), lambda held, _: None if held == "1" else str(int(held) - 1)),
}


def _shown(left: int | None, right: int | None) -> str:
    return ",".join("null" if one is None else str(one) for one in (left, right))


def _names(case: Sequence[TableRecord], is_home: Any) -> dict[str, str]:
    """Return names of a case's keys that belong into its partition."""
    numbers = count()
    keys = sorted({record.key for record in case})
    return {key: next(name for name in (f"{key}{number}" for number in numbers) if is_home(name)) for key in keys}


class _Sides:
    """Which keys have a value in which table."""

    def __init__(self, history_ms: int) -> None:
        self._history_ms = history_ms
        self._latest: dict[tuple[str, int], tuple[int, bool]] = {}
        self._newest_ms = [-1, -1]

    def has(self, record: TableRecord) -> bool:
        """Tell whether the key has a value in the record's table."""
        return self._latest.get((record.key, record.side), (0, False))[1]

    def put(self, record: TableRecord) -> None:
        """Note a record: with a history the latest by time counts, else the last one."""
        key, at_ms = (record.key, record.side), record.timestamp_ms
        if self._history_ms:
            if at_ms < self._newest_ms[record.side] - self._history_ms:
                return
            self._newest_ms[record.side] = max(self._newest_ms[record.side], at_ms)
            if key in self._latest and at_ms < self._latest[key][0]:
                return
        self._latest[key] = (at_ms, record.value is not None)


def compare_tables(
    batch: TableBatch, case: Sequence[TableRecord], judged: list[list[Any]], ours: list[list[Output]]
) -> tuple[str | None, bool]:
    """Return the first difference that isn't known, None if there is none; and whether there is a known one."""
    if batch.kind == GROUPS:
        return _compare_groups(case, judged, ours), False
    table = _Sides(batch.history_ms)
    shown: dict[str, str | None] = {}
    is_known = False
    for number, (record, theirs, here) in enumerate(zip(case, judged, ours, strict=True)):
        outputs = [tuple(one) for one in theirs]
        is_absent = record.value is None and not table.has(record)
        if batch.kind == TABLES and outputs != here and not here and is_absent and len(outputs) == 1:
            # Kafka Streams says again what it said last.
            if outputs[0][1] != shown.get(record.key):
                return f"record {number} {record}: Kafka Streams {outputs}, after {shown.get(record.key)}", is_known
            is_known = True
        elif outputs != here:
            return f"record {number} {record}: Kafka Streams {outputs}, here {here}", is_known
        shown.update({key: value for key, value, _ in here})
        table.put(record)
    return None, is_known


def _compare_groups(case: Sequence[TableRecord], judged: list[list[Any]], ours: list[list[Output]]) -> str | None:
    """Return the first difference. The groups of one record have no order; a value's time is its group's latest."""
    latest: dict[str, int] = {}
    for number, (record, theirs, here) in enumerate(zip(case, judged, ours, strict=True)):
        expected = []
        for group, value, at_ms in sorted(here, key=itemgetter(0)):
            group_ms = max(at_ms, latest.pop(group, at_ms))
            expected.append((group, value, group_ms))
            if value is not None:
                latest[group] = group_ms
        outputs = sorted(map(tuple, theirs), key=itemgetter(0))
        if outputs != expected:
            return f"record {number} {record}: Kafka Streams {outputs}, here {expected}"
    return None


def _is_forgotten(judge: Judge, batch: TableBatch, case: Sequence[TableRecord]) -> bool:
    """Tell whether both sides agree without the tombstones that have the time of the value that they delete.

    Kafka Streams deletes the latest value then, and keeps no note of the delete: an earlier value that comes later
    takes its place (`RocksDBVersionedStore.maybePutToLatestValueStore`).
    """
    latest: dict[tuple[str, int], tuple[int, bool]] = {}
    left = []
    for record in case:
        key, at_ms = (record.key, record.side), record.timestamp_ms
        if record.value is None and latest.get(key) == (at_ms, True):
            continue
        left.append(record)
        if key not in latest or at_ms >= latest[key][0]:
            latest[key] = (at_ms, record.value is not None)
    if not batch.history_ms or len(left) == len(case):
        return False
    smaller = replace(batch, cases=(tuple(left),), crashes=frozenset())
    judged = judge.answer(batch.seed, smaller.question(0))
    return compare_tables(smaller, left, judged, table_answers(smaller)[0])[0] is None


def run_tables(judge: Judge, batches: Iterator[TableBatch], outcome: Outcome | None = None) -> Outcome:
    """Compare both sides."""
    outcome = Outcome() if outcome is None else outcome
    for batch in batches:
        began_s = time.perf_counter()
        judged = [judge.answer(batch.seed, batch.question(at)) for at in range(len(batch.cases))]
        asked_s = time.perf_counter()
        answers = table_answers(batch)
        outcome.judge_s += asked_s - began_s
        outcome.ours_s += time.perf_counter() - asked_s
        for at, (case, ours) in enumerate(zip(batch.cases, answers, strict=True)):
            found, is_known = compare_tables(batch, case, judged[at], ours)
            outcome.cases += 1
            if found is not None and _is_forgotten(judge, batch, case):
                outcome.known[FORGOTTEN] += 1
            elif found is not None:
                outcome.unexplained.append(f"{batch.seed}/{at} {batch.kind} {batch.how} {batch.history_ms}: {found}")
            elif is_known:
                outcome.known[REPEATED] += 1
            else:
                outcome.equal += 1
    return outcome
