"""Every invariant of windows fails on the damage it is there for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import actors.runtime.windows.closes as closes
import actors.runtime.windows.store as store_module
import actors.runtime.windows.task_windows as task_windows
from actors._core.windows.kinds import AlignedWindows
from actors.runtime.message.internal_messages import InternalMessage
from actors.runtime.task.processor import TaskProcessor
from actors.runtime.windows.changes import ChangeStore
from actors.runtime.windows.store import WindowStore
from actors.runtime.windows.task_windows import TaskWindows
from tests.sim.planted import MAX_SEEDS, Patch, Planted, rewritten


def close_without_the_cursor(patch: Patch) -> None:
    """What a close led to is committed, and not how far closes have come."""
    edit = ("    write_progress(self._store, msgspec.structs.replace(progress, closed=row), state)\n", "")
    patch.setattr(closes._Aligned, "take", rewritten(closes._Aligned.take, edit))


def forget_stream_time(patch: Patch) -> None:
    """Stream time begins anew with each takeover."""
    original = TaskWindows.__init__

    def begin(self: TaskWindows, *args: Any, **named: Any) -> None:
        original(self, *args, **named)
        self.stream_ms = -1

    patch.setattr(TaskWindows, "__init__", begin)


def remove_entries_when_they_are_taken(patch: Patch) -> None:
    """An entry is gone with the next commit, whether or not its close was handled by then."""
    original = TaskWindows.take

    def take(self: TaskWindows) -> Sequence[InternalMessage]:
        due = original(self)
        for closing in self._closings.values():
            overlay = self._state.overlays[closing.store.rows]
            for row, _ in list(overlay.items(b"e", closing.start if closing.closes.prefix == b"e" else b"e")):
                overlay.delete(row)
        self._state.scope.release()
        return due

    patch.setattr(TaskWindows, "take", take)


def forget_one_side_of_a_merge(patch: Patch) -> None:
    """A session that takes the place of two has what was in the first one."""
    patch.setattr(WindowStore, "_merged", lambda _, held: held[0].value if held else None)


def drop_what_waits_for_its_close(patch: Patch) -> None:
    """What is past its retention goes from the disk, whether or not it has closed."""
    edit = ("self._handled_ms()", "self.stream_ms")
    patch.setattr(TaskWindows, "before_commit", rewritten(TaskWindows.before_commit, edit))


def close_in_any_order(patch: Patch) -> None:
    """The windows that end last close first."""
    original = TaskWindows.take
    patch.setattr(TaskWindows, "take", lambda self: list(original(self))[::-1])


def ignore_grace(patch: Patch) -> None:
    """A window takes nothing more once it has ended."""
    patch.setattr(AlignedWindows, "closes_ms", lambda self, window, grace_ms: window.end_ms)


def close_at_the_time_that_was_reached(patch: Patch) -> None:
    """What a close adds to other windows is late when time has jumped over their ends too."""
    edit = ("min(reached_ms, open_ms), True", "reached_ms, True")
    patch.setattr(TaskWindows, "_call", rewritten(TaskWindows._call, edit))


def close_in_no_order_between_stores(patch: Patch) -> None:
    """A larger window closes before the smaller ones in it."""
    edit = ("if len(self._closings) > 1:", "if False:")
    patch.setattr(TaskWindows, "_in_turn", rewritten(TaskWindows._in_turn, edit))


def handle_late_ones_as_if_in_time(patch: Patch) -> None:
    """A window that has closed takes what comes late."""
    patch.setattr(TaskWindows, "is_open", lambda self, *_: True)
    patch.setattr(TaskWindows, "closed_ms", lambda self, _: -1)


def make_no_window_behind_an_event(patch: Patch) -> None:
    """Of sliding windows only those are made that end with an event."""
    edit = ("if previous_ms is not None and", "if False and previous_ms is not None and")
    patch.setattr(store_module, "into_sliding", rewritten(store_module.into_sliding, edit))


def put_off_what_changed_again(patch: Patch) -> None:
    """A window that changes is emitted an interval later."""
    edit = ("self.every_ms + 1)", "self.every_ms + 2)")
    patch.setattr(ChangeStore, "_until_ms", rewritten(ChangeStore._until_ms, edit))


def emit_what_was_replaced(patch: Patch) -> None:
    """A session that another one took the place of is emitted too."""
    patch.setattr(ChangeStore, "forget", lambda *_: None)


def emit_again_after_a_crash(patch: Patch) -> None:
    """What was emitted stays in the store."""
    edit = ("    overlay.delete(row)\n", "")
    patch.setattr(ChangeStore, "take", rewritten(ChangeStore.take, edit))


def forget_changes_at_a_takeover(patch: Patch) -> None:
    """What waits for the end of its interval isn't looked for after a takeover."""
    original = TaskWindows._look_for_next

    def look(self: TaskWindows, closing: Any) -> None:
        if not isinstance(closing.store, ChangeStore):
            original(self, closing)

    patch.setattr(TaskWindows, "_look_for_next", look)


def count_what_is_left_as_handled(patch: Patch) -> None:
    """A task that ends drops its closes before its last commit, which passes those that are past their retention."""
    original = TaskProcessor._leave

    async def leave(self: TaskProcessor) -> None:
        for message in self.due:
            message.handled()
        await original(self)

    patch.setattr(TaskProcessor, "_leave", leave)


def open_what_was_closed(patch: Patch) -> None:
    """A longer grace opens windows that a shorter one closed."""
    patch.setattr(task_windows._Closing, "note_grace", lambda *_: None)


def close_by_the_grace_of_the_last_start(patch: Patch) -> None:
    """Windows close by the grace that their former owner had."""
    original = task_windows._Closing.note_grace

    def note(self: Any, progress: Any) -> None:
        original(self, progress)
        if progress.grace_ms >= 0:
            self.closed_end_ms, self.closed_grace_ms = 1 << 60, progress.grace_ms

    patch.setattr(task_windows._Closing, "note_grace", note)


def emit_an_older_value_last(patch: Patch) -> None:
    """What waits for an interval that began before intervals became shorter stays as it was."""
    edit = ("if waiting_ms > now_ms]", "if waiting_ms == until_ms]")
    patch.setattr(ChangeStore, "note", rewritten(ChangeStore.note, edit))


WINDOWS: dict[str, Any] = {"features": ("windows",)}
PLANTED = (
    Planted(close_without_the_cursor, "windows", **WINDOWS, first_seed=4),
    Planted(forget_stream_time, "windows", first_seed=21, **WINDOWS),
    Planted(remove_entries_when_they_are_taken, "windows", **WINDOWS, first_seed=3),
    Planted(forget_one_side_of_a_merge, "windows", first_seed=33, **WINDOWS),
    Planted(drop_what_waits_for_its_close, "windows", **WINDOWS),
    Planted(close_in_any_order, "windows", **WINDOWS),
    Planted(ignore_grace, "windows", **WINDOWS),
    Planted(close_at_the_time_that_was_reached, "windows", **WINDOWS),
    Planted(close_in_no_order_between_stores, "windows", first_seed=28, **WINDOWS),
    Planted(handle_late_ones_as_if_in_time, "windows", **WINDOWS),
    Planted(make_no_window_behind_an_event, "windows", first_seed=1, **WINDOWS),
    Planted(put_off_what_changed_again, "windows", **WINDOWS),
    Planted(emit_what_was_replaced, "windows", **WINDOWS),
    Planted(emit_again_after_a_crash, "windows", first_seed=1, **WINDOWS),
    Planted(forget_changes_at_a_takeover, "windows", first_seed=2, **WINDOWS),
    Planted(count_what_is_left_as_handled, "windows", **WINDOWS),
    Planted(count_what_is_left_as_handled, "joins", features=("joins",)),
    Planted(open_what_was_closed, "windows", first_seed=23, **WINDOWS),
    Planted(close_by_the_grace_of_the_last_start, "windows", first_seed=14, **WINDOWS),
    Planted(emit_an_older_value_last, "windows", first_seed=30, **WINDOWS),
)


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_the_damage_is_found(planted: Planted, monkeypatch: Patch) -> None:
    assert planted.seed(monkeypatch) is not None, f"{MAX_SEEDS} seeds, and nobody noticed"
