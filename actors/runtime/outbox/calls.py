"""The outbox: the record of a call outside of Kafka, where it is stored, and how its arguments come back.

    key      b"e", 4 bytes length of the actor's raw key, the raw key, 8 bytes sequence; numbers are big-endian
    value    JSON: see `EffectRecord`

The calls of one raw key are its line, in the order of their sequences.
"""

from __future__ import annotations

import inspect
import typing
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from actors._core import keys
from actors._core.keys import make_place, place_of
from actors._core.logs import text_of
from actors._core.outside import MALFORMED
from actors._core.values.ids import id_of
from actors._core.values.read_back import difference
from actors.errors import UsageError
from actors.runtime.handlers.effect import Effect
from actors.runtime.message.context import Context
from actors.runtime.message.failures import is_newer

PREFIX, END = b"e", b"f"
"""All keys of the outbox lie between."""


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
Mark = tuple[bytes, str, int, bool]
"""The identity of a line's head, which changes with each failed attempt."""


@dataclass(frozen=True, slots=True)
class Head:
    """The first record of a line, and its key in the store."""

    store_key: bytes
    record: EffectRecord

    @property
    def mark(self) -> Mark:
        """The head's identity."""
        return self.store_key, self.record.id, self.record.attempts, self.record.parked


@dataclass(slots=True)
class Arguments:
    """Makes an effect's arguments out of JSON data, by the annotations of its function."""

    effect: Effect
    _signature: inspect.Signature | None = field(init=False, default=None)
    _types: dict[str, Any] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        function = inspect.unwrap(self.effect.function)
        try:
            self._signature = inspect.signature(self.effect.function)
        except (TypeError, ValueError):
            # Some builtins have none.
            return
        try:
            hints = typing.get_type_hints(function, include_extras=True)
        except Exception:
            # Names that only a type checker imports, for example.
            return
        names = list(self._signature.parameters)[1:]
        self._types = {name: hints[name] for name in names if name in hints and _is_known(hints[name])}

    def check(self, record: EffectRecord, back: EffectRecord) -> None:
        """Refuse a call of which `back`, read from its JSON, has other arguments; those without a type as plain data.

        Raises:
            ValueError: naming the argument.
            TypeError, msgspec.ValidationError: as of `bind`.
        """
        arguments, read = self._arguments(record, {}), self._arguments(back, self._types)
        for name, value in arguments.items():
            reason = difference(value if name in self._types else msgspec.to_builtins(value), read[name], name)
            if reason is not None:
                raise ValueError(reason)

    def bind(self, record: EffectRecord) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional and keyword arguments, without the call.

        Raises:
            TypeError: the function doesn't take so many, or not of these names.
            msgspec.ValidationError: one isn't what its annotation says.
        """
        if self._signature is None:
            return tuple(record.args), record.kwargs
        bound = inspect.BoundArguments(self._signature, self._arguments(record, self._types))
        return bound.args[1:], bound.kwargs

    def _arguments(self, record: EffectRecord, types: Mapping[str, Any]) -> OrderedDict[str, Any]:
        """Return the arguments by the names of the parameters, those in `types` as what these say."""
        if self._signature is None:
            return OrderedDict(args=record.args, kwargs=record.kwargs)
        arguments = OrderedDict(self._signature.bind(None, *record.args, **record.kwargs).arguments)
        for name, hint in types.items():
            if name not in arguments:
                continue
            value, kind = arguments[name], self._signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                arguments[name] = tuple(_converted(one, hint) for one in value)
            elif kind is inspect.Parameter.VAR_KEYWORD:
                arguments[name] = {key: _converted(one, hint) for key, one in value.items()}
            else:
                arguments[name] = _converted(value, hint)
        return arguments


def _converted(value: Any, hint: Any) -> Any:
    return msgspec.convert(value, hint, str_keys=True)


def _is_known(hint: Any) -> bool:
    """Return whether JSON data can become a value of the type."""
    try:
        msgspec.json.Decoder(hint)
        found = msgspec.inspect.type_info(hint)
    except Exception:
        return False
    return not isinstance(found, msgspec.inspect.CustomType | msgspec.inspect.AnyType)


def make_key(raw_key: bytes, sequence: int) -> bytes:
    """Return the key of a call in the outbox."""
    return make_place(PREFIX, raw_key, sequence)


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
