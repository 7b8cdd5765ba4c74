"""Answers of this worker about the rows below a key of a map, list or set store, a page at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from actors._core.pages import Place, encode_place
from actors._core.values.rows import decode_span, place_of, place_row, rows_prefix, span_key
from actors.runtime.queries.queries import MAX_LOOKED_AT, Bounds, Held, StateReader, expiry_of, read, unreadable
from actors.runtime.rows.stores import RowStore
from actors.runtime.spec import ActorSpec
from actors.web.problems import bad_request
from actors.web.queries.answers import KeyAnswer, Took, of_part
from actors.web.queries.coding import DEFAULT_LIMIT, MAX_LIMIT, KeyCoding, Parameters, StoreCoding, as_json, encoded
from stores._core.overlay import after_prefix
from stores._core.record import METADATA_BYTES, is_expired
from stores.errors import StoreError

_ROW_BYTES = 64
"""About what the names of a row's fields take in an answer."""
_LAST_INDEX = (1 << 63) - 1


class RowValue(msgspec.Struct, frozen=True):
    """A row and its value; of a list the row is its index, of a set the value is null."""

    row: msgspec.Raw
    value: msgspec.Raw
    expires_at_ms: int | None


class RowsAnswer(KeyAnswer, frozen=True):
    """Rows of a key in order. `next` is the cursor of the next page.

    Attributes:
        count: how many rows the key has; None of a map or a set in which rows expire.
    """

    store: str
    key: Any
    rows: list[RowValue]
    count: int | None
    next: str | None


class RowCoding(KeyCoding):
    """How the keys of a map, list or set store are written outside of it, and its rows."""

    def __init__(self, store: RowStore, values: StoreCoding) -> None:
        super().__init__(f"store {store.name}", lambda raw: store.decode_key(raw), lambda key: store.encode_key(key))
        self.store = store
        self.values = values
        self.rows = KeyCoding(f"a row of store {store.name}", store.decode_row, store.encode_row)


class RowRange(NamedTuple):
    """The rows of a request: `first` and `last` are indexes of a list, else `bounds` are encoded rows."""

    bounds: Bounds
    first: int | None
    last: int | None
    after: Place | None
    limit: int
    is_reversed: bool


def range_of(parameters: Parameters, coding: RowCoding) -> RowRange:
    """Return the rows that a request asks for.

    Raises:
        Problem: a parameter can't be understood.
    """
    limit = parameters.number("limit", 1, MAX_LIMIT) or DEFAULT_LIMIT
    rest = (parameters.cursor(), limit, parameters.flag("reverse"))
    prefix, start, end = parameters.raw("prefix"), parameters.raw("from"), parameters.raw("to")
    if prefix is not None and (start is not None or end is not None):
        raise bad_request("bad-parameter", "prefix doesn't go together with from and to")
    if coding.store.kind == "list":
        if prefix is not None:
            raise bad_request("bad-parameter", "prefix is for maps and sets: a list has from and to, its indexes")
        return RowRange(Bounds(), _index(start), _index(end), *rest)
    encoding = parameters.encoding()
    if prefix is not None:
        raw = coding.rows.prefix_of_url(prefix, encoding)
        return RowRange(Bounds(raw, after_prefix(raw)), None, None, *rest)
    first, last = (None if bound is None else coding.rows.key_of_url(bound, encoding) for bound in (start, end))
    return RowRange(Bounds(first, last), None, None, *rest)


def _index(raw: bytes | None) -> int | None:
    try:
        index = None if raw is None else int(raw)
    except ValueError:
        index = _LAST_INDEX + 1
    if index is not None and abs(index) > _LAST_INDEX:
        raise bad_request("bad-parameter", f"{raw!r} is no index of a list: a number, below 0 from its end")
    return index


async def answer(
    reader: StateReader,
    spec: ActorSpec,
    coding: RowCoding,
    key: bytes,
    partition: int,
    rows: RowRange,
    *,
    is_raw: bool,
    max_bytes: int,
    took: Took,
) -> RowsAnswer:
    """Return rows of a key of this worker's partition; they end behind the first that exceeds `max_bytes`."""
    prefix, store = rows_prefix(key), coding.store
    async with reader.pace.places:
        (task,) = await reader.hold(spec, (partition,))
        part = task.of(store.name)
        with reader.pace.charged():
            first, end = _span(part, store, key)
            page, through = _page(part, prefix, _bounds(rows, first, end), rows, max_bytes)
        took(sum(len(raw) for _, raw in page))

        def values() -> Iterator[RowValue]:
            for raw_row, raw in page:
                row = encoded(raw_row) if is_raw else coding.rows.plain_key(raw_row)
                value = coding.values.plain_value(raw[METADATA_BYTES:], is_raw=is_raw)
                shown = RowValue(
                    as_json(place_of(raw_row) - first if store.kind == "list" else row),
                    as_json(None if store.kind == "set" else value),
                    expiry_of(raw),
                )
                took(_ROW_BYTES + memoryview(shown.row).nbytes + memoryview(shown.value).nbytes)
                yield shown

        shown_rows = await reader.pace.run(values())
    return RowsAnswer(
        store=store.name,
        key=encoded(key) if is_raw else coding.plain_key(key),
        rows=shown_rows,
        count=None if store.rows.expires and store.kind != "list" else end - first,
        next=None if through is None else encode_place((through, partition)),
        **of_part(part),
    )


def _span(held: Held, store: RowStore, key: bytes) -> tuple[int, int]:
    """Return the span of a key's rows; of a list whose rows expire, that of those that haven't."""
    first, end = decode_span(read(held, span_key(key)).value)
    if store.kind == "list" and store.rows.expires and first < end:
        prefix = rows_prefix(key)
        kept = held.store.scan(prefix + place_row(first), after_prefix(prefix))
        oldest = next((raw for raw, value in kept if not is_expired(value, held.now_ms)), None)
        first = end if oldest is None else place_of(oldest[len(prefix) :])
    return first, end


def _bounds(rows: RowRange, first: int, end: int) -> Bounds:
    """Return the encoded rows from which on, and before which, a request asks."""
    if rows.first is None and rows.last is None:
        return rows.bounds
    places = range(first, end)[rows.first : rows.last]
    return Bounds(place_row(places.start), place_row(places.stop))


def _page(
    held: Held, prefix: bytes, bounds: Bounds, rows: RowRange, max_bytes: int
) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
    """Return rows with their values and metadata, and up to which row was looked; None for the end of the range."""
    start = prefix + (bounds.start or b"")
    end = after_prefix(prefix) if bounds.end is None else prefix + bounds.end
    if rows.after is not None:
        start, end = _resumed(prefix, start, end, rows)
    page: list[tuple[bytes, bytes]] = []
    size = 0
    try:
        for number, (raw_row, raw) in enumerate(held.store.scan(start, end, reverse=rows.is_reversed), 1):
            row = raw_row[len(prefix) :]
            if not is_expired(raw, held.now_ms):
                page.append((row, raw))
                size += len(raw_row) + len(raw)
            if len(page) >= rows.limit or size >= max_bytes or number >= MAX_LOOKED_AT:
                return page, row
    except StoreError as error:
        raise unreadable(held, error) from error
    return page, None


def _resumed(prefix: bytes, start: bytes, end: bytes | None, rows: RowRange) -> tuple[bytes, bytes | None]:
    last_row = prefix + (b"" if rows.after is None else rows.after[0])
    if rows.is_reversed:
        return start, last_row if end is None else min(end, last_row)
    return max(start, last_row + b"\x00"), end
