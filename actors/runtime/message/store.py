"""The `Store` handles, by which handlers reach the state of their message's task.

A handle is made once, at import, and holds no data. The context variable of the running message says which task's state
it reaches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Generic, Literal, TypeVar

from mypy_extensions import mypyc_attr

from actors._core.aggregates import Aggregate
from actors._core.values.rows import row_parts
from actors.errors import NewerVersionError, UsageError
from actors.runtime.message.context import Context, current_message
from actors.runtime.message.failures import newer_program
from actors.runtime.message.outputs import RECORD_OVERHEAD_BYTES, too_large
from actors.runtime.message.store_errors import checked_ttl_ms, foreign_key, no_ranges, not_its_own, unreachable
from actors.runtime.message.task_state import TaskState
from stores._core.overlay import Overlay
from stores._core.record import NEVER

K = TypeVar("K")
V = TypeVar("V")

Placement = Literal["key", "task"]
_ABSENT: Any = object()


@mypyc_attr(allow_interpreted_subclasses=True)
class Store(Generic[K, V]):
    """A handle to per-key state, made by `app.store(...)` and used inside handlers of the actor that lists it.

    Reads see the handler's own writes and everything before it; all of a message's writes are committed together with
    its sends and its offset, or not at all. With `placement="key"` only keys of the message's own partition are
    reachable, in practice the message's key: to touch another key's state, send it a message.

    Examples:
        >>> from actors import App, Context
        >>> from actors.testing import ActorTestDriver
        >>> app = App("shop", broker="kafka://127.0.0.1:9092")
        >>> orders = app.topic("orders", key_type=str, value_type=int)
        >>> spent = app.store("spent", key_type=str, value_type=int)
        >>> @app.actor(orders, stores=[spent])
        ... async def add(ctx: Context, cents: int) -> None:
        ...     spent[ctx.key] = spent.get(ctx.key, 0) + cents
        >>> with ActorTestDriver(app) as driver:
        ...     for cents in (2, 3):
        ...         driver.send(orders, key="ada", value=cents)
        ...     driver.get(spent, "ada")
        5
    """

    __iter__ = None
    """Without this, `for key in store` would ask for the keys 0, 1, 2, …"""

    def __init__(
        self,
        name: str,
        *,
        encode_key: Callable[[Any], bytes],
        decode_key: Callable[[bytes], Any],
        encode_value: Callable[[Any], bytes],
        decode_value: Callable[[bytes], Any],
        ttl_ms: int | None = None,
        expires: bool = False,
        on_expire: Callable[[Context, Any], Any] | None = None,
        placement: Placement = "key",
        refuse_newer: Callable[[bytes], None] | None = None,
        aggregate: Aggregate[Any] | None = None,
    ) -> None:
        self.name = name
        self.ttl_ms = ttl_ms
        self.expires = expires or ttl_ms is not None
        self.on_expire = on_expire
        self.placement: Placement = placement
        self.refuse_newer = refuse_newer
        self.aggregation = aggregate
        self._states = None if aggregate is None else (aggregate.encoder(), aggregate.decoder(), aggregate.starter())
        self.encode_key = encode_key
        self.decode_key = decode_key
        self.encode_value = encode_value
        self.decode_value: Callable[[bytes], V] = decode_value
        self.decode_row: Callable[[bytes, bytes], Any] | None = None
        """Reads a value, by its key, for people; None where the key has nothing to say."""
        self.layout: str = placement
        """How the message key lies in a row's key: see `stores._core.layouts`. "task" if it doesn't."""
        self.whole = name
        """The store that it belongs to: of what a window store keeps beside its windows, that one."""
        self.below: Any = None
        """The `RowStore` whose rows these are, if they lie below message keys."""

    def __repr__(self) -> str:
        return f"<Store {self.name}>"

    def shown(self, raw_key: bytes, raw: bytes) -> Any:
        """Return a value as people read it; `raw_key` is its key."""
        return self.decode_value(raw) if self.decode_row is None else self.decode_row(raw_key, raw)

    def home_key(self, raw_key: bytes) -> bytes:
        """Return the key by whose partition a stored key is placed: that of a row below a message key is the latter."""
        return raw_key if self.below is None else row_parts(raw_key)[0]

    def get(self, key: K, default: V | None = None) -> V | None:
        """Return the value of `key`, or `default` when it is absent or expired."""
        overlay, state, raw_key = self._place(key)
        raw = overlay.get(raw_key)
        if raw is None:
            return default
        try:
            return self.decode_value(raw)
        except NewerVersionError:
            # It raises again, and has the partition stop. Hot: no call more where all is well.
            return self._decoded(raw, state)

    def __getitem__(self, key: K) -> V:
        """Return the value of `key`.

        Raises:
            KeyError: it is absent or expired.
        """
        found: Any = self.get(key, _ABSENT)
        if found is _ABSENT:
            raise KeyError(key)
        value: V = found
        return value

    def __setitem__(self, key: K, value: V) -> None:
        """Write `value`, as `set` does."""
        self.set(key, value)

    def __delitem__(self, key: K) -> None:
        """Remove `key`.

        Raises:
            KeyError: it is absent or expired.
        """
        if not self.delete(key):
            raise KeyError(key)

    def __contains__(self, key: K) -> bool:
        overlay, _, raw_key = self._place(key)
        return overlay.get(raw_key) is not None

    def set(self, key: K, value: V, *, ttl: timedelta | None = None) -> None:
        """Write `value`; it expires `ttl` after now, the store's own by default.

        Raises:
            UsageError: a `ttl` in a store that was declared with neither `ttl` nor `expires`, or one that is negative.
        """
        overlay, state, raw_key = self._place(key)
        ttl_ms = self.ttl_ms if ttl is None else checked_ttl_ms(self, ttl)
        if self.refuse_newer is not None:
            self._check_held(overlay, state, raw_key)
        self._write(overlay, state, raw_key, self.encode_value(value), ttl_ms)

    def add(self, key: K, value: Any) -> V:
        """Add a value to the aggregate of `key`, as a write does, and return its new result.

        Raises:
            UsageError: the store was declared without `aggregate=`.
        """
        aggregate, states = self.aggregation, self._states
        if aggregate is None or states is None:
            raise UsageError(f"store {self.name}: add() needs aggregate=…, as in aggregate=aggregates.sum()")
        overlay, state, raw_key = self._place(key)
        (encode, decode, start), raw = states, overlay.get(raw_key)
        encoded = encode(aggregate.add(start() if raw is None else decode(raw), value))
        self._write(overlay, state, raw_key, encoded, self.ttl_ms)
        return self.decode_value(encoded)

    def delete(self, key: K) -> bool:
        """Remove `key`, with a tombstone in the changelog; tell whether it was there."""
        overlay, state, raw_key = self._place(key)
        if self.refuse_newer is not None:
            self._check_held(overlay, state, raw_key)
        return overlay.delete(raw_key)

    def put_if_absent(self, key: K, value: V, *, ttl: timedelta | None = None) -> V | None:
        """Return the value that is there, or write `value`, as `set` does, and give None."""
        # Hot, so `_place` is written out: of many actors this is the only call of a store for each record.
        ctx = current_message.get(None)
        state = ctx._state if ctx is not None else None
        if ctx is None or state is None:
            raise unreachable(self.name, None)
        overlay = state.overlays.get(self)
        if overlay is None:
            raise unreachable(self.name, state.actor)
        raw_key = self.encode_key(key)
        if raw_key != ctx._raw_key:
            self._check_placement(raw_key, state)
        held = overlay.get(raw_key)
        if held is not None:
            try:
                return self.decode_value(held)
            except NewerVersionError:
                return self._decoded(held, state)
        ttl_ms = self.ttl_ms if ttl is None else checked_ttl_ms(self, ttl)
        self._write(overlay, state, raw_key, self.encode_value(value), ttl_ms)
        return None

    def compare_and_set(self, key: K, expected: V | None, value: V | None) -> bool:
        """Write `value` (None deletes) if `expected` (None: absent) is what `get` gives; tell whether it was."""
        overlay, state, raw_key = self._place(key)
        wanted = None if expected is None else self.encode_value(expected)
        held = overlay.get(raw_key)
        if held != wanted and (held is None or wanted is None or not self._holds(held, expected, wanted, state)):
            return False
        if value is None:
            overlay.delete(raw_key)
        else:
            self._write(overlay, state, raw_key, self.encode_value(value), self.ttl_ms)
        return True

    def _holds(self, held: bytes, expected: V | None, wanted: bytes, state: TaskState) -> bool:
        """Return whether `held`, written by an earlier version or in other bytes, is the same value."""
        found = self._decoded(held, state)
        return self.encode_value(found) == wanted or (type(found) is type(expected) and bool(found == expected))

    def own(self, ctx: Context, default: V) -> V:
        """Return the value of the message's own key, or `default` when it is absent or expired."""
        _, overlay, state = self._reach(ctx)
        raw = overlay.get(ctx._raw_key)
        return default if raw is None else self._decoded(raw, state)

    def replaced_own(self, ctx: Context) -> bytes | None:
        """Return the encoded value of the message's own key, which is about to be replaced without being decoded."""
        _, overlay, state = self._reach(ctx)
        return self._check_held(overlay, state, ctx._raw_key)

    def own_place(self, ctx: Context) -> tuple[Overlay, bytes]:
        """Return the state that the message sees, and its own key there."""
        return self._reach(ctx)[1], ctx._raw_key

    def write_own(self, ctx: Context, raw_value: bytes) -> None:
        """Write the encoded value of the message's own key."""
        _, overlay, state = self._reach(ctx)
        self._write(overlay, state, ctx._raw_key, raw_value, self.ttl_ms)

    def delete_own(self, ctx: Context) -> bool:
        """Remove the message's own key; tell whether it was there."""
        return self._reach(ctx)[1].delete(ctx._raw_key)

    def write_raw(self, state: TaskState, raw_key: bytes, raw_value: bytes, ttl_ms: int | None = None) -> None:
        """Write encoded, whatever the placement."""
        self._write(state.overlays[self], state, raw_key, raw_value, ttl_ms)

    def items(self) -> Iterator[tuple[K, V]]:
        """Return all (key, value) of this partition in byte order of the keys, as of the call."""
        return self._pairs(self._whole().items())

    def range(self, start: K | None = None, end: K | None = None, *, reverse: bool = False) -> Iterator[tuple[K, V]]:
        """Return (key, value) from `start`, included, to `end`, not included, in byte order of the encoded keys."""
        first = None if start is None else self.encode_key(start)
        last = None if end is None else self.encode_key(end)
        return self._pairs(self._whole().items(first, last, reverse=reverse))

    def prefix(self, prefix: K) -> Iterator[tuple[K, V]]:
        """Return (key, value) of the keys whose bytes begin with those of `prefix`."""
        return self._pairs(self._whole().prefix(self.encode_key(prefix)))

    def _pairs(self, pairs: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[K, V]]:
        return self._decoded_pairs(pairs, self._reach(current_message.get(None))[2])

    def _decoded_pairs(self, pairs: Iterable[tuple[bytes, bytes]], state: TaskState) -> Iterator[tuple[K, V]]:
        for key, value in pairs:
            yield self.decode_key(key), self._decoded(value, state)

    def _decoded(self, raw: bytes, state: TaskState, read: Callable[[bytes], Any] | None = None) -> V:
        """Call `read`; the partition stops if a newer program wrote, even if the handler catches the error."""
        try:
            found: V = (read or self.decode_value)(raw)
        except NewerVersionError as error:
            ctx = current_message.get()
            state.newer = newer_program(ctx._source, ctx._record, error)
            raise
        return found

    def _whole(self) -> Overlay:
        _, overlay, state = self._reach(current_message.get(None))
        if state.on_wait is not None:
            raise no_ranges(self.name)
        return overlay

    def _check_held(self, overlay: Overlay, state: TaskState, raw_key: bytes) -> bytes | None:
        """Return the value that a write replaces. A newer program's value isn't replaced: it may run again."""
        held = overlay.get(raw_key)
        if held is not None and self.refuse_newer is not None:
            self._decoded(held, state, self.refuse_newer)
        return held

    def _reach(self, ctx: Context | None) -> tuple[Context, Overlay, TaskState]:
        state = ctx._state if ctx is not None else None
        if ctx is not None and state is not None:
            overlay = state.overlays.get(self)
            if overlay is not None:
                return ctx, overlay, state
        raise unreachable(self.name, None if state is None else state.actor)

    def _place(self, key: K) -> tuple[Overlay, TaskState, bytes]:
        ctx, overlay, state = self._reach(current_message.get(None))
        raw_key = self.encode_key(key)
        if raw_key != ctx._raw_key:
            self._check_placement(raw_key, state)
        return overlay, state, raw_key

    def _check_placement(self, raw_key: bytes, state: TaskState) -> None:
        if self.placement == "task":
            return
        if state.on_wait is not None:
            raise not_its_own(self.name, raw_key)
        home = state.partitioner.home(raw_key, state.partition_count)
        if home != state.partition:
            raise foreign_key(self.name, raw_key, home, f"partition {state.partition} of actor {state.actor}")

    def write_all(self, overlay: Overlay, state: TaskState, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Write encoded rows that don't expire, whatever the placement: all, or none if one is too large."""
        limit = state.max_record_bytes[self.name] - RECORD_OVERHEAD_BYTES
        for raw_key, raw_value in rows:
            if len(raw_key) + len(raw_value) > limit:
                self._write(overlay, state, raw_key, raw_value, None)
        overlay.set_all(rows)

    def _write(self, overlay: Overlay, state: TaskState, raw_key: bytes, raw_value: bytes, ttl_ms: int | None) -> None:
        limit = state.max_record_bytes[self.name]
        if len(raw_key) + len(raw_value) + RECORD_OVERHEAD_BYTES > limit:
            raise too_large(f"changelog of store {self.name}", raw_key, len(raw_key) + len(raw_value), limit)
        # The scope's time may be that of a message that began long ago.
        expires_at_ms = NEVER if ttl_ms is None else state.tools.now_ms(state.scope.now_ms) + ttl_ms
        overlay.set(raw_key, raw_value, expires_at_ms)
