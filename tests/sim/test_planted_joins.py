"""Every invariant of joins fails on the damage it is there for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import actors.declare.streams.joins as declared
import actors.runtime.windows.closes as closes
import actors.runtime.windows.joins as joins
from actors.declare.streams.joins import _Join
from actors.runtime.message.internal_messages import InternalMessage
from actors.runtime.windows.joins import JoinStore
from actors.runtime.windows.task_windows import TaskWindows
from tests.sim.planted import MAX_SEEDS, Patch, Planted, rewritten
from tests.sim.test_planted_windows import forget_stream_time


def match_a_millisecond_less(patch: Patch) -> None:
    """A window ends a millisecond too early."""
    edit = ("if from_ms <= one.at_ms <= to_ms", "if from_ms < one.at_ms <= to_ms")
    patch.setattr(JoinStore, "_between", rewritten(JoinStore._between, edit))


def leave_the_row_of_a_match(patch: Patch) -> None:
    """A record that has a match is handed out without one too."""
    edit = ("overlay.delete(self._unmatched(other, one.at_ms, one.chunk, one.place, raw_key))", "pass")
    patch.setattr(JoinStore, "keep_and_match", rewritten(JoinStore.keep_and_match, edit))


def let_a_match_prevent_a_close_that_waits(patch: Patch) -> None:
    """Whether a record is handed out without a match depends on when closes were handled."""
    edit = ("if not self.is_closed(other, one.at_ms, time):", "if True:")
    patch.setattr(JoinStore, "keep_and_match", rewritten(JoinStore.keep_and_match, edit))


def hand_out_early(patch: Patch) -> None:
    """A record without a match doesn't wait for the grace."""
    edit = (".end_ms + self.grace_ms + 1", ".end_ms + 1")
    patch.setattr(JoinStore, "closing_ms", rewritten(JoinStore.closing_ms, edit))


def close_without_removing_the_row(patch: Patch) -> None:
    """What a close led to is committed, and the record still waits for it."""
    edit = ("if not overlay.delete(row) or kept is None:", "if kept is None:")
    patch.setattr(closes._Unmatched, "take", rewritten(closes._Unmatched.take, edit))


def remove_rows_when_they_are_taken(patch: Patch) -> None:
    """A row is gone with the next commit, whether or not its close was handled by then."""
    original = TaskWindows.take

    def take(self: TaskWindows) -> Sequence[InternalMessage]:
        due = original(self)
        for closing in self._closings.values():
            overlay = self._state.overlays[closing.store.rows]
            for row, _ in list(overlay.items(b"u", closing.start)):
                overlay.delete(row)
        self._state.scope.release()
        return due

    patch.setattr(TaskWindows, "take", take)


def join_what_is_late(patch: Patch) -> None:
    """A record whose window is closed is matched."""
    edit = ("if at_ms < time.latest_ms and self.is_closed(side, at_ms, time):", "if False:")
    patch.setattr(JoinStore, "keep_and_match", rewritten(JoinStore.keep_and_match, edit))


def forget_how_many_chunks_there_are(patch: Patch) -> None:
    """What comes behind the first chunk isn't found."""
    # A run has a limit of its own.
    edits = ("with_last_chunk(first, number)", "first"), ("> CHUNK_BYTES", "> joins.CHUNK_BYTES")
    patch.setattr(JoinStore, "_keep", rewritten(JoinStore._keep, *edits, joins=joins))


def drop_what_can_still_match(patch: Patch) -> None:
    """Records go from the disk a window too early."""
    original = JoinStore.expired_until
    patch.setattr(JoinStore, "expired_until", lambda self, to_ms: original(self, to_ms + 2 * self._segment_ms))


def call_pairs_at_the_time_of_the_later_record(patch: Patch) -> None:
    """A pair has the time of the record that came last."""
    patch.setattr(declared, "_at", lambda record, _: record)


def divert_nothing(patch: Patch) -> None:
    """What is late is gone, though a topic was to get it."""
    original = _Join.__init__

    def begin(self: _Join, function: Any, _: Any) -> None:
        original(self, function, "drop")

    patch.setattr(_Join, "__init__", begin)


JOINS: dict[str, Any] = {"features": ("joins",)}
WITH_INPUTS: dict[str, Any] = {"features": ("inputs", "joins")}
PLANTED = (
    Planted(match_a_millisecond_less, "joins", **JOINS, first_seed=2),
    Planted(leave_the_row_of_a_match, "joins", **JOINS),
    Planted(let_a_match_prevent_a_close_that_waits, "joins", first_seed=57, **JOINS),
    Planted(hand_out_early, "joins", **JOINS),
    Planted(hand_out_early, "joins", **WITH_INPUTS),
    Planted(close_without_removing_the_row, "joins", **JOINS, first_seed=20),
    Planted(remove_rows_when_they_are_taken, "joins", **JOINS, first_seed=2),
    Planted(forget_stream_time, "joins", **JOINS, first_seed=4),
    Planted(join_what_is_late, "joins", **JOINS),
    Planted(forget_how_many_chunks_there_are, "joins", **JOINS, first_seed=8),
    Planted(drop_what_can_still_match, "joins", first_seed=200, **JOINS),
    Planted(call_pairs_at_the_time_of_the_later_record, "joins", **JOINS),
    Planted(divert_nothing, "joins", **JOINS),
)


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_the_damage_is_found(planted: Planted, monkeypatch: Patch) -> None:
    assert planted.seed(monkeypatch) is not None, f"{MAX_SEEDS} seeds, and nobody noticed"
