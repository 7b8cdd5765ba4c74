"""Map, list and set stores as they are declared."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypedDict, TypeVar, Unpack

from actors._core.values.rows import decode_span, place_of, place_row, row_parts, rows_prefix
from actors.declare.arguments import say_unknown
from actors.declare.values.codecs import Codec, CodecError, Format
from actors.declare.values.stored import store_keys, use_keys
from actors.declare.values.versions import Upgrades
from actors.errors import ConfigurationError
from actors.runtime.message.publishing import PublishedStore
from actors.runtime.rows.stores import ListStore, MapStore, RowStore, SetStore

_Handle = TypeVar("_Handle", bound=RowStore)


class SetOptions(TypedDict, total=False):
    """Options of `App.store`, each of which is about a row here."""

    key_type: Any
    key_serializer: str | None
    ttl: timedelta | None
    expires: bool
    publish: Any
    renamed_from: str | None


class MapOptions(SetOptions, total=False):
    """Those of stores whose rows have values."""

    value_type: Any
    value_serializer: str | None
    format: Format | None
    version: int | None
    upgrades: Upgrades | None


class RowStores:
    """The map, list and set stores of an `App`."""

    def map_store(self, name: str, *, row_type: Any = str, **options: Unpack[MapOptions]) -> MapStore[Any, Any, Any]:
        """Declare a map for each key, each row of which is a record of its own in the changelog.

        Args:
            name: as of `store`.
            row_type: what the keys of a map are.
            options: as of `store`; `value_type` is that of the rows' values, and `ttl` is a row's. A read-model topic,
                `publish`, has pairs of a key and a row as its keys.

        Raises:
            ConfigurationError: the name can't be used, or the options can't be meant.
        """
        return _handle(self, MapStore, name, store_keys(self, row_type, None), dict(options), MapOptions)

    def list_store(self, name: str, **options: Unpack[MapOptions]) -> ListStore[Any, Any]:
        """Declare a list for each key; as `map_store`, with the number of its place as a row, and without `expires`."""
        if options.pop("expires", False):
            raise ConfigurationError(
                f"store {name}: expires= is for maps and sets: a list's rows expire in order, ttl="
            )
        return _handle(self, ListStore, name, lambda: _PLACES, dict(options), MapOptions)

    def set_store(self, name: str, *, row_type: Any = str, **options: Unpack[SetOptions]) -> SetStore[Any, Any]:
        """Declare a set for each key; as `map_store`, without values."""
        return _handle(self, SetStore, name, store_keys(self, row_type, None), dict(options), SetOptions)


_PLACES = Codec(place_of, place_row, "places of a list")


def _handle(
    app: Any,
    make: Callable[..., _Handle],
    name: str,
    row_codec: Callable[[], Codec],
    options: dict[str, Any],
    allowed: Any,
) -> _Handle:
    """Return the handle of a map, list or set store, which shows its rows as people read them."""
    if unknown := sorted(options.keys() - allowed.__annotations__.keys()):
        raise ConfigurationError(f"store {name}: {say_unknown('argument', unknown, [*allowed.__annotations__])}")
    key_type = options.pop("key_type", str)
    keys = store_keys(app, key_type, options.pop("key_serializer", None))
    rows = app.store(name, **({"value_type": bytes} if allowed is SetOptions else {}), **options, key_type=bytes)
    value, app.key_types[name] = app.value_codecs[name], key_type
    handle = make(rows, lambda row: row_codec().encode(row), lambda raw: row_codec().decode(raw))
    rows.encode_key, rows.decode_key = functools.partial(_encode_pair, handle), functools.partial(_decode_pair, handle)
    rows.decode_row = functools.partial(_shown_value, value.decode)
    if isinstance(rows, PublishedStore):
        pairs = Codec(rows.decode_key, rows.encode_key, "pairs of a key and a row")
        rows.codecs = lambda: (pairs, value)
    return use_keys(handle, keys)


def _encode_pair(store: RowStore, pair: tuple[Any, Any]) -> bytes:
    return rows_prefix(store.encode_key(pair[0])) + store.encode_row(pair[1])


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
