"""Map, list and set stores, by which handlers and queries reach the rows below a key.

A handle is made once, at import, and holds no data; `at` returns the rows of a key for the message that is handled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any, Generic, TypeVar, overload

from actors._core.values.rows import decode_span, encode_span, place_of, place_row, row_parts, rows_prefix, span_key
from actors.errors import UsageError
from actors.runtime.message.context import Context, current_message
from actors.runtime.message.outputs import RECORD_OVERHEAD_BYTES, too_large
from actors.runtime.message.store import Store
from actors.runtime.message.store_errors import checked_ttl_ms, unreachable
from actors.runtime.message.task_state import TaskState
from stores._core.overlay import Overlay, after_prefix
from stores._core.record import NEVER, expires_at_ms

K = TypeVar("K")
R = TypeVar("R")
V = TypeVar("V")
Item = TypeVar("Item")
FEW = 8
"""So many rows of a list are read one by one."""


class RowStore:
    """Rows below the keys of an actor, each a record of its own in the partition of its key.

    `kind` is what the rows of a key are. `rows` is the store of all rows; its keys are pairs of a key and a row, for
    people.
    """

    kind = ""
    encode_key: Callable[[Any], bytes]
    decode_key: Callable[[bytes], Any]

    def __init__(
        self, rows: Store[Any, Any], encode_row: Callable[[Any], bytes], decode_row: Callable[[bytes], Any]
    ) -> None:
        self.name, self.rows = rows.name, rows
        self.encode_row, self.decode_row = encode_row, decode_row
        rows.below, rows.layout = self, "sized"

    def set_span(self, overlay: Overlay, raw_key: bytes, first: int, end: int) -> None:
        """Note where the rows of a key begin and end."""
        if first < end:
            overlay.set(span_key(raw_key), encode_span(first, end))
        else:
            overlay.delete(span_key(raw_key))

    def removed(self, overlay: Overlay, raw: bytes) -> None:
        """Count off a row that expired and was removed."""
        raw_key, row = row_parts(raw)
        if row is not None:
            first, end = decode_span(overlay.get(span_key(raw_key)))
            self.set_span(overlay, raw_key, *self._without(overlay, rows_prefix(raw_key), row, (first, end)))

    def _without(self, overlay: Overlay, prefix: bytes, row: bytes, span: tuple[int, int]) -> tuple[int, int]:
        return span[0], span[1] - 1


class KeyRows:
    """The rows below a key, of use until the message is handled."""

    __slots__ = ("_ctx", "_layer", "_prefix", "_raw_key", "_span_key", "_state", "_store")

    def __init__(self, store: RowStore, key: Any) -> None:
        ctx, overlay, state = store.rows._reach(current_message.get(None))
        raw_key = store.encode_key(key)
        if raw_key != ctx._raw_key:
            store.rows._check_placement(raw_key, state)
        self._store, self._raw_key = store, raw_key
        self._ctx: Context = ctx
        self._state: TaskState = state
        self._layer: Overlay = overlay
        self._prefix, self._span_key = rows_prefix(raw_key), span_key(raw_key)

    def clear(self) -> None:
        """Remove all rows of the key, each with a tombstone in the changelog."""
        overlay = self._overlay
        for raw, _ in overlay.scan(self._prefix, after_prefix(self._prefix)):
            overlay.delete(raw)
        overlay.delete(self._span_key)

    @property
    def _overlay(self) -> Overlay:
        if self._ctx._state is None:
            raise unreachable(self._store.name, None)
        return self._layer

    def _span(self) -> tuple[int, int]:
        return decode_span(self._overlay.get(self._span_key))

    def _read(self, raw: bytes) -> Any:
        return self._store.rows._decoded(raw, self._state)

    def _write(self, row: bytes, value: Any, ttl_ms: int | None) -> None:
        overlay, store, state = self._overlay, self._store, self._state
        rows, raw_row = store.rows, self._prefix + row
        raw, limit = rows.encode_value(value), state.max_record_bytes[store.name]
        size = len(raw_row) + len(raw)
        if size + RECORD_OVERHEAD_BYTES > limit:
            what = f"changelog of store {store.name}, row {store.decode_row(row)!r}"
            raise too_large(what, self._raw_key, size, limit)
        if rows.refuse_newer is not None:
            rows._check_held(overlay, state, raw_row)
        rows._write(overlay, state, raw_row, raw, ttl_ms)

    def _delete(self, row: bytes) -> bool:
        overlay, rows, raw_row = self._overlay, self._store.rows, self._prefix + row
        if rows.refuse_newer is not None:
            rows._check_held(overlay, self._state, raw_row)
        return overlay.delete(raw_row)

    def _ttl_ms(self, ttl: timedelta | None) -> int | None:
        return self._store.rows.ttl_ms if ttl is None else checked_ttl_ms(self._store.rows, ttl)


class _ByRow(KeyRows, Generic[R, Item]):
    """Rows that have keys of their own, in byte order of the encoded keys."""

    __slots__ = ()

    def __len__(self) -> int:
        """Return the number of rows. Of a store in which rows expire, this looks at each."""
        if self._store.rows.expires:
            return sum(1 for _ in self._between(None, None))
        first, end = self._span()
        return end - first

    def __contains__(self, row: object) -> bool:
        return self._overlay.get(self._prefix + self._store.encode_row(row)) is not None

    def __iter__(self) -> Iterator[R]:
        return _ByRow._items(self, self._between(None, None))

    def range(self, start: R | None = None, end: R | None = None, *, reverse: bool = False) -> Iterator[Item]:
        """Return the rows from `start`, included, to `end`, not included, of a map with their values."""
        return self._items(self._between(start, end, reverse=reverse))

    def prefix(self, prefix: R) -> Iterator[Item]:
        """Return the rows whose bytes begin with those of `prefix`, of a map with their values."""
        return self._items(self._overlay.prefix(self._prefix + self._store.encode_row(prefix)))

    def delete(self, row: R) -> bool:
        """Remove a row, with a tombstone in the changelog; tell whether it was there."""
        raw_row = self._store.encode_row(row)
        is_kept = self._overlay.is_kept(self._prefix + raw_row)
        was_there = self._delete(raw_row)
        if is_kept:
            self._grow(-1)
        return was_there

    def _put(self, raw_row: bytes, value: Any, ttl_ms: int | None) -> None:
        # One that has expired is counted until it is removed.
        is_kept = self._overlay.is_kept(self._prefix + raw_row)
        self._write(raw_row, value, ttl_ms)
        if not is_kept:
            self._grow(1)

    def _grow(self, count: int) -> None:
        first, end = self._span()
        self._store.set_span(self._layer, self._raw_key, first, end + count)

    def _between(self, start: R | None, end: R | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        encode, prefix = self._store.encode_row, self._prefix
        first = prefix if start is None else prefix + encode(start)
        last = after_prefix(prefix) if end is None else prefix + encode(end)
        return self._overlay.items(first, last, reverse=reverse)

    def _items(self, pairs: Iterable[tuple[bytes, bytes]]) -> Iterator[Any]:
        at, decode = len(self._prefix), self._store.decode_row
        return (decode(raw[at:]) for raw, _ in pairs)


class MapRows(_ByRow[R, tuple[R, V]], Generic[R, V]):
    """The rows of a key in a map store: `rows[row] = value`, in byte order of the encoded rows.

    A row that is absent or has expired raises `KeyError` in `rows[row]` and `del rows[row]`.
    """

    __slots__ = ()

    def get(self, row: R, default: V | None = None) -> V | None:
        """Return the value of a row, or `default` when it is absent or expired."""
        raw = self._overlay.get(self._prefix + self._store.encode_row(row))
        return default if raw is None else self._read(raw)

    def __getitem__(self, row: R) -> V:
        raw = self._overlay.get(self._prefix + self._store.encode_row(row))
        if raw is None:
            raise KeyError(row)
        value: V = self._read(raw)
        return value

    def __setitem__(self, row: R, value: V) -> None:
        self.set(row, value)

    def __delitem__(self, row: R) -> None:
        if not self.delete(row):
            raise KeyError(row)

    def set(self, row: R, value: V, *, ttl: timedelta | None = None) -> None:
        """Write a row; it expires `ttl` after now, the store's own by default. Errors are those of `Store.set`."""
        self._put(self._store.encode_row(row), value, self._ttl_ms(ttl))

    def items(self) -> Iterator[tuple[R, V]]:
        """Return all (row, value) of the key, as of the call."""
        return self.range()

    def _items(self, pairs: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[R, V]]:
        at, decode, read = len(self._prefix), self._store.decode_row, self._read
        return ((decode(raw[at:]), read(value)) for raw, value in pairs)


class SetRows(_ByRow[R, R], Generic[R]):
    """The rows of a key in a set store, in byte order of the encoded rows."""

    __slots__ = ()

    def add(self, row: R, *, ttl: timedelta | None = None) -> bool:
        """Add a row; tell whether it is new. With a time to live one that is there lives on; errors as `Store.set`."""
        raw_row, ttl_ms = self._store.encode_row(row), self._ttl_ms(ttl)
        is_there = self._overlay.get(self._prefix + raw_row) is not None
        if not is_there or ttl_ms is not None:
            self._put(raw_row, b"", ttl_ms)
        return not is_there

    discard = _ByRow.delete


class ListRows(KeyRows, Generic[V]):
    """The rows of a key in a list store, the oldest first: `rows.append(value)`, `rows[-20:]`.

    An index that the list doesn't have raises `IndexError`.
    """

    __slots__ = ()

    def __len__(self) -> int:
        first, end = self._span()
        return end - first

    @overload
    def __getitem__(self, index: int) -> V: ...
    @overload
    def __getitem__(self, index: slice) -> list[V]: ...
    def __getitem__(self, index: int | slice) -> V | list[V]:
        first, end = self._span()
        if isinstance(index, slice):
            places = range(end - first)[index]
            return list(self._values(range(first + places.start, first + places.stop, places.step)))
        raw = self._overlay.get(self._raw_place(index, first, end))
        if raw is None:
            raise self._out_of_range(index)
        value: V = self._read(raw)
        return value

    def __setitem__(self, index: int, value: V) -> None:
        """Replace a row, which expires as the one before would have."""
        place = self._raw_place(index, *self._span())
        kept = self._overlay.read(place)
        if kept is None:
            raise self._out_of_range(index)
        ends_ms = expires_at_ms(kept)
        left_ms = None if ends_ms == NEVER else ends_ms - self._ctx.now_ms
        self._write(place[len(self._prefix) :], value, left_ms)

    def __delitem__(self, rows: slice) -> None:
        """Remove rows at the front: `del rows[:n]`, or `del rows[:-n]` to keep the newest n.

        Raises:
            UsageError: they aren't those at the front.
        """
        first, end = self._span()
        places = range(end - first)[rows] if isinstance(rows, slice) else None
        if places is None or (places and (places.start, places.step) != (0, 1)):
            raise UsageError(
                f"store {self._store.name}: the rows of a list are removed at its front: del rows[:n], or "
                "clear(); to remove others, keep them in a map store"
            )
        # Those that have expired and weren't removed yet are in front of the first.
        kept_first, _ = KeyRows._span(self)
        for place in range(kept_first, first + len(places)):
            self._delete(place_row(place))
        self._store.set_span(self._overlay, self._raw_key, first + len(places), end)

    def __iter__(self) -> Iterator[V]:
        return self._values(range(*self._span()))

    def append(self, value: V) -> None:
        """Add a row at the end. Errors are those of `Store.set`."""
        first, end = KeyRows._span(self)
        self._write(place_row(end), value, self._store.rows.ttl_ms)
        self._store.set_span(self._layer, self._raw_key, first, end + 1)

    def _span(self) -> tuple[int, int]:
        """Return where the rows that haven't expired begin and end."""
        first, end = super()._span()
        if first < end and self._store.rows.expires:
            at, prefix = len(self._prefix), self._prefix
            oldest = next(self._layer.items(prefix + place_row(first), prefix + place_row(end)), None)
            first = end if oldest is None else place_of(oldest[0][at:])
        return first, end

    def _raw_place(self, index: int, first: int, end: int) -> bytes:
        try:
            return self._prefix + place_row(range(first, end)[index])
        except IndexError:
            raise self._out_of_range(index) from None

    def _out_of_range(self, index: int) -> IndexError:
        return IndexError(f"store {self._store.name}: the list has no row {index}")

    def _values(self, places: range) -> Iterator[V]:
        overlay, prefix, read = self._overlay, self._prefix, self._read
        if len(places) > FEW and abs(places.step) == 1 and not overlay.writes:
            first, last = sorted((places[0], places[-1]))
            start, end = prefix + place_row(first), prefix + place_row(last + 1)
            return (read(raw) for _, raw in overlay.items(start, end, reverse=places.step < 0))
        # A range would look at all uncommitted keys.
        raws = (overlay.get(prefix + place_row(place)) for place in places)
        return (read(raw) for raw in raws if raw is not None)


class MapStore(RowStore, Generic[K, R, V]):
    """A handle to a map for each key, made by `app.map_store(...)` and used in handlers of the actor that lists it."""

    kind = "map"

    def at(self, key: K) -> MapRows[R, V]:
        """Return the map of a key, for the message that is handled."""
        return MapRows(self, key)


class SetStore(RowStore, Generic[K, R]):
    """A handle to a set for each key, made by `app.set_store(...)` and used in handlers of the actor that lists it."""

    kind = "set"

    def at(self, key: K) -> SetRows[R]:
        """Return the set of a key, for the message that is handled."""
        return SetRows(self, key)


class ListStore(RowStore, Generic[K, V]):
    """A handle to a list for each key, made by `app.list_store(...)`, for handlers of the actor that lists it."""

    kind = "list"

    def at(self, key: K) -> ListRows[V]:
        """Return the list of a key, for the message that is handled."""
        return ListRows(self, key)

    def _without(self, overlay: Overlay, prefix: bytes, row: bytes, span: tuple[int, int]) -> tuple[int, int]:
        # With another ttl than before rows don't expire in their order: what is older stays the first.
        first, end = span
        if place_of(row) == first:
            first += 1
            while first < end and not overlay.is_kept(prefix + place_row(first)):
                first += 1
        return first, end
