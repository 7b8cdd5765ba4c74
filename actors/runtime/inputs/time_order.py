"""Records that wait until stream time has passed them, and are handled in the order of their times: `order="time"`.

A record becomes a row when it is read, in the commit of its offset. Later it is handled as an internal message, whose
commit removes the row, so it is handled once, by the present owner of the task. The context has the record's own
offset, headers and time.

The actor's windows and timers follow the rows that are handled, not stream time itself: a window closes, and a timer
fires, after all records before it and before the first record behind it.

    t + time + input + offset    a record that waits: 8, 2 and 8 bytes, big-endian; MessagePack
    s                            stream time
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from actors._core.outside import MALFORMED
from actors.errors import NewerVersionError, RecordError
from actors.ports import InputRecord, TopicPartition
from actors.runtime.clock import Timestamps
from actors.runtime.commands import CONTROL_HEADER
from actors.runtime.message.context import Context
from actors.runtime.message.failures import late_record, wrong_timestamp
from actors.runtime.message.internal_messages import InternalMessage, InternalRecord, Punctuator
from actors.runtime.message.store import Store
from actors.runtime.message.task_state import TaskState
from actors.runtime.requests.requests import ASK

Handler = Callable[[Context, Any], Awaitable[Any]]
AT_ONCE = 100
STREAM_TIME = b"s"
_ROW = b"t"
_END = b"u"
_WORD = 8
_SOURCE = 2


class TimeFollower(Protocol):
    """Windows or timers, which go by stream time.

    Attributes:
        stream_ms: the stream time that it has been moved to, Unix milliseconds; -1 before the first record.
    """

    stream_ms: int

    def advance(self, to_ms: int) -> None:
        """Move stream time on."""

    def earliest_output_ms(self) -> int:
        """Return the earliest time of what it may still hand out."""


class Timed(TimeFollower, Protocol):
    """A follower by the times of the records that are handled in order."""

    def is_due(self) -> bool:
        """Return whether something waits to be handed out by stream time."""


class _Waiting(msgspec.Struct, frozen=True, array_like=True):
    """A waiting record as it was read; `tag` is a part of its id."""

    topic: str
    offset: int
    timestamp_ms: int
    tag: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]


_encode, _decode = msgspec.msgpack.encode, msgspec.msgpack.Decoder(_Waiting).decode


def in_order_of_time(handler: Handler, late: Any) -> Handler:
    """Return a handler that keeps records until their turn, and does with late ones what `late` says."""

    async def handle(ctx: Context, value: Any) -> Any:
        order = ctx._working("order").tools.order
        if order is None or not waits_its_turn(ctx._record):
            return await handler(ctx, value)
        if order.keep(ctx):
            return None
        if late == "handle":
            return await handler(ctx, value)
        order.count_late(ctx, is_warned=late == "warn")
        if late == "stop":
            raise order.late_record(ctx)
        if not isinstance(late, str):
            late(ctx, value)
        return None

    return handle


def waits_its_turn(record: InputRecord) -> bool:
    """Return whether a record is handled in the order of time: internal messages, questions and commands aren't."""
    if isinstance(record, InternalRecord):
        return False
    return not any(name in (ASK, CONTROL_HEADER) for name, _ in record.headers)


class TimeOrder(Punctuator):
    """The waiting records of a task, from a takeover to the next, and the follower of stream time.

    Attributes:
        stream_ms: stream time, Unix milliseconds; -1 before it is known.
        followers: windows and timers, which go by the records that are handled.
    """

    def __init__(
        self, store: Store[bytes, bytes], state: TaskState, topics: Sequence[str], *, timestamps: Timestamps
    ) -> None:
        self._store = store
        self._state = state
        self._topics = {topic: place for place, topic in enumerate(topics)}
        self._timestamps = timestamps
        self.followers: Sequence[Timed] = ()
        self._rows = state.overlays[store]
        self._in_hand: set[bytes] = set()
        written = self._rows.get(STREAM_TIME)
        self.stream_ms = self._written_ms = -1 if written is None else int.from_bytes(written)
        self._passed_ms: float = self.stream_ms
        self._next = _ROW
        self._look_for_next()

    def keep(self, ctx: Context) -> bool:
        """Keep a record until its turn; return whether it comes in time.

        Raises:
            RecordError: its timestamp is missing, or too far ahead.
        """
        record, source = ctx._record, ctx._source
        at_ms = record.timestamp
        if at_ms is None or at_ms < 0:
            raise wrong_timestamp(source, record, f'its timestamp is {at_ms}, and order="time" goes by it')
        harm = "hold back all that is handled in the order of time"
        self._timestamps.check(source, record, reached_ms=self.stream_ms, harm=harm)
        if at_ms < self.stream_ms:
            return False
        place = self._topics[source.topic]
        row = b"".join((_ROW, at_ms.to_bytes(_WORD), place.to_bytes(_SOURCE), record.offset.to_bytes(_WORD)))
        headers = [(name, bytes(data)) for name, data in record.headers]
        waiting = _Waiting(source.topic, record.offset, at_ms, ctx._tag, record.key, record.value, headers)
        self._store.write_raw(ctx._working("order"), row, _encode(waiting))
        self._next = min(self._next, row)
        return True

    def count_late(self, ctx: Context, *, is_warned: bool) -> None:
        """Count a record that came behind stream time."""
        self._state.tools.was_late(self._store.name, ctx, self.stream_ms, is_warned=is_warned)

    def late_record(self, ctx: Context) -> RecordError:
        """Return the error of a record that came behind stream time."""
        return late_record(ctx, ctx._working("late").actor, self._store.name, self.stream_ms)

    def lead(self, followers: Sequence[Timed]) -> None:
        """Take the actor's windows and timers as followers. Records before a time that they have reached are late."""
        self.followers = followers
        self.stream_ms = max([self.stream_ms, *(follower.stream_ms for follower in followers)])
        self._passed_ms = self.stream_ms

    def advance(self, to_ms: int) -> None:
        """Move stream time on: rows before it are due."""
        self.stream_ms = max(self.stream_ms, to_ms)
        self._pass(self.stream_ms)

    def rest(self) -> None:
        """Make rows at stream time itself due too: no feed moves any more."""
        self._pass(self.stream_ms + 1)

    def _pass(self, before_ms: float) -> None:
        self._passed_ms = max(self._passed_ms, before_ms)
        if not self._in_hand and self._next_ms >= self._passed_ms:
            self._tell(self.stream_ms)

    def _tell(self, at_ms: int) -> None:
        for follower in self.followers:
            follower.advance(at_ms)

    def earliest_output_ms(self) -> int:
        """Return the earliest time of what may still be sent for a record that waits, a window or a timer."""
        in_hand = (_time_of(row) for row in self._in_hand)
        followers = (follower.earliest_output_ms() for follower in self.followers)
        return int(min([self.stream_ms, self._next_ms, *in_hand, *followers]))

    @property
    def has_waiting(self) -> bool:
        """Return whether records wait."""
        return self._next < _END

    @property
    def _next_ms(self) -> float:
        return _time_of(self._next) if self._next < _END else math.inf

    def _look_for_next(self) -> None:
        """Find the first row that isn't in hand."""
        rows = self._rows.items(self._next, _END)
        self._next = next((row for row, _ in rows if row not in self._in_hand), _END)

    @property
    def is_busy(self) -> bool:
        """Return whether records are in hand, or due."""
        return bool(self._in_hand) or not self.wait_s()

    @property
    def passed_ms(self) -> float:
        """The time before which all records are handled or due."""
        return self._passed_ms

    def wait_s(self) -> float:
        """Return 0 if a record is due, infinity if none is."""
        return 0.0 if self._next_ms < self._passed_ms else math.inf

    def take(self) -> Sequence[InternalMessage]:
        """Return due records in the order of times, of one time in that of the inputs."""
        if any(follower.is_due() for follower in self.followers):
            return ()
        due: list[InternalMessage] = []
        following = _END
        for row, raw in self._rows.items(self._next, _END):
            if len(due) >= AT_ONCE or _time_of(row) >= self._passed_ms:
                following = row
                break
            due.append(self._message(row, raw))
            self._in_hand.add(row)
        self._next = following
        if not due:
            self._tell(self.stream_ms)
        return due

    def _message(self, row: bytes, raw: bytes) -> InternalMessage:
        store, home = self._store.name, self._state.home
        try:
            waiting = _decode(raw)
        except MALFORMED as error:
            raise NewerVersionError(
                f"{home}: a row of store {store} can't be read: {error}. If a newer release wrote it, run that one"
            ) from error
        if waiting.topic not in self._topics:
            raise NewerVersionError(
                f"{home}: a record of topic {waiting.topic}, offset {waiting.offset}, waits in store {store}, and the "
                "program doesn't read that topic any more: run the program that does until nothing waits"
            )
        record = InternalRecord(
            waiting.offset,
            waiting.timestamp_ms,
            waiting.key,
            waiting.value,
            waiting.headers,
            tag=waiting.tag,
            what=f"the record at {waiting.topic}[{self._state.partition}] offset {waiting.offset}",
            is_input=True,
        )
        source = TopicPartition(waiting.topic, self._state.home.partition)
        return InternalMessage(
            record, partial(self._in_turn, row), partial(self._handled, row), record.what, source=source
        )

    def _in_turn(self, row: bytes, ctx: Context) -> bool:
        """Take a row out; return False if a window or a timer goes first, and the row is taken again later."""
        if self._next < row:
            return False
        self._tell(min(_time_of(row), self.stream_ms))
        if any(follower.is_due() for follower in self.followers):
            self._next = row
            return False
        return ctx._working("order").overlays[self._store].delete(row)

    def _handled(self, row: bytes) -> None:
        self._in_hand.discard(row)
        self._pass(self._passed_ms)

    def before_commit(self) -> None:
        """Write stream time if it moved since the last commit."""
        if self.stream_ms > self._written_ms:
            self._store.write_raw(self._state, STREAM_TIME, self.stream_ms.to_bytes(_WORD))
            self._state.scope.release()
            self._written_ms = self.stream_ms


def _time_of(row: bytes) -> int:
    """Return the time of a row, Unix milliseconds; of what is before all rows, 0."""
    return int.from_bytes(row[1 : 1 + _WORD])
