"""A store's bytes as JSON text, for readers of its changelog other than workers."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from faust.models.base import Model
from faust.utils.json import on_default

from actors._core.outside import MALFORMED
from actors.declare.values.codecs import CodecError
from actors.errors import show_bytes
from actors.runtime.message.store import Store
from actors.runtime.message.unresolved import resolved_now


@dataclass(frozen=True, slots=True)
class Decoder:
    """Reads the keys and values of a store.

    It holds the app's functions and can't be pickled: another process imports the app and asks it for its own.

    Attributes:
        store: the store's name.
        changelog: its topic.
    """

    store: str
    changelog: str
    _handle: Store[Any, Any]

    @property
    def layout(self) -> str:
        """How the message key lies in a row's key: see `stores._core.layouts`. "task" if it doesn't."""
        return self._handle.layout

    @property
    def whole(self) -> str:
        """The name of the store that it belongs to: its own, or of what is kept beside windows, the window store's."""
        return self._handle.whole

    def key_json(self, raw: bytes) -> str:
        """Return a key as JSON text; of a row below a key, that key.

        Raises:
            ValueError: the bytes aren't a key of the store.
        """
        decode = self._handle.decode_key
        return resolved_now(lambda: _text(decode if self._handle.below is None else lambda pair: decode(pair)[0], raw))

    def row_json(self, raw: bytes) -> str | None:
        """Return the row of a key of a map, list or set store as JSON text; None of other stores' keys.

        Raises:
            ValueError: the bytes aren't a key of the store.
        """
        if self._handle.below is None or len(self._handle.decode_key(raw)) == 1:
            return None
        return resolved_now(lambda: _text(lambda pair: self._handle.decode_key(pair)[1], raw))

    def value_json(self, raw: bytes, raw_key: bytes | None = None) -> str:
        """Return a value as JSON text.

        Args:
            raw: the value.
            raw_key: its key, which says of which topic a join's records are; without it only their times are shown.

        Raises:
            ValueError: the bytes aren't a value of the store.
        """
        if raw_key is None:
            return resolved_now(lambda: _text(self._handle.decode_value, raw))
        return resolved_now(lambda: _text(functools.partial(self._handle.shown, raw_key), raw))


def as_json(value: Any) -> Any:
    """Return a value as what JSON can say: of a model its fields, of bytes their text, or else their base64."""
    if isinstance(value, bytes):
        return _bytes_json(value)
    return json.loads(msgspec.json.encode(value, enc_hook=_shown))


def _text(decode: Callable[[bytes], Any], raw: bytes) -> str:
    value = decode(raw)
    try:
        return json.dumps(as_json(value), ensure_ascii=False)
    except MALFORMED as error:
        raise CodecError(f"it can't be written as JSON: {error}: {show_bytes(raw)}") from error


def _bytes_json(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def plain(value: Any) -> Any:
    """Return a part of a value that msgspec doesn't know as plain data: of models and messages their fields.

    Raises:
        TypeError: there is nothing like it.
    """
    if isinstance(value, Model):
        return value.asdict()
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", by_alias=True)
    if hasattr(value, "ListFields"):
        return {field.name: part for field, part in value.ListFields()}
    if isinstance(value, Mapping):
        return dict(value)
    # The lists of Protobuf's messages are of their own classes.
    return list(value) if isinstance(value, Sequence) else on_default(value)


def _shown(value: Any) -> Any:
    try:
        return plain(value)
    except TypeError:
        return repr(value)
