"""Windows give what Kafka Streams gives, and the suite finds planted mistakes. `make equivalence` runs more cases."""

from __future__ import annotations

from typing import Any

import pytest

from actors._core.windows.kinds import AlignedWindows, Session, Sliding, Window
from actors.runtime.windows.store import WindowStore
from actors.runtime.windows.task_windows import TaskWindows
from tests.equivalence.generate import BATCH, KINDS, batches
from tests.equivalence.judge import Judge
from tests.equivalence.suite import run

CASES = 100
SEED = 24
FOUND_WITHIN = 100
"""Cases of the kinds that a mistake is in."""


def test_windows_equal_those_of_kafka_streams(judge: Judge) -> None:
    """Each case is equal, or differs by a known difference alone."""
    outcome = run(judge, batches(SEED, CASES))
    assert outcome.unexplained == []
    assert outcome.cases == CASES
    assert outcome.equal >= 0.9 * CASES


def test_cases_are_hard() -> None:
    """Each kind and emit mode has cases, with late records, null values, kills, and times before the first length."""
    found = list(batches(SEED, CASES))
    assert {(batch.config.kind, batch.config.emit) for batch in found} == {
        (kind, emit) for kind in KINDS for emit in ("updates", "final")
    }
    cases = [case for batch in found for case in batch.cases]
    assert len(cases) == CASES
    assert any(batch.crashes for batch in found)
    assert any(batch.settles for batch in found)
    assert any(record.value is None for case in cases for record in case.records)
    assert any(record.timestamp_ms < case.config.size_ms for case in cases for record in case.records)
    assert any(
        one.timestamp_ms + case.config.size_ms + case.config.grace_ms < before.timestamp_ms
        for case in cases
        for before, one in zip(case.records, case.records[1:], strict=False)
    )


def _planted(judge: Judge, *kinds: str, emit: str | None = None) -> None:
    chosen = (batch for batch in batches(SEED, 4 * FOUND_WITHIN, kinds=kinds) if emit in (None, batch.config.emit))
    few = (batch for batch, _ in zip(chosen, range(FOUND_WITHIN // BATCH), strict=False))
    outcome = run(judge, few, stop_at=1)
    assert outcome.unexplained
    assert outcome.failed == [], "a mistake that only raises isn't found by its results"


@pytest.mark.interpreted
@pytest.mark.parametrize("shift_ms", [-1, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_window_that_ends_a_millisecond_off_is_found(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, kind: str, shift_ms: int
) -> None:
    """Its last record is one too many, or missing."""
    windows: Any = {"sliding": Sliding, "session": Session}.get(kind, AlignedWindows)
    closes_ms = windows.closes_ms
    monkeypatch.setattr(windows, "closes_ms", lambda *which: closes_ms(*which) + shift_ms)
    _planted(judge, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_forgotten_grace_is_found(judge: Judge, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Windows close with their end."""

    def is_open(time: TaskWindows, store: Any, window: Window) -> bool:
        return bool(store.windows.closes_ms(window, 0) > time.stream_ms)

    monkeypatch.setattr(TaskWindows, "is_open", is_open)
    _planted(judge, kind)


@pytest.mark.interpreted
def test_a_merge_that_forgets_a_side_is_found(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two sessions that become one the later one's value is left."""
    monkeypatch.setattr(WindowStore, "_merged", lambda _, held: held[-1].value if held else None)
    _planted(judge, "session", emit="updates")
    _planted(judge, "session", emit="final")


@pytest.mark.parametrize("kind", KINDS)
def test_a_final_result_that_comes_twice_is_found(judge: Judge, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Its function is called twice in one close."""
    call = TaskWindows._call

    async def twice(*args: Any) -> None:
        await call(*args)
        await call(*args)

    monkeypatch.setattr(TaskWindows, "_call", twice)
    _planted(judge, kind, emit="final")


@pytest.mark.interpreted
def test_a_session_lost_to_a_merge_before_its_close_is_found(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that is due has a final result, though a later record has taken it up by then."""
    write_lists = WindowStore._write_lists

    def lossy(store: Any, overlay: Any, state: Any, raw_key: bytes, held: Any, gone: Any, changed: Any) -> None:
        left = [one for one in changed if not one.is_merged]
        write_lists(store, overlay, state, raw_key, held, gone, left)

    monkeypatch.setattr(WindowStore, "_write_lists", lossy)
    _planted(judge, "session", emit="final")
