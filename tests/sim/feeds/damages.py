"""Damages to the protocol of event time, each of which the simulation has to find."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import actors.runtime.inputs.time_order as time_order
import actors.runtime.looks as looks
import actors.runtime.windows.closes as closes
from actors._core.task import feed_times
from actors._core.task.feed_times import FeedTimes, SourceTime, UpstreamTimes
from actors.ports import Committed, LookAnswer, TopicPartition
from actors.runtime.inputs.task_time import TaskTime
from actors.runtime.inputs.time_order import TimeOrder
from actors.runtime.timers.timers import Timers
from actors.runtime.windows.across import Across
from actors.runtime.windows.task_windows import TaskWindows
from actors.testing.fakes.ports import FakeGroupView
from tests.sim.fakes.group import Group
from tests.sim.planted import Patch, rewritten


def take_the_largest_time(patch: Patch) -> None:
    """Stream time is that of the feed that is ahead."""
    edits = ("source.time_ms < least_ms", "source.time_ms > least_ms"), ("_NO_FEED_MS", "UNKNOWN_MS")
    patch.setattr(FeedTimes, "advance", rewritten(FeedTimes.advance, *edits))


def take_the_largest_time_upstream(patch: Patch) -> None:
    """The time of what is upstream is that of the task that is ahead."""
    least = property(lambda self: _furthest(self._times), lambda self, value: None)
    patch.setattr(UpstreamTimes, "least", least, raising=False)


def _furthest(times: Mapping[tuple[str, int], int]) -> tuple[int, tuple[str, int] | None]:
    feed = max(times, key=times.__getitem__, default=None)
    return (-1 if feed is None else times[feed]), feed


def ask_for_ends_first(patch: Patch) -> None:
    """The ends are asked for before the committed times."""
    look = FakeGroupView.look

    async def ask(self: Any, commits: Any, ends: Any, topics: Any) -> LookAnswer:
        before = await look(self, (), ends, topics)
        answer = await look(self, commits, ends, topics)
        return LookAnswer(answer.commits, before.ends, answer.topics)

    patch.setattr(FakeGroupView, "look", ask)


def believe_at_once(patch: Patch) -> None:
    """A time counts before what was written earlier is handled."""
    edit = ("if any(handled[topic] < end for topic, end in ends.items()):", "if False:")
    patch.setattr(UpstreamTimes, "believe", rewritten(UpstreamTimes.believe, edit))


def take_the_fetched_position_for_the_end(patch: Patch) -> None:
    """What was fetched so far counts as all that was written before the look."""
    look = TaskTime.look

    def looked(self: TaskTime, answer: Any) -> None:
        ends = {
            tuple(one.source): (min(answer.ends[one.source][0], self._sink.position(one.source) or 0), 0)
            for one in self._inputs
            if one.source in answer.ends
        }
        look(self, feed_times.Look(answer.sent_s, answer.answered_s, answer.wall_ms, answer.marks, ends, answer.counts))  # type: ignore[arg-type]

    patch.setattr(TaskTime, "look", looked)


def take_the_last_stable_offset_for_the_end(patch: Patch) -> None:
    """What lies behind an open transaction counts as not written."""
    look = FakeGroupView.look

    async def ask(self: Any, commits: Any, ends: Any, topics: Any) -> LookAnswer:
        answer = await look(self, commits, ends, topics)
        stable = {source: (self._cluster.log(source).last_stable, 0) for source in answer.ends}
        return LookAnswer(answer.commits, stable, answer.topics)

    patch.setattr(FakeGroupView, "look", ask)


def believe_pending_offsets(patch: Patch) -> None:
    """The time of an offset counts that a transaction has yet to commit."""
    look = FakeGroupView.look

    async def ask(self: Any, commits: Any, ends: Any, topics: Any) -> LookAnswer:
        answer = await look(self, commits, ends, topics)
        found = dict(answer.commits)
        for transaction in self._cluster.transactions.open_transactions():
            for (_, source), (offset, metadata) in transaction.offsets.items():
                if source in commits:
                    found[TopicPartition(*source)] = Committed(offset, metadata)
        return LookAnswer(found, answer.ends, answer.topics)

    patch.setattr(FakeGroupView, "look", ask)


def follow_the_last_look(patch: Patch) -> None:
    """A silent source follows the others as they are now, not as they were before its silence."""
    edit = ("(ms for answered_s, ms in", "(others_ms for answered_s, ms in")
    patch.setattr(SourceTime, "looked", rewritten(SourceTime.looked, edit))


def follow_at_once(patch: Patch) -> None:
    """A source at its end follows the others however short its silence."""
    edit = ("if answered_s + self._idle_after_s <= look.sent_s", "if True")
    patch.setattr(SourceTime, "looked", rewritten(SourceTime.looked, edit))


def measure_silence_to_the_answer(patch: Patch) -> None:
    """A silence lasts from an answer to an answer."""
    edit = ("self._idle_after_s <= look.sent_s", "self._idle_after_s <= look.answered_s")
    patch.setattr(SourceTime, "looked", rewritten(SourceTime.looked, edit))


def count_what_is_fetched(patch: Patch) -> None:
    """What waits in a task's queue counts as handled."""
    patch.setattr(TaskTime, "_handled", lambda self, index: self._sink.position(self._inputs[index].source) or 0)


def count_no_markers(patch: Patch) -> None:
    """A transaction's marker at the end of an input keeps it from its end."""
    patch.setattr(TaskTime, "_handled", lambda self, index: self._inputs[index].next_offset)


def renew_a_waiting_time_alone(patch: Patch) -> None:
    """A look that waits gets newer times and keeps its ends."""
    edits = (
        ("    if len(self._waiting) >= MOST_LOOKS:\n        self._waiting.pop()\n", ""),
        (
            "self._waiting.append((times, ends, ids))",
            "self._waiting.append((times, self._waiting.pop()[1] if len(self._waiting) >= MOST_LOOKS else ends, ids))",
        ),
    )
    patch.setattr(UpstreamTimes, "looked", rewritten(UpstreamTimes.looked, *edits))


def remember_partition_counts(patch: Patch) -> None:
    """The number of partitions upstream is that of the first look."""
    first: dict[tuple[asyncio.AbstractEventLoop, str], int] = {}
    count = looks._counts

    def counts(answer: LookAnswer) -> dict[str, int]:
        run = asyncio.get_running_loop()
        return {name: first.setdefault((run, name), number) for name, number in count(answer).items()}

    patch.setattr(looks, "_counts", counts)


def send_no_later_than_stream_time(patch: Patch) -> None:
    """The output time leaves out how far behind stream time a close is sent."""
    patch.setattr(TaskWindows, "earliest_output_ms", TaskWindows._handled_ms)


def forget_closes_that_wait(patch: Patch) -> None:
    """The output time leaves out what is due and waits to be closed."""
    edit = ("self._handled_ms()", "self.stream_ms")
    patch.setattr(TaskWindows, "earliest_output_ms", rewritten(TaskWindows.earliest_output_ms, edit))


def forget_timers_that_wait(patch: Patch) -> None:
    """The output time leaves out timers that are due and wait."""
    patch.setattr(Timers, "earliest_output_ms", lambda self: self.stream_ms)


def keep_what_changed(patch: Patch) -> None:
    """A change across keys is added to what its key had before."""
    edit = ("if former is not None:", "if False:")
    patch.setattr(Across, "_replace", rewritten(Across._replace, edit))


def add_a_change_once(patch: Patch) -> None:
    """A change across keys is left out where its key has something in the window."""
    edit = ("if former == added:", "if former is not None:")
    patch.setattr(Across, "_replace", rewritten(Across._replace, edit))


def forget_stream_time(patch: Patch) -> None:
    """Stream time begins anew with each takeover, where the state has it."""
    original = TaskWindows.__init__

    def begin(self: TaskWindows, *args: Any, **named: Any) -> None:
        original(self, *args, **named)
        self.stream_ms = -1

    patch.setattr(TaskWindows, "__init__", begin)


def forget_output_time(patch: Patch) -> None:
    """The output time begins anew with each takeover."""
    original = TaskTime.__init__

    def begin(self: TaskTime, *args: Any, **named: Any) -> None:
        original(self, *args, **named)
        self._output_ms = -1

    patch.setattr(TaskTime, "__init__", begin)


def forget_the_latest_time(patch: Patch) -> None:
    """The latest time begins anew with each takeover, from stream time."""
    original = TaskWindows.__init__

    def begin(self: TaskWindows, *args: Any, **named: Any) -> None:
        original(self, *args, **named)
        self.latest_ms = self.stream_ms

    patch.setattr(TaskWindows, "__init__", begin)


def read_no_further_than_stream_time(patch: Patch) -> None:
    """Reads, matches and clamps end at stream time."""
    latest = property(lambda self: self.stream_ms, lambda self, value: None)
    patch.setattr(TaskWindows, "latest_ms", latest, raising=False)


def keep_the_newest_look_alone(patch: Patch) -> None:
    """A look that waits gives way to the next one."""
    edit = ("if len(self._waiting) >= MOST_LOOKS:\n        self._waiting.pop()", "self._waiting.clear()")
    patch.setattr(UpstreamTimes, "looked", rewritten(UpstreamTimes.looked, edit))


def let_zombies_commit(patch: Patch) -> None:
    """The group takes the commits of members that it has put out."""
    patch.setattr(Group, "check_member", lambda *_: None)


def follow_without_a_cap(patch: Patch) -> None:
    """A silent source follows the others ahead of the clock."""
    edit = (
        "wall_ms = look.wall_ms - int(self._idle_after_s * 1000) if self._idle_after_s else known_ms",
        "wall_ms = known_ms",
    )
    patch.setattr(SourceTime, "looked", rewritten(SourceTime.looked, edit))


def follow_up_to_the_clock(patch: Patch) -> None:
    """A silent source follows the others up to the clock itself."""
    edit = ("look.wall_ms - int(self._idle_after_s * 1000) if", "look.wall_ms if")
    patch.setattr(SourceTime, "looked", rewritten(SourceTime.looked, edit))


def send_sessions_without_their_gap(patch: Patch) -> None:
    """The output time leaves out how long after its end a session is closed."""
    edit = ("store.grace_ms + self.idle_ms if", "store.grace_ms if")
    patch.setattr(closes._Windows, "__init__", rewritten(closes._Windows.__init__, edit))


def believe_what_a_failed_look_left(patch: Patch) -> None:
    """A failed look ends no silence."""
    patch.setattr(SourceTime, "failed", lambda self, now_s: None)


def send_before_records_in_order(patch: Patch) -> None:
    """The output time leaves out records that wait for their turn."""
    patch.setattr(TimeOrder, "earliest_output_ms", lambda self: self.stream_ms)


def close_windows_before_records_in_order(patch: Patch) -> None:
    """Windows and timers follow stream time, and not the records that wait for their turn."""

    def passed(self: TimeOrder, before_ms: float) -> None:
        self._passed_ms = max(self._passed_ms, before_ms)
        self._tell(self.stream_ms)

    patch.setattr(TimeOrder, "_pass", passed)


def handle_in_the_order_of_arrival(patch: Patch) -> None:
    """Records are handled as they come."""
    patch.setattr(time_order, "waits_its_turn", lambda record: False)


def take_times_of_another_topic(patch: Patch) -> None:
    """A time counts that was committed for a topic of that name."""
    edit = ("mark.times if mark.topics.input_id == topic.topic_id else NO_TIMES", "mark.times")
    patch.setattr(looks, "_marks", rewritten(looks._marks, edit))


def count_side_by_side_after_the_commit(patch: Patch) -> None:
    """The times of records that are handled side by side are counted behind the commit of their offsets."""
    edit = ("self._inputs[index].next_offset", "self._inputs[index].handed_in_offset")
    patch.setattr(TaskTime, "see_finished", rewritten(TaskTime.see_finished, edit))


def commit_with_each_look(patch: Patch) -> None:
    """What a look says is committed, whether or not a time moved."""
    patch.setattr(TaskTime, "is_dirty", property(lambda self: self._told))
