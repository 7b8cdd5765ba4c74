"""Joins by a foreign key give what Kafka Streams gives, and the suite finds planted mistakes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from actors.runtime.message.grouping import Grouping
from tests.equivalence.foreign_cases import foreign_batches, run_foreign
from tests.equivalence.judge import Judge

CASES = 60
SEED = 24


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    """Kafka Streams, for all tests."""
    with Judge.start() as started:
        yield started


def test_joins_by_a_foreign_key_equal_those_of_kafka_streams(judge: Judge) -> None:
    """Each case is equal, or differs by what Kafka Streams says again or in between."""
    outcome = run_foreign(judge, foreign_batches(SEED, CASES))
    assert outcome.unexplained == []
    assert outcome.cases == CASES


def test_a_subscription_that_stays_behind_is_found(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed row doesn't subscribe again."""
    change = Grouping.change

    def once(groups: Grouping, ctx: Any, former: Any, new: Any) -> None:
        if former is None or new is None:
            change(groups, ctx, former, new)

    monkeypatch.setattr(Grouping, "change", once)
    assert run_foreign(judge, foreign_batches(SEED, CASES)).unexplained
