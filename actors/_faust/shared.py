"""`app.shared`: a map that every process reads, and that an actor writes for all of them.

Writes are questions to the actor of their key, so that one is handled after the other; reads are a view of the actor's
store. A value's version is max(the last one + 1, the offset of the write + 1): it grows with each write of its key,
also across a delete.

A record of the store's changelog is JSON: {"version": 12, "value": …}, bytes in base64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

import msgspec

from actors._core.outside import MALFORMED
from actors._core.partitioner import partition_for
from actors._faust.setup import changelog_topic
from actors._faust.views import View
from actors.declare.values.codecs import CodecError, resolve
from actors.errors import Rejected, UsageError, show_bytes
from actors.runtime.handlers.actor import Actor, receive
from actors.runtime.message.context import DEFAULT_ASK_TIMEOUT, is_handling
from actors.runtime.replicas.views import ViewCodecs

if TYPE_CHECKING:
    from actors._faust.app import App

K = TypeVar("K")
V = TypeVar("V")

_NULL = b"null"


class Entry(msgspec.Struct):
    """What is kept of a key: version 0 is a key that isn't there."""

    version: int = 0
    value: msgspec.Raw = msgspec.Raw(_NULL)


_ENTRIES = msgspec.json.Decoder(Entry)


class Put(msgspec.Struct, tag="put"):
    """Write a value; only over `version` if that is given, where 0 means: only if the key is absent."""

    value: msgspec.Raw
    version: int | None = None


class Remove(msgspec.Struct, tag="remove"):
    """Remove the key; only its `version` if that is given."""

    version: int | None = None


class CompareAndSet(msgspec.Struct, tag="compare-and-set"):
    """Write `value` in the place of `expected`; null stands for absent in both."""

    expected: msgspec.Raw
    value: msgspec.Raw


class Outcome(msgspec.Struct):
    """Whether it was written, and what is there now."""

    is_written: bool
    now: Entry


@dataclass(frozen=True, slots=True)
class Versioned(Generic[V]):
    """A value with its version; 0 and None where the key is absent."""

    value: V | None
    version: int


@dataclass(frozen=True, slots=True)
class Written(Generic[V]):
    """What became of a write: true if it took place. `value` and `version` are what is there after it."""

    is_written: bool
    value: V | None
    version: int

    def __bool__(self) -> bool:
        return self.is_written


class Shared(Generic[K, V]):
    """A shared map as it was declared. Read it through `app.view(shared)`.

    Attributes:
        name: of the map, its actor and its store.
        topic: the actor's input.
        partitions: of that topic, if it is to be made.
        actor: the class that owns the map's store.
    """

    def __init__(self, app: App, name: str, *, topic: Any, value_type: Any, partitions: int) -> None:
        self.app = app
        self.name = name
        self.topic = topic
        self.partitions = partitions
        self._encode, self._decode = _as_json(value_type)
        self.actor = type(
            name, (SharedOwner,), {"decode": staticmethod(self._decode), "encode": staticmethod(self._encode)}
        )

    def put(self, value: V, *, version: int | None = None) -> Put:
        """Give the message that writes `value`, for `ctx.tell(shared.actor, key, …)` in handlers."""
        return Put(msgspec.Raw(self._encode(value)), version)

    def remove(self, *, version: int | None = None) -> Remove:
        """Give the message that removes a key."""
        return Remove(version)

    def compare_and_set(self, expected: V | None, value: V | None) -> CompareAndSet:
        """Give the message that writes `value` where `expected` is; None stands for absent."""
        old, new = (_NULL if one is None else self._encode(one) for one in (expected, value))
        return CompareAndSet(msgspec.Raw(old), msgspec.Raw(new))

    def opened(self, entry: Entry) -> Versioned[V]:
        """Give what an entry holds."""
        return Versioned(self._decode(bytes(entry.value)) if entry.version else None, entry.version)


class SharedView(View[K, V]):
    """The view of a shared map, which can also write to it, through the actor that owns the key.

    A write returns when it is committed and this view has it. It isn't a part of any other commit: in handlers use
    `ctx.tell(shared.actor, key, shared.put(value))`, or `ctx.ask`.
    """

    _shared: Shared[K, V]

    @classmethod
    def of(cls, shared: Shared[K, V], folder: Path | None, in_memory: bool) -> Self:
        """Make one."""
        app = shared.app
        store = app.stores[shared.name]
        codecs = ViewCodecs(
            lambda key: store.encode_key(key),
            lambda raw: store.decode_key(raw),
            lambda raw: shared.opened(_entry(raw)).value,
        )
        view = cls._of(app, lambda: changelog_topic(app, shared.name), lambda: codecs, folder, in_memory)
        view._shared = shared
        return view

    def versioned(self, key: K) -> Versioned[V]:
        """Give the value of `key` with its version, 0 and None where it is absent."""
        raw = self._read(key)
        return self._shared.opened(Entry() if raw is None else _entry(raw))

    async def publish(
        self, key: K, value: V, *, version: int | None = None, timeout: timedelta = DEFAULT_ASK_TIMEOUT
    ) -> Written[V]:
        """Write `value`; if `version` is given, only if that is the key's, 0 for a key that is absent.

        Raises:
            AskTimeoutError: nobody answered in time; whether it will be written isn't known.
            AskRejectedError: the value isn't of the map's type.
            UsageError: an actor is handling a message.
        """
        return await self._write(key, self._shared.put(value, version=version), timeout)

    async def remove(
        self, key: K, *, version: int | None = None, timeout: timedelta = DEFAULT_ASK_TIMEOUT
    ) -> Written[V]:
        """Remove `key`; if `version` is given, only if that is its version. Raises as `publish`."""
        return await self._write(key, self._shared.remove(version=version), timeout)

    async def compare_and_set(
        self, key: K, expected: V | None, value: V | None, *, timeout: timedelta = DEFAULT_ASK_TIMEOUT
    ) -> Written[V]:
        """Write `value` if `expected` is there; None stands for absent in both. Raises as `publish`.

        Of several that expect the same one wins. A value that came back in between isn't noticed: where that matters
        use `publish` with `version`.
        """
        return await self._write(key, self._shared.compare_and_set(expected, value), timeout)

    async def _write(self, key: K, message: Any, timeout: timedelta) -> Written[V]:
        shared, copy = self._shared, self._running()
        if is_handling():
            raise UsageError(
                f"a write to the shared map {shared.name} inside an actor's handler isn't a part of its commit: use "
                "ctx.tell(shared.actor, key, shared.put(value)), or ctx.ask"
            )
        outcome: Outcome = await shared.app.ask(shared.actor, key, message, timeout=timeout)
        home = partition_for(self._opened().encode_key(key), copy.partitions)
        await self._in_time(
            copy.caught_up([home]), timeout, lambda: f"{shared.name}: key {key!r} was answered for, but isn't here"
        )
        now = shared.opened(outcome.now)
        return Written(outcome.is_written, now.value, now.version)


def shared_of(app: App, name: str, *, key_type: Any, value_type: Any, partitions: int) -> Shared[Any, Any]:
    """Declare a shared map and its actor."""
    topic = app.topic(f"{app._default_options[0]}-{name}-writes", key_type=key_type)
    shared: Shared[Any, Any] = Shared(app, name, topic=topic, value_type=value_type, partitions=partitions)
    # The handler is the library's: a partition that stopped in it would wait for a mend that no user can make.
    app.actor(topic, name=name, on_error="skip")(shared.actor)
    return shared


def _as_json(value_type: Any) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    """Give how values become JSON and back, whatever serializer their type names."""
    if value_type is bytes:
        decoder = msgspec.json.Decoder(bytes)
        return msgspec.json.encode, decoder.decode
    codec = resolve(value_type, "json")
    return codec.encode, codec.decode


class SharedOwner(Actor[Entry]):
    """One key of a shared map; each map has a class of its own.

    Attributes:
        encode, decode: of a value's JSON.
    """

    encode: ClassVar[Callable[[Any], bytes]]
    decode: ClassVar[Callable[[bytes], Any]]

    @receive
    def put(self, message: Put) -> Outcome:
        """Write a value."""
        if message.version is not None and message.version != self.state.version:
            return Outcome(False, self.state)
        return self._write(message.value)

    @receive
    def remove(self, message: Remove) -> Outcome:
        """Remove the key."""
        if message.version is not None and message.version != self.state.version:
            return Outcome(False, self.state)
        self.forget()
        return Outcome(True, Entry())

    @receive
    def compare_and_set(self, message: CompareAndSet) -> Outcome:
        """Write if what is expected is there."""
        if not self._holds(message.expected):
            return Outcome(False, self.state)
        if bytes(message.value) == _NULL:
            self.forget()
            return Outcome(True, Entry())
        return self._write(message.value)

    def _holds(self, expected: msgspec.Raw) -> bool:
        """Tell whether the value is the expected one, also if one of the two was written without a newer field."""
        held = self.state.value
        try:
            if _canonical(expected) == _canonical(held):
                return True
            if _NULL in (bytes(expected), bytes(held)):
                return False
            same = [type(self).encode(type(self).decode(bytes(one))) for one in (expected, held)]
            return _canonical(same[0]) == _canonical(same[1])
        except MALFORMED:
            return False

    def _write(self, value: msgspec.Raw) -> Outcome:
        raw, where = bytes(value), f"{type(self).__name__}, key {self.key!r}"
        try:
            type(self).decode(raw)
        except MALFORMED as error:
            raise Rejected(f"{where}: the value isn't of the map's type: {error}") from error
        if raw == _NULL:
            raise Rejected(f"{where}: null is no value: remove the key instead")
        # By the offset, so that versions grow across a delete, after which the last one isn't known any more.
        self.state = Entry(max(self.state.version, self.ctx.offset) + 1, msgspec.Raw(raw))
        return Outcome(True, self.state)


def _entry(raw: bytes) -> Entry:
    try:
        return _ENTRIES.decode(raw)
    except MALFORMED as error:
        raise CodecError(f"not an entry of a shared map: {error}: {show_bytes(raw)}") from error


def _canonical(raw: msgspec.Raw | bytes) -> bytes:
    """Give JSON in one form, so that the order of fields doesn't matter."""
    return msgspec.json.encode(msgspec.json.decode(raw), order="sorted")
