"""A call outside of Kafka: the function, how it is called, and its record in the outbox.

    key      b"e", 4 bytes length of the actor's raw key, the raw key, 8 bytes sequence; numbers are big-endian
    value    JSON: see `EffectRecord`

The calls of one raw key are its line, in the order of their sequences.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from actors._core import keys
from actors._core.backoff import Backoff
from actors._core.keys import make_place, place_of
from actors._core.outside import MALFORMED
from actors.errors import UsageError
from actors.runtime.handlers.callables import is_generator
from actors.runtime.message.entry_versions import is_newer
from actors.runtime.message.ids import id_of

if TYPE_CHECKING:
    from actors.runtime.message.context import Context

PREFIX, END = b"e", b"f"
"""All keys of the outbox lie between."""


@dataclass(frozen=True, slots=True)
class EffectCall:
    """Which call of an effect a function is called for: its first argument.

    A call may be made again although it succeeded, when a worker dies before that is committed, and a worker that has
    lost its partition may still be in the middle of a call when the new owner begins it.

    Attributes:
        idempotency_key: the same each time that this call is made. Hand it on to whom the function calls.
        fencing_token: the epoch of the partition's owner. A later owner's is higher, so whoever keeps the highest that
            it saw can refuse a worker that lost its partition.
        attempt: counted from 1. An attempt that a worker's death cut short isn't counted.
        actor: the actor's name.
        key: the key of the message whose handler recorded the call, as bytes.
        decoded_key: the same as the handler saw it.
    """

    idempotency_key: str
    fencing_token: int
    attempt: int
    actor: str
    key: bytes
    decoded_key: Any


@dataclass(frozen=True, slots=True)
class Effect:
    """A function that acts outside of Kafka, as `@app.effect()` makes it. Calling it calls the function.

    The arguments of a recorded call become JSON and come back from it. A parameter that is annotated with a type that
    msgspec knows (a Struct, a dataclass, datetime, Decimal, bytes, …) gets a value of it; any other gets plain JSON
    data: dicts, lists, text, numbers, booleans and None.

    A plain function runs in a thread, which can't be stopped: one that is over its time goes on, perhaps beside its
    next attempt. Give its own calls timeouts that are shorter.

    Attributes:
        function: called as `function(call, *args, **kwargs)` with an `EffectCall`; async or plain.
        name: how it is called in the outbox.
        attempts: after so many failed ones the call is parked; 0 for never.
        first_wait: before the second attempt; doubled for each further one.
        longest_wait: no wait is longer.
        timeout: of one attempt.
    """

    function: Callable[..., Any]
    name: str
    attempts: int = 10
    first_wait: timedelta = timedelta(seconds=1)
    longest_wait: timedelta = timedelta(minutes=5)
    timeout: timedelta = timedelta(seconds=30)

    def __post_init__(self) -> None:
        """Refuse what can't be meant.

        Raises:
            ValueError: naming the argument.
        """
        if not callable(self.function):
            raise ValueError(f"function={self.function!r}: it can't be called")  # noqa: TRY004  one error for all
        if is_generator(self.function):
            raise ValueError("it has a `yield`, so calling it runs nothing of it: return a value in its place")
        if _takes_nothing(self.function):
            raise ValueError(f"it takes no call: write `async def {self.name}(call: EffectCall) -> None:`")
        if not (isinstance(self.name, str) and self.name):
            raise ValueError(f"name={self.name!r}: it is text, and not empty")
        if not isinstance(self.attempts, int) or self.attempts < 0:
            raise ValueError(f"attempts={self.attempts!r}: it is how many, 0 for as many as it takes")
        if not timedelta(0) < self.first_wait <= self.longest_wait:
            raise ValueError(
                f"first_wait={self.first_wait}, longest_wait={self.longest_wait}: waits are more than nothing, and the "
                "first is not longer than the longest"
            )
        if self.timeout <= timedelta(0):
            raise ValueError(f"timeout={self.timeout}: it is more than nothing")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, at once: for tests of it. Handlers use `ctx.effect`."""
        return self.function(*args, **kwargs)

    def wait_s(self, attempts: int) -> float:
        """Give the wait after attempt number `attempts`, counted from 1, in seconds."""
        return Backoff(self.first_wait.total_seconds(), self.longest_wait.total_seconds()).delay_s(attempts)


class EffectRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A call in the outbox.

    Attributes:
        id: the idempotency key.
        name: the effect's.
        attempts: how many failed.
        next_ms: the next attempt isn't made before, Unix milliseconds.
        error: why the last attempt failed.
        parked: it isn't tried again until somebody says so.
        trace: the context of the span that recorded it; left out where messages aren't traced.
    """

    id: str
    name: str
    args: list[Any]
    kwargs: dict[str, Any]
    attempts: int = 0
    next_ms: int = 0
    error: str | None = None
    parked: bool = False
    trace: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


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
        f"function takes after its call: {error}"
    )


UNKNOWN_EFFECT = "lists no effect named"
"""What the error says of a record that is parked because the program didn't know its function."""
Mark = tuple[bytes, str, int, bool]
"""What tells the head of a line from the next, and from itself before an attempt failed."""


@dataclass(frozen=True, slots=True)
class Head:
    """The first record of a line, and its key in the store."""

    store_key: bytes
    record: EffectRecord

    @property
    def mark(self) -> Mark:
        """See `Mark`."""
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

    def bind(self, record: EffectRecord) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Give positional and keyword arguments, without the call.

        Raises:
            TypeError: the function doesn't take so many, or not of these names.
            msgspec.ValidationError: one isn't what its annotation says.
        """
        if self._signature is None:
            return tuple(record.args), record.kwargs
        bound = self._signature.bind(None, *record.args, **record.kwargs)
        for name, hint in self._types.items():
            if name not in bound.arguments:
                continue
            value, kind = bound.arguments[name], self._signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                bound.arguments[name] = tuple(_converted(one, hint) for one in value)
            elif kind is inspect.Parameter.VAR_KEYWORD:
                bound.arguments[name] = {key: _converted(one, hint) for key, one in value.items()}
            else:
                bound.arguments[name] = _converted(value, hint)
        return bound.args[1:], bound.kwargs


def _takes_nothing(function: Callable[..., Any]) -> bool:
    try:
        return not inspect.signature(function, follow_wrapped=False).parameters
    except (TypeError, ValueError):
        # Some builtins have no signature.
        return False


def _converted(value: Any, hint: Any) -> Any:
    return msgspec.convert(value, hint, str_keys=True)


def _is_known(hint: Any) -> bool:
    """Tell whether JSON data can become a value of the type."""
    try:
        msgspec.json.Decoder(hint)
        found = msgspec.inspect.type_info(hint)
    except Exception:
        return False
    return not isinstance(found, msgspec.inspect.CustomType | msgspec.inspect.AnyType)


def make_key(raw_key: bytes, sequence: int) -> bytes:
    """Give the key of a call in the outbox."""
    return make_place(PREFIX, raw_key, sequence)


def line_bounds(raw_key: bytes) -> tuple[bytes, bytes]:
    """Give what is before all keys of a line, and what is behind them."""
    return keys.line_bounds(PREFIX, raw_key)


def line_of(key: bytes) -> bytes | None:
    """Give the raw key in a store's key, None if it isn't made of one."""
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
