"""A handler that reads a view, beside Kafka Streams' join with a global table: cases from seeds, and both sides."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from actors import App, Context
from actors.testing import ActorTestDriver
from tests.equivalence.judge import Judge
from tests.equivalence.suite import Outcome
from tests.equivalence.table_cases import (
    CASE_STEP,
    GROUP_COUNT,
    NO_GROUP,
    Output,
    TableBatch,
    TableRecord,
    join_batches,
)

GLOBAL = "global-table"
STREAM, VIEW = 0, 1


def view_batches(seed: int, cases: int) -> Iterator[TableBatch]:
    """Return so many cases, in batches; inner and left joins take turns."""
    return join_batches(GLOBAL, _records, name="view", seed=seed, cases=cases)


def _records(rng: random.Random, length: int) -> tuple[TableRecord, ...]:
    """Return records that name rows of the other topic, and those rows; some have no key, no value, or name none."""
    found: list[TableRecord] = []
    for number in range(length):
        side, value = rng.randint(STREAM, VIEW), rng.randint(0, 99)
        key = rng.choice("abc") if side == STREAM else str(rng.randint(0, NO_GROUP - 1))
        is_keyless = side == STREAM and rng.random() < 0.1
        at_ms = max(0, number + rng.choice((0, 0, 5, -5)))
        found.append(TableRecord(None if is_keyless else key, None if rng.random() < 0.2 else value, at_ms, side))
    return tuple(found)


def view_answers(batch: TableBatch) -> list[list[list[Output]]]:
    """Return the product's outputs for each record of each case. Each record is done with before the next one."""
    app = App("judged", broker="kafka://127.0.0.1:1")
    stream, rows = (app.topic(name, key_type=str, value_type=int) for name in ("stream", "rows"))
    results = app.topic("results", key_type=str, value_type=str)
    view = app.view(rows)

    @app.actor(stream, tombstones=True)
    async def enrich(ctx: Context, value: int | None) -> None:
        if value is None:
            return
        case, of_case = divmod(value, CASE_STEP)
        named = of_case % GROUP_COUNT
        found = None if named == NO_GROUP else view.get(f"{case}:{named}")
        if found is not None or batch.how == "left":
            ctx.send(results, key=ctx.key, value=f"{case}:{of_case},{'null' if found is None else found}")

    answers: list[list[list[Output]]] = [[] for _ in batch.cases]
    with ActorTestDriver(app, partitions=3) as driver:
        for number in range(max(map(len, batch.cases))):
            for at, case in enumerate(batch.cases):
                if number < len(case):
                    _post(driver, (stream, rows), at, case[number])
                    answers[at].append([])
            if number in batch.crashes:
                driver.crash(keep_disk=number % 2 == 0, settle=False)
            driver.settle()
            for sent in driver.outputs(results):
                at, _, value = sent.value.partition(":")
                key = None if sent.key is None else sent.key.partition(":")[2]
                answers[int(at)][number].append((key, value, sent.timestamp_ms))
    return answers


def _post(driver: ActorTestDriver, topics: tuple[Any, Any], at: int, one: TableRecord) -> None:
    value = one.value if one.value is None or one.side == VIEW else CASE_STEP * at + one.value
    key = None if one.key is None else f"{at}:{one.key}"
    driver.post(topics[one.side], key=key, value=value, timestamp_ms=one.timestamp_ms)


def run_views(judge: Judge, batches: Iterator[TableBatch], outcome: Outcome | None = None) -> Outcome:
    """Compare both sides: the outputs of each record are equal."""
    outcome = Outcome() if outcome is None else outcome
    for batch in batches:
        judged = [judge.answer(batch.seed, batch.question(at)) for at in range(len(batch.cases))]
        for at, (case, ours) in enumerate(zip(batch.cases, view_answers(batch), strict=True)):
            outcome.cases += 1
            differing = [
                f"record {number} {record}: Kafka Streams {theirs}, here {here}"
                for number, (record, theirs, here) in enumerate(zip(case, judged[at], ours, strict=True))
                if theirs != here
            ]
            if differing:
                outcome.unexplained.append(f"{batch.seed}/{at} {batch.kind} {batch.how}: {differing[0]}")
            else:
                outcome.equal += 1
    return outcome
