"""Joins give what Kafka Streams gives, and the suite finds planted mistakes. `make equivalence` runs more cases."""

from __future__ import annotations

from typing import Any

import pytest

from actors.declare.streams.joins import _Join
from actors.runtime.windows.joins import JoinStore
from actors.runtime.windows.task_windows import TaskWindows
from stores._core.overlay import Overlay
from tests.equivalence.join_cases import BATCH, KINDS, LEFT, RIGHT, batches
from tests.equivalence.joins import AFTERWARDS, AT_ONCE, BOUND, LATE, run
from tests.equivalence.judge import Judge

CASES = 140
SEED = 24
FOUND_WITHIN = 200
"""Cases of the kinds that a mistake is in."""


@pytest.mark.interpreted
def test_joins_equal_those_of_kafka_streams(judge: Judge) -> None:
    """Each case is equal, as most are, or differs by known differences alone."""
    outcome = run(judge, batches(SEED, CASES))
    assert outcome.unexplained == []
    assert outcome.cases == CASES
    assert outcome.equal >= CASES * 0.6
    assert {cause for causes in outcome.known for cause in causes.split(" + ")} == {LATE, BOUND, AT_ONCE, AFTERWARDS}


def test_cases_are_hard() -> None:
    """Each kind has cases, with windows of two lengths, late records, null keys and values, kills, and some alike."""
    found = list(batches(SEED, CASES))
    cases = [case for batch in found for case in batch.cases]
    assert {batch.config.kind for batch in found} == set(KINDS)
    assert len(cases) == CASES
    assert any(batch.crashes for batch in found)
    assert any(batch.config.before_ms != batch.config.after_ms for batch in found)
    assert any(record.value is None for case in cases for record in case.records)
    for kind in KINDS:
        records = [one for case in cases if case.config.kind == kind for one in case.records if one.key is None]
        assert {one.side for one in records if one.value is not None} == {LEFT, RIGHT}
    assert any(
        one.key is None and one.value is not None and stream_ms > one.timestamp_ms + case.config.retention_ms
        for case in cases
        for one, stream_ms in zip(case.records, case.stream_ms, strict=True)
    )
    assert any(len(case.in_time().records) < len(case.records) for case in cases)
    assert any(case.in_time() == case for case in cases)
    alike = ({(record.key, record.timestamp_ms, record.side) for record in case.records} for case in cases)
    assert any(len(different) < len(case.records) for different, case in zip(alike, cases, strict=True))


def _planted(judge: Judge, *kinds: str) -> None:
    assert run(judge, batches(SEED, FOUND_WITHIN // BATCH * BATCH, kinds=kinds), stop_at=1).unexplained


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shift_ms", [(-1, 0), (0, -1), (1, 0), (0, 1)], ids=str)
def test_a_window_that_is_a_millisecond_off_is_found(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, kind: str, shift_ms: tuple[int, int]
) -> None:
    """It begins or ends too early or too late."""
    between, (begin_ms, end_ms) = JoinStore._between, shift_ms

    def off(store: Any, overlay: Overlay, raw_key: bytes, side: int, from_ms: int, to_ms: int) -> Any:
        return between(store, overlay, raw_key, side, from_ms + begin_ms, to_ms + end_ms)

    monkeypatch.setattr(JoinStore, "_between", off)
    _planted(judge, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_forgotten_grace_is_found(judge: Judge, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A record is late when its window has ended."""

    def is_closed(store: JoinStore, side: int, at_ms: int, time: Any) -> bool:
        return bool(time.stream_ms > at_ms + store.spans_ms[side])

    monkeypatch.setattr(JoinStore, "is_closed", is_closed)
    _planted(judge, kind)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_record_that_is_handed_out_early_is_found(judge: Judge, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """It is handed out with its window's last millisecond, in which it may still match."""
    closing_ms = JoinStore.closing_ms
    monkeypatch.setattr(JoinStore, "closing_ms", lambda store, row: closing_ms(store, row) - 1)
    _planted(judge, kind)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_record_that_is_handed_out_at_once_is_found(judge: Judge, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Nothing waits for the close."""
    monkeypatch.setattr(JoinStore, "closing_ms", lambda store, row: store.time_of(row))
    _planted(judge, kind)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_match_that_leaves_its_record_without_one_is_found(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The row of the record that matched none stays."""
    monkeypatch.setattr(Overlay, "delete", lambda overlay, key: overlay.get(key) is not None)
    _planted(judge, kind)


def test_a_side_that_is_forgotten_is_found(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """An outer join hands out the records of the left input only."""
    made = JoinStore.__init__

    def forgetful(store: Any, *args: Any, **options: Any) -> None:
        made(store, *args, **options)
        store.reports = (store.reports[LEFT], False)

    monkeypatch.setattr(JoinStore, "__init__", forgetful)
    assert RIGHT == 1 - LEFT
    _planted(judge, "join-outer")


def test_records_of_one_key_and_time_that_become_one_are_found(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """The later one takes the place of the earlier one."""
    keep = JoinStore._keep

    def replacing(store: Any, overlay: Any, state: Any, side: int, at_ms: int, raw_key: bytes, value: bytes) -> Any:
        from actors._core.windows.join_rows import chunk_key, decode_chunk, encode_chunk

        row = chunk_key(at_ms // store._segment_ms, side, 0, raw_key)
        raw = overlay.get(row)
        if raw is not None:
            chunk = decode_chunk(raw)
            for index, one in enumerate(chunk):
                if one.at_ms == at_ms:
                    one.value = value
                    overlay.set(row, encode_chunk(chunk))
                    return 0, index
        return keep(store, overlay, state, side, at_ms, raw_key, value)

    monkeypatch.setattr(JoinStore, "_keep", replacing)
    _planted(judge, "join-inner")


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_close_that_comes_twice_is_found(judge: Judge, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Its function is called twice in one close."""
    call = TaskWindows._call

    async def twice(*args: Any) -> None:
        await call(*args)
        await call(*args)

    monkeypatch.setattr(TaskWindows, "_call", twice)
    _planted(judge, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_records_without_a_key_that_are_handled_the_other_way_are_found(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Those that should be handed out aren't, and the others are."""
    made = _Join.handler

    def handler(join: Any, side: int) -> Any:
        handle = made(join, side)

        async def other(ctx: Any, value: Any) -> None:
            if ctx.key is not None:
                await handle(ctx, value)
            elif value is not None and not join.store.reports[side]:
                await join._call(ctx, side, value, None)

        return other

    monkeypatch.setattr(_Join, "handler", handler)
    _planted(judge, kind)
