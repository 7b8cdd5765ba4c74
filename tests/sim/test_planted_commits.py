"""The simulation sees commits that aren't kept apart from what is handled while they are under way."""

from __future__ import annotations

from typing import Any

import pytest

from actors.runtime.outbox.effects import Effects
from actors.runtime.task.processor import TaskProcessor
from tests.sim.planted import MAX_SEEDS, Patch, Planted, rewritten


def settle_before_the_receipt(patch: Patch) -> None:
    """What a commit has frozen isn't read any more while the commit is under way."""
    edit = ("frozen = [part.overlay.freeze() for part in self.stores]", "frozen = list(map(freeze, self.stores))")

    def freeze(part: Any) -> Any:
        writes = part.overlay.freeze()
        part.overlay.settle()
        return writes

    patch.setattr(TaskProcessor, "_freeze", rewritten(TaskProcessor._freeze, edit, freeze=freeze))


def overtake(patch: Patch) -> None:
    """A commit doesn't wait for the one that is under way."""

    async def begin_commit(self: TaskProcessor) -> None:
        before = self._under_way
        for part in self.stores:
            part.overlay.settle()
        self.context.state = self.context.state.RUNNING
        self._under_way = None
        await original(self)
        if before is not None:
            before.add_done_callback(lambda done: done.cancelled() or done.exception())

    original = TaskProcessor.begin_commit
    patch.setattr(TaskProcessor, "begin_commit", begin_commit)


def store_where_the_task_is(patch: Patch) -> None:
    """The position that a commit writes is that of the last message, not of the last that was handed in."""
    edit = ("part.committed, writes, offsets,", "part.committed, writes, [self.reached],")
    patch.setattr(TaskProcessor, "_carry_out", rewritten(TaskProcessor._carry_out, edit))


def refresh_during_a_commit(patch: Patch) -> None:
    """An idle task notes that its checkpoint is the truth while a commit is about to move it."""
    edit = ("    await self.commit()\n", "")
    patch.setattr(TaskProcessor, "_refresh_checkpoints", rewritten(TaskProcessor._refresh_checkpoints, edit))


def count_what_came_after(patch: Patch) -> None:
    """An outcome that was handled while a commit was under way is taken for committed with it."""

    def committed(self: Effects) -> None:
        for raw_key, run in list(self._runs.items()):
            if run.is_done:
                del self._runs[raw_key]
                self._touched[raw_key] = None
        original(self)

    original = Effects.committed
    patch.setattr(Effects, "committed", committed)


PLANTED = (
    Planted(settle_before_the_receipt, "exactly once"),
    Planted(overtake, "", first_seed=7),
    Planted(store_where_the_task_is, "disk ahead"),
    Planted(store_where_the_task_is, "disk ahead", features=("parallel",)),
    Planted(refresh_during_a_commit, "", first_seed=3000),
    Planted(count_what_came_after, "effects", features=("effects",)),
)


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_the_damage_is_found(planted: Planted, monkeypatch: Patch) -> None:
    assert planted.seed(monkeypatch) is not None, f"{MAX_SEEDS} seeds, and nobody noticed"
