"""A key from the command line as the store's bytes, and a value as JSON."""

from __future__ import annotations

import base64
import json
import os
from typing import Any

import click
import msgspec
from faust.models.base import Model
from faust.utils.json import on_default

from actors._faust.codecs import CodecError
from actors.runtime.context import Store


def key_bytes(store: Store[Any, Any], text: str) -> bytes:
    """Give the bytes under which the store keeps the key.

    The text is what the key's serializer writes, as `42` or `{"id": 1}`. Where that can't be, it is taken for a string.

    Raises:
        click.UsageError: it isn't a key of the store.
    """
    # Bytes that aren't UTF-8 arrive as surrogates; they come back as they were typed, and aren't a string.
    given, is_text = os.fsencode(text), text.isprintable()
    reasons = []
    for raw in (given, json.dumps(text).encode()) if is_text else (given,):
        try:
            return store.encode_key(store.decode_key(raw))
        except CodecError as error:
            reasons.append(str(error))
    raise click.UsageError(f"store {store.name}: {text!r} can't be a key: {reasons[0]}")


def value_json(store: Store[Any, Any], raw: bytes) -> Any:
    """Give the value as what JSON can say: of a model its fields, of bytes their text, or else their base64.

    Raises:
        CodecError: the bytes aren't a value of the store.
    """
    value = store.decode_value(raw)
    if isinstance(value, bytes):
        return _bytes_json(value)
    return json.loads(msgspec.json.encode(value, enc_hook=_plain))


def _bytes_json(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _plain(value: Any) -> Any:
    if isinstance(value, Model):
        return value.asdict()
    try:
        return on_default(value)
    except TypeError:
        return repr(value)
