"""Joins by a foreign key give what Kafka Streams gives, and the suite finds planted mistakes."""

from __future__ import annotations

from typing import Any

import pytest

from actors._core.windows.changes import GROUP_OF
from actors.declare.streams.foreign_joins import _Left
from actors.runtime.message.grouping import Grouping
from tests.equivalence.foreign_cases import foreign_batches, run_foreign
from tests.equivalence.judge import Judge
from tests.equivalence.table_cases import GROUP_COUNT, NO_GROUP

CASES = 60
SEED = 24


def test_joins_by_a_foreign_key_equal_those_of_kafka_streams(judge: Judge) -> None:
    """Each case is equal, or differs by what Kafka Streams says again or in between."""
    outcome = run_foreign(judge, foreign_batches(SEED, CASES))
    assert outcome.unexplained == []
    assert outcome.cases == CASES


def test_cases_are_hard() -> None:
    """Both kinds have tombstones, records without a key, rows that name no other one, and kills."""
    found = list(foreign_batches(SEED, CASES))
    assert any(batch.crashes for batch in found)
    for how in ("inner", "left"):
        cases = [case for batch in found if batch.how == how for case in batch.cases]
        for side in (0, 1):
            records = [record for case in cases for record in case if record.side == side]
            assert any(record.value is None for record in records)
            assert any(record.key is None for record in records)
            assert any(record.value is not None and record.value % GROUP_COUNT == NO_GROUP for record in records)


@pytest.mark.parametrize("forgotten", ["a tombstone", "a row that names none"])
def test_an_inner_join_whose_result_stays_is_found(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, forgotten: str
) -> None:
    """Nobody tells the end of the result of a left row that is deleted, or names no right row any more."""
    changed = _Left.changed

    async def forgetful(left: Any, ctx: Any, value: Any) -> None:
        if (value is None) != (forgotten == "a tombstone"):
            await changed(left, ctx, value)

    monkeypatch.setattr(_Left, "changed", forgetful)
    inner = (batch for batch in foreign_batches(SEED, CASES) if batch.how == "inner")
    assert run_foreign(judge, inner).unexplained


def test_a_subscription_that_stays_behind_is_found(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed row doesn't subscribe again."""
    change = Grouping.change

    def once(groups: Grouping, ctx: Any, state: Any, new: Any) -> None:
        if new is None or state.overlays[groups.taken].get(GROUP_OF + ctx._raw_key) is None:
            change(groups, ctx, state, new)

    monkeypatch.setattr(Grouping, "change", once)
    assert run_foreign(judge, foreign_batches(SEED, CASES)).unexplained
