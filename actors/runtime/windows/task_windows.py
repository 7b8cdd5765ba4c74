"""The windows of one task: stream time, which windows are open, and what is called when they close.

Stream time is the largest timestamp of an input record that the task has begun to handle, or the least time of its
feeds if it follows several: see `actors._core.task.feed_times`. It goes with each commit, so that it never goes back. A
window that is closed by it takes no record any more, also while its close waits.

Of windows by the clock the partition's time takes the place of stream time, in all of this. It moves with each message
that is handled, and with each close.

Closes are internal messages. How far they have come is written in the commit of each: for tumbling and hopping windows
the row of the last one, since their rows lie in the order of their starts; for other kinds an entry for the next close
of each list, which is removed or moved on.

Closes of all stores are handled in the order of the stream times at which they were due, and at these times: what a
close adds to windows of another store doesn't depend on how far stream time has jumped.

When a row closes follows from the grace that is declared. If it was shorter before, what was closed then is closed by
the former one, though its close may wait still.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any

import msgspec

from actors._core.windows.kinds import AlignedWindows, Window
from actors.errors import NewerVersionError
from actors.runtime.clock import SECONDS_BEFORE_MS, Timestamps
from actors.runtime.message.context import Context, current_message
from actors.runtime.message.failures import wrong_timestamp
from actors.runtime.message.internal_messages import InternalMessage, InternalRecord, Punctuator
from actors.runtime.message.outputs import RECORD_OVERHEAD_BYTES, too_large
from actors.runtime.message.task_state import TaskState
from actors.runtime.meters import TaskMeters
from actors.runtime.windows.carried import CarriedHeaders, remove_kept
from actors.runtime.windows.changes import ChangeStore
from actors.runtime.windows.closes import (
    Closes,
    Found,
    TimedStore,
    closes_of,
    first_entries,
    former_time,
    is_by_clock,
    read_progress,
    reading,
    write_progress,
)
from actors.runtime.windows.removal import Removal
from actors.runtime.windows.store import WindowStore
from stores._core.windows import Progress, encode_progress
from stores.ports import PartitionStore

_Order = tuple[int | float, int, bytes]

CLOSES_AT_ONCE = 100
_ID_BYTES = 8
LONG_ROW_BYTES = 16_384
_GROWS_BYTES = 64
"""How much longer numbers and marks in the row `m` may become."""


@dataclass(slots=True)
class _Closing:
    """The closes of one store.

    Attributes:
        store: the store.
        removal: removes from the disk what is past its retention.
        closes: how what closes lies there.
        end: the first row behind those that close.
        next_ms: no window that isn't in hand closes before.
        start: no row that isn't in hand comes before.
        waiting: how many closes are in hand.
        first_ms: the stream time at which the first of those in hand was due.
        expired: rows before it are past their retention, as of the newest row `m` that was written.
        closed_end_ms: windows that end up to then are closed by `closed_grace_ms`; -1 if there are none.
        closed_grace_ms: see there.
        has_entries: whether each list with a window to close has an entry for it.
    """

    store: TimedStore
    removal: Removal
    closes: Closes
    end: bytes
    next_ms: float = math.inf
    start: bytes = b""
    waiting: int = 0
    first_ms: float = math.inf
    expired: bytes = b""
    closed_end_ms: int = -1
    closed_grace_ms: int = -1
    has_entries: bool = False

    @property
    def next_close(self) -> _Order:
        """The place of the first close that isn't in hand."""
        return self.next_ms, self.closes.length_ms, self.start

    def order_of(self, row: bytes) -> _Order:
        """Return the place of a close among those of all stores; at one time, shorter windows are first."""
        return self.closing_ms(row), self.closes.length_ms, row

    def closing_ms(self, row: bytes) -> int:
        """Return the stream time from which on a row closes."""
        return self.by_former_grace(self.store.closing_ms(row))

    def by_former_grace(self, closing_ms: int) -> int:
        """Return the close by the former grace of a window that the declared grace closes at `closing_ms`."""
        grace_ms = self.store.grace_ms
        if self.closed_end_ms < 0 or closing_ms > self.closed_end_ms + self.closes.idle_ms + grace_ms:
            return closing_ms
        return closing_ms - grace_ms + self.closed_grace_ms

    def note_grace(self, progress: Progress) -> None:
        """Compare the grace by which windows were closed so far with the declared one."""
        grace_ms = self.store.grace_ms
        end_ms = progress.stream_ms - progress.grace_ms - self.closes.idle_ms
        if 0 <= progress.grace_ms < grace_ms and end_ms > progress.closed_end_ms:
            self.closed_end_ms, self.closed_grace_ms = end_ms, progress.grace_ms
        elif progress.closed_grace_ms < grace_ms:
            self.closed_end_ms, self.closed_grace_ms = progress.closed_end_ms, progress.closed_grace_ms

    def begins_at(self, row: bytes | None) -> None:
        """Note which is the first row that isn't in hand."""
        self.start = self.end if row is None else row
        self.next_ms = math.inf if row is None else self.closing_ms(row)

    def expect(self, row: bytes) -> None:
        """Count on the close of a row."""
        # Hot: rows close in their order, so the first one says all.
        if row < self.start:
            self.start, self.next_ms = row, min(self.next_ms, self.closing_ms(row))

    def finish_one(self) -> None:
        """Note that one of the closes in hand is handled."""
        self.waiting -= 1
        if not self.waiting:
            self.first_ms = math.inf


class TaskWindows(Punctuator):
    """The window stores and joins of one partition, from a takeover to the next.

    `state` is what is merged, which all messages share.

    Attributes:
        stream_ms: stream time, Unix milliseconds; -1 before the first record.
        latest_ms: the latest time of a record, no earlier than stream time; of a close, the time it is handled at.
        is_in_order: whether a message is finished before the next one begins.
        is_closing: whether a function is called for a close.
        carried: keeps headers for closes; None if the app passes none on.
    """

    _merged: Progress | None = None
    """A row `m` with times of former partitions; None of most. Hot: `key_ms` is asked for only where it isn't None."""

    def __init__(
        self,
        stores: Sequence[TimedStore],
        state: TaskState,
        held: Mapping[TimedStore, PartitionStore],
        *,
        timestamps: Timestamps,
        meters: TaskMeters,
        is_in_order: bool,
        follows_feeds: bool = False,
        follows_clock: bool = False,
        passing: Any = None,
    ) -> None:
        self._state = state
        self._follows_feeds, self._follows_clock = follows_feeds, follows_clock
        self._by_clock = is_by_clock(stores)
        self._timestamps = timestamps
        self._meters = meters
        self._is_in_order = is_in_order
        self._longest_grace_ms = max((store.grace_ms for store in stores), default=0)
        self.is_closing = False
        self.timers_ms: Callable[[], float] | None = None
        """The time of the first timer by stream time that is due and isn't handled; None: the actor has no timers."""
        self.carried = None if passing is None else CarriedHeaders(passing)
        self._closings: dict[TimedStore, _Closing] = {}
        self.stream_ms = self.latest_ms = -1
        for store in stores:
            closes = closes_of(store)
            removal, end = Removal(store, held[store]), bytes([closes.prefix[0] + 1])
            self._closings[store] = _Closing(store, removal, closes, end)
            with reading(self._state.home, store):
                progress = read_progress(store, self._state)
                self.stream_ms = max(self.stream_ms, progress.stream_ms)
                self.latest_ms = max(self.latest_ms, progress.stream_ms, progress.latest_ms)
                if len(progress.former) > len(self._merged.former if self._merged else ()):
                    self._merged = progress
        # The `stream_ms` and `latest_ms` that the rows `m` have.
        self._written_ms, self._written_latest_ms = self.stream_ms, self.latest_ms
        # The record that moved stream time last, by input and offset, and stream time before it.
        self._moved_by: tuple[int | None, int] = None, -1
        self._earlier_ms = self.stream_ms
        # The latest time of the records alone: stream time may have come further by the clock.
        self._seen_ms = self.latest_ms
        self._meters.stream_ms = self._written_ms if self._written_ms >= 0 else None
        # Of all stores: the latest end of windows that were closed by a shorter grace than the declared one.
        self._closed_end_ms = -1
        for closing in self._closings.values():
            with reading(self._state.home, closing.store):
                progress = self._begin(closing)
                closing.start = progress.closed + b"\x00" if progress.closed else closing.closes.prefix
                self._look_for_next(closing)

    @property
    def key_ms(self) -> int:
        """Stream time, or the later one that the message's key has come to in a former partition."""
        ctx = current_message.get(None) if self._merged and not self.is_closing else None
        return self.stream_ms if ctx is None else max(self.stream_ms, former_time(self._merged, ctx._raw_key)[0])

    def is_open(self, store: WindowStore[Any, Any], window: Window) -> bool:
        """Return whether a window still takes records."""
        closing, closing_ms = self._closings[store], store.windows.closes_ms(window, store.grace_ms)
        if closing.by_former_grace(closing_ms) <= (self.stream_ms if self._merged is None else self.key_ms):
            return False
        # A close is handled at its own time, and a longer grace may have put it off until other windows were removed.
        return not self.is_closing or store.counts_ms(window) > store.expired_ms(closing.expired)

    def closed_ms(self, store: TimedStore) -> int:
        """Return the end at or before which windows are closed."""
        closing = self._closings[store]
        ended_ms = (self.stream_ms if self._merged is None else self.key_ms) - closing.closes.idle_ms
        if closing.closed_end_ms < 0:
            return ended_ms - store.grace_ms
        return max(ended_ms - store.grace_ms, min(closing.closed_end_ms, ended_ms - closing.closed_grace_ms))

    def handled(self, store: TimedStore) -> bytes:
        """Return the row of the last tumbling or hopping window that was closed, while a close is handled.

        Those of the very time of that close may be before it or behind it; others are told apart by stream time.
        """
        if not self.is_closing:
            return b""
        progress = read_progress(store, self._state)
        return max(progress.closed, former_time(progress, current_message.get()._raw_key)[1])

    def visible_ms(self, store: TimedStore) -> int:
        """Return the start (sessions: end) at or before which windows are past their retention.

        A message doesn't find them though they may wait for their close: what it leads to doesn't depend on that. A
        close finds what was kept at its time.
        """
        return (self.stream_ms if self._merged is None else self.key_ms) - store.kept_ms

    def time_of(self, ctx: Context) -> int:
        """Return the time by which a message belongs to windows: no later than the latest record's.

        A timer may have the time of a clock that is ahead of the records.
        """
        if self._by_clock and not self.is_closing:
            if isinstance(ctx._record, InternalRecord):
                self._tick()
            return self.stream_ms
        at_ms = ctx._record.timestamp
        return at_ms if 0 <= at_ms <= self.latest_ms else max(0, min(at_ms, self.latest_ms))

    def is_late(self, ctx: Context) -> bool:
        """Return whether a message is too late for all windows; those of timers and effects never are."""
        record, stream_ms = ctx._record, self.stream_ms if self._merged is None else self.key_ms
        # Hot: most are, and the window that ends last is open then.
        if self._closed_end_ms < record.timestamp >= stream_ms - self._longest_grace_ms or self._by_clock:
            return False
        if isinstance(record, InternalRecord) and not record.is_input:
            return False
        at_ms, raw_key, state = self.time_of(ctx), ctx._raw_key, ctx._working("late")
        return all(store.is_late(raw_key, at_ms, state.overlays[store.rows], state) for store in self._closings)

    def count_late(self, ctx: Context, *, is_warned: bool = False) -> None:
        """Count a message that is too late for all window stores."""
        for store in self._closings:
            if not store.is_part:
                self.count_late_for(store, ctx, is_warned=is_warned)

    def count_late_for(self, store: TimedStore, ctx: Context, *, is_warned: bool = False) -> None:
        """Count a message that came too late for all its windows."""
        if self._is_late_by_clock(store):
            late = self._meters.late_by_clock
            late[store.name] = late.get(store.name, 0) + 1
        else:
            self._state.tools.count_late_for(store.name, ctx, self.stream_ms, is_warned=is_warned)

    def _is_late_by_clock(self, store: TimedStore) -> bool:
        """Return whether the window of the message that is handled would be open if time were that of the records."""
        ctx = current_message.get(None) if self._follows_clock else None
        if ctx is None:
            return False
        at_ms = ctx._record.timestamp
        if isinstance(store, WindowStore) and isinstance(store.windows, AlignedWindows):
            end_ms = store.windows.holding(at_ms)[-1].end_ms
        else:
            end_ms = at_ms + self._closings[store].closes.length_ms
        return end_ms + store.grace_ms > self._seen_ms

    def expect(self, store: TimedStore, row: bytes) -> None:
        """Count on the close of a row.

        Raises:
            RecordTooLargeError: the row `m` couldn't say that its close was handled.
        """
        if len(row) > LONG_ROW_BYTES:
            self._require_room(store, row)
        self._closings[store].expect(row)

    def _require_room(self, store: TimedStore, row: bytes) -> None:
        closed = msgspec.structs.replace(read_progress(store, self._state), closed=row, layout=store.layout)
        size, limit = len(encode_progress(closed)) + _GROWS_BYTES, self._state.max_record_bytes[store.name]
        if not self._closings[store].closes.has_entries and size + RECORD_OVERHEAD_BYTES > limit:
            raise too_large(f"changelog of store {store.name}", row, size, limit)

    def advance(self, to_ms: int) -> None:
        """Move stream time on without a record, up to the first timer that isn't handled: it may add to windows."""
        # Hot: where two inputs take turns, each record moves it.
        if to_ms > self.stream_ms:
            timers_ms = self.timers_ms
            self.stream_ms = to_ms if timers_ms is None else max(self.stream_ms, int(min(to_ms, timers_ms())))
        if to_ms > self.latest_ms:
            self.latest_ms = to_ms

    @property
    def all_closed_ms(self) -> int:
        """The stream time at which the windows of all that was handled are closed, and those that their closes fill."""
        spans = (
            closing.closes.length_ms
            + closing.closes.idle_ms
            + (store.every_ms if isinstance(store, ChangeStore) else store.grace_ms)
            for store, closing in self._closings.items()
        )
        return max(self.latest_ms, *map(self._last_close_ms, self._closings.values())) + sum(spans)

    def _last_close_ms(self, closing: _Closing) -> int:
        """Return the stream time at which the last of what is in a store closes, as far as it has entries; else -1."""
        rows = self._state.overlays[closing.store.rows].items(closing.closes.prefix, closing.end, reverse=True)
        last = next((row for row, _ in rows), None) if closing.has_entries else None
        return -1 if last is None else closing.closing_ms(last)

    def closes_ms(self) -> float:
        """Return a time before which nothing closes that isn't handled."""
        return min(min(closing.first_ms, closing.next_ms) for closing in self._closings.values())

    def is_due(self) -> bool:
        """Return whether something closes by stream time."""
        return any(closing.next_ms <= self.stream_ms for closing in self._closings.values())

    def earliest_output_ms(self) -> int:
        """Return the earliest time of what may still be handed out for a window, a change or a record of a join."""
        return self._handled_ms() - max(
            (closing.closes.output_lag_ms for closing in self._closings.values()), default=0
        )

    def arrived(self, ctx: Context) -> None:
        """Move stream time on to a record that is going to be handled.

        Raises:
            RecordError: its timestamp is missing, or so far in the future that it would close windows that are in use.
        """
        record = ctx._record
        if self._by_clock:
            self._tick()
            return
        if isinstance(record, InternalRecord) and not record.is_input:
            return
        at_ms = record.timestamp
        # Hot: most records are neither.
        if at_ms is None or not SECONDS_BEFORE_MS <= at_ms <= self._timestamps.believed_ms:
            if at_ms is None or at_ms < 0:
                raise wrong_timestamp(ctx._source, record, f"its timestamp is {at_ms}, and windows go by it")
            harm = "close all windows before it"
            self._timestamps.check(ctx._source, record, reached_ms=self.stream_ms, harm=harm)
        if at_ms > self.latest_ms:
            self.latest_ms = at_ms
        if self._follows_clock and at_ms > self._seen_ms:
            self._seen_ms = at_ms
        if at_ms > self.stream_ms and not self._follows_feeds:
            self._moved_by = self._state.scope.input, record.offset
            self._earlier_ms, self.stream_ms = self.stream_ms, at_ms

    def _tick(self) -> None:
        self.advance(self._timestamps.clock.wall_ms())

    def wait_s(self) -> float:
        """Return seconds until a close is due."""
        stream_ms = self.stream_ms
        for closing in self._closings.values():
            if closing.next_ms <= stream_ms:
                return 0.0
        if not self._by_clock:
            return math.inf
        next_ms = min(closing.next_ms for closing in self._closings.values())
        return max(0.0, (next_ms - self._timestamps.clock.wall_ms()) / 1000)

    def take(self) -> Sequence[InternalMessage]:
        """Return due closes; the windows that end first go first."""
        if self._by_clock:
            self._tick()
        due: list[tuple[_Order, InternalMessage]] = []
        for closing in self._closings.values():
            if closing.next_ms <= self.stream_ms:
                with reading(self._state.home, closing.store):
                    self._take(closing, due)
        if len(self._closings) > 1:
            due.sort(key=lambda one: one[0])
        return [message for _, message in due]

    def before_commit(self) -> None:
        """Write stream time and expiry if they moved since the last commit."""
        reached_ms = self._reached_ms()
        has_moved, handled_ms = reached_ms > self._written_ms, min(reached_ms, self._handled_ms())
        has_moved = has_moved or (self._follows_feeds and self.latest_ms > self._written_latest_ms)
        if self._merged and handled_ms >= max(self._merged.former.values())[0]:
            self._merged, has_moved = None, True
        for store, closing in self._closings.items():
            expired = max(closing.expired, store.expired_until(handled_ms - store.kept_ms))
            if not has_moved and expired == closing.expired:
                continue
            closing.expired = expired
            progress = msgspec.structs.replace(
                read_progress(store, self._state),
                stream_ms=reached_ms,
                closed_end_ms=closing.closed_end_ms,
                closed_grace_ms=closing.closed_grace_ms,
                layout=store.layout,
                grace_ms=store.grace_ms,
                has_entries=closing.has_entries,
                expired=expired,
                latest_ms=self.latest_ms if self._follows_feeds or self._merged is not None else -1,
                **({"former": {}, "former_partitions": 0} if self._merged is None else {}),
            )
            write_progress(store, progress, self._state)
            self._state.scope.release()
        self._written_ms, self._written_latest_ms = reached_ms, self.latest_ms

    def committed(self) -> None:
        """Remove what is past its retention from the disk."""
        self._meters.stream_ms = self._written_ms if self._written_ms >= 0 else None
        for closing in self._closings.values():
            closing.removal.remove(closing.expired)

    def _begin(self, closing: _Closing) -> Progress:
        """Compare what the rows are made for with what the program declares; return how far they have come.

        Raises:
            NewerVersionError: the rows are those of other windows.
        """
        store, progress = closing.store, read_progress(closing.store, self._state)
        if progress.layout and progress.layout != store.layout:
            raise NewerVersionError(
                f"{self._state.home}: store {store.name} holds {closing.closes.contents} of {progress.layout}, and the "
                f"program declares {store.layout}: run the program as it was, or {closing.closes.remedy}"
            )
        is_changed = (progress.grace_ms, progress.layout) != (store.grace_ms, store.layout)
        closing.expired = progress.expired
        # First, so that what some disks have still is neither shown nor closed: another disk has removed it.
        closing.removal.remove(progress.expired)
        if self.carried is None or (isinstance(store, WindowStore) and store.on_close_function is None):
            remove_kept(self._state, store.rows)
        closing.note_grace(progress)
        self._closed_end_ms = max(self._closed_end_ms, closing.closed_end_ms)
        closing.has_entries = closing.closes.has_entries and store.on_close_function is not None
        if closing.has_entries and not progress.has_entries:
            # The function is new, and lists that no record changes would never close.
            for row, value in first_entries(store, self._state.overlays[store.rows], progress.stream_ms):
                store.rows.write_raw(self._state, row, value)
            self._state.scope.release()
        if is_changed or closing.has_entries != progress.has_entries:
            # It goes with the next commit, whatever that is of.
            self._written_ms = -1
        return progress

    def _reached_ms(self) -> int:
        """Return the stream time of what is committed: a message that is going to be tried again hasn't moved it.

        Otherwise its windows would close before it if the task were taken over until then. Where keys are handled side
        by side nothing closes, and messages behind the offset may be finished.
        """
        scope, (moved_in, offset) = self._state.scope, self._moved_by
        is_handled = not self._is_in_order or moved_in != scope.input or offset <= scope.source_offset
        return self.stream_ms if is_handled else self._earlier_ms

    def _handled_ms(self) -> int:
        """Return the stream time up to which all closes were handled: each may read and add to rows of then."""
        handled_ms = self.stream_ms
        for closing in self._closings.values():
            if not closing.waiting and closing.next_ms <= self.stream_ms:
                # Its entry may have been handled with another one. What has expired mustn't depend on when it is asked.
                with reading(self._state.home, closing.store):
                    self._look_for_next(closing)
            handled_ms = int(min(handled_ms, closing.first_ms - 1, closing.next_ms - 1))
        return handled_ms

    def _look_for_next(self, closing: _Closing) -> None:
        """Find the first row that closes."""
        if closing.store.on_close_function is not None:
            rows = self._state.overlays[closing.store.rows].items(closing.start, closing.end)
            closing.begins_at(next((row for row, _ in rows), None))

    def _take(self, closing: _Closing, due: list[tuple[_Order, InternalMessage]]) -> None:
        """Take rows that close, in order; of lists the windows that close before those of rows that are left."""
        first: bytes | None = None
        overlay = self._state.overlays[closing.store.rows]
        taken: list[bytes] = []
        for row, _ in overlay.items(closing.start, closing.end):
            if len(taken) >= CLOSES_AT_ONCE or closing.closing_ms(row) > self.stream_ms:
                first = row
                break
            taken.append(row)
        behind = closing.end if first is None else first
        rows = sorted({one for row in taken for one in closing.closes.all_of(overlay, row) if one < behind})
        orders = ((closing.order_of(row), row) for row in rows)
        found = [(order, self._message(closing, row)) for order, row in orders if order[0] <= self.stream_ms]
        closing.waiting += len(found)
        if taken:
            closing.first_ms = min(closing.first_ms, closing.closing_ms(taken[0]))
        closing.begins_at(first)
        due += found

    def _message(self, closing: _Closing, row: bytes) -> InternalMessage:
        store, home = closing.store, self._state.home
        digest = blake2b(row, digest_size=_ID_BYTES).hexdigest()
        raw_key, at_ms = closing.closes.named(row)
        record = InternalRecord(
            offset=self._state.scope.source_offset,
            timestamp=at_ms,
            key=raw_key,
            value=None,
            id=f"{home.topic}-{home.partition}-closed-{store.name}-{digest}",
            has_event_time=not self._by_clock,
        )
        found: Found = []
        call = partial(self._call, store, closing.closing_ms(row) - 1, found)
        return InternalMessage(
            record,
            partial(self._in_turn, closing, row, found),
            closing.finish_one,
            f"the close of a window of store {store.name}",
            call if self.carried is None else self.carried.passed_on(call),
        )

    def _in_turn(self, closing: _Closing, row: bytes, found: Found, ctx: Context) -> bool:
        """Consume a close, unless another close has made a window that closes before: then it is taken again."""
        if len(self._closings) > 1:
            place = closing.order_of(row)
            if any(self._comes_before(other, place) for other in self._closings.values()):
                closing.expect(row)
                return False
        found.clear()
        with reading(self._state.home, closing.store):
            # Of an error that a policy skips, the row would be taken out once more.
            state, record = ctx._working("on_close"), ctx._record
            if self.carried is not None and isinstance(record, InternalRecord):
                record.headers = self.carried.of_close(state, closing.store.rows, row)
            what = closing.closes.take(state, row, found)
        if what and isinstance(record, InternalRecord):
            record.what = f"the close of {what} of store {closing.store.name}"
        return bool(what)

    def _comes_before(self, other: _Closing, place: _Order) -> bool:
        """Return whether a close of another store comes first; not a close that a function added and then raised."""
        if other.next_close < place:
            self._look_for_next(other)
        return other.next_close < place

    async def _call(self, store: TimedStore, open_ms: int, found: Found, ctx: Context) -> None:
        function = store.on_close_function
        if function is None:
            return
        (window, raw), ctx.key = found[0], store.decode_key(ctx._raw_key)
        reached_ms, latest_ms = self.stream_ms, self.latest_ms
        self.stream_ms, self.is_closing = min(reached_ms, open_ms), True
        self.latest_ms = self.stream_ms
        try:
            for feed in store.feeds:
                feed(ctx, ctx._raw_key, window, raw)
            result = function(ctx, window, store.result(raw))
            if inspect.isawaitable(result):
                await result
        finally:
            self.stream_ms, self.latest_ms, self.is_closing = reached_ms, latest_ms, False
