"""Gives a processor the state of its messages, and what its actor was declared to use beside stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from actors.errors import UsageError
from actors.ports import TopicPartition
from actors.runtime.clock import Timestamps
from actors.runtime.inputs.inbox import Inbox, MergedInbox
from actors.runtime.inputs.progress import InputProgress
from actors.runtime.inputs.task_time import TaskTime
from actors.runtime.inputs.time_order import Follower, TimeOrder
from actors.runtime.message.internal_messages import Punctuator
from actors.runtime.message.outputs import OutputTopic
from actors.runtime.message.store_errors import Handle
from actors.runtime.message.task_state import TaskState, Tools
from actors.runtime.meters import TaskMeters
from actors.runtime.outbox.effects import Effects
from actors.runtime.quarantine.quarantine import Parked
from actors.runtime.requests.requests import Asker
from actors.runtime.spec import ActorSpec, TaskServices
from actors.runtime.task.context import TaskContext
from actors.runtime.timers.timers import Timers
from actors.runtime.windows.closes import is_by_clock
from actors.runtime.windows.task_windows import TaskWindows
from stores._core.overlay import MessageScope, Overlay
from stores.ports import PartitionStore


@dataclass(slots=True)
class ToolSet:
    """What handlers reach through their context, what comes due between messages, and the parked messages."""

    timestamps: Timestamps
    tools: Tools = field(default_factory=Tools)
    punctuators: list[Punctuator] = field(default_factory=list)
    parked: Parked | None = None
    timers: Timers | None = None
    windows: TaskWindows | None = None
    order: TimeOrder | None = None


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


def make_time(context: TaskContext, inputs: Sequence[InputProgress], tools: ToolSet) -> TaskTime | None:
    """Return what a task's event time follows; None where that is the records that it handles."""
    feeds, services = context.spec.feeds, context.services
    if feeds is None:
        return None
    windows = None if is_by_clock(context.spec.windows) else tools.windows
    timed = [one for one in (tools.timers, windows) if one is not None]
    if tools.order is not None:
        tools.order.lead(timed)
    followers: Sequence[Follower] = timed if tools.order is None else [tools.order]
    return TaskTime(
        feeds,
        inputs,
        inbox=context.inbox,
        sink=services.sink,
        timestamps=tools.timestamps,
        followers=followers,
        order=tools.order,
        monotonic=context.clock.monotonic,
        is_due=_never if tools.timers is None else tools.timers.is_due,
    )


def _never() -> bool:
    return False


def own_outputs(spec: ActorSpec, resolve: Callable[[Any], OutputTopic]) -> Callable[[Any], OutputTopic]:
    """Return what finds the topic of a send, and refuses those that have other writers."""
    foreign = spec.foreign

    def find(topic: Any) -> OutputTopic:
        target = resolve(topic)
        if target.name in foreign:
            writers = ", ".join(foreign[target.name])
            raise UsageError(
                f"actor {spec.name} isn't a writer of topic {target.name}, which is declared with writers= {writers}: "
                "its readers' event time follows these alone. Add the actor to them, or send to another topic"
            )
        return target

    return find if foreign else resolve


def make_state(
    context: TaskContext, home: InputProgress, scope: MessageScope, *, overlays: dict[Handle, Overlay]
) -> TaskState:
    """Make the state that all messages of a processor share; `home` is the actor's first input."""
    spec = context.spec
    return TaskState(
        actor=spec.name,
        source=home.source,
        home=home.source,
        partition=context.partition,
        partition_count=spec.partition_count,
        scope=scope,
        overlays=overlays,
        max_record_bytes={name: log.max_record_bytes for name, log in spec.changelogs.items()},
        resolve_output=own_outputs(spec, context.services.resolve_output),
        outputs=[],
        partitioner=spec.partitioner,
        message_tag=home.topics.message_tag,
        home_offset=home.next_offset,
    )


def make_tools(context: TaskContext, state: TaskState, stores: Sequence[PartitionStore]) -> ToolSet:
    """Make the tools of a processor; `stores` holds what is committed, in the order of the actor's stores."""
    spec, clock = context.spec, context.clock
    timestamps = Timestamps(clock, spec.max_ahead_ms)
    made = ToolSet(timestamps)
    made.tools.clock, made.tools.answers, made.tools.published = clock, spec.answers, spec.published
    made.tools.late = context.meters.late
    made.tools.timestamps = timestamps
    committed = dict(zip(spec.stores, stores, strict=True))
    if spec.timers is not None:
        made.tools.timers = made.timers = timers = Timers(spec, state, clock=clock, timestamps=timestamps)
        made.punctuators.append(timers)
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
        )
        made.windows = windows
        state.time_windows = windows
        made.punctuators.append(windows)
    effects = None
    if spec.effects is not None:
        made.tools.effects = effects = Effects(
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
        made.punctuators.append(effects)
    if context.services.asks is not None:
        asks = context.services.asks
        # Deadlines are for other workers, whose partitions have times of their own.
        asks = asks if spec.tracing is None else spec.tracing.asks(asks)
        made.tools.asks = Asker(asks, context.services.clock, spec.name)
    if spec.order is not None:
        made.tools.order = made.order = order = TimeOrder(spec.order, state, spec.topics, timestamps=timestamps)
        made.punctuators.append(order)
    if spec.obeys_commands:
        made.parked = Parked(spec, state, effects=effects, meters=context.meters)
    return made
