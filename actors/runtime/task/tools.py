"""Gives a processor what its actor was declared to use beside stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from actors.runtime.clock import Timestamps
from actors.runtime.message.internal_messages import Punctuator
from actors.runtime.message.task_state import TaskState, Tools
from actors.runtime.outbox.effects import Effects
from actors.runtime.quarantine.quarantine import Parked
from actors.runtime.requests.requests import Asker
from actors.runtime.task.context import TaskContext
from actors.runtime.timers.timers import Timers
from actors.runtime.windows.task_windows import TaskWindows
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
            follows_feeds=spec.feeds is not None,
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
        effects.is_held = lambda: context.inbox.is_paused
        made.punctuators.append(effects)
    if context.services.asks is not None:
        asks = context.services.asks
        # Deadlines are for other workers, whose partitions have times of their own.
        asks = asks if spec.tracing is None else spec.tracing.asks(asks)
        made.tools.asks = Asker(asks, context.services.clock, spec.name)
    if spec.obeys_commands:
        made.parked = Parked(spec, state, effects=effects, meters=context.meters)
    return made
