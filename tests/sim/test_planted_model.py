"""Every invariant of the actor model fails on the damage it is there for, as `tests.sim.test_planted` has it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

import actors.runtime.handlers.expiry as expiry
import actors.runtime.quarantine.quarantine as parked
import actors.runtime.timers.timers as timers
import stores._core.overlay as overlay
from actors._core.partitioner import partition_for
from actors.ports import CommitBatch, TopicPartition
from actors.runtime.handlers.effect import Outcome
from actors.runtime.message.publishing import Publication
from actors.runtime.outbox.attempts import Run
from actors.runtime.outbox.calls import Head, decoded, line_bounds
from actors.runtime.outbox.effects import Effects
from actors.runtime.outbox.queues import Lines
from actors.runtime.quarantine.quarantine import CONTROL_HEADER, Parked
from actors.runtime.task.handling import Handling
from actors.runtime.task.processor import TaskProcessor
from actors.runtime.timers.timers import Timers
from actors.testing.fakes.ports import FakeWriter
from tests.sim.expiry import READERS
from tests.sim.planted import MAX_SEEDS, Patch, Planted, rewritten
from tests.sim.simulation import simulate

# --- timers -----------------------------------------------------------------------------------------------------------


def fire_for_ever(patch: Patch) -> None:
    """A timer that fired is set again."""
    original = Timers._consume

    def settle(self: Timers, due: Any, ctx: Any) -> bool:
        found = original(self, due, ctx)
        if due.entry is not None and due.entry.every_ms is None:
            self._put(ctx._state, due.address, replace(due.entry, due_ms=due.entry.due_ms + 20_000))
        return found

    patch.setattr(Timers, "_consume", settle)


def remove_although_it_failed(patch: Patch) -> None:
    """What a timer's message leads to is taken back when it fails, the timer's removal isn't."""
    original = Timers._consume

    def settle(self: Timers, due: Any, ctx: Any) -> bool:
        found = original(self, due, ctx)
        ctx._state.scope.release()
        return found

    patch.setattr(Timers, "_consume", settle)


def forget_what_was_set(patch: Patch) -> None:
    """A new owner doesn't look which timers there are."""
    original = Timers.__init__

    def begin(self: Timers, *args: Any, **named: Any) -> None:
        original(self, *args, **named)
        for index in self._by_prefix.values():
            index.begins_at(None)

    patch.setattr(Timers, "__init__", begin)


def fire_early(patch: Patch) -> None:
    """What is due soon is taken for due."""
    original = Timers._now_ms
    patch.setattr(
        Timers, "_now_ms", lambda self, index, ctx=None: original(self, index, ctx) + (1_000 if ctx is None else 0)
    )


def lose_the_phase(patch: Patch) -> None:
    """A periodic timer is due a period after it was late, not after it was due."""
    edit = ("due_ms=entry.due_ms + times * entry.every_ms", "due_ms=self._now_ms(due.index) + entry.every_ms + 1")
    patch.setattr(Timers, "_consume", rewritten(Timers._consume, edit))


def fire_for_each_time(patch: Patch) -> None:
    """A periodic timer is due again at the time that it was due at."""
    patch.setattr(Timers, "_consume", rewritten(Timers._consume, ("// entry.every_ms + 1", "// entry.every_ms")))


def only_say_cancelled(patch: Patch) -> None:
    """A timer that is cancelled stays."""

    def cancel(self: Timers, ctx: Any, name: str) -> bool:
        held = self._held(ctx._state, timers._address(ctx._raw_key, name))
        was_there = original(self, ctx, name)
        if held is not None and not held.every_ms:
            ctx._state.scope.rollback()
        return was_there

    original = Timers.cancel
    patch.setattr(Timers, "cancel", cancel)


def commit_the_time_of_what_failed(patch: Patch) -> None:
    """Stream time is written as if the message that waits for its next attempt had been handled."""
    edit = ("offset, scope.source_offset = scope.source_offset, self.reached - 1", "offset = scope.source_offset")
    patch.setattr(TaskProcessor, "_freeze", rewritten(TaskProcessor._freeze, edit))


# --- effects ----------------------------------------------------------------------------------------------------------


def call_before_the_commit(patch: Patch) -> None:
    """A call is made as soon as a handler asks for it."""
    original = Effects.call

    def call(self: Effects, ctx: Any, *args: Any, **named: Any) -> str:
        id = original(self, ctx, *args, **named)
        newest = next(ctx._state.overlays[self._store].items(*line_bounds(ctx._raw_key), reverse=True))
        self._start(ctx._raw_key, Head(newest[0], decoded(newest[1])))
        return id

    patch.setattr(Effects, "call", call)


def forget_the_outcome(patch: Patch) -> None:
    """A call that succeeded stays in the outbox."""
    original = Effects._consume

    def settle(self: Effects, state: Any, run: Run, outcome: Outcome, report: Any) -> bool:
        found = original(self, state, run, outcome, report)
        if outcome.error is None and outcome.value is None:
            self._write(state, run.head.store_key, run.head.record)
            state.scope.release()
        return found

    patch.setattr(Effects, "_consume", settle)


def only_say_removed(patch: Patch) -> None:
    """A call that is cancelled stays in the outbox."""
    patch.setattr(Effects, "cancel", lambda self, ctx, id: True)


def take_failure_for_success(patch: Patch) -> None:
    """A call that failed is done with."""
    original = Effects._consume
    patch.setattr(Effects, "_consume", lambda self, state, run, outcome, _: original(self, state, run, Outcome(), None))


def call_side_by_side(patch: Patch) -> None:
    """The second call of a key begins with the first."""
    original = Effects._start

    def start(self: Effects, raw_key: bytes, head: Head) -> None:
        original(self, raw_key, head)
        line = list(self._lines._committed.scan(*line_bounds(raw_key)))
        if len(line) > 1:
            second = Head(line[1][0], decoded(line[1][1][overlay.METADATA_BYTES :]))
            effect = self._functions[second.record.name]
            beside = asyncio.create_task(self._attempts.make(raw_key, second, effect, begin=lambda: True, permit=None))
            beside.add_done_callback(lambda done: done.cancelled() or done.exception())

    patch.setattr(Effects, "_start", start)


def pass_what_is_given_up(patch: Patch) -> None:
    """The calls of a key go on behind one that was given up."""

    def head(self: Lines, raw_key: bytes) -> Head | None:
        found = (self._head_of(*pair) for pair in self._committed.scan(*line_bounds(raw_key)))
        return next((head for head in found if head is not None and not head.record.parked), None)

    patch.setattr(Lines, "head", head)


def remove_before_the_result_is_handled(patch: Patch) -> None:
    """A call is removed in one commit, its result is handled in another one or not at all."""
    original = Effects._message

    def internal(self: Effects, run: Run, outcome: Outcome) -> Any:
        made = original(self, run, outcome)
        has_result = self._consume(self._state, run, outcome, self._report(run, outcome))
        self._state.scope.release()
        return type(made)(made.record, lambda ctx: has_result, made.handled, made.what)

    patch.setattr(Effects, "_message", internal)


def call_before_the_start_is_committed(patch: Patch) -> None:
    """A call that is never repeated begins beside the commit of its start."""
    edit = ("head.record.started != self._epoch", "head.record.started not in (self._epoch, msgspec.UNSET)")
    patch.setattr(Effects, "_start", rewritten(Effects._start, edit))
    edit = ("run.head.record.started is msgspec.UNSET", "False")
    patch.setattr(Effects, "_attempt", rewritten(Effects._attempt, edit))


def repeat_what_may_not_be(patch: Patch) -> None:
    """A call whose start an earlier owner committed is made again."""
    edit = ("head.record.started != self._epoch", "head.record.started is msgspec.UNSET")
    patch.setattr(Effects, "_start", rewritten(Effects._start, edit))


def tell_an_unknown_outcome_only(patch: Patch) -> None:
    """The record of a call whose outcome is unknown stays, so that the actor is told again."""
    original = Effects._consume

    def settle(self: Effects, state: Any, run: Run, outcome: Outcome, report: Any) -> bool:
        found = original(self, state, run, outcome, report)
        if outcome.is_unknown:
            self._write(state, run.head.store_key, run.head.record)
            state.scope.release()
        return found

    patch.setattr(Effects, "_consume", settle)


# --- expiry -----------------------------------------------------------------------------------------------------------


def publish_no_deletes(patch: Patch) -> None:
    """Readers aren't told of deletes."""
    records = Publication.records
    patch.setattr(Publication, "records", lambda *args: [one for one in records(*args) if one.value is not None])


def publish_outside_of_the_transaction(patch: Patch) -> None:
    """What is published goes out at once, in front of the commit."""
    original = FakeWriter.write

    async def write(self: FakeWriter, identity: Any, batches: Sequence[CommitBatch]) -> Any:
        kept = []
        for batch in batches:
            shown = [output for output in batch.outputs if output.topic == READERS]
            for _, _, key, value, *_ in shown:
                home = partition_for(key, len(self._cluster.topic(READERS).partitions))
                self._cluster.produce(TopicPartition(READERS, home), [(key, value, [])])
            outputs = [output for output in batch.outputs if output.topic != READERS]
            kept.append(dataclasses.replace(batch, outputs=outputs))
        return await original(self, identity, kept)

    patch.setattr(FakeWriter, "write", write)


def call_the_hook_only(patch: Patch) -> None:
    """The hook runs for an expired key, and its tombstone isn't written."""
    edit = ("        messages.overlays[store].delete(key)\n", "")
    patch.setattr(expiry, "_remove", rewritten(expiry._remove, edit))


def remove_although_the_hook_failed(patch: Patch) -> None:
    """A hook that raises is taken for one that ran."""
    patch.setattr(
        expiry,
        "_remove",
        rewritten(expiry._remove, ("        scope.rollback(written)\n", "        scope.release()\n")),
    )


def show_what_expired(patch: Patch) -> None:
    """Until it is removed, an expired value is read."""
    patch.setattr(overlay, "is_expired", lambda raw, now_ms: False)


def stand_still_behind_a_failed_hook(patch: Patch) -> None:
    """What a failed hook wrote counts as held, and too much is held to remove anything."""
    edit = ("(not self.is_clean and self.is_large())", "self.is_large()")
    patch.setattr(TaskProcessor, "_sweep", rewritten(TaskProcessor._sweep, edit))


# --- parking ----------------------------------------------------------------------------------------------------------


def go_on_behind_what_is_parked(patch: Patch) -> None:
    """Later messages of a key don't wait."""
    patch.setattr(Parked, "may_concern", lambda self, record: any(name == CONTROL_HEADER for name, _ in record.headers))


def forget_who_waits(patch: Patch) -> None:
    """A new owner doesn't look which keys have parked messages."""
    patch.setattr(parked, "_lines", lambda overlay: ())


def remove_before_it_is_handled(patch: Patch) -> None:
    """A parked message that fails again is gone."""
    removal = "        remove_entry(state.overlays[store], key, sequence, raw)\n"
    edit = (removal, f"{removal}        state.scope.release()\n")
    patch.setattr(Parked, "_again", rewritten(Parked._again, edit))
    patch.setattr(Parked, "_fail_again", lambda *_: None)


def retry_the_last_first(patch: Patch) -> None:
    """The messages of a line are handed to the handler from its end."""
    line = "self._sequences(overlay, key)"
    edit = (f"for sequence in {line}:", f"for sequence in reversed(list({line})):")
    patch.setattr(Parked, "_hand_out", rewritten(Parked._hand_out, edit))


def retry_past_a_failure(patch: Patch) -> None:
    """A retry goes on behind the message that failed again."""
    original = Parked._again

    async def again(self: Parked, *args: Any) -> bool:
        await original(self, *args)
        return True

    patch.setattr(Parked, "_again", again)


def tell_of_all_that_wait(patch: Patch) -> None:
    """What waits is sent to the dead letters too."""
    original = Parked._append

    def append(self: Parked, state: Any, record: Any, error: str | None, attempts: int) -> None:
        original(self, state, record, error, attempts)
        if error is None:
            parked.send_dead_letter(self._spec, state, record, reason="it waits", attempts=attempts)

    patch.setattr(Parked, "_append", append)


def park_and_keep_the_timer(patch: Patch) -> None:
    """A timer whose message is parked fires again."""
    patch.setattr(Handling, "_consume", lambda *_: None)


PLANTED = (
    Planted(fire_for_ever, "timers", features=("timers",)),
    Planted(remove_although_it_failed, "timers", features=("timers",)),
    Planted(forget_what_was_set, "timers", first_seed=2, features=("timers",)),
    Planted(fire_early, "timers", features=("timers",)),
    Planted(lose_the_phase, "timers", features=("timers",)),
    Planted(fire_for_each_time, "timers", first_seed=6, features=("timers",)),
    Planted(only_say_cancelled, "timers", features=("timers",)),
    Planted(commit_the_time_of_what_failed, "disk ahead", ("crash",), first_seed=18, features=("poison", "timers")),
    Planted(call_before_the_commit, "effects", features=("effects",)),
    Planted(forget_the_outcome, "effects", features=("effects",)),
    Planted(take_failure_for_success, "effects", features=("effects",)),
    Planted(only_say_removed, "effects", features=("effects",)),
    Planted(call_side_by_side, "effects", features=("effects",)),
    Planted(pass_what_is_given_up, "effects", features=("effects",)),
    Planted(remove_before_the_result_is_handled, "effects", first_seed=202, features=("effects",)),
    Planted(call_before_the_start_is_committed, "effects", first_seed=3, features=("effects",)),
    Planted(repeat_what_may_not_be, "effects", first_seed=14, features=("effects",)),
    Planted(tell_an_unknown_outcome_only, "effects", first_seed=7, features=("effects",)),
    Planted(call_the_hook_only, "expiry", first_seed=2, features=("expiry",)),
    Planted(publish_no_deletes, "publish", features=("expiry",)),
    Planted(publish_outside_of_the_transaction, "publish", first_seed=2, features=("expiry",)),
    Planted(remove_although_the_hook_failed, "expiry", features=("expiry",)),
    Planted(show_what_expired, "expiry", first_seed=21, features=("expiry",)),
    Planted(stand_still_behind_a_failed_hook, "expiry", first_seed=10, features=("expiry",)),
    Planted(go_on_behind_what_is_parked, "park", features=("park",)),
    Planted(forget_who_waits, "park", first_seed=2, features=("park",)),
    Planted(remove_before_it_is_handled, "exactly once", features=("park",)),
    Planted(retry_the_last_first, "exactly once", features=("park",)),
    Planted(retry_past_a_failure, "park", features=("park",)),
    Planted(tell_of_all_that_wait, "park", features=("park",)),
    Planted(park_and_keep_the_timer, "timers", features=("park", "timers")),
)


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_the_damage_is_found(planted: Planted, monkeypatch: Patch) -> None:
    assert planted.seed(monkeypatch) is not None, f"{MAX_SEEDS} seeds, and nobody noticed"


def test_an_outcome_that_a_worker_drops_when_it_leaves_is_found(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Effects, "leave", Effects.close)
    reports = (simulate(seed, faults=("bounce",), features=("effects", "timers")) for seed in range(MAX_SEEDS))
    assert any(report.counted["effect succeeded again"] for report in reports)
