"""The `WindowStore` handles, by which handlers reach windows of the state of their message's task.

A window store's rows are those of a `Store` of bytes, so commits, changelogs, restores and standbys know nothing of
windows. `actors._core.windows.rows` says how windows lie there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from copy import deepcopy
from datetime import timedelta
from operator import index
from typing import Any, Generic, SupportsIndex, TypeVar

from msgspec import structs
from mypy_extensions import mypyc_attr

from actors._core.aggregates import Aggregate, as_it_is
from actors._core.windows.held import Held
from actors._core.windows.kinds import SEGMENTS, AlignedWindows, Session, Sliding, Window, Windows
from actors._core.windows.rows import (
    VALUE,
    aligned_key,
    aligned_prefix,
    close_key,
    decode_list,
    encode_list,
    into_session,
    into_sliding,
    key_of,
    last_list,
    last_of,
    list_key,
    next_end_ms,
    replaced,
    time_of,
    with_last,
)
from actors.errors import UsageError
from actors.runtime.message.context import Context, current_message
from actors.runtime.message.outputs import new_tuple
from actors.runtime.message.store import Store
from actors.runtime.message.store_errors import no_ranges
from actors.runtime.message.task_state import ReadTime, TaskState
from actors.runtime.windows.across import AcrossKeys, Feed, only_feed
from actors.runtime.windows.changes import ChangeStore
from stores._core.overlay import Overlay

K = TypeVar("K")
V = TypeVar("V")
OnClose = Callable[[Context, Window, Any], Awaitable[Any] | Any]
Changed = list[tuple[Window, V]]
Change = Callable[[bytes | None], Any]
"""A function from an encoded value, None if there is none, to the new one."""
Get = Callable[[bytes], bytes | None]
"""A function from a row to its value, None if the row is missing."""
Items = Callable[..., Iterator[tuple[bytes, bytes]]]
"""A function to the (row, value) from a row up to another one, as `Overlay.items`."""

LAST_MS = (1 << 63) - 1
_EXACT = frozenset((int, float, str, bytes))


@mypyc_attr(allow_interpreted_subclasses=True)
class WindowStore(AcrossKeys, Generic[K, V]):
    """A handle to windows by key, made by `app.window_store(...)` and used inside handlers of the actor that lists it.

    What a handler writes is committed with its message, as with `Store`. Times are Unix milliseconds.

    Attributes:
        name: the store's name.
        windows: which windows there are.
        grace_ms: how long a window takes records after its end, by stream time.
        retention_ms: how long a window can be read after its start, by stream time.
        rows: the store of its rows.
        on_close_function: called for each window that closes; None if nothing is.
        changes: the windows that changed, for `on_emit`; None without `emit=`.
        values: the `DistinctValues` that an aggregate counts, None for others.
        fed_by: of a stage across keys, what feeds it, for the layout.
        is_part: whether it belongs to another store, by which late messages are counted.
        close_when_idle: how far behind the clock windows close while the inputs are at their ends; None if they don't.
        kept_ms: how far behind stream time a window's start (sessions: end) is past its retention.
        segment_ms: how much time a row of sliding windows or sessions has.

    Examples:
        >>> from datetime import timedelta
        >>> from actors import App, Context, Tumbling, aggregates
        >>> from actors.testing import ActorTestDriver
        >>> app = App("shops", broker="kafka://127.0.0.1:9092")
        >>> sales = app.topic("sales", key_type=str, value_type=int)
        >>> minutes = app.window_store("minutes", Tumbling(timedelta(minutes=1)), aggregate=aggregates.sum())
        >>> @app.actor(sales, stores=[minutes])
        ... async def count(ctx: Context, cents: int) -> None:
        ...     minutes.add(ctx.key, cents)
        >>> noon_ms = 1_700_049_600_000
        >>> with ActorTestDriver(app) as driver:
        ...     for cents, after_ms in ((100, 5_000), (3, 50_000), (20, 61_000)):
        ...         driver.send(sales, key="rome", value=cents, timestamp_ms=noon_ms + after_ms)
        ...     {window.start_ms - noon_ms: total for window, total in driver.windows(minutes, "rome").items()}
        {0: 103, 60000: 20}
    """

    def __init__(
        self,
        name: str,
        windows: Windows,
        rows: Store[bytes, bytes],
        *,
        grace_ms: int,
        retention_ms: int,
        encode_key: Callable[[Any], bytes],
        decode_key: Callable[[bytes], Any],
        encode_value: Callable[[Any], bytes],
        decode_value: Callable[[bytes], Any],
        aggregate: Aggregate[Any] | None = None,
    ) -> None:
        self.name, self.windows, self.rows = name, windows, rows
        self.grace_ms, self.retention_ms = grace_ms, retention_ms
        self.encode_key, self.decode_key = encode_key, decode_key
        self.encode_value, self.decode_value = encode_value, decode_value
        self.aggregate, self.is_part = aggregate, False
        self._start: Any = None if aggregate is None else aggregate.starter()
        self.on_close_function: OnClose | None = None
        self.changes: ChangeStore | None = None
        self.close_when_idle: timedelta | None = None
        self.feeds, self.fed_by = list[Feed](), ""
        self.values: Any = None
        self._by_end = isinstance(windows, Session)
        self._aligned = windows if isinstance(windows, AlignedWindows) else None
        self.segment_ms = max(windows.longest_ms, -(-retention_ms // SEGMENTS) if self._by_end else 1)
        # The last millisecond of sliding windows and sessions belongs to them, and a sliding window that is open may
        # begin a millisecond behind the record before it, whose own window tells of that record.
        self.kept_ms = retention_ms + (0 if self._aligned is not None else 1 if self._by_end else 2)

    def __repr__(self) -> str:
        return f"<WindowStore {self.name}: {self.windows}>"

    def on_close(self, function: OnClose) -> OnClose:
        """Call a function as `(ctx, window, value)` for each window that closes: once for each key and window.

        It is called in the order of the windows' ends, after a crash too, and may write and send, as a handler does;
        `ctx.key` is the window's key, `ctx.timestamp_ms` its last millisecond. A window closes when stream time is
        `grace` behind its end, so the last windows stay open until further records come.

        Raises:
            UsageError: the store has such a function already.
        """
        if self.on_close_function not in (None, only_feed):
            raise UsageError(f"window store {self.name}: on_close is set already")
        self.on_close_function = function
        return function

    def on_emit(self, function: OnClose) -> OnClose:
        """Call a function as `(ctx, window, value)` for each window that changed, once an interval: see `emit=`.

        It is called when stream time has come to the interval's end, with the window's last value in it; of those that
        changed in one interval, windows that end first go first. As for `on_close`, it happens exactly once.
        `ctx.timestamp_ms` is the interval's last millisecond.

        Raises:
            UsageError: the store was declared without `emit=`, or has such a function already.
        """
        if self.changes is None:
            raise UsageError(f"window store {self.name}: on_emit needs emit=…, as in emit=Every(seconds=10)")
        if self.changes.on_close_function not in (None, only_feed):
            raise UsageError(f"window store {self.name}: on_emit is set already")
        self.changes.on_close_function = function
        return function

    def add(self, key: K, value: Any) -> Changed[Any]:
        """Add a value to the aggregate of each open window that the message belongs to.

        Returns:
            The windows with their new results, the earliest first; empty if the message is too late for all of them.

        Raises:
            UsageError: the store was declared without `aggregate=`.
        """
        aggregate = self._aggregate("add")
        add, start, decode = aggregate.add, self._start, self.decode_value
        if self.values is not None:
            counted: Changed[Any] = self.values.add(self, key, value)
            return counted
        return self._change(key, lambda raw: add(start() if raw is None else decode(raw), value))

    def update(self, key: K, function: Callable[[Any], Any], *, initial: Any = None) -> Changed[V]:
        """Replace the value of each open window that the message belongs to by what `function` returns for it.

        Args:
            key: the message's key.
            function: called with the window's value, or with a copy of `initial` for a new window.
            initial: see above.

        Returns:
            The windows with their new values, the earliest first; empty if the message is too late for all of them.

        Raises:
            UsageError: the windows are sessions, which need an aggregate that merges.
        """
        if isinstance(self.windows, Session) and self.aggregate is None:
            raise UsageError(f"window store {self.name}: sessions merge: declare it with aggregate=…, and use add()")

        decode = self.decode_value
        return self._change(key, lambda raw: function(deepcopy(initial) if raw is None else decode(raw)))

    def get(self, key: K, window: Window | int | None = None, default: Any = None) -> Any:
        """Return the value of a window, or `default` where there is none, or it is past its retention.

        Args:
            key: whose window.
            window: a window, or its start; for tumbling windows, the one of the message when left out.
            default: see above.

        Raises:
            UsageError: it isn't said which window.
        """
        overlay, state, raw_key = self._place(key)
        start_ms = self._start_of(window, state)
        if self._aligned is not None:
            if start_ms <= state.windows.visible_ms(self):
                return default
            raw = overlay.get(aligned_key(start_ms, raw_key))
            return default if raw is None else self.result(raw[1:])
        held = self._kept(self._segments(overlay.get, raw_key, start_ms, LAST_MS, state.windows), state.windows)
        return next((self.result(one.value) for one in held if one.start_ms == start_ms), default)

    def set(self, key: K, value: V, window: Window | int | None = None) -> bool:
        """Write the value of a tumbling or hopping window, the message's own when left out; False if it is closed.

        Raises:
            UsageError: the windows follow from records (sliding, session), or have an aggregate.
        """
        if self._aligned is None or self.aggregate is not None:
            raise UsageError(f"window store {self.name}: its values follow from records: use add() or update()")
        overlay, state, raw_key = self._place(key)
        own = self._aligned.starting(self._start_of(window, state))
        row = aligned_key(own.start_ms, raw_key)
        if not state.windows.is_open(self, own) or row <= state.windows.handled(self):
            return False
        self.write_row(overlay, state, row, value)
        return True

    def write_row(self, overlay: Overlay, state: TaskState, row: bytes, value: Any) -> None:
        """Write the value, or the aggregate's state, of a tumbling or hopping window that is open."""
        rows = [(row, VALUE + self.encode_value(value))]
        self.rows.write_all(overlay, state, rows)
        self._note_aligned(state, rows)

    def delete(self, key: K, window: Window | int | None = None) -> bool:
        """Remove a tumbling or hopping window that is open; tell whether it was there.

        Raises:
            UsageError: the windows follow from records (sliding, session).
        """
        if self._aligned is None:
            raise UsageError(f"window store {self.name}: its windows follow from records and can't be removed")
        overlay, state, raw_key = self._place(key)
        own = self._aligned.starting(self._start_of(window, state))
        row = aligned_key(own.start_ms, raw_key)
        if not (state.windows.is_open(self, own) and overlay.delete(row)):
            return False
        if state.windows.carried is not None:
            state.windows.carried.forget(state, self.rows, row)
        if self.values is not None:
            self.values.forget(state, raw_key, own)
        if self.changes is not None:
            self.changes.forget(state, raw_key, own)
            for feed in self.changes.feeds:
                feed(current_message.get(), raw_key, own, None)
        return True

    def fetch(
        self, key: K, from_ms: SupportsIndex = 0, to_ms: SupportsIndex = LAST_MS, *, reverse: bool = False
    ) -> Iterator[tuple[Window, Any]]:
        """Return the windows of a key that begin in a span of time, both bounds included, in order of their starts."""
        overlay, state, raw_key = self._place(key)
        # Stream time bounds the span, once it is known.
        first_ms = self.first_ms(overlay.items) if state.windows.stream_ms < 0 else 0
        span = (index(from_ms), index(to_ms))
        found = self.windows_between(overlay.get, raw_key, *span, state.windows, first_ms=first_ms)
        return iter([(window, self.result(raw)) for window, raw in (reversed(found) if reverse else found)])

    def windows_between(
        self, get: Get, raw_key: bytes, from_ms: int, to_ms: int, time: ReadTime, *, first_ms: int = 0
    ) -> list[tuple[Window, bytes]]:
        """Return an encoded key's windows that begin in a span of time, in order; no row is before `first_ms`."""
        visible_ms = time.visible_ms(self)
        if self._aligned is not None:
            starts = self._aligned.starts(max(from_ms, visible_ms + 1, first_ms), min(to_ms, time.latest_ms))
            rows = ((start_ms, get(aligned_key(start_ms, raw_key))) for start_ms in starts)
            return [(self._aligned.starting(start_ms), raw[1:]) for start_ms, raw in rows if raw is not None]
        found = self._segments(get, raw_key, max(from_ms, first_ms), LAST_MS if self._by_end else to_ms, time)
        shown = (one for one in self._kept(found, time) if from_ms <= one.start_ms <= to_ms)
        return sorted((one.window, one.value) for one in shown)

    def first_ms(self, items: Items) -> int:
        """Return the time at which the first row lies; 0 if there is none."""
        start, end, unit_ms = (b"w", b"x", 1) if self._aligned is not None else (b"k", b"l", self.segment_ms)
        return next((time_of(row) * unit_ms for row, _ in items(start, end)), 0)

    def fetch_all(
        self, from_ms: SupportsIndex = 0, to_ms: SupportsIndex = LAST_MS, *, reverse: bool = False
    ) -> Iterator[tuple[K, Window, Any]]:
        """Return (key, window, value) of all keys of this partition, for windows that begin in a span of time.

        Tumbling and hopping windows come in order of their starts, others in order of the segments that they lie in.

        Raises:
            UsageError: the actor has `concurrency`: other keys are being handled.
        """
        _, overlay, state = self.rows._reach(current_message.get(None))
        if state.on_wait is not None:
            raise no_ranges(self.name)
        rows = self.all_between(overlay.items, index(from_ms), index(to_ms), state.windows, reverse=reverse)
        return self._decoded(rows)

    def _decoded(self, rows: Iterator[tuple[bytes, Window, bytes]]) -> Iterator[tuple[K, Window, Any]]:
        for raw_key, window, raw in rows:
            yield self.decode_key(raw_key), window, self.result(raw)

    def all_between(
        self, items: Items, from_ms: int, to_ms: int, time: ReadTime, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, Window, bytes]]:
        """Return (encoded key, window, encoded value) of all windows that begin in a span of time, as `fetch_all`."""
        visible_ms = time.visible_ms(self)
        first_ms = max(0, from_ms, visible_ms + 1)
        if self._aligned is not None:
            end = b"x" if to_ms >= LAST_MS else aligned_key(to_ms + 1, b"")
            for row, raw in items(aligned_key(first_ms, b""), end, reverse=reverse):
                yield key_of(row), self._aligned.starting(time_of(row)), raw[1:]
            return
        for row, raw in items(list_key(first_ms // self.segment_ms, b""), b"l", reverse=reverse):
            for one in sorted(decode_list(raw), key=lambda held: held.start_ms, reverse=reverse):
                if from_ms <= one.start_ms <= to_ms and self.counts_ms(one) > visible_ms and not one.is_merged:
                    yield key_of(row), one.window, one.value

    def is_late(self, raw_key: bytes, at_ms: int, overlay: Overlay, state: TaskState) -> bool:
        """Return whether a record of a key at that time would change no window."""
        time, kind = state.windows, self.windows
        if at_ms > time.closed_ms(self):
            return False
        if isinstance(kind, AlignedWindows):
            return not any(time.is_open(self, window) for window in kind.holding(at_ms))
        if isinstance(kind, Sliding):
            return not time.is_open(self, Window(at_ms, at_ms + kind.longest_ms))
        segments = self._segments(overlay.get, raw_key, at_ms - kind.gap_ms, LAST_MS, time)
        window, _ = into_session(kind, self._kept(segments, time), at_ms)
        return not time.is_open(self, window)

    @property
    def layout(self) -> str:
        """The windows that the rows are made for, and the rows' layout: rows of other windows can't be read by it."""
        return f"{self.windows}{self.fed_by}" if self._aligned else f"{self.windows}, {self.segment_ms} ms a list"

    def end_ms(self, row: bytes) -> int:
        """Return the end of the window that the close of a row is of."""
        return time_of(row) if self._aligned is None else self._aligned.starting(time_of(row)).end_ms

    def closing_ms(self, row: bytes) -> int:
        """Return the stream time from which on the window of a row is closed by the grace that is declared."""
        end_ms = self.end_ms(row)
        return self.windows.closes_ms(Window(end_ms, end_ms), self.grace_ms)

    def expired_until(self, to_ms: int) -> bytes:
        """Return the first row behind those with nothing but windows that begin (sessions: end) up to a time."""
        if to_ms < 0:
            return b""
        return list_key((to_ms + 1) // self.segment_ms, b"") if self._aligned is None else aligned_key(to_ms + 1, b"")

    def expired_ms(self, row: bytes) -> int:
        """Return the time that `expired_until` returned a row for: the last one of a list's segment; -1 of no row."""
        return time_of(row) * (1 if self._aligned is not None else self.segment_ms) - 1 if row else -1

    def result(self, raw: bytes) -> Any:
        """Return the users' value of a window's encoded value."""
        value = self.decode_value(raw)
        return value if self.aggregate is None else self.aggregate.result(value)

    def segment_of(self, held: Held) -> int:
        """Return the segment whose list has a window."""
        return self.counts_ms(held) // self.segment_ms

    def counts_ms(self, window: Held | Window) -> int:
        """Return the time of a window from which on its retention counts."""
        return window.end_ms if self._by_end else window.start_ms

    def _aggregate(self, call: str) -> Aggregate[Any]:
        if self.aggregate is None:
            raise UsageError(f"window store {self.name}: {call}() needs aggregate=…, as in aggregate=aggregates.sum()")
        return self.aggregate

    def _place(self, key: K) -> tuple[Overlay, TaskState, bytes]:
        ctx, overlay, state = self.rows._reach(current_message.get(None))
        raw_key = self.encode_key(key)
        if raw_key != ctx._raw_key:
            self.rows._check_placement(raw_key, state)
        return overlay, state, raw_key

    def _start_of(self, window: Window | int | None, state: TaskState) -> int:
        if window is not None:
            return window if isinstance(window, int) else window.start_ms
        ctx = current_message.get(None)
        own = () if self._aligned is None or ctx is None else self._aligned.holding(state.windows.time_of(ctx))
        if len(own) != 1:
            raise UsageError(f"window store {self.name}: {self.windows} has several windows at a time: say window=…")
        return own[0].start_ms

    def _change(self, key: K, change: Change) -> Changed[Any]:
        overlay, state, raw_key = self._place(key)
        time, kind = state.windows, self.windows
        at_ms = time.time_of(current_message.get())
        if isinstance(kind, AlignedWindows):
            found = self._into_aligned(kind.holding(at_ms), overlay, state, raw_key, change)
        elif isinstance(kind, Sliding):
            found = self._into_sliding(kind, overlay, state, raw_key, at_ms, lambda raw: self.encode_value(change(raw)))
        else:
            found = self._into_session(kind, overlay, state, raw_key, at_ms, change)
        if not found:
            time.count_late_for(self, current_message.get())
        return found

    def _result(self, value: Any, encoded: bytes) -> Any:
        """Return the users' value of a value that was just encoded."""
        # What is read back is equal, save for types that MessagePack doesn't tell apart.
        value = value if type(value) in _EXACT else self.decode_value(encoded)
        return value if self.aggregate is None else self.aggregate.result(value)

    def _into_aligned(
        self, windows: Sequence[Window], overlay: Overlay, state: TaskState, raw_key: bytes, change: Change
    ) -> Changed[Any]:
        """Change a record's windows. Hot: a record of hopping windows has many, so each has few calls."""
        encode, shown, get, time = self.encode_value, self._result, overlay.get, state.windows
        closed_ms, handled = time.closed_ms(self), time.handled(self)
        is_result = self.aggregate is None or self.aggregate.result is as_it_is
        found: Changed[Any] = []
        rows: list[tuple[bytes, bytes]] = []
        open_windows = [window for window in windows if time.is_open(self, window)] if time.is_closing else windows
        for window in open_windows:
            row = aligned_prefix(window[0]) + raw_key
            if window[1] > closed_ms and row > handled:
                raw = get(row)
                value = change(None if raw is None else raw[1:])
                encoded = encode(value)
                rows.append((row, VALUE + encoded))
                found.append((window, value if is_result and type(value) in _EXACT else shown(value, encoded)))
        if rows:
            self.rows.write_all(overlay, state, rows)
            if self.on_close_function is not None or self.changes is not None:
                self._note_aligned(state, rows)
        return found

    def _note_aligned(self, state: TaskState, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Count on the closes of windows of a key that were written, the earliest first, and note that they changed."""
        if self.on_close_function is not None:
            # Rows close in their order, so the first one says all.
            row, _ = rows[0]
            state.windows.expect(self, row)
            if state.windows.carried is not None:
                state.windows.carried.keep(state, self.rows, [row for row, _ in rows])
        if self.changes is not None and self._aligned is not None:
            for row, raw in rows:
                self.changes.note(state, key_of(row), self._aligned.starting(time_of(row)), raw[1:])

    def _kept(self, segments: dict[int, list[Held]], time: ReadTime) -> list[Held]:
        """Return the windows of segments that aren't past their retention, without those kept for their close alone."""
        # Hot: as `counts_ms`, without a call for each window.
        visible_ms, by_end = time.visible_ms(self), self._by_end
        return [
            one
            for held in segments.values()
            for one in held
            if (one.end_ms if by_end else one.start_ms) > visible_ms and not one.is_merged
        ]

    def _segments(self, get: Get, raw_key: bytes, from_ms: int, to_ms: int, time: ReadTime) -> dict[int, list[Held]]:
        """Return a key's windows by segment, for a span of time: all that begin or end there, and others."""
        segment_ms = self.segment_ms
        # No window begins, or ends, more than a millisecond behind the last record.
        first = max(0, from_ms, time.visible_ms(self) + 1) // segment_ms
        last = min(to_ms, max(time.latest_ms, 0) + 1) // segment_ms
        found: dict[int, list[Held]] = {}
        for segment in range(first, last + 1):
            if (raw := get(list_key(segment, raw_key))) is not None:
                found[segment] = decode_list(raw)
        return found

    def _into_sliding(
        self, kind: Sliding, overlay: Overlay, state: TaskState, raw_key: bytes, at_ms: int, fold: Callable[..., bytes]
    ) -> Changed[Any]:
        time, length = state.windows, kind.longest_ms
        if not time.is_open(self, Window(at_ms, at_ms + length)):
            return []
        found = self._segments(overlay.get, raw_key, at_ms - 2 * length, at_ms + 1, time)
        near = [one for held in found.values() for one in held if at_ms - 2 * length <= one.start_ms <= at_ms + 1]
        near.sort(key=lambda one: one.start_ms)
        changed = into_sliding(kind, near, at_ms, fold, lambda window: time.is_open(self, window))
        self._write_lists(overlay, state, raw_key, found, [], changed)
        return [(one.window, self.result(one.value)) for one in sorted(changed, key=lambda one: one.start_ms)]

    def _into_session(
        self, kind: Session, overlay: Overlay, state: TaskState, raw_key: bytes, at_ms: int, change: Change
    ) -> Changed[Any]:
        time = state.windows
        from_ms = max(0, at_ms - kind.gap_ms, time.visible_ms(self) + 1)
        # Hot: most records are of their key's last session, or of one behind it.
        if self.changes is None and time.carried is None and not time.is_closing:
            changed = self._into_last(overlay, state, raw_key, from_ms, at_ms, change)
            if changed is not None:
                return changed
        found = self._segments(overlay.get, raw_key, at_ms - kind.gap_ms, LAST_MS, time)
        window, gone = into_session(kind, self._kept(found, time), at_ms)
        if not time.is_open(self, window) or window.end_ms in {one.end_ms for one in gone if one.is_closed}:
            return []
        value = change(self._merged(gone))
        encoded = self.encode_value(value)
        new = [Held(window.start_ms, window.end_ms, encoded, window.end_ms)]
        if gone and self.on_close_function is not None:
            # The close of a session that is due comes, however long it waits: what is final doesn't depend on commits.
            due = (one for one in gone if not one.is_closed and not time.is_open(self, one.window))
            new += [structs.replace(one, is_merged=True) for one in due]
        self._write_lists(overlay, state, raw_key, found, gone, new)
        return [(window, self._result(value, encoded))]

    def _into_last(
        self, overlay: Overlay, state: TaskState, raw_key: bytes, from_ms: int, at_ms: int, change: Change
    ) -> Changed[Any] | None:
        """Put a record into its key's last session, or into one behind it; return None if it may concern others.

        The others aren't decoded. Sessions that end before `from_ms` are past their retention, or too far away.
        """
        time, segment_ms, own_segment = state.windows, self.segment_ms, at_ms // self.segment_ms
        segment, raw = last_list(overlay.get, raw_key, from_ms // segment_ms, (time.latest_ms + 1) // segment_ms)
        last = None if raw is None else last_of(raw)
        former = None if last is None or last.end_ms < from_ms else last
        start_ms, end_ms = (at_ms, at_ms) if former is None else (former.start_ms, max(former.end_ms, at_ms))
        if former is None:
            if segment != own_segment:
                segment, raw, last = own_segment, None, None
        elif at_ms < start_ms or former.is_closed or former.is_merged or end_ms // segment_ms != segment:
            # Others may be concerned, or it moves to another list.
            return None
        if not time.is_open(self, new_tuple(Window, (start_ms, at_ms if former is None else former.end_ms))):
            return [] if former is None else None
        value = change(None if former is None else former.value)
        session, row = Held(start_ms, end_ms, self.encode_value(value), end_ms), list_key(segment, raw_key)
        self.rows._write(overlay, state, row, with_last(raw, session, is_new=former is None), None)
        if former is None and self.on_close_function is not None:
            self._expect(overlay, state, row, [] if last is None else [last], [session])
        return [(new_tuple(Window, (start_ms, end_ms)), self._result(value, session.value))]

    def _merged(self, held: Sequence[Held]) -> bytes | None:
        """Return the value of sessions that become one, the earlier first; None of none."""
        if not held:
            return None
        raw = held[0].value
        for one in held[1:]:
            merge = self._aggregate("add").merge
            if merge is None:
                raise AssertionError("a session store's aggregate merges: it is checked when it is declared")
            raw = self.encode_value(merge(self.decode_value(raw), self.decode_value(one.value)))
        return raw

    def _write_lists(
        self,
        overlay: Overlay,
        state: TaskState,
        raw_key: bytes,
        found: dict[int, list[Held]],
        gone: list[Held],
        changed: list[Held],
    ) -> None:
        """Write the lists of all segments in which windows went, came or changed."""
        # A session that is past its retention may begin at the same time, and wait for its close.
        places = {(one.start_ms, one.end_ms) for one in (*gone, *changed)}
        new_in: dict[int, list[Held]] = {}
        for one in changed:
            new_in.setdefault(self.segment_of(one), []).append(one)
        for segment in sorted(found.keys() | new_in.keys() if gone else new_in):
            before, new = found.get(segment, []), new_in.get(segment, [])
            after = replaced(before, places, new)
            row = list_key(segment, raw_key)
            if not after:
                overlay.delete(row)
            elif new or len(after) < len(before):
                self.rows._write(overlay, state, row, encode_list(after), None)
                if self.on_close_function is not None:
                    self._expect(overlay, state, row, before, new)
        if self.on_close_function is not None and state.windows.carried is not None:
            state.windows.carried.keep_of_lists(state, self, raw_key, gone, changed)
        if self.changes is not None:
            self.changes.note_lists(state, raw_key, gone, changed)

    def _expect(self, overlay: Overlay, state: TaskState, list_row: bytes, before: list[Held], new: list[Held]) -> None:
        """Enter the next close of a list, unless an entry is there that comes no later."""
        next_ms = next_end_ms(new)
        if next_ms is None or any(not one.is_closed and one.end_ms <= next_ms for one in before):
            return
        row = close_key(next_ms, time_of(list_row), key_of(list_row))
        self.rows._write(overlay, state, row, b"", None)
        state.windows.expect(self, row)
