"""Map, list and set stores as they are declared."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from actors._core.values.rows import decode_span, place_of, place_row, row_parts, rows_prefix
from actors.declare.arguments import check_arguments
from actors.declare.values.codecs import Codec, CodecError, Format
from actors.declare.values.stored import store_keys, use_keys
from actors.declare.values.versions import Upgrades
from actors.runtime.message.publishing import PublishedStore
from actors.runtime.rows.row_store import RowStore
from actors.runtime.rows.stores import ListStore, MapStore, SetStore

_Handle = TypeVar("_Handle", bound=RowStore)


class RowStores:
    """The map, list and set stores of an `App`."""

    @check_arguments
    def map_store(
        self: Any,
        name: str,
        *,
        key_type: Any = str,
        row_type: Any = str,
        value_type: Any = None,
        key_serializer: str | None = None,
        value_serializer: str | None = None,
        format: Format | None = None,
        ttl: timedelta | None = None,
        expires: bool = False,
        version: int | None = None,
        upgrades: Upgrades | None = None,
        publish: Any = None,
        renamed_from: str | None = None,
    ) -> MapStore[Any, Any, Any]:
        """Declare a map for each key, each row of which is a record of its own in the changelog.

        Args:
            name: as of `store`.
            key_type: as of `store`.
            row_type: what the keys of the map are.
            value_type: what its values are, as of `store`.
            key_serializer: as of `store`.
            value_serializer: likewise.
            format: likewise.
            ttl: how long a row is there after its write.
            expires: writes of rows may say a `ttl` of their own, also without one for all.
            version: as of `store`.
            upgrades: likewise.
            publish: a topic of `app.topic(...)` for readers: it gets what each commit changes, with pairs of a key and
                a row as its keys.
            renamed_from: as of `store`.

        Raises:
            ConfigurationError: the name can't be used, or the arguments contradict each other.
        """
        values = {"value_type": value_type, "value_serializer": value_serializer, "format": format}
        options = {"ttl": ttl, "expires": expires, "publish": publish, "renamed_from": renamed_from}
        rows = self.store(name, key_type=bytes, version=version, upgrades=upgrades, **values, **options)
        return _handle(self, MapStore, rows, (key_type, key_serializer), store_keys(self, row_type, None))

    @check_arguments
    def list_store(
        self: Any,
        name: str,
        *,
        key_type: Any = str,
        value_type: Any = None,
        key_serializer: str | None = None,
        value_serializer: str | None = None,
        format: Format | None = None,
        ttl: timedelta | None = None,
        version: int | None = None,
        upgrades: Upgrades | None = None,
        publish: Any = None,
        renamed_from: str | None = None,
    ) -> ListStore[Any, Any]:
        """Declare a list for each key, each row of which is a record of its own in the changelog.

        Args:
            name: as of `store`.
            key_type: as of `store`.
            value_type: what its rows are, as values of `store`.
            key_serializer: as of `store`.
            value_serializer: likewise.
            format: likewise.
            ttl: how long a row is there after it was appended.
            version: as of `store`.
            upgrades: likewise.
            publish: as of `map_store`; a row is the number of its place.
            renamed_from: as of `store`.

        Raises:
            ConfigurationError: the name can't be used, or the arguments contradict each other.
        """
        values = {"value_type": value_type, "value_serializer": value_serializer, "format": format}
        options = {"ttl": ttl, "publish": publish, "renamed_from": renamed_from}
        rows = self.store(name, key_type=bytes, version=version, upgrades=upgrades, **values, **options)
        return _handle(self, ListStore, rows, (key_type, key_serializer), lambda: _PLACES)

    @check_arguments
    def set_store(
        self: Any,
        name: str,
        *,
        key_type: Any = str,
        row_type: Any = str,
        key_serializer: str | None = None,
        ttl: timedelta | None = None,
        expires: bool = False,
        publish: Any = None,
        renamed_from: str | None = None,
    ) -> SetStore[Any, Any]:
        """Declare a set for each key, each row of which is a record of its own in the changelog.

        Args:
            name: as of `store`.
            key_type: as of `store`.
            row_type: what the set has.
            key_serializer: as of `store`.
            ttl: how long a row is there after it was added.
            expires: writes of rows may say a `ttl` of their own, also without one for all.
            publish: as of `map_store`; the values are empty.
            renamed_from: as of `store`.

        Raises:
            ConfigurationError: the name can't be used, or the arguments contradict each other.
        """
        options = {"ttl": ttl, "expires": expires, "publish": publish, "renamed_from": renamed_from}
        rows = self.store(name, key_type=bytes, value_type=bytes, **options)
        return _handle(self, SetStore, rows, (key_type, key_serializer), store_keys(self, row_type, None))


def _encode_place(place: Any) -> bytes:
    try:
        return place_row(place)
    except (AttributeError, OverflowError) as error:
        raise CodecError(f"{place!r} isn't a place of a list, a number of 0 or more") from error


_PLACES = Codec(place_of, _encode_place, "places of a list")


def _handle(
    app: Any, make: Callable[..., _Handle], rows: Any, keys: tuple[Any, str | None], row_codec: Callable[[], Codec]
) -> _Handle:
    """Return the handle of a map, list or set store, which shows its rows as people read them."""
    of_keys, value = store_keys(app, *keys), app.value_codecs[rows.name]
    handle = make(
        rows,
        encode_key=lambda key: of_keys().encode(key),
        decode_key=lambda raw: of_keys().decode(raw),
        encode_row=lambda row: row_codec().encode(row),
        decode_row=lambda raw: row_codec().decode(raw),
    )
    rows.encode_key, rows.decode_key = functools.partial(_encode_pair, handle), functools.partial(_decode_pair, handle)
    rows.decode_row = functools.partial(_shown_value, value.decode)
    if isinstance(rows, PublishedStore):
        pairs = Codec(rows.decode_key, rows.encode_key, "pairs of a key and a row")
        rows.codecs = lambda: (pairs, value)
    return use_keys(handle, of_keys)


def _encode_pair(store: RowStore, pair: Any) -> bytes:
    try:
        key, row = pair
    except (TypeError, ValueError) as error:
        raise CodecError(f"store {store.name}: {pair!r} isn't a pair of a key and a row") from error
    return rows_prefix(store.encode_key(key)) + store.encode_row(row)


def _decode_pair(store: RowStore, raw: bytes) -> tuple[Any, ...]:
    """Return (key, row), or (key,) of the span of its rows."""
    try:
        raw_key, row = row_parts(raw)
    except ValueError as error:
        raise CodecError(f"store {store.name}: {error}") from error
    key = store.decode_key(raw_key)
    return (key,) if row is None else (key, store.decode_row(row))


def _shown_value(decode: Callable[[bytes], Any], raw_key: bytes, raw: bytes) -> Any:
    """Return the value of a row, or of the span where a key's rows begin and end."""
    if row_parts(raw_key)[1] is not None:
        return decode(raw)
    first, end = decode_span(raw)
    return {"first": first, "end": end}
