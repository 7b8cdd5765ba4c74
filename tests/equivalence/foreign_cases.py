"""Joins of tables by a foreign key: cases from seeds, and what both sides make of them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
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

FOREIGN = "foreign-key"
STEPS = "join by a foreign key: what is sent again, or before the result of the right row is there"


def foreign_batches(seed: int, cases: int) -> Iterator[TableBatch]:
    """Return so many cases, in batches; inner and left joins take turns."""
    return join_batches(FOREIGN, _records, name="foreign", seed=seed, cases=cases)


def _records(rng: random.Random, length: int) -> tuple[TableRecord, ...]:
    """Return rows and tombstones of both tables; some left rows name no right one, some records have no key."""
    found: list[TableRecord] = []
    for number in range(length):
        side, value = rng.randint(0, 1), rng.randint(0, 99)
        named = rng.choice("abc") if side == 0 else str(rng.randint(0, NO_GROUP - 1))
        key = None if rng.random() < 0.05 else named
        at_ms = max(0, number + rng.choice((0, 0, 5, -5)))
        found.append(TableRecord(key, None if rng.random() < 0.3 else value, at_ms, side))
    return tuple(found)


def foreign_answers(batch: TableBatch) -> list[list[list[Output]]]:
    """Return the product's outputs for each record of each case. Each record is done with before the next one."""
    app = App("judged", broker="kafka://127.0.0.1:1")
    left, right = (app.topic(name, key_type=str, value_type=int) for name in ("left", "right"))
    results = app.topic("results", key_type=str, value_type=str)

    def named(value: int) -> str | None:
        case, of_case = divmod(value, CASE_STEP)
        return None if of_case % GROUP_COUNT == NO_GROUP else f"{case}:{of_case % GROUP_COUNT}"

    # Kafka Streams drops records without a key.
    @app.join(app.table(left), app.table(right), on=named, how=batch.how, on_error="skip")
    async def joined(ctx: Context, one: int | None, other: int | None) -> None:
        shown = None if one is None else f"{one % CASE_STEP},{'null' if other is None else other}"
        ctx.send(results, key=ctx.key, value=shown)

    answers: list[list[list[Output]]] = [[] for _ in batch.cases]
    with ActorTestDriver(app, partitions=3) as driver:
        for number in range(max(map(len, batch.cases))):
            for at, case in enumerate(batch.cases):
                if number < len(case):
                    one, of_left = case[number], case[number].side == 0
                    value = CASE_STEP * at + one.value if of_left and one.value is not None else one.value
                    topic = left if of_left else right
                    key = None if one.key is None else f"{at}:{one.key}"
                    driver.post(topic, key=key, value=value, timestamp_ms=one.timestamp_ms)
                    answers[at].append([])
            if number in batch.crashes:
                driver.crash(keep_disk=number % 2 == 0, settle=False)
            driver.settle()
            for sent in driver.outputs(results):
                at, _, key = sent.key.partition(":")
                answers[int(at)][number].append((key, sent.value, sent.timestamp_ms))
    return answers


def compare_foreign(
    case: Sequence[TableRecord], judged: list[list[Any]], ours: list[list[Output]]
) -> tuple[str | None, bool]:
    """Return the first difference that isn't known, None if there is none; and whether there is a known one.

    Of the outputs for one record and key Kafka Streams' last one counts: when a row names another one, it may tell the
    end of the former result first. What says again what was said last is left out where nothing is sent here. The end
    of a result has the time of its change here, and there that of the right row if it is later: it isn't compared.
    """
    shown: dict[str, str | None] = {}
    is_known = False
    for number, (record, theirs, here) in enumerate(zip(case, judged, ours, strict=True)):
        last = {key: (key, value, at_ms) for key, value, at_ms in theirs}
        sent = {key for key, *_ in here}
        left = [one for one in last.values() if one[0] in sent or one[1] != shown.get(one[0])]
        is_known = is_known or len(left) != len(theirs)
        if _timed(left) != _timed(here):
            return f"record {number} {record}: Kafka Streams {theirs}, here {here}", is_known
        shown.update({key: value for key, value, _ in here})
    return None, is_known


def _timed(outputs: Sequence[Sequence[Any]]) -> list[Any]:
    return sorted((key, value or "", 0 if value is None else at_ms) for key, value, at_ms in outputs)


def run_foreign(judge: Judge, batches: Iterator[TableBatch], outcome: Outcome | None = None) -> Outcome:
    """Compare both sides."""
    outcome = Outcome() if outcome is None else outcome
    for batch in batches:
        judged = [judge.answer(batch.seed, batch.question(at)) for at in range(len(batch.cases))]
        for at, (case, ours) in enumerate(zip(batch.cases, foreign_answers(batch), strict=True)):
            found, is_known = compare_foreign(case, judged[at], ours)
            outcome.cases += 1
            if found is not None:
                outcome.unexplained.append(f"{batch.seed}/{at} {batch.kind} {batch.how}: {found}")
            elif is_known:
                outcome.known[STEPS] += 1
            else:
                outcome.equal += 1
    return outcome
