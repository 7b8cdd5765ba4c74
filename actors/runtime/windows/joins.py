"""The records of a join, of both inputs: what a record matches, and what matched none when its window closed.

A record's window holds all times at which records of the other input match it. As that of a window store, it is closed
when stream time is `grace` behind its last millisecond. A record that comes later is late. A record that matched none
is handed out at the close, once; each one has a row for it until then, or until it matches.

The rows are those of a `Store` of bytes, as a window store's are. `actors._core.windows.join_rows` says how they lie.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, Literal, NamedTuple

from actors._core.windows.join_rows import (
    CHUNK,
    CHUNK_BYTES,
    CONTENT,
    LEFT,
    ONES,
    RIGHT,
    UNMATCHED,
    Early,
    Kept,
    One,
    Unmatched,
    chunk_key,
    chunk_parts,
    chunk_prefix,
    decode_chunk,
    decode_early,
    decode_ones,
    encode_chunk,
    encode_early,
    encode_ones,
    segment_of,
    segment_row,
    shown_rest,
    unmatched_key,
    unmatched_parts,
    with_last_chunk,
    with_record,
)
from actors._core.windows.lists import count_of, number_of
from actors.runtime.message.context import Context
from actors.runtime.message.outputs import new_tuple
from actors.runtime.message.store import Store
from actors.runtime.message.task_state import TaskState, WindowTime
from actors.runtime.windows.store import LAST_MS
from stores._core.overlay import Overlay
from stores._core.windows import SIDE_AT

How = Literal["inner", "left", "outer"]
OnUnmatched = Callable[[Context, int, bytes], Awaitable[Any]]


class Match(NamedTuple):
    """A record of the other input that a message matches, and where it lies."""

    at_ms: int
    value: bytes
    chunk: int
    place: int


class JoinStore:
    """The records of a join. Times are Unix milliseconds; sides are `LEFT` and `RIGHT`.

    Attributes:
        name: the store's name.
        rows: the store of its rows.
        grace_ms: how long a record's window takes records after its end, by stream time.
        retention_ms: how long a record may match later ones, by stream time.
        kept_ms: how far behind stream time a record is past its retention.
        spans_ms: by side, how long after a record its last match may be.
        reports: by side, whether records without a match are handed out.
        on_close_function: called as `(ctx, side, value)` for these; None where nothing is handed out.
    """

    close_when_idle: timedelta | None = None
    is_part = False
    # It has no stages across keys.
    feeds = ()

    def __init__(
        self,
        rows: Store[bytes, bytes],
        *,
        how: How,
        before_ms: int,
        after_ms: int,
        grace_ms: int,
        decode_key: Callable[[bytes], Any],
    ) -> None:
        self.name, rows.layout = rows.name, "windows"
        self.rows = rows
        self.how = how
        self.grace_ms = grace_ms
        self.retention_ms = before_ms + after_ms + grace_ms
        # A record that is just in time may match one that is just as old.
        self.kept_ms = self.retention_ms + 1
        self.spans_ms = (after_ms, before_ms)
        self.reports = (how != "inner", how == "outer")
        self.decode_key = decode_key
        self.on_close_function: OnUnmatched | None = None
        self._segment_ms = before_ms + after_ms + 1

    def __repr__(self) -> str:
        return f"<JoinStore {self.name}: {self.layout}>"

    @property
    def layout(self) -> str:
        """The layout of the rows: rows of another join can't be read by it."""
        after, before = (timedelta(milliseconds=span_ms) for span_ms in self.spans_ms)
        return f"a join, {self.how}, within {after if before == after else f'{before} before and {after} after'}"

    def is_closed(self, side: int, at_ms: int, time: WindowTime) -> bool:
        """Return whether the window of a record is closed."""
        return at_ms + self.spans_ms[side] <= time.closed_ms(self)

    def keep_and_match(self, ctx: Context, side: int) -> list[Match] | None:
        """Keep the message that is handled, and return what it matches: in order of times, of one time as it came.

        Returns None if the message is late: then nothing is kept.
        """
        state, record, raw_key, other = ctx._working("join"), ctx._record, ctx._raw_key, 1 - side
        overlay, time, at_ms = state.overlays[self.rows], state.windows, record.timestamp
        if at_ms < time.latest_ms and self.is_closed(side, at_ms, time):
            return None
        to_ms, latest_ms = at_ms + self.spans_ms[side], time.latest_ms
        to_ms = to_ms if to_ms < latest_ms else latest_ms
        found = self._between(overlay, raw_key, other, at_ms - self.spans_ms[other], to_ms)
        if self.reports[other]:
            for one in found:
                # A close that is due comes, however long it waits: what is final doesn't depend on commits.
                if not self.is_closed(other, one.at_ms, time):
                    overlay.delete(self._unmatched(other, one.at_ms, one.chunk, one.place, raw_key))
        chunk, place = self._keep(overlay, state, side, at_ms, raw_key, record.value or b"")
        if self.reports[side] and not found:
            row = self._unmatched(side, at_ms, chunk, place, raw_key)
            self._write_end(overlay, state, row)
            time.expect(self, row)
        return found

    def _between(self, overlay: Overlay, raw_key: bytes, side: int, from_ms: int, to_ms: int) -> list[Match]:
        found: list[Match] = []
        for segment in range((from_ms if from_ms > 0 else 0) // self._segment_ms, to_ms // self._segment_ms + 1):
            number, last, raw = 0, 0, overlay.get(chunk_prefix(segment, side, 0) + raw_key)
            # Hot: most keys have no record there, most others one chunk.
            while raw is not None:
                last = number_of(raw) if number == 0 else last
                for place, one in enumerate(decode_chunk(raw)):
                    if from_ms <= one.at_ms <= to_ms:
                        found.append(new_tuple(Match, (one.at_ms, one.value, number, place)))
                number += 1
                raw = overlay.get(chunk_key(segment, side, number, raw_key)) if number <= last else None
        if len(found) > 1:
            found.sort(key=_time_of)
        return found

    def _keep(
        self, overlay: Overlay, state: TaskState, side: int, at_ms: int, raw_key: bytes, value: bytes
    ) -> tuple[int, int]:
        """Put a record behind those of its key and segment; return its chunk and its place there."""
        segment, record = at_ms // self._segment_ms, Kept(at_ms, value)
        row = first_row = chunk_prefix(segment, side, 0) + raw_key
        raw = first = overlay.get(row)
        if first is None:
            # Hot: most keys have one record there.
            self.rows._write(overlay, state, row, with_record(None, record), None)
            return 0, 0
        number = number_of(first)
        if number:
            row = chunk_key(segment, side, number, raw_key)
            raw = overlay.get(row)
        if raw is not None and len(raw) + len(value) > CHUNK_BYTES:
            number += 1
            self.rows._write(overlay, state, first_row, with_last_chunk(first, number), None)
            row, raw = chunk_key(segment, side, number, raw_key), None
        self.rows._write(overlay, state, row, with_record(raw, record), None)
        return number, 0 if raw is None else count_of(raw)

    def _unmatched(self, side: int, at_ms: int, chunk: int, place: int, raw_key: bytes) -> bytes:
        return unmatched_key(Unmatched(at_ms + self.spans_ms[side], side, chunk, place, raw_key))

    def _write_end(self, overlay: Overlay, state: TaskState, row: bytes) -> None:
        carried = state.windows.carried
        self.rows._write(overlay, state, row, b"" if carried is None else carried.value(state, self.rows, row), None)

    def is_late(self, *_: Any) -> bool:
        """Return whether `ctx.late` holds: late records of a join never come to its function."""
        return False

    def closing_ms(self, row: bytes) -> int:
        """Return the stream time from which on the window of a record without a match is closed."""
        return unmatched_parts(row).end_ms + self.grace_ms + 1

    def time_of(self, row: bytes) -> int:
        """Return the time of a record without a match."""
        one = unmatched_parts(row)
        return one.end_ms - self.spans_ms[one.side]

    def expired_until(self, to_ms: int) -> bytes:
        """Return the first row behind those with nothing but records up to a time."""
        return b"" if to_ms < 0 else segment_row((to_ms + 1) // self._segment_ms)

    def expired_ms(self, row: bytes) -> int:
        """Return the last time of the records before a row of `expired_until`; -1 of no row."""
        return segment_of(row) * self._segment_ms - 1 if row else -1

    def kept_at(self, overlay: Overlay, row: bytes) -> Kept | None:
        """Return the record that a row says had no match; None if it is missing."""
        one = unmatched_parts(row)
        raw = overlay.get(chunk_key(self.time_of(row) // self._segment_ms, one.side, one.chunk, one.raw_key))
        records = [] if raw is None else decode_chunk(raw)
        return records[one.place] if one.place < len(records) else None

    def result(self, raw: bytes) -> bytes:
        """Return the record's value for `on_close_function`, as it came."""
        return raw

    def shown_key(self, row: bytes) -> Any:
        """Return a row's key as people read it: (side, key, from when on), or that of a record without a match."""
        if row[:1] == CHUNK:
            segment, side, raw_key = chunk_parts(row)
            return _shown(side), self.decode_key(raw_key), segment * self._segment_ms
        if row[:1] == UNMATCHED:
            one = unmatched_parts(row)
            return "unmatched", _shown(one.side), self.decode_key(one.raw_key), self.time_of(row)
        return ("progress",)

    def shown_value(self, raw: bytes) -> Any:
        """Return a row's value as people read it: the times of records, or stream time."""
        if raw[:1] == CONTENT:
            return [one.at_ms for one in decode_chunk(raw)]
        return shown_rest(raw)

    def shown_row(self, decode: Sequence[Callable[[bytes], Any]], row: bytes, raw: bytes) -> Any:
        """Return a row's value as people read it: its records' times and values, which `decode` reads by side.

        Raises:
            ValueError: it isn't a row of a join, or a value doesn't decode.
        """
        if raw[:1] != CONTENT:
            return self.shown_value(raw)
        side = int.from_bytes(row[SIDE_AT : SIDE_AT + 1])
        if row[:1] != CHUNK or side >= len(decode):
            raise ValueError(f"not the row of a join's records: {row[:50]!r}")
        return [(one.at_ms, decode[side](one.value)) for one in decode_chunk(raw)]


class OneStore(JoinStore):
    """The records of a join of one with many: `LEFT` is the one, `RIGHT` the many that wait for theirs.

    A `one` is open from its own time to its end. What comes in between with its key replaces it; what comes later is
    another one, so a key may have several. Each row is removed by itself, with a delete in the changelog: no retention
    bounds how long a `one` is kept.
    """

    def __init__(
        self,
        rows: Store[bytes, bytes],
        *,
        how: How,
        retention_ms: int,
        grace_ms: int,
        decode_key: Callable[[bytes], Any],
    ) -> None:
        super().__init__(rows, how=how, before_ms=retention_ms, after_ms=0, grace_ms=grace_ms, decode_key=decode_key)
        self.waits_ms = retention_ms
        # What waits is in one segment: looking for it takes as many gets as there are chunks, however far times are.
        self._segment_ms = LAST_MS

    @property
    def layout(self) -> str:
        """The layout of the rows."""
        return f"a join of one with many, {self.how}, retention {timedelta(milliseconds=self.waits_ms)}"

    def put(self, ctx: Context, until_ms: int | None) -> list[Match] | None:
        """Keep the `one` that is handled; return what waited for it, which is removed, in order of times.

        Returns None if it is late.
        """
        _, overlay, state = self.rows._reach(ctx)
        record, raw_key, time = ctx._record, ctx._raw_key, state.windows
        at_ms = record.timestamp
        one = One(at_ms, at_ms + self.waits_ms if until_ms is None else until_ms, record.value or b"")
        if one.end_ms <= time.closed_ms(self):
            return None
        ones = self._ones(overlay, raw_key)
        open_ones = self._open(ones, time)
        if any(at_ms < other.at_ms <= one.end_ms for other in open_ones):
            # It was replaced before it came.
            return []
        former = next((other for other in open_ones if other.at_ms <= at_ms <= other.end_ms), None)
        if former is not None:
            one.is_matched = former.is_matched
            overlay.delete(_end_row(former, raw_key))
            ones.remove(former)
        early, others, open_ms = list[Match](), list[Match](), time.closed_ms(self) + 1
        for match in self._between(overlay, raw_key, RIGHT, 0, LAST_MS - 1):
            is_early = max(at_ms, open_ms) - self.waits_ms <= match.at_ms < one.until_ms
            (early if is_early else others).append(match)
        if early:
            self._wait_again(overlay, state, raw_key, others)
        one.is_matched = one.is_matched or bool(early)
        self._write_ones(overlay, state, raw_key, sorted([*ones, one], key=lambda other: other.at_ms))
        self._expect(overlay, state, _end_row(one, raw_key))
        return early

    def remove(self, ctx: Context) -> None:
        """Remove the `one` of the message's key that is open at its time."""
        _, overlay, state = self.rows._reach(ctx)
        ones, at_ms = self._ones(overlay, ctx._raw_key), ctx._record.timestamp
        for one in self._open(ones, state.windows):
            if one.at_ms <= at_ms <= one.end_ms:
                overlay.delete(_end_row(one, ctx._raw_key))
                ones.remove(one)
                self._write_ones(overlay, state, ctx._raw_key, ones)

    def one_of(self, ctx: Context) -> One | bool:
        """Return the `one` that a message of many matches.

        Without one the message is kept, and waits: then returns True, or False if it is late.
        """
        _, overlay, state = self.rows._reach(ctx)
        record, raw_key, time = ctx._record, ctx._raw_key, state.windows
        at_ms = record.timestamp
        ones = self._ones(overlay, raw_key)
        for one in self._open(ones, time):
            if one.at_ms - self.waits_ms <= at_ms < one.until_ms:
                if self.reports[LEFT] and not one.is_matched:
                    one.is_matched = True
                    self._write_ones(overlay, state, raw_key, ones)
                return one
        if self.is_closed(RIGHT, at_ms, time):
            return False
        headers = [(name, bytes(data)) for name, data in record.headers]
        early = encode_early(Early(record.offset, headers, record.value or b""))
        self._keep(overlay, state, RIGHT, at_ms, raw_key, early)
        # One row removes all that wait and whose times are close.
        span_ms = self.waits_ms + 1
        last_ms = (at_ms // span_ms + 1) * span_ms - 1
        self._expect(overlay, state, unmatched_key(Unmatched(last_ms + self.waits_ms, RIGHT, 0, 0, raw_key)))
        return True

    def _ones(self, overlay: Overlay, raw_key: bytes) -> list[One]:
        """Return the `one`s of a key, in order of their times, also those that wait for their close."""
        raw = overlay.get(ONES + raw_key)
        return [] if raw is None else decode_ones(raw)

    def _open(self, ones: list[One], time: WindowTime) -> list[One]:
        # A close that is due comes, however long it waits: what is final doesn't depend on commits.
        closed_ms = time.closed_ms(self) if ones else 0
        return [one for one in ones if one.end_ms > closed_ms]

    def _write_ones(self, overlay: Overlay, state: TaskState, raw_key: bytes, ones: list[One]) -> None:
        if ones:
            self.rows._write(overlay, state, ONES + raw_key, encode_ones(ones), None)
        else:
            overlay.delete(ONES + raw_key)

    def _wait_again(self, overlay: Overlay, state: TaskState, raw_key: bytes, waiting: Iterable[Match]) -> None:
        """Put these in the place of all records of a key that wait."""
        raw = overlay.get(chunk_key(0, RIGHT, 0, raw_key))
        for number in range(0 if raw is None else number_of(raw) + 1):
            overlay.delete(chunk_key(0, RIGHT, number, raw_key))
        for match in waiting:
            self._keep(overlay, state, RIGHT, match.at_ms, raw_key, match.value)

    def _expect(self, overlay: Overlay, state: TaskState, row: bytes) -> None:
        if overlay.get(row) is None:
            # Those that wait have their headers beside them; a `one` that isn't reported needs none.
            if self.reports[LEFT] and unmatched_parts(row).side == LEFT:
                self._write_end(overlay, state, row)
            else:
                self.rows._write(overlay, state, row, b"", None)
        state.windows.expect(self, row)

    def close(self, state: TaskState, row: bytes) -> list[tuple[int, bytes]]:
        """Remove what a row says has ended; return its side with what there is to say of it, if there is anything.

        That is the value of a `one` that matched none, if it is reported, or the chunk of those that waited in vain.
        """
        overlay, ended = state.overlays[self.rows], unmatched_parts(row)
        overlay.delete(row)
        if ended.side == RIGHT:
            waiting = self._between(overlay, ended.raw_key, RIGHT, 0, LAST_MS - 1)
            over = [match for match in waiting if match.at_ms + self.waits_ms <= ended.end_ms]
            if over:
                self._wait_again(overlay, state, ended.raw_key, waiting[len(over) :])
            return [(RIGHT, encode_chunk([Kept(match.at_ms, match.value) for match in over]))] if over else []
        ones = self._ones(overlay, ended.raw_key)
        over_ones = [one for one in ones if one.end_ms == ended.end_ms]
        self._write_ones(overlay, state, ended.raw_key, [one for one in ones if one not in over_ones])
        return [(LEFT, one.value) for one in over_ones if self.reports[LEFT] and not one.is_matched]

    def time_of(self, row: bytes) -> int:
        """Return the time of a call for what has ended: the last at which it could match."""
        return unmatched_parts(row).end_ms

    def expired_until(self, to_ms: int) -> bytes:
        """Return b"": each row is removed by itself."""
        return b""

    def shown_key(self, row: bytes) -> Any:
        """Return a row's key for people; of a row with an end, the time is that."""
        return ("one", self.decode_key(row[1:])) if row[:1] == ONES else super().shown_key(row)

    def shown_value(self, raw: bytes) -> Any:
        """Return a row's value as people read it: times, or stream time."""
        if raw[:1] == ONES:
            return [(one.at_ms, one.until_ms) for one in decode_ones(raw)]
        return super().shown_value(raw)

    def shown_row(self, decode: Sequence[Callable[[bytes], Any]], row: bytes, raw: bytes) -> Any:
        """Return a row's value for people."""
        if raw[:1] == ONES:
            return [(one.at_ms, one.until_ms, decode[LEFT](one.value)) for one in decode_ones(raw)]
        if raw[:1] == CONTENT:
            return [(one.at_ms, decode[RIGHT](decode_early(one.value).value)) for one in decode_chunk(raw)]
        return self.shown_value(raw)


def _end_row(one: One, raw_key: bytes) -> bytes:
    """Return the row by which a `one` is closed."""
    return unmatched_key(Unmatched(one.end_ms, LEFT, 0, 0, raw_key))


def _time_of(one: Match) -> int:
    return one.at_ms


def _shown(side: int) -> str:
    return "left" if side == LEFT else "right"
