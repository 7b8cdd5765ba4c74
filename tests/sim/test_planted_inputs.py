"""The simulation sees what goes wrong between two inputs of an actor."""

from __future__ import annotations

from typing import Any

import pytest

import actors.runtime.task.task as task
from actors.runtime.inputs import inbox
from actors.runtime.inputs.inbox import MergedInbox
from actors.runtime.task.context import TaskContext
from actors.runtime.task.identity import FoundInput
from actors.runtime.task.in_order import InOrder
from actors.runtime.task.processor import TaskProcessor
from tests.sim.planted import MAX_SEEDS, Patch, Planted, rewritten


def take_the_latest_first(patch: Patch) -> None:
    """Of the inputs' heads the one with the highest timestamp goes first."""
    edit = ("timeline.sort(key=_first)", "timeline.sort(key=lambda one: -one[0])")
    patch.setattr(inbox, "merged", rewritten(inbox.merged, edit))


def take_whole_batches(patch: Patch) -> None:
    """The order is looked at once for all that was fetched together."""
    patch.setattr(inbox, "merged", lambda parts, _: parts)


def go_on_without_what_is_there(patch: Patch) -> None:
    """An input with more on its broker isn't waited for."""
    original = MergedInbox.__init__

    def begin(self: MergedInbox, *args: Any, **named: Any) -> None:
        original(self, *args, **{**named, "has_more": lambda index: False})

    patch.setattr(MergedInbox, "__init__", begin)


def wait_for_nobody(patch: Patch) -> None:
    """`max_task_idle` is ignored."""
    original = MergedInbox.__init__

    def begin(self: MergedInbox, *args: Any, **named: Any) -> None:
        original(self, *args, **{**named, "max_idle_s": 0.0})

    patch.setattr(MergedInbox, "__init__", begin)


def leave_an_offset_out(patch: Patch) -> None:
    """A commit has the offset of the first input alone."""
    original = TaskContext.marked
    patch.setattr(TaskContext, "marked", lambda self, inputs: original(self, list(inputs)[:1]))


def go_on_where_it_was(patch: Patch) -> None:
    """After an unknown outcome the second input goes on where the task was, whatever its committed mark says."""
    reached: dict[int, int] = {}
    carry_out, start_of = TaskProcessor._carry_out, task.Task._start_of

    async def noted(self: TaskProcessor, *args: Any) -> None:
        if len(self.inputs) > 1:
            reached[id(self.context)] = self.inputs[1].handed_in_offset
        await carry_out(self, *args)

    async def begun(self: task.Task, found: FoundInput, *args: Any) -> Any:
        begins = await start_of(self, found, *args)
        at = reached.get(id(self.context), 0)
        if found.index and at > begins.next_offset:
            begins.completed.skip_to(at)
            begins.__post_init__()
        return begins

    patch.setattr(TaskProcessor, "_carry_out", noted)
    patch.setattr(task.Task, "_start_of", begun)


def compare_the_first_alone(patch: Patch) -> None:
    """A store is the newest if it has all of the first input."""
    original = task.last_commit

    def last_commit(*args: Any) -> Any:
        found = original(*args)
        return task.replace(found, reached=found.reached[:1])

    patch.setattr(task, "last_commit", last_commit)


def name_the_first_input(patch: Patch) -> None:
    """Each write says that it comes from the first input."""
    edit = ("scope.input, scope.source_offset = one, one.index, one.next_offset - 1", "_, _ = one, None, None")
    patch.setattr(InOrder, "_turn_to", rewritten(InOrder._turn_to, edit))


def lose_tombstones(patch: Patch) -> None:
    """A null value is no message."""
    handle = InOrder._handle

    async def without(self: InOrder, runs: Any) -> None:
        for one, records in runs:
            await handle(self, [(one, [record for record in records if record.value is not None])])
            one.next_offset = max(one.next_offset, records[-1].offset + 1)

    patch.setattr(InOrder, "_handle", without)


PLANTED = (
    Planted(take_the_latest_first, "merging", first_seed=3, features=("inputs",)),
    Planted(take_whole_batches, "merging", first_seed=3, features=("inputs",)),
    Planted(go_on_without_what_is_there, "merging", features=("inputs",)),
    Planted(wait_for_nobody, "merging", features=("inputs",)),
    Planted(leave_an_offset_out, "one transaction", features=("inputs",)),
    Planted(go_on_where_it_was, "exactly once", ("unknown_outcome", "bad_network"), first_seed=3, features=("inputs",)),
    Planted(compare_the_first_alone, "exactly once", first_seed=20, features=("inputs", "replaced")),
    Planted(name_the_first_input, "", features=("inputs",)),
    Planted(lose_tombstones, "exactly once", features=("inputs",)),
)


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_the_damage_is_found(planted: Planted, monkeypatch: Patch) -> None:
    assert planted.seed(monkeypatch) is not None, f"{MAX_SEEDS} seeds, and nobody noticed"
