"""A handler that reads a view gives what a join with a global table gives, and the suite finds planted mistakes."""

from __future__ import annotations

from typing import Any

import pytest

from actors import View
from tests.equivalence.judge import Judge
from tests.equivalence.table_cases import GROUP_COUNT, NO_GROUP
from tests.equivalence.view_cases import STREAM, VIEW, run_views, view_batches

CASES = 60
SEED = 24


def test_handlers_that_read_a_view_equal_joins_with_global_tables(judge: Judge) -> None:
    """Each case is equal."""
    outcome = run_views(judge, view_batches(SEED, CASES))
    assert outcome.unexplained == []
    assert outcome.cases == outcome.equal == CASES


def test_cases_are_hard() -> None:
    """Both kinds have records without a key, a value or a row, deleted rows, and kills."""
    found = list(view_batches(SEED, CASES))
    assert any(batch.crashes for batch in found)
    for how in ("inner", "left"):
        records = [record for batch in found if batch.how == how for case in batch.cases for record in case]
        assert {record.side for record in records if record.value is None} == {STREAM, VIEW}
        stream = [record for record in records if record.side == STREAM and record.value is not None]
        assert any(record.key is None for record in stream)
        assert any(record.value is not None and record.value % GROUP_COUNT == NO_GROUP for record in stream)


def test_a_view_that_keeps_deleted_rows_is_found(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tombstone has no effect on what handlers read."""
    get, last = View.get, dict[Any, Any]()

    def keeping(view: Any, key: Any, default: Any = None) -> Any:
        found = get(view, key, default)
        if found is not None:
            last[key] = found
        return last.get(key, default)

    monkeypatch.setattr(View, "get", keeping)
    assert run_views(judge, view_batches(SEED, CASES)).unexplained


def test_a_view_that_stays_as_it_was_is_found(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """Handlers read the first value of each row."""
    get, first = View.get, dict[Any, Any]()

    def stale(view: Any, key: Any, default: Any = None) -> Any:
        found = get(view, key, default)
        return first.setdefault(key, found) if found is not None else default

    monkeypatch.setattr(View, "get", stale)
    assert run_views(judge, view_batches(SEED, CASES)).unexplained
