"""Joins with tables, and aggregates over them, give what Kafka Streams gives, and the suite finds planted mistakes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from actors._core.windows.changes import Change
from actors._core.windows.versions import History
from actors.runtime.message.grouping import Grouping
from actors.runtime.message.table import Table
from tests.equivalence.judge import Judge
from tests.equivalence.table_cases import (
    BATCH,
    CONFIGS,
    GROUPS,
    STREAM,
    TABLES,
    TableBatch,
    run_tables,
    table_batches,
)

CASES = 160
SEED = 24


def test_joins_and_aggregates_equal_those_of_kafka_streams(judge: Judge) -> None:
    """Each case is equal, or differs by the known difference alone."""
    outcome = run_tables(judge, table_batches(SEED, CASES))
    assert outcome.unexplained == []
    assert outcome.cases == CASES
    assert outcome.equal >= 0.5 * CASES


def test_cases_are_hard() -> None:
    """Each configuration has cases, with tombstones, times out of order, and kills."""
    found = list(table_batches(SEED, CASES))
    assert {(batch.kind, batch.how, batch.history_ms) for batch in found} == set(CONFIGS)
    assert any(batch.crashes for batch in found)
    records = [record for batch in found for case in batch.cases for record in case]
    assert {record.side for record in records if record.value is None} == {0, 1}
    assert any(
        one.timestamp_ms < before.timestamp_ms - batch.history_ms
        for batch in found
        for case in batch.cases
        for before, one in itertools.pairwise(case)
        if batch.history_ms
    )


def _planted(judge: Judge, kind: str, history_ms: int) -> None:
    chosen: Iterator[TableBatch] = (
        batch for batch in table_batches(SEED, 300) if (batch.kind, batch.history_ms) == (kind, history_ms)
    )
    assert any(run_tables(judge, iter([batch])).unexplained for batch in chosen)


def test_a_value_that_holds_a_millisecond_later_is_found(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of the record's own time isn't seen."""
    as_of = History.as_of
    monkeypatch.setattr(History, "as_of", lambda history, key, latest, at_ms: as_of(history, key, latest, at_ms - 1))
    _planted(judge, STREAM, 40)


def test_a_history_without_an_end_is_found(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records before the history are put in."""
    monkeypatch.setattr(History, "is_forgotten", lambda *_: False)
    _planted(judge, STREAM, 40)


def test_a_late_update_that_overwrites_is_found(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """Former values take the place of later ones."""
    put = History.put

    def overwriting(history: Any, *args: Any) -> bool:
        put(history, *args)
        return True

    monkeypatch.setattr(History, "put", overwriting)
    _planted(judge, TABLES, 40)


@pytest.mark.interpreted
def test_a_deleted_row_that_stays_is_found(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tombstones of a table are ignored."""
    take = Table._take
    monkeypatch.setattr(Table, "_take", lambda table, ctx, value: value is not None and take(table, ctx, value))
    for kind in (STREAM, TABLES, GROUPS):
        _planted(judge, kind, 0)


@pytest.mark.parametrize("history_ms", [0, 40])
def test_a_row_that_stays_in_its_former_group_is_found(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, history_ms: int
) -> None:
    """No group hears that a row leaves it."""
    send = Grouping._send

    def comes(groups: Grouping, ctx: Any, raw_key: bytes, group: bytes, change: Change, **options: Any) -> None:
        if change.new is not None:
            send(groups, ctx, raw_key, group, change, **options)

    monkeypatch.setattr(Grouping, "_send", comes)
    _planted(judge, GROUPS, history_ms)


def test_a_row_that_leaves_before_it_comes_is_found(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change within a group is two."""
    change = Grouping.change

    def twice(groups: Grouping, ctx: Any, state: Any, new: Any) -> None:
        change(groups, ctx, state, None)
        change(groups, ctx, state, new)

    monkeypatch.setattr(Grouping, "change", twice)
    _planted(judge, GROUPS, 0)


def test_batches_are_full() -> None:
    """The last batch has the rest."""
    assert [len(batch.cases) for batch in table_batches(SEED, 25)] == [BATCH, BATCH, 5]
