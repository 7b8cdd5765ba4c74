"""What the messages of one task share while they are handled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from actors._core.partitioner import MURMUR2, Partitioner
from stores._core.overlay import MessageScope, Overlay

if TYPE_CHECKING:
    from actors.errors import RecordError
    from actors.ports import Clock, Output, TopicPartition
    from actors.runtime.message.outputs import OutputTopic
    from actors.runtime.message.publishing import Publications
    from actors.runtime.message.store import Store
    from actors.runtime.outbox.effects import Effects
    from actors.runtime.requests.replies import Replies
    from actors.runtime.requests.requests import Asker
    from actors.runtime.timers.timers import Timers


@dataclass(slots=True)
class Tools:
    """What an actor has beside stores, as far as it was declared to; `clock` is there in every worker.

    `latest_ms` is the latest time that a handler was told, which the next commit keeps.
    """

    clock: Clock | None = None
    timers: Timers | None = None
    effects: Effects | None = None
    asks: Asker | None = None
    answers: Replies | None = None
    published: Publications = field(default_factory=dict)
    latest_ms: int = 0

    def now_ms(self, least_ms: int) -> int:
        """Return the partition's time, which isn't below `least_ms` and never goes back."""
        wall_ms = 0 if self.clock is None else self.clock.wall_ms()
        self.latest_ms = max(self.latest_ms, least_ms, wall_ms)
        return self.latest_ms


@dataclass(slots=True)
class TaskState:
    """What all messages of one task share. `max_record_bytes` is by store; `outputs` grows until the commit.

    `output_bytes` is about what the outputs take in a batch; it may be too high, never too low. `on_wait` is set where
    each message has a state of its own: called with 1 when the message waits for another actor, -1 when it goes on.
    `newer` is set when a handler met data of a newer program, whatever it then made of the error. `message_tag` is in
    the ids of the input's messages: see `actors._core.task.topic_ids`.
    """

    actor: str
    source: TopicPartition
    partition: int
    partition_count: int
    scope: MessageScope
    overlays: dict[Store[Any, Any], Overlay]
    max_record_bytes: Mapping[str, int]
    resolve_output: Callable[[Any], OutputTopic]
    outputs: list[Output]
    output_bytes: int = 0
    tools: Tools = field(default_factory=Tools)
    on_wait: Callable[[int], None] | None = None
    partitioner: Partitioner = MURMUR2
    newer: RecordError | None = None
    message_tag: str = ""
