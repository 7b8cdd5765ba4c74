"""The outbox: the record of a call outside of Kafka, where it is stored, and how its arguments come back.

    key      b"e", 4 bytes length of the actor's raw key, the raw key, 8 bytes sequence; numbers are big-endian
    value    JSON: see `EffectRecord`

The calls of one raw key are its line, in the order of their sequences.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NoReturn

import msgspec

from actors._core import keys
from actors._core.keys import make_place, place_of
from actors._core.logs import text_of
from actors._core.outside import MALFORMED
from actors._core.values.ids import id_of
from actors.errors import ReadOnlyQueryError, UsageError
from actors.runtime.handlers.effect import Effect
from actors.runtime.message.context import Context
from actors.runtime.message.failures import is_newer
from actors.runtime.message.store import Store
from actors.runtime.message.tools import PendingEffect

PREFIX, END = b"e", b"f"
"""All keys of the outbox lie between."""
_ID_CHARS = 200


class EffectRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A call in the outbox.

    Attributes:
        id: the idempotency key.
        name: the effect's.
        attempts: how many failed.
        next_ms: the next attempt isn't made before, Unix milliseconds.
        error: why the last attempt failed.
        parked: it isn't tried again until somebody says so.
        result: value and headers of the message that it returned, where an owner left before it was handled: no call is
            made any more; left out before.
        then: the method that is called with what it returned; left out where that is a message, and with a result that
            is one. With a result of a call that was given up, the method for that.
        started: the epoch of the owner that began a call which is never repeated; left out before.
        trace: the context of the span that recorded it; left out where messages aren't traced.
        home_offset: as in `ParkedMessage`; left out where the first input wrote this.
    """

    id: str
    name: str
    args: list[Any]
    kwargs: dict[str, Any]
    attempts: int = 0
    next_ms: int = 0
    error: str | None = None
    parked: bool = False
    result: tuple[bytes, list[tuple[str, bytes]]] | msgspec.UnsetType = msgspec.UNSET
    then: str | msgspec.UnsetType = msgspec.UNSET
    started: int | msgspec.UnsetType = msgspec.UNSET
    trace: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    home_offset: int | msgspec.UnsetType = msgspec.UNSET


def call_id(ctx: Context, effect: Effect, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the idempotency key of a call, which depends on what is called and with what.

    Raises:
        UsageError: an argument doesn't become JSON.
    """
    try:
        raw = msgspec.json.encode([args, kwargs])
    except Exception as error:
        raise not_json(effect, error) from error
    return id_of(ctx, "effect", effect.name, raw)


def not_json(effect: Effect, error: Exception) -> UsageError:
    """Return the error for arguments that can't be recorded."""
    return UsageError(
        f"ctx.effect({effect.name}): the arguments have to become JSON, and to come back from it as what the "
        f"function takes after its call: {text_of(error)}"
    )


UNKNOWN_EFFECT = "lists no effect named"
"""A part of the error text of a record that is parked because its function is unknown to the program."""
Mark = tuple[bytes, str, int, bool, int | msgspec.UnsetType]
"""The identity of a line's head, which changes with each failed attempt, and with the start of one."""


@dataclass(frozen=True, slots=True)
class Head:
    """The first record of a line, and its key in the store."""

    store_key: bytes
    record: EffectRecord

    @property
    def mark(self) -> Mark:
        """The head's identity."""
        return self.store_key, self.record.id, self.record.attempts, self.record.parked, self.record.started


def make_key(raw_key: bytes, sequence: int) -> bytes:
    """Return the key of a call in the outbox."""
    return make_place(PREFIX, raw_key, sequence)


def result_id(call_id: str) -> str:
    """Return a result's message id. In a chain, each result beginning the next call, ids would grow without end."""
    if len(call_id) > _ID_CHARS:
        call_id = hashlib.sha256(call_id.encode()).hexdigest()
    return f"{call_id}-result"


def line_bounds(raw_key: bytes) -> tuple[bytes, bytes]:
    """Return the bounds before and behind all keys of a line."""
    return keys.line_bounds(PREFIX, raw_key)


def line_of(key: bytes) -> bytes | None:
    """Return the raw key in a store's key, None if it isn't made of one."""
    raw_key, sequence = place_of(key)
    return raw_key if key == make_key(raw_key, sequence) else None


def decoded(raw: bytes) -> EffectRecord | None:
    """Read a record, without its metadata; None if it isn't one of this release's."""
    if is_newer(raw):
        return None
    try:
        return msgspec.json.decode(raw, type=EffectRecord)
    except MALFORMED:
        return None


@dataclass(frozen=True, slots=True)
class QueriedOutbox:
    """The effects of a query, which lists them and does nothing else with them."""

    store: Store[bytes, bytes]

    def pending(self, ctx: Context, limit: int) -> list[PendingEffect]:
        """Return the first calls of the key, those that can't be read left out."""
        rows = islice(ctx._working("effects").overlays[self.store].items(*line_bounds(ctx._raw_key)), limit)
        records = (decoded(raw) for _, raw in rows)
        return [
            PendingEffect(record.name, record.id, record.attempts, record.next_ms, record.error, record.parked)
            for record in records
            if record is not None
        ]

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse."""
        raise ReadOnlyQueryError("a query only reads, and it uses effects: send the actor a message for that")
