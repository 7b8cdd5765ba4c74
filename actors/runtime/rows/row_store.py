"""The part that map, list and set stores share: the encoding of keys and rows, and the span of a key's rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actors._core.values.rows import decode_span, encode_span, row_parts, span_key
from actors.runtime.message.store import Store
from stores._core.overlay import Overlay


class RowStore:
    """Rows below the keys of an actor, each a record of its own in the partition of its key.

    Attributes:
        name: the store's.
        kind: what the rows of a key are.
        rows: the store of the rows. Its keys are pairs of a key and a row, for people; handlers use `at`.
        encode_key, decode_key: for keys.
        encode_row, decode_row: for rows.
    """

    kind = ""

    def __init__(
        self,
        rows: Store[Any, Any],
        *,
        encode_key: Callable[[Any], bytes],
        decode_key: Callable[[bytes], Any],
        encode_row: Callable[[Any], bytes],
        decode_row: Callable[[bytes], Any],
    ) -> None:
        self.name = rows.name
        self.rows = rows
        self.encode_key, self.decode_key = encode_key, decode_key
        self.encode_row, self.decode_row = encode_row, decode_row
        rows.below, rows.layout = self, "sized"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def at(self, key: Any) -> Any:
        """Return the rows below a key, for the message that is handled."""
        raise NotImplementedError

    def key_of(self, raw: bytes) -> bytes:
        """Return the message key of a row, which says in which partition it is."""
        return row_parts(raw)[0]

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
            self.set_span(overlay, raw_key, *self._span_without(overlay, raw_key, row, first, end))

    def _span_without(self, overlay: Overlay, raw_key: bytes, row: bytes, first: int, end: int) -> tuple[int, int]:
        return first, end - 1
