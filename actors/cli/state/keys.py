"""A key from the command line as the store's bytes, and a value as JSON."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from actors.declare.values.codecs import CodecError
from actors.declare.values.decoder import as_json
from actors.runtime.message.store import Store
from actors.runtime.message.unresolved import resolved_now
from actors.runtime.rows.stores import RowStore
from actors.runtime.windows.store import WindowStore


def key_bytes(store: Store[Any, Any] | WindowStore[Any, Any] | RowStore, text: str) -> bytes:
    """Return the bytes under which the store keeps the key.

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


def value_json(store: Store[Any, Any], raw_key: bytes, raw: bytes) -> Any:
    """Return the value as what JSON can say: of a model its fields, of bytes their text, or else their base64.

    Raises:
        CodecError: the bytes aren't a value of the store.
        UnresolvedSchemaError: the registry doesn't give their schema.
    """
    return resolved_now(lambda: as_json(store.shown(raw_key, raw)))
