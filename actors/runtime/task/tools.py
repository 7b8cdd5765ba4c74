"""Gives a processor the state of its messages, and what its actor was declared to use beside stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from actors.runtime.clock import Timestamps
from actors.runtime.inputs.progress import InputProgress
from actors.runtime.message.internal_messages import Punctuator
from actors.runtime.message.store_errors import Handle
from actors.runtime.message.task_state import TaskState, Tools
from actors.runtime.outbox.effects import Effects
from actors.runtime.quarantine.quarantine import Parked
from actors.runtime.requests.requests import Asker
from actors.runtime.task.context import TaskContext
from actors.runtime.timers.timers import Timers
from actors.runtime.windows.task_windows import TaskWindows
from stores._core.overlay import MessageScope, Overlay
from stores.ports import PartitionStore


@dataclass(slots=True)
class ToolSet:
    """What handlers reach through their context, what comes due between messages, and the parked messages."""

    tools: Tools = field(default_factory=Tools)
    punctuators: list[Punctuator] = field(default_factory=list)
    parked: Parked | None = None
    timers: Timers | None = None


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
        resolve_output=context.services.resolve_output,
        outputs=[],
        partitioner=spec.partitioner,
        message_tag=home.topics.message_tag,
        home_offset=home.next_offset,
    )


def make_tools(context: TaskContext, state: TaskState, stores: Sequence[PartitionStore]) -> ToolSet:
    """Make the tools of a processor; `stores` holds what is committed, in the order of the actor's stores."""
    spec, clock, made = context.spec, context.clock, ToolSet()
    made.tools.clock, made.tools.answers, made.tools.published = clock, spec.answers, spec.published
    made.tools.late = context.meters.late
    made.tools.timestamps = timestamps = Timestamps(clock, spec.max_ahead_ms)
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
        )
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
        effects.held_up = context.poison.held_up
        effects.is_held = lambda: context.inbox.is_paused or context.inbox.stopping
        made.punctuators.append(effects)
    if context.services.asks is not None:
        asks = context.services.asks
        # Deadlines are for other workers, whose partitions have times of their own.
        asks = asks if spec.tracing is None else spec.tracing.asks(asks)
        made.tools.asks = Asker(asks, context.services.clock, spec.name)
    if spec.obeys_commands:
        made.parked = Parked(spec, state, effects=effects, meters=context.meters)
    return made
