"""Makes the parts of a processor: the state of its messages, and the tools that its actor was declared to use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from actors.errors import UsageError
from actors.ports import TopicPartition
from actors.runtime.clock import Timestamps
from actors.runtime.inputs.inbox import Inbox, MergedInbox
from actors.runtime.inputs.progress import InputProgress
from actors.runtime.inputs.task_time import TaskTime
from actors.runtime.inputs.time_order import TimeFollower, TimeOrder
from actors.runtime.message.internal_messages import Punctuator
from actors.runtime.message.outputs import OutputTopic
from actors.runtime.message.store import Store
from actors.runtime.message.task_state import TaskState
from actors.runtime.meters import TaskMeters
from actors.runtime.outbox.effects import Effects
from actors.runtime.quarantine.quarantine import Parked
from actors.runtime.requests.requests import Asker
from actors.runtime.spec import ActorSpec, Feeds, TaskServices
from actors.runtime.state.restore import Restored
from actors.runtime.task.context import TaskContext
from actors.runtime.timers.timers import Timers
from actors.runtime.windows.closes import is_by_clock
from actors.runtime.windows.task_windows import TaskWindows
from stores._core.overlay import KEPT_VALUES, MessageScope, Overlay
from stores.ports import PartitionStore


class StorePart(NamedTuple):
    """A store of a task: its changelog's topic, its handle, what is committed, and what isn't yet."""

    topic: str
    store: Store[Any, Any]
    committed: PartitionStore
    overlay: Overlay


@dataclass(slots=True, kw_only=True)
class TaskParts:
    """The parts of a processor, from a takeover to the next: see `assemble`.

    Attributes:
        at: the input with which goes what is due before the next record: one of which a record was handled.
        state: what all messages share; `state.tools` are what handlers reach through their context.
        punctuators: what comes due between messages.
        time: what the task's event time follows; None where that is the records that it handles.
    """

    inputs: Sequence[InputProgress]
    at: InputProgress
    stores: Sequence[StorePart]
    state: TaskState
    punctuators: list[Punctuator] = field(default_factory=list)
    parked: Parked | None = None
    timers: Timers | None = None
    windows: TaskWindows | None = None
    order: TimeOrder | None = None
    time: TaskTime | None = None


def make_inbox(
    spec: ActorSpec, sources: Sequence[TopicPartition], services: TaskServices, meters: TaskMeters, *, limit: int
) -> Inbox:
    """Return what waits for a task of these sources, `limit` records of each."""
    if len(spec.inputs) == 1:
        return Inbox(limit, lambda: services.sink.has_room())

    def has_more(index: int) -> bool:
        source, sink = sources[index], services.sink
        position, end = sink.position(source), sink.stable_offset(source)
        if end is None:
            end = meters.end_offsets.get(source.topic, 0)
        return position is None or position < end

    return MergedInbox(
        limit,
        lambda: services.sink.has_room(),
        turns=spec.turns,
        max_idle_s=spec.max_task_idle.total_seconds(),
        has_more=has_more,
        monotonic=services.clock.monotonic,
    )


def assemble(context: TaskContext, stores: Sequence[Restored], inputs: Sequence[InputProgress]) -> TaskParts:
    """Make the parts of a processor; `stores` are in the order of the actor's stores."""
    spec = context.spec
    at = next((one for one in inputs if one.reached > 0), inputs[0])
    scope = MessageScope(context.epoch, at.reached - 1, context.clock.wall_ms())
    scope.input = at.index if len(inputs) > 1 else None
    rows = [
        StorePart(spec.changelogs[store.name].topic, store, held.store, Overlay(held.store, scope, KEPT_VALUES))
        for store, held in zip(spec.stores, stores, strict=True)
    ]
    home = inputs[0]
    state = TaskState(
        actor=spec.name,
        source=home.source,
        home=home.source,
        partition=context.partition,
        partition_count=spec.partition_count,
        scope=scope,
        overlays={part.store: part.overlay for part in rows},
        max_record_bytes={name: log.max_record_bytes for name, log in spec.changelogs.items()},
        resolve_output=own_outputs(spec, context.services.resolve_output),
        outputs=[],
        partitioner=spec.partitioner,
        message_tag=home.topics.message_tag,
        home_offset=home.next_offset,
    )
    parts = TaskParts(inputs=inputs, at=at, stores=rows, state=state)
    timestamps = Timestamps(context.clock, spec.max_ahead_ms)
    _equip(context, parts, timestamps)
    if spec.feeds is not None:
        parts.time = _make_time(context, parts, spec.feeds, timestamps)
    return parts


def _make_time(context: TaskContext, parts: TaskParts, feeds: Feeds, timestamps: Timestamps) -> TaskTime:
    windows = None if is_by_clock(context.spec.windows) else parts.windows
    timed = [follower for follower in (parts.timers, windows) if follower is not None]
    if parts.timers is not None and windows is not None:
        follow_timers(windows, parts.timers)
    if parts.order is not None:
        parts.order.lead(timed)
    followers: Sequence[TimeFollower] = timed if parts.order is None else [parts.order]
    return TaskTime(
        feeds,
        parts.inputs,
        inbox=context.inbox,
        sink=context.services.sink,
        timestamps=timestamps,
        followers=followers,
        order=parts.order,
        monotonic=context.clock.monotonic,
        is_due=None if parts.timers is None else parts.timers.is_due,
    )


def follow_timers(windows: TaskWindows, timers: Timers) -> None:
    """Let windows come to the time of each timer by stream time before it, however far stream time jumps.

    So what a timer adds to windows doesn't depend on the steps of stream time, which are large behind a backlog.
    """

    def passed() -> None:
        windows.advance(timers.stream_ms)

    timers.closes_ms, timers.passed, windows.timers_ms = windows.closes_ms, passed, timers.pending_ms
    passed()


def own_outputs(spec: ActorSpec, resolve: Callable[[Any], OutputTopic]) -> Callable[[Any], OutputTopic]:
    """Return what finds the topic of a send, and refuses those that have other writers."""
    foreign = spec.foreign
    if not foreign:
        return resolve

    def find(topic: Any) -> OutputTopic:
        target = resolve(topic)
        if target.name in foreign:
            writers = ", ".join(foreign[target.name])
            raise UsageError(
                f"actor {spec.name} isn't a writer of topic {target.name}, which is declared with writers= {writers}: "
                "its readers' event time follows these alone. Add the actor to them, or send to another topic"
            )
        return target

    return find


def _equip(context: TaskContext, parts: TaskParts, timestamps: Timestamps) -> None:
    """Make what the actor was declared to use beside stores."""
    spec, clock, state, tools = context.spec, context.clock, parts.state, parts.state.tools
    tools.clock, tools.answers, tools.published = clock, spec.answers, spec.published
    tools.late, tools.timestamps = context.meters.late, timestamps
    committed = {part.store: part.committed for part in parts.stores}
    if spec.timers is not None:
        tools.timers = parts.timers = timers = Timers(spec, state, clock=clock, timestamps=timestamps)
        parts.punctuators.append(timers)
    if spec.windows:
        held = {store: committed[store.rows] for store in spec.windows}
        windows = TaskWindows(
            spec.windows,
            state,
            held,
            timestamps=timestamps,
            meters=context.meters,
            is_in_order=spec.concurrency == 1,
            follows_feeds=spec.feeds is not None and not is_by_clock(spec.windows),
            follows_clock=spec.feeds is not None and spec.feeds.behind_ms is not None,
            passing=None if spec.tracing is None else spec.tracing.passing(),
        )
        parts.windows = windows
        state.windows = windows
        parts.punctuators.append(windows)
    effects = None
    if spec.effects is not None:
        tools.effects = effects = Effects(
            spec,
            state,
            committed[spec.effects],
            clock,
            epoch=context.epoch,
            wake=context.inbox.wake,
            meters=context.meters,
        )
        effects.held_up, effects.succeeded = context.poison.held_up, context.poison.succeeded
        effects.is_held = lambda: context.inbox.is_paused or context.inbox.stopping
        parts.punctuators.append(effects)
    if context.services.asks is not None:
        asks = context.services.asks
        # Deadlines are for other workers, whose partitions have times of their own.
        asks = asks if spec.tracing is None else spec.tracing.asks(asks)
        tools.asks = Asker(asks, context.services.clock, spec.name)
    if spec.order is not None:
        tools.order = parts.order = order = TimeOrder(spec.order, state, spec.topics, timestamps=timestamps)
        parts.punctuators.append(order)
    if spec.obeys_commands:
        parts.parked = Parked(spec, state, effects=effects, timers=parts.timers, meters=context.meters)
