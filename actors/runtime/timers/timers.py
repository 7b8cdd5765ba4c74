"""Durable timers: messages that an actor's key sends to itself later.

They are in a store of the actor, one entry by name and one by time, written together:

    "n" address              the timer, as JSON: `_Entry`
    "w" due_ms address       nothing: the timers by the wall clock in order of time
    "s" due_ms address       the same for those by stream time
    "t"                      stream time, the highest timestamp of an input record, and a byte once a timer went by it:
                             a record that is too far ahead of the clock is refused from then on; before, it moves none

`address` is the length of the message key (4 bytes, big-endian), the key, and the timer's name in UTF-8; times are Unix
milliseconds (8 bytes, big-endian). So what is due is at the head of an index, however many timers wait behind it.

What is in memory is a hint. The store alone says which timers there are, and as they come due they are looked up there:
a time that is kept here may be too early, never too late. An internal message checks in its own savepoint that its
timer is as it was when it came due, and removes it or moves it on in the same commit.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import blake2b
from typing import Any, Literal, TypeAlias

import msgspec

from actors._core.keys import sized, split_sized
from actors._core.logs import escaping
from actors._core.outside import MALFORMED
from actors._core.values.ids import digest_of, id_of
from actors.errors import UsageError, show_bytes
from actors.ports import Clock, InputRecord, TopicPartition
from actors.runtime.clock import Timestamps
from actors.runtime.message.context import Context
from actors.runtime.message.failures import is_newer, newer_entry
from actors.runtime.message.internal_messages import InternalMessage, InternalRecord, Punctuator, refuse_keyless
from actors.runtime.message.task_state import TaskState
from actors.runtime.spec import ActorSpec

logger = escaping(logging.getLogger(__name__))

MESSAGES_AT_ONCE = 100
BACKLOG_LOOK_S = 0.1
"""How often a timer that is due looks whether the input that it waits for has come to its end."""
LONGEST_NAME_BYTES = 250
ClockName: TypeAlias = Literal["wall", "stream"]

_ENTRY = b"n"
_BEHIND_NAMES = b"\xff"
"""Behind every text in UTF-8."""
_STREAM_TIME = b"t"
_WENT_BY = b"\x01"
_WORD = 8
_ID_BYTES = 8
_ADDRESS_AT = 1 + _WORD
_MILLISECOND = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNSEEN = -1


class _Entry(msgspec.Struct, frozen=True):
    """A timer as the store has it. `every_ms` is None for one that fires once.

    `id` tells the timer from others of its key and name; `method` is the private one that it calls with `value` as
    arguments, left out where `value` is a message.
    """

    due_ms: int
    every_ms: int | None
    clock: ClockName
    value: bytes
    headers: list[tuple[str, bytes]]
    id: str
    method: str | msgspec.UnsetType = msgspec.UNSET


_encode_entry = msgspec.json.Encoder().encode
_decode_entry = msgspec.json.Decoder(_Entry).decode


@dataclass(slots=True)
class _Index:
    """The timers of one clock in order of time.

    Attributes:
        clock: whose times they are.
        prefix, end: where the index begins in the store, and the first key behind it.
        earliest_ms: no timer that isn't in hand is due before.
        start: no timer that isn't in hand has a key before, so that a look begins behind the tombstones of those that
            fired.
    """

    clock: ClockName
    prefix: bytes
    end: bytes
    start: bytes
    earliest_ms: float = 0.0

    @classmethod
    def of(cls, clock: ClockName, prefix: bytes) -> _Index:
        return cls(clock, prefix, end=bytes([prefix[0] + 1]), start=prefix)

    def key(self, due_ms: int, address: bytes) -> bytes:
        return self.prefix + due_ms.to_bytes(_WORD) + address

    def expect(self, key: bytes) -> None:
        """Count on a timer that may have that key."""
        self.start = min(self.start, key)
        self.earliest_ms = min(self.earliest_ms, _due_ms(key))

    def begins_at(self, key: bytes | None) -> None:
        """Note which is the first timer that isn't in hand."""
        self.start = self.end if key is None else key
        self.earliest_ms = math.inf if key is None else _due_ms(key)


@dataclass(frozen=True, slots=True)
class _Due:
    """A timer in hand. `raw` is its entry as it was when it came due; `entry` is None if something is damaged."""

    index: _Index
    key: bytes
    raw: bytes | None
    entry: _Entry | None

    @property
    def address(self) -> bytes:
        return self.key[_ADDRESS_AT:]


class Timers(Punctuator):
    """The timers of one partition, from a takeover to the next.

    `state` is what is merged, which all messages share.

    Attributes:
        stream_ms: stream time, Unix milliseconds; -1 before the first record.
    """

    def __init__(self, spec: ActorSpec, state: TaskState, *, clock: Clock, timestamps: Timestamps) -> None:
        if spec.timers is None:
            raise UsageError(f"actor {spec.name}: its timers need a store")
        self._spec = spec
        self._state = state
        self._clock = clock
        self._timestamps = timestamps
        self._store = spec.timers
        self._merged = state.overlays[spec.timers]
        self._wall = _Index.of("wall", b"w")
        self._stream = _Index.of("stream", b"s")
        self._by_prefix = {index.prefix: index for index in (self._wall, self._stream)}
        self._in_hand: set[bytes] = set()
        self._is_merged_later = False
        self.backlog_ms: Callable[[], float] = lambda: math.inf
        """The lowest timestamp of the input that has to be handled before wall-clock timers: see `Backlog`."""
        written = self._merged.get(_STREAM_TIME)
        self._went_by_stream_time = written is not None and len(written) > _WORD
        self.stream_ms = _UNSEEN if written is None else int.from_bytes(written[:_WORD])
        self._written = written or b""
        for index in self._by_prefix.values():
            index.begins_at(next((key for key, _ in self._merged.items(index.start, index.end)), None))

    def schedule(
        self,
        ctx: Context,
        message: Any,
        args: tuple[Any, ...] = (),
        *,
        after: timedelta | None = None,
        at: datetime | None = None,
        every: timedelta | None = None,
        name: str | None = None,
        stream_time: bool = False,
    ) -> str:
        """Schedule a timer as `Context.schedule` does."""
        state = ctx._working("schedule")
        refuse_keyless(ctx, "schedule")
        index = self._stream if stream_time else self._wall
        every_ms = None if every is None else _checked_ms("every", every, least_ms=1)
        due_ms = self._first_ms(ctx, index, after, at, every_ms)
        if name is not None:
            _check_name(name)
        value, headers, method = self._encoded(message, args)
        if name is None:
            when = f"{after} {at} {every} {index.clock}{method or ''}"
            name = id_of(ctx, "timer", when, value, *(part for header in headers for part in header))
        address = _address(ctx._raw_key, name)
        held = self._held(state, address)
        id = digest_of(ctx.next_id(f"timer {name}"), size=_ID_BYTES)
        self._put(state, address, _Entry(due_ms, every_ms, index.clock, value, headers, id, method or msgspec.UNSET))
        # Last, so that a handler that catches RecordTooLargeError still has the timer that it had.
        if held is not None and (held.due_ms, held.clock) != (due_ms, index.clock):
            self._unlist(state, address, held)
        return name

    def _encoded(self, message: Any, args: tuple[Any, ...]) -> tuple[bytes, list[tuple[str, bytes]], str | None]:
        """Return a timer's value and headers, and the private method that it calls, None for a message."""
        spec = self._spec
        if spec.methods is not None and (inspect.ismethod(message) or inspect.isfunction(message)):
            method = spec.methods.name_of(message, "ctx.schedule()", is_timer=True)
            carried = {} if spec.tracing is None else spec.tracing.carried()
            headers = [(name, text.encode("latin-1")) for name, text in carried.items()]
            return spec.methods.encode(method, args, f"ctx.schedule({method})"), headers, method
        if args:
            raise UsageError("ctx.schedule(): a message has no arguments: give a method or function for these")
        if spec.encode_message is None:
            raise UsageError(f"ctx.schedule(): actor {spec.name} takes no messages but records of {spec.topic}")
        return *spec.encode_message(message), None

    def cancel(self, ctx: Context, name: str) -> bool:
        """Cancel a timer as `Context.cancel` does."""
        _check_name(name)
        state, address = ctx._working("cancel"), _address(ctx._raw_key, name)
        held = self._held(state, address)
        if held is not None:
            self._unlist(state, address, held)
        return state.overlays[self._store].delete(_ENTRY + address)

    def drop(self, state: TaskState, raw_key: bytes, id: str | None) -> int:
        """Drop the timer of a key that has this id, whatever its next time; return how many there were."""
        overlay, start = state.overlays[self._store], _ENTRY + sized(raw_key)
        for key, raw in overlay.items(start, start + _BEHIND_NAMES):
            entry = _decoded(raw)
            if entry is not None and entry.id == id:
                self._unlist(state, key[len(_ENTRY) :], entry)
                overlay.delete(key)
                return 1
        return 0

    def due(self, ctx: Context, name: str) -> datetime | None:
        """Return when a timer is due as `Context.scheduled` does."""
        _check_name(name)
        held = self._held(ctx._working("scheduled"), _address(ctx._raw_key, name))
        return None if held is None else _EPOCH + held.due_ms * _MILLISECOND

    def _first_ms(
        self, ctx: Context, index: _Index, after: timedelta | None, at: datetime | None, every_ms: int | None
    ) -> int:
        if at is not None:
            if after is not None:
                raise UsageError("ctx.schedule(after=…, at=…): a timer is first due at one time: leave one of both out")
            return _checked_time_ms(at)
        if after is not None:
            wait_ms = _checked_ms("after", after, least_ms=0)
        elif every_ms is not None:
            wait_ms = every_ms
        else:
            raise UsageError("ctx.schedule(): say when: after=…, at=… or every=…")
        return max(self._now_ms(index, ctx), 0) + wait_ms

    def _held(self, state: TaskState, address: bytes) -> _Entry | None:
        raw = state.overlays[self._store].get(_ENTRY + address)
        return None if raw is None else _decoded(raw)

    def _put(self, state: TaskState, address: bytes, entry: _Entry) -> None:
        index = self._wall if entry.clock == "wall" else self._stream
        key = index.key(entry.due_ms, address)
        self._store.write_raw(state, _ENTRY + address, _encode_entry(entry))
        self._store.write_raw(state, key, b"")
        index.expect(key)
        self._went_by_stream_time |= index is self._stream
        self._is_merged_later |= state is not self._state

    def _unlist(self, state: TaskState, address: bytes, entry: _Entry) -> None:
        """Take a timer out of the index."""
        index = self._wall if entry.clock == "wall" else self._stream
        state.overlays[self._store].delete(index.key(entry.due_ms, address))

    @property
    def is_busy(self) -> bool:
        """Return whether a timer is due that has to wait for input that was there before."""
        earliest_ms = self._wall.earliest_ms
        return earliest_ms <= self._now_ms(self._wall) and earliest_ms > self.backlog_ms()

    def may_refuse(self, record: InputRecord) -> bool:
        """Return whether `check` has to be called for an input record. Hot."""
        return self._went_by_stream_time and self._timestamps.is_unusual(record.timestamp)

    def check(self, source: TopicPartition, record: InputRecord) -> None:
        """Refuse an input record that would make timers due long before their time.

        Raises:
            RecordError: its timestamp is too far ahead of the clock.
        """
        if self.may_refuse(record) and not (isinstance(record, InternalRecord) and not record.is_input):
            self._check(source, record)

    def _check(self, source: TopicPartition, record: InputRecord) -> None:
        harm = "make timers by stream time due long before their time"
        self._timestamps.check(source, record, reached_ms=self.stream_ms, harm=harm)

    def saw(self, timestamp_ms: int) -> bool:
        """Move stream time on: an input record with that timestamp was handled, or given up.

        Returns:
            Whether a timer by stream time may be due: it goes before the next record, which could replace it.
        """
        if timestamp_ms > self.stream_ms and not self._timestamps.is_ahead(timestamp_ms):
            self.stream_ms = timestamp_ms
        return self.is_due()

    def is_due(self) -> bool:
        """Return whether a timer by stream time may be due."""
        return self._stream.earliest_ms <= self.stream_ms

    def advance(self, to_ms: int) -> None:
        """Move stream time on without a record."""
        self.stream_ms = max(self.stream_ms, to_ms)

    def earliest_output_ms(self) -> int:
        """Return the earliest time of a timer that is due and isn't handled, or stream time."""
        in_hand = (_due_ms(key) for key in self._in_hand if key[:1] == self._stream.prefix)
        return int(min([self.stream_ms, self._stream.earliest_ms, *in_hand]))

    def wait_s(self) -> float:
        """Return seconds until a timer is due."""
        if self._stream.earliest_ms <= self.stream_ms:
            return 0.0
        earliest_ms = self._wall.earliest_ms
        if earliest_ms == math.inf:
            return math.inf
        wait_s = max(0.0, (earliest_ms - self._now_ms(self._wall)) / 1000)
        return BACKLOG_LOOK_S if not wait_s and earliest_ms > self.backlog_ms() else wait_s

    def take(self) -> Sequence[InternalMessage]:
        """Return due timers: the oldest first, those by the wall clock before those by stream time."""
        due: list[InternalMessage] = []
        for index in self._by_prefix.values():
            until_ms: float = self._now_ms(index)
            if index is self._wall and index.earliest_ms <= until_ms:
                until_ms = min(until_ms, self.backlog_ms())
            if index.earliest_ms <= until_ms:
                self._take(index, until_ms, due)
        return due

    def before_commit(self) -> None:
        """Note timers that were merged later; write stream time if it moved."""
        if self._is_merged_later:
            # A look into what was merged when these were scheduled, but not merged, has forgotten them.
            for key, (_, value) in self._merged.writes.items():
                index = self._by_prefix.get(key[:1])
                if value is not None and index is not None:
                    index.expect(key)
        if self.stream_ms == _UNSEEN:
            return
        # Before a timer goes by it too: a parked message, or the clock, may lead to the first one after a takeover.
        stream_time = self.stream_ms.to_bytes(_WORD) + _WENT_BY * self._went_by_stream_time
        if stream_time != self._written:
            self._store.write_raw(self._state, _STREAM_TIME, stream_time)
            self._state.scope.release()
            self._written = stream_time

    def _now_ms(self, index: _Index, ctx: Context | None = None) -> int:
        """Return the time by the clock of `index`, for what is due, or for the message of `ctx`."""
        if index is self._wall:
            return max(self._state.scope.now_ms, self._clock.wall_ms())
        if ctx is None:
            return self.stream_ms
        record = ctx._record
        is_by_clock = isinstance(record, InternalRecord) and not (record.is_input or record.has_event_time)
        if is_by_clock and self.stream_ms != _UNSEEN:
            # The clock's time counts only where there is nothing else to go by.
            return self.stream_ms
        self._check(ctx._source, record)
        # Not stream time: how far that has come depends on what other inputs and partitions were read before.
        return ctx.timestamp_ms

    def _take(self, index: _Index, until_ms: float, due: list[InternalMessage]) -> None:
        for key, _ in self._merged.items(index.start, index.end):
            if key in self._in_hand:
                continue
            if _due_ms(key) > until_ms or len(due) >= MESSAGES_AT_ONCE:
                index.begins_at(key)
                return
            self._in_hand.add(key)
            due.append(self._message(index, key))
        index.begins_at(None)

    def _message(self, index: _Index, key: bytes) -> InternalMessage:
        address, due_ms, source = key[_ADDRESS_AT:], _due_ms(key), self._state.home
        raw = self._merged.get(_ENTRY + address)
        entry, parts = None if raw is None else _decoded(raw), _parted(address)
        if parts is None or (entry is not None and (entry.due_ms, entry.clock) != (due_ms, index.clock)):
            entry = None
        raw_key, name = parts or (None, show_bytes(address))
        own = b"" if entry is None else entry.id.encode()
        digest = blake2b(address + due_ms.to_bytes(_WORD) + own, digest_size=_ID_BYTES).hexdigest()
        internal_record = InternalRecord(
            offset=self._state.scope.source_offset,
            timestamp=due_ms,
            key=raw_key,
            value=None if entry is None else entry.value,
            headers=() if entry is None else entry.headers,
            id=f"{source.topic}-{source.partition}-timer-{digest}",
            timer=name,
            has_event_time=index is self._stream,
            method=None if entry is None or entry.method is msgspec.UNSET else entry.method,
        )
        due = _Due(index, key, raw, entry)
        return InternalMessage(
            internal_record,
            partial(self._consume, due),
            partial(self._handled, due),
            f"timer {name!r}",
        )

    def _consume(self, due: _Due, ctx: Context) -> bool:
        """Take the timer out, or move it to its next time; tell whether it is still what came due."""
        state, entry = ctx._working("schedule"), due.entry
        overlay = state.overlays[self._store]
        if overlay.get(_ENTRY + due.address) != due.raw:
            return False
        if due.index is self._stream and due.index.earliest_ms < _due_ms(due.key):
            # One that was set since goes first, however far stream time has jumped: this one is taken again.
            return False
        overlay.delete(due.key)
        if entry is None:
            self._remove_damaged(state, due)
            return False
        if entry.every_ms is None:
            overlay.delete(_ENTRY + due.address)
        else:
            times = max(0, self._now_ms(due.index) - entry.due_ms) // entry.every_ms + 1
            self._put(state, due.address, msgspec.structs.replace(entry, due_ms=entry.due_ms + times * entry.every_ms))
        return True

    def _remove_damaged(self, state: TaskState, due: _Due) -> None:
        """Remove what is damaged, so that it doesn't come due for ever: the entry, if it doesn't decode."""
        is_entry_damaged = due.raw is not None and _decoded(due.raw) is None
        if is_entry_damaged:
            state.overlays[self._store].delete(_ENTRY + due.address)
        what = f"the timer {show_bytes(due.raw)} doesn't decode" if is_entry_damaged else "no timer belongs to it"
        logger.error(
            "%s, store %s: the entry %s was due, but %s: it is removed, and no message is sent for it; schedule the "
            "timer again if it is missed",
            state.source,
            self._store.name,
            show_bytes(due.key),
            what,
        )

    def _handled(self, due: _Due) -> None:
        self._in_hand.discard(due.key)
        written = self._merged.writes.get(due.key)
        if written is None or written[1] is not None:
            # Changed since it came due, or scheduled again for the same time: a look into the store will tell.
            due.index.expect(due.key)


def _decoded(raw: bytes) -> _Entry | None:
    """Return a timer, None for one that is damaged."""
    if is_newer(raw):
        raise newer_entry("a timer", raw)
    try:
        return _decode_entry(raw)
    except MALFORMED:
        return None


def _due_ms(key: bytes) -> int:
    return int.from_bytes(key[1:_ADDRESS_AT])


def _address(raw_key: bytes, name: str) -> bytes:
    return sized(raw_key) + name.encode()


def _parted(address: bytes) -> tuple[bytes, str] | None:
    """Return the message key and the timer's name, None if the address is damaged."""
    raw_key, rest = split_sized(address)
    try:
        name = rest.decode()
    except UnicodeDecodeError:
        return None
    return (raw_key, name) if name else None


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not name:
        raise UsageError(f"a timer's name is a text that isn't empty, not {name!r}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise UsageError(f"the timer name {name!r} isn't Unicode text: {error}") from error
    if size > LONGEST_NAME_BYTES:
        raise UsageError(
            f"the timer name {name[:40]!r}… takes {size} bytes, {LONGEST_NAME_BYTES} is the most: choose a shorter one"
        )


def _checked_ms(what: str, given: timedelta, *, least_ms: int) -> int:
    """Return a duration in milliseconds, rounded up: a timer is never early."""
    if not isinstance(given, timedelta):
        raise UsageError(f"ctx.schedule({what}={given!r}): a duration is a timedelta")
    if given < least_ms * _MILLISECOND:
        least = "can't be negative" if least_ms == 0 else f"has to be {least_ms} ms or more"
        raise UsageError(f"ctx.schedule({what}={given!r}): it {least}")
    return -(-(given // timedelta.resolution) // (_MILLISECOND // timedelta.resolution))


def _checked_time_ms(at: datetime) -> int:
    if not isinstance(at, datetime) or at.utcoffset() is None:
        raise UsageError(
            f"ctx.schedule(at={at!r}): a time is a datetime with a time zone, as datetime.now(UTC) + timedelta(hours=1)"
        )
    return max(0, -(-(at - _EPOCH) // _MILLISECOND))
