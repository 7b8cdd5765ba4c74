"""Windows that are emitted once in an interval follow Kafka Streams' updates, and the suite finds planted mistakes."""

from __future__ import annotations

from typing import Any

import pytest

from actors._core.windows.rows import close_key
from actors.runtime.windows.changes import ChangeStore
from tests.equivalence.generate import EVERY, KINDS, every_batches
from tests.equivalence.judge import Judge
from tests.equivalence.suite import run

CASES = 80
SEED = 24
FOUND_WITHIN = 200


@pytest.mark.interpreted
def test_what_is_emitted_by_interval_follows_kafka_streams_updates(judge: Judge) -> None:
    """Each case is equal, or differs by a known difference of its windows alone."""
    outcome = run(judge, every_batches(SEED, CASES))
    assert outcome.unexplained == []
    assert outcome.cases == CASES
    assert outcome.equal >= 0.9 * CASES


def test_cases_are_hard() -> None:
    """Each kind has cases, with intervals of several lengths, kills, and windows that change again later."""
    found = list(every_batches(SEED, CASES))
    assert {(batch.config.kind, batch.config.emit) for batch in found} == {(kind, EVERY) for kind in KINDS}
    assert {batch.config.every_ms > batch.config.size_ms for batch in found} == {True, False}
    assert any(batch.config.every_ms < batch.config.size_ms for batch in found)
    assert any(batch.crashes for batch in found)
    assert any(batch.settles for batch in found)


def _planted(judge: Judge, *kinds: str) -> None:
    chosen = (batch for batch in every_batches(SEED, FOUND_WITHIN) if batch.config.kind in (kinds or KINDS))
    assert run(judge, chosen, stop_at=1).unexplained


@pytest.mark.interpreted
@pytest.mark.parametrize("kind", KINDS)
def test_an_interval_that_ends_late_is_found(judge: Judge, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """The change of an interval's first millisecond belongs to the one before."""
    until_ms = ChangeStore._until_ms
    monkeypatch.setattr(ChangeStore, "_until_ms", lambda store, now_ms: until_ms(store, now_ms - 1))
    _planted(judge, kind)


@pytest.mark.interpreted
def test_a_session_that_another_one_took_the_place_of_is_found(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is handed out beside the session that it is a part of."""
    monkeypatch.setattr(ChangeStore, "forget", lambda *_: None)
    _planted(judge, "session")


def test_the_first_value_in_place_of_the_last_is_found(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came later in an interval is lost."""
    note = ChangeStore.note

    def first(store: ChangeStore, state: Any, raw_key: bytes, window: Any, raw: bytes) -> None:
        if (
            state.overlays[store.rows].get(close_key(store._until_ms(store._now_ms(state)), window.start_ms, raw_key))
            is None
        ):
            note(store, state, raw_key, window, raw)

    monkeypatch.setattr(ChangeStore, "note", first)
    _planted(judge)
