"""The state that the messages of one task share while they are handled.

The protocols say what a message's context needs of the timers, effects, requests and replies of its actor; the rooms of
these implement them. A parameter `ctx` is the message's `Context`, which is declared above this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from mypy_extensions import mypyc_attr

from actors._core.partitioner import MURMUR2, Partitioner
from actors.errors import RecordError
from actors.ports import Clock, Output, Requests, TopicPartition
from actors.runtime.clock import Timestamps
from actors.runtime.message.answer_later import AnswerLater
from actors.runtime.message.outputs import OutputTopic
from actors.runtime.message.store_errors import Handle
from actors.runtime.meters import LateMeter
from stores._core.overlay import MessageScope, Overlay


class Scheduling(Protocol):
    """The timers of an actor."""

    def schedule(
        self,
        ctx: Any,
        message: Any,
        *,
        after: timedelta | None,
        at: datetime | None,
        every: timedelta | None,
        name: str | None,
        stream_time: bool,
    ) -> str:
        """Schedule a timer as `Context.schedule` does."""

    def cancel(self, ctx: Any, name: str) -> bool:
        """Cancel a timer as `Context.cancel` does."""


class Calling(Protocol):
    """The effects of an actor."""

    def call(self, ctx: Any, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Call an effect as `Context.effect` does."""

    def call_in(self, running: Any) -> str | None:
        """Return the id of the call that an asyncio task makes; None if it makes none."""


class Asking(Protocol):
    """The requests of an actor."""

    async def ask(
        self, ctx: Any, actor: Any, key: Any, message: Any, timeout: timedelta, *, id: str | None = None
    ) -> Any:
        """Ask as `Context.ask` does. With an `id` of its own the request takes no number of the message's."""

    @property
    def asks(self) -> Requests:
        """The client for the requests; it outlives the task."""

    def wall_ms(self) -> int:
        """Return the time that deadlines are compared with, Unix milliseconds."""


class Answering(Protocol):
    """The replies of an actor."""

    def forget(self, ctx: Any) -> None:
        """Forget an answer as `Context.forget_answer` does."""

    def later(self, ctx: Any) -> AnswerLater | None:
        """Return a later answer as `Context.answer_later` does."""

    def answer_now(self, ctx: Any, later: AnswerLater, value: Any) -> bool:
        """Answer as `Context.answer` does."""


class ReadTime(Protocol):
    """The time that a read of windows needs. A `store` is a `WindowStore`."""

    @property
    def stream_ms(self) -> int:
        """Stream time, Unix milliseconds; -1 before it is known."""

    @property
    def latest_ms(self) -> int:
        """The latest time of a record, no earlier than stream time; of a close, the time that it is handled at."""

    def visible_ms(self, store: Any) -> int:
        """Return the start (sessions: end) at or before which windows are past their retention."""


class WindowTime(ReadTime, Protocol):
    """The windows of a task: see `actors.runtime.windows.task_windows`."""

    stream_ms: int
    latest_ms: int
    is_closing: bool

    def is_open(self, store: Any, window: Any) -> bool:
        """Return whether a window still takes records."""

    def closed_ms(self, store: Any) -> int:
        """Return the end at or before which windows are closed."""

    def handled(self, store: Any) -> bytes:
        """Return the row of the last aligned window that was closed, while a close is handled."""

    def time_of(self, ctx: Any) -> int:
        """Return the time by which a message belongs to windows."""

    def is_late(self, ctx: Any) -> bool:
        """Return whether a message is too late for all windows."""

    def was_late(self, store: Any, ctx: Any, *, is_warned: bool = False) -> None:
        """Count a message that came too late for all its windows."""

    def count_late(self, ctx: Any, *, is_warned: bool = False) -> None:
        """Count a message that is too late for all window stores."""

    def expect(self, store: Any, row: bytes) -> None:
        """Count on the close of a row."""

    def arrived(self, ctx: Any) -> None:
        """Move stream time on to a record that is going to be handled."""


class Publishing(Protocol):
    """The read-model topic of a store."""

    def check(self, raw_key: bytes, raw_value: bytes) -> int:
        """Return about how many bytes the record of a write takes; raise if the topic doesn't take it."""


class Ordering(Protocol):
    """Records that wait for their turn: `actors.runtime.inputs.time_order`."""

    def keep(self, ctx: Any) -> bool:
        """Keep a record until its turn; return whether it comes in time."""

    def count_late(self, ctx: Any, *, is_warned: bool) -> None:
        """Count a record that comes too late."""

    def late_record(self, ctx: Any) -> Exception:
        """Return the error of a record that comes too late."""


@mypyc_attr(native_class=False, allow_interpreted_subclasses=True)
@dataclass
class Tools:
    """An actor's tools beside stores, as far as they are declared; `clock`, `timestamps` are there in every worker.

    `published` is by store. `latest_ms` is the latest time that a handler was told, which the next commit keeps. `late`
    has by store the records that came too late.
    """

    clock: Clock | None = None
    timers: Scheduling | None = None
    effects: Calling | None = None
    asks: Asking | None = None
    answers: Answering | None = None
    published: Mapping[str, Publishing] = field(default_factory=dict)
    latest_ms: int = 0
    late: dict[str, LateMeter] = field(default_factory=dict)
    timestamps: Timestamps | None = None
    order: Ordering | None = None

    def was_late(self, store: str, ctx: Any, stream_ms: int, *, is_warned: bool = False) -> None:
        """Count a message that came too late for a store."""
        record, meter = ctx._record, self.late.setdefault(store, LateMeter())
        meter.count += 1
        meter.source, meter.offset, meter.key, meter.at_ms = ctx._source, record.offset, record.key, record.timestamp
        meter.stream_ms, meter.is_warned = stream_ms, is_warned
        meter.handled_at_ms = 0 if self.clock is None else self.clock.wall_ms()

    def now_ms(self, least_ms: int) -> int:
        """Return the partition's time, which isn't below `least_ms` and never goes back."""
        wall_ms = 0 if self.clock is None else self.clock.wall_ms()
        self.latest_ms = max(self.latest_ms, least_ms, wall_ms)
        return self.latest_ms


@dataclass(slots=True)
class TaskState:
    """The state that all messages of one task share. `max_record_bytes` is by store; `outputs` grows until the commit.

    `source` is the input partition of the message that is handled, `home` that of the actor's first input, to which
    everything between messages belongs; all before `home_offset` is handled there.

    `output_bytes` is about what the outputs take in a batch; it may be too high, never too low. `on_wait` is set
    where each message has a state of its own: called with 1 when the message waits for another actor, -1 when it
    goes on. `time_windows` is set where the actor has window stores. `newer` is set when a handler met data of a
    newer program, whatever it then made of the error. `message_tag` is in the ids of the input's messages: see
    `actors._core.task.topic_ids`.
    """

    actor: str
    source: TopicPartition
    home: TopicPartition
    partition: int
    partition_count: int
    scope: MessageScope
    overlays: dict[Handle, Overlay]
    max_record_bytes: Mapping[str, int]
    resolve_output: Callable[[Any], OutputTopic]
    outputs: list[Output]
    output_bytes: int = 0
    tools: Tools = field(default_factory=Tools)
    on_wait: Callable[[int], None] | None = None
    partitioner: Partitioner = MURMUR2
    newer: RecordError | None = None
    message_tag: str = ""
    home_offset: int = 0
    time_windows: WindowTime | None = None

    @property
    def windows(self) -> WindowTime:
        """The windows of the task.

        Raises:
            AssertionError: the actor has none; what has none is refused before.
        """
        if self.time_windows is None:
            raise AssertionError("an actor with a window store has windows")
        return self.time_windows
