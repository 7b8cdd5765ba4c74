"""Every invariant fails on the damage it is there for: what the product does is taken away, one rule at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import actors._core.task.takeover as takeover
import actors.runtime.state.restore as restore
import actors.runtime.state.stores as stores
import actors.runtime.task.processor as processor
import actors.runtime.task.task as task
import actors.runtime.task.tools as tools
import actors.runtime.threads as threads
from actors._core.task.completed import CompletedOffsets
from actors._core.task.takeover import Contradiction, Restore, Start
from actors.errors import (
    BatchesRefusedError,
    CommitRefusedError,
    HandlerFailedError,
    OutcomeUnknownError,
    UndecodableRecordError,
)
from actors.ports import CommitReceipt, Identity, TopicPartition
from actors.runtime.task.by_key import ByKey
from actors.runtime.task.context import TaskContext
from actors.runtime.task.identity import FoundInput
from actors.runtime.task.in_order import InOrder
from actors.runtime.task.processor import TaskProcessor
from actors.runtime.task.task import Task
from actors.testing.fakes.ports import (
    BrokerUnavailableError,
    FakeGroupView,
    FakeLogs,
    FakeWriter,
)
from stores._core.overlay import MessageScope, Overlay, with_metadata
from tests.sim.fakes.disk import Disk
from tests.sim.fakes.group import Group
from tests.sim.fakes.source import FakeSource
from tests.sim.planted import MAX_SEEDS, Patch, Planted, rewritten


def store_before_commit(patch: Patch) -> None:
    """RocksDB is written before the transaction, as Faust does."""

    def freeze(self: TaskProcessor) -> Any:
        for part in self.stores:
            writes = [(key, with_metadata(entry)) for key, entry in part.overlay.writes.items()]
            position = replace(part.committed.position(), source_offset=self.at.next_offset)
            part.committed.apply(writes, position)
        return original(self)

    original = TaskProcessor._freeze
    patch.setattr(TaskProcessor, "_freeze", freeze)


def keep_overlay(patch: Patch) -> None:
    """After an unknown outcome what is in memory is taken for true."""

    async def drop_nothing(self: Task) -> None:
        self.inbox.clear()
        if self._processor is not None:
            for _, _, _, overlay in self._processor.stores:
                overlay.writes = overlay._frozen | overlay.writes
                overlay.settle()

    def begin(self: Task, offset: int) -> TaskProcessor:
        before, after = self._processor, original(self, offset)
        if before is not None:
            for (*_, old), (*_, new) in zip(before.stores, after.stores, strict=True):
                new.writes = old.writes
        return after

    original = Task._begin
    patch.setattr(Task, "_drop_work", drop_nothing)
    patch.setattr(Task, "_begin", begin)


def confirm_before_fence_only(patch: Patch) -> None:
    """Membership is asked before the producer starts, and not after."""
    patch.setattr(
        Task,
        "_take_over",
        rewritten(
            Task._take_over,
            (
                "self.context.advance(Event.FENCED)\n    await self.context.confirm()",
                "self.context.advance(Event.FENCED)",
            ),
        ),
    )


def any_generation_commits(patch: Patch) -> None:
    """The coordinator takes the offsets of a member of any generation: that check is what exactly once rests on."""
    patch.setattr(Group, "check_member", lambda *_: None)


def commit_as_nobody(patch: Patch) -> None:
    """Offsets are committed without the member and its generation, as clients did before KIP-447."""
    original = FakeWriter.write
    patch.setattr(FakeWriter, "write", lambda self, _, batches: original(self, Identity("", -1), batches))


def read_unstable_offsets(patch: Patch) -> None:
    """The takeover doesn't wait for a former owner's open transaction."""
    patch.setattr(FakeGroupView, "stable_offset", FakeGroupView.committed)


def restore_to_last_stable(patch: Patch) -> None:
    """The restore ends at the last stable offset, which another's open transaction may hold back: records look lost."""

    async def bounds(self: FakeLogs, partition: TopicPartition) -> Any:
        found = await original(self, partition)
        return replace(found, end=self._cluster.log(partition).last_stable)

    original = FakeLogs.bounds
    patch.setattr(FakeLogs, "bounds", bounds)


def commit_without_waiting(patch: Patch) -> None:
    """A commit is taken for done once its records are written: the transaction's end isn't waited for."""

    async def ask(self: FakeWriter, request: str, function: Any, *args: Any) -> Any:
        if request != "EndTxn":
            return await original(self, request, function, *args)
        ending = asyncio.create_task(original(self, request, function, *args))
        ending.add_done_callback(lambda done: done.cancelled() or done.exception())
        return 0

    original = FakeWriter._ask
    patch.setattr(FakeWriter, "_ask", ask)


def never_missed_tombstones(patch: Patch) -> None:
    """However long the worker was away, its checkpoint is caught up."""
    patch.setattr(restore, "missed_tombstones", lambda *_, **__: False)


def refresh_without_asking(patch: Patch) -> None:
    """An idle worker notes that its checkpoint is the truth without asking whether it still owns the partition."""
    patch.setattr(
        TaskProcessor,
        "_refresh_checkpoints",
        rewritten(TaskProcessor._refresh_checkpoints, ("    await self.context.confirm()\n", "")),
    )


def ignore_committed_offset(patch: Patch) -> None:
    """The task begins at the input's start."""
    patch.setattr(task, "decide_start", lambda facts, rules: Start(facts.bounds.start))


def skip_to_the_end(patch: Patch) -> None:
    """The task begins at the input's end."""
    patch.setattr(task, "decide_start", lambda facts, rules: Start(max(facts.bounds.end, facts.committed or 0)))


def same_epoch(patch: Patch) -> None:
    """A takeover doesn't raise the epoch."""
    patch.setattr(task, "next_epoch", lambda known: max(known, default=1) or 1)


def one_offset_too_far(patch: Patch) -> None:
    """The position says one record more than the store holds."""
    plan = takeover.plan_restore
    patch.setattr(
        takeover,
        "plan_restore",
        lambda position, bounds, topic_id, **known: (
            replace(found, start=min(found.start + 1, found.end))
            if isinstance(found := plan(position, bounds, topic_id, **known), Restore) and position is not None
            else found
        ),
    )


def thread_left_behind(patch: Patch) -> None:
    """A write to the store isn't waited for when its task is cancelled."""

    async def unfinished(function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.to_thread(function, *args)

    for module in (task, stores, restore, threads):
        patch.setattr(module, "finish_in_thread", unfinished)


def unread_commit_errors(patch: Patch) -> None:
    """A commit that failed is taken for one that went well."""

    async def write(self: FakeWriter, identity: Any, batches: Any) -> list[CommitReceipt]:
        try:
            return await original(self, identity, batches)
        except OutcomeUnknownError:
            return [
                CommitReceipt(
                    {topic: self._cluster.log(TopicPartition(topic, batch.partition)).end for topic in batch.changelogs}
                )
                for batch in batches
            ]

    original = FakeWriter.write
    patch.setattr(FakeWriter, "write", write)


def coordinator_that_says_none(patch: Patch) -> None:
    """While the coordinator moves, the committed offset is none, as aiokafka's own call has it."""
    from actors.testing.fakes.ports import FakeGroupView

    async def committed(self: FakeGroupView, source: TopicPartition) -> Any:
        try:
            return await asyncio.wait_for(original(self, source), 0.3)
        except (TimeoutError, BrokerUnavailableError):
            return None

    original = FakeGroupView.stable_offset
    patch.setattr(FakeGroupView, "stable_offset", committed)


def stop_at_the_first_failure(patch: Patch) -> None:
    """A task whose commit failed stands still."""

    async def stand_still(self: Task, error: Exception) -> None:
        self.context.advance(task.Event.UNKNOWN)
        self._services.sink.stop_delivery(self.sources[0])
        await self._drop_work()
        await asyncio.Event().wait()

    patch.setattr(Task, "_reinitialize", stand_still)


def write_order_of_tasks(patch: Patch) -> None:
    """A task doesn't wait for the end of the last one on its partition."""

    async def go_on(self: Task) -> None:
        self._predecessor = None

    patch.setattr(Task, "_wait_for_predecessor", go_on)


# --- operators and retention ------------------------------------------------------------------------------------------


def believe_the_operator(patch: Patch) -> None:
    """Whatever the group's offset says, the task goes on there."""
    rules = task.decide_start
    believed = {"allow_reprocessing": True, "accept_moved": True}
    patch.setattr(task, "decide_start", lambda facts, held: rules(facts, replace(held, **believed)))


def start_over_in_silence(patch: Patch) -> None:
    """A partition whose offset is gone begins anew where no state says otherwise: nobody asks the registry."""
    original = task.decide_start
    patch.setattr(task, "decide_start", lambda facts, rules: original(replace(facts, last_known=None), rules))


def believe_any_end(patch: Patch) -> None:
    """An offset behind the input's end is taken for one that will come."""
    original = task.decide_start
    patch.setattr(
        task,
        "decide_start",
        lambda facts, rules: original(
            replace(facts, bounds=replace(facts.bounds, end=max(facts.bounds.end, facts.committed or 0))), rules
        ),
    )


def refuse_for_good(patch: Patch) -> None:
    """A partition whose offset was set by an operator is refused, however right the offset is."""

    async def take_over(self: Task) -> TaskProcessor:
        committed = self._services.group._group._group.offsets.get(self.sources[0])
        if committed is not None and not committed.metadata:
            self.context.advance(task.Event.FENCED)
            self.context.advance(task.Event.CONFIRMED)
            raise task.TakeoverRefusedError("an operator was here")
        return await original(self)

    original = Task._take_over
    patch.setattr(Task, "_take_over", take_over)


def refuse_without_a_reason(patch: Patch) -> None:
    """State and offset that agree are taken for a contradiction."""
    original = task.decide_start

    def decide(facts: Any, rules: Any) -> Any:
        if facts.committed is not None and facts.committed == facts.state_source_offset:
            return Contradiction("they are equal", "none")
        return original(facts, rules)

    patch.setattr(task, "decide_start", decide)


def pass_over_lost_input(patch: Patch) -> None:
    """What retention removed before it was processed isn't missed."""
    original = task.decide_start
    patch.setattr(task, "decide_start", lambda facts, rules: original(facts, replace(rules, allow_lost_input=True)))


# --- records that can't be handled ------------------------------------------------------------------------------------


def no_savepoint_of_writes(patch: Patch) -> None:
    """What a handler wrote before it raised is committed with what came before."""
    patch.setattr(MessageScope, "rollback", lambda self, _=0: self.release())
    # Its metadata is ahead of the committed offset: a restore would take the log for one that was rewritten.
    patch.setattr(restore, "LOOK_BACK", 0)


def no_savepoint_of_sends(patch: Patch) -> None:
    """What a handler sent before it raised is sent."""

    class Kept(list[Any]):
        def __delitem__(self, index: Any) -> None:
            """Keep it."""

    class KeepsAll(tools.TaskState):
        outputs = property(lambda self: self.kept, lambda self, outputs: setattr(self, "kept", Kept(outputs)))

    patch.setattr(tools, "TaskState", KeepsAll)


def read_on(patch: Patch) -> None:
    """A record that can't be handled is skipped."""

    async def handle(self: InOrder, runs: Any) -> None:
        runs = list(runs)
        try:
            await original(self, runs)
        except (HandlerFailedError, UndecodableRecordError) as error:
            self._processor.at.next_offset = error.offset + 1
            await handle(self, runs)

    original = InOrder.handle
    patch.setattr(InOrder, "handle", handle)


def halt_without_commit(patch: Patch) -> None:
    """A partition stops in front of a bad record without what was handled before it."""
    patch.setattr(TaskProcessor, "work", TaskProcessor._work)


def retry_what_is_refused(patch: Patch) -> None:
    """A commit that the broker refuses is one of unknown outcome."""

    async def write(self: FakeWriter, identity: Any, batches: Any) -> Any:
        try:
            return await original(self, identity, batches)
        except BatchesRefusedError as error:
            raise OutcomeUnknownError(str(error)) from error

    original = FakeWriter.write
    patch.setattr(FakeWriter, "write", write)


def blame_the_last(patch: Patch) -> None:
    """The last record of a commit that was refused is taken for the reason."""

    async def commit_ended(self: TaskProcessor) -> None:
        try:
            await original(self)
        except CommitRefusedError as error:
            last, source = self.at.next_offset - 1, self.at.source
            raise processor.RefusedRecordError(str(error), **source._asdict(), offset=last, key=None) from error

    original = TaskProcessor._commit_ended
    patch.setattr(TaskProcessor, "_commit_ended", commit_ended)


# --- key-parallel handlers --------------------------------------------------------------------------------------------


def commit_past_what_runs(patch: Patch) -> None:
    """The offset is committed past messages whose handlers still run."""

    def finish(self: CompletedOffsets, offset: int) -> None:
        self.next_offset = max(self.next_offset, offset + 1)

    patch.setattr(CompletedOffsets, "finish", finish)


def forget_the_finished(patch: Patch) -> None:
    """The next owner doesn't look at what is finished behind the offset."""
    patch.setattr(FoundInput, "finished", set())


def lose_the_finished(patch: Patch) -> None:
    """An owner that takes over doesn't say again what is finished."""
    marked = TaskContext.marked

    def forgetful(self: TaskContext, inputs: Any) -> Any:
        if not self.transaction:
            inputs = [replace(one, completed=CompletedOffsets(one.completed.next_offset)) for one in inputs]
        return marked(self, inputs)

    patch.setattr(TaskContext, "marked", forgetful)


def merge_before_the_end(patch: Patch) -> None:
    """A message writes to the shared overlays at once: a commit meanwhile holds half of it."""

    def shared_state(self: ByKey, slot: Any) -> Any:
        state = original(self, slot)
        for store, overlay in state.overlays.items():
            overlay.writes = self._shared.overlays[store].writes
        return state

    original = ByKey._private_state
    patch.setattr(ByKey, "_private_state", shared_state)


def overlap_within_a_key(patch: Patch) -> None:
    """Messages of one key are handled side by side."""
    patch.setattr(ByKey, "_admit", rewritten(ByKey._admit, ("self._queues.get(key)", "None")))
    patch.setattr(ByKey, "_merge", rewritten(ByKey._merge, ("del self._queues[queue.key]", "pass")))


def go_on_behind_a_failure(patch: Patch) -> None:
    """The messages of a key go on behind one that failed."""

    def merge_anyway(self: ByKey) -> Any:
        for slot in list(self._open):
            if slot.error is not None:
                state = self._private_state(slot)
                slot.error = None
                self._merge(slot, state)
                self._inbox.wake()
        return None

    patch.setattr(ByKey, "_failure", property(merge_anyway))


def lose_a_write(patch: Patch) -> None:
    """Some commits have one write less than their messages made."""

    def freeze(self: Overlay) -> Any:
        writes = original(self)
        if len(writes) > 2:
            del writes[min(writes)]
        return writes

    original = Overlay.freeze
    patch.setattr(Overlay, "freeze", freeze)


# --- static members ---------------------------------------------------------------------------------------------------


def leave_although_static(patch: Patch) -> None:
    """A worker that stops leaves the group, although its next life is on the way."""
    patch.setattr(FakeSource, "close", rewritten(FakeSource.close, (" and self._settings.instance_id is None", "")))


def join_as_a_stranger(patch: Patch) -> None:
    """A worker joins without its static identity."""
    join = Group.join
    patch.setattr(Group, "join", lambda self, *args: join(self, *args[:-1], None))


def another_assignment(patch: Patch) -> None:
    """A static member that comes back isn't given what it had."""
    add = Group._add

    def forget(self: Group, *args: Any) -> Any:
        member = add(self, *args)
        member.assigned = []
        return member

    patch.setattr(Group, "_add", forget)


def use_any_folder(patch: Patch) -> None:
    """A database isn't asked whose it is."""

    def open_any(self: Disk, process: Any, store: str, partition: int) -> Any:
        files = self._files.get((store, partition))
        if files is not None:
            files.store, files.partition = store, partition
        return original(self, process, store, partition)

    original = Disk._open
    patch.setattr(Disk, "_open", open_any)


LATE = ("wake_in_takeover", "pause", "cut_off")
UNSTABLE = ("wake_in_takeover", "slow_markers", "pause_at_step")
PLANTED = (
    Planted(store_before_commit, "disk ahead"),
    Planted(commit_without_waiting, "disk ahead", first_seed=4),
    Planted(use_any_folder, "disk ahead", ("swap_folders", "crash"), first_seed=6),
    Planted(use_any_folder, "", first_seed=6, features=("swapped",)),
    Planted(unread_commit_errors, "disk ahead", ("unknown_outcome", "bad_network")),
    Planted(keep_overlay, "exactly once", ("unknown_outcome", "bad_network"), check_phases=False),
    Planted(ignore_committed_offset, "exactly once"),
    Planted(skip_to_the_end, "exactly once"),
    Planted(confirm_before_fence_only, "after a fence"),
    Planted(any_generation_commits, "one owner", LATE, check_phases=False, first_seed=22),
    Planted(commit_as_nobody, "one owner", LATE, check_phases=False, first_seed=22),
    Planted(read_unstable_offsets, "", UNSTABLE, first_seed=153, check_phases=False),
    Planted(same_epoch, "one owner"),
    Planted(one_offset_too_far, "state isn't the fold", ("crash", "rebalance"), first_seed=30),
    Planted(restore_to_last_stable, "progress", ("foreign_transaction", "crash"), first_seed=24),
    Planted(thread_left_behind, "a deleted key came back", ("slow_disk", "cut_off"), first_seed=37),
    Planted(write_order_of_tasks, "a deleted key came back", ("slow_disk", "cut_off"), first_seed=37),
    Planted(never_missed_tombstones, "a deleted key came back", ("long_absence",), first_seed=28),
    Planted(refresh_without_asking, "a deleted key came back", ("long_cut_off",), first_seed=84),
    Planted(coordinator_that_says_none, "progress", ("move_group_coordinator_at_step", "rebalance"), first_seed=12),
    Planted(stop_at_the_first_failure, "progress", ("unknown_outcome",)),
    Planted(believe_the_operator, "operator", ("reset_offset",), features=("operator",)),
    Planted(believe_any_end, "operator", ("reset_offset",), first_seed=21, features=("operator",)),
    Planted(start_over_in_silence, "exactly once", first_seed=209, features=("operator",)),
    Planted(refuse_for_good, "progress", ("reset_offset",), features=("operator",)),
    Planted(refuse_without_a_reason, "progress", ("crash",), features=("operator",)),
    Planted(pass_over_lost_input, "exactly once", ("retention",), first_seed=8, features=("retention",)),
    Planted(no_savepoint_of_writes, "savepoint", first_seed=10, features=("poison",)),
    Planted(no_savepoint_of_sends, "savepoint", first_seed=10, features=("poison",)),
    Planted(read_on, "exactly once", features=("poison",)),
    Planted(halt_without_commit, "progress", features=("poison",)),
    Planted(retry_what_is_refused, "progress", first_seed=22, features=("refused",)),
    Planted(blame_the_last, "offender", first_seed=20, features=("refused",)),
    Planted(commit_past_what_runs, "exactly once", first_seed=11, features=("parallel",)),
    Planted(forget_the_finished, "progress", first_seed=11, features=("parallel",)),
    Planted(lose_the_finished, "exactly once", first_seed=11, features=("parallel",)),
    Planted(merge_before_the_end, "savepoint", first_seed=29, features=("parallel", "poison")),
    Planted(overlap_within_a_key, "exactly once", first_seed=2, features=("parallel",)),
    Planted(go_on_behind_a_failure, "exactly once", features=("parallel", "poison")),
    Planted(lose_a_write, "exactly once"),
    Planted(any_generation_commits, "one owner", ("move",), check_phases=False, first_seed=11, features=("static",)),
    Planted(leave_although_static, "static", ("bounce",), features=("static",)),
    Planted(join_as_a_stranger, "static", ("quick_restart",), features=("static",)),
    Planted(another_assignment, "static", ("quick_restart",), features=("static",)),
)


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_the_damage_is_found(planted: Planted, monkeypatch: Patch) -> None:
    assert planted.seed(monkeypatch) is not None, f"{MAX_SEEDS} seeds, and nobody noticed"
