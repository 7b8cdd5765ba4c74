"""The state that the messages of one task share while they are handled.

A parameter `ctx` is the message's `Context`, which is declared above this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from actors._core.partitioner import MURMUR2, Partitioner
from actors.errors import RecordError
from actors.ports import Output, TopicPartition
from actors.runtime.message.outputs import OutputTopic
from actors.runtime.message.store_errors import Handle
from actors.runtime.message.tools import Tools
from stores._core.overlay import MessageScope, Overlay

_NONE: Any = None


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
    """The windows of a task: see `actors.runtime.windows.task_windows`. `carried` is None where none are."""

    stream_ms: int
    latest_ms: int
    is_closing: bool
    carried: Any

    @property
    def key_ms(self) -> int:
        """Stream time, or the later one that the message's key has come to in a former partition."""

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

    def count_late_for(self, store: Any, ctx: Any, *, is_warned: bool = False) -> None:
        """Count a message that came too late for all its windows."""

    def count_late(self, ctx: Any, *, is_warned: bool = False) -> None:
        """Count a message that is too late for all window stores."""

    def expect(self, store: Any, row: bytes) -> None:
        """Count on the close of a row."""

    def arrived(self, ctx: Any) -> None:
        """Move stream time on to a record that is going to be handled."""


@dataclass(slots=True)
class TaskState:
    """The state that all messages of one task share. `max_record_bytes` is by store; `outputs` grows until the commit.

    `source` is the input partition of the message that is handled, `home` that of the actor's first input, to which
    everything between messages belongs; all before `home_offset` is handled there.

    `output_bytes` is about what the outputs take in a batch; it may be too high, never too low. `on_wait` is set
    where each message has a state of its own: called with 1 when the message waits for another actor, -1 when it
    goes on. `windows` is set where the actor has window stores. `newer` is set when a handler met data of a
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
    windows: WindowTime = _NONE

    @property
    def has_windows(self) -> bool:
        """Return whether the actor has window stores or joins: `windows` is set."""
        return self.windows is not _NONE
