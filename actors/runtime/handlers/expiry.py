"""Removes what has expired, a slice at a time, with tombstones in the changelog.

An expired key reads as absent from its moment on, by the write metadata that it carries. What is left of it goes
later: a pass walks through the store in the order of its keys, a few hundred at a time, and rests between two slices
so that all of them together take no more than `SHARE` of the time. A pass that dies with its process begins again:
what it removed was committed, and what it didn't is still expired.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any

from actors._core.logs import error_text, escaping
from actors._core.outside import EXITS
from actors.errors import HandlerFailedError, UnresolvedSchemaError, show_bytes
from actors.ports import Clock
from actors.runtime.cancellation import is_cancelled, is_closed, running_task
from actors.runtime.message.context import Context, enter_message
from actors.runtime.message.failures import newer_in, newer_program
from actors.runtime.message.internal_messages import InternalRecord
from actors.runtime.message.store import Store
from actors.runtime.message.task_state import TaskState
from stores._core.overlay import Overlay
from stores._core.record import METADATA_BYTES, is_expired
from stores.errors import StoreError
from stores.ports import PartitionStore

logger = escaping(logging.getLogger(__name__))

SHARE = 0.02
SLICE_KEYS = 500
SLICE_S = 0.05
LEAST_REST_S = 0.05
_AT_ONCE_S = 0.001
PASS_REST_S = 10.0
"""The least time between the end of a pass and the next. A shorter time to live doesn't need more: reads know."""


class Sweeper:
    """Walks through the stores of a task in which keys expire."""

    def __init__(
        self, stores: Sequence[tuple[Store[Any, Any], Overlay, PartitionStore]], clock: Clock, after_s: float
    ) -> None:
        self._stores = list(stores)
        self._clock = clock
        self._at = 0
        self._cursor: bytes | None = None
        self._due_s = after_s or clock.monotonic() + LEAST_REST_S

    @classmethod
    def over(
        cls,
        stores: Iterable[tuple[Store[Any, Any], Overlay, PartitionStore]],
        clock: Clock,
        after_s: float = 0.0,
    ) -> Sweeper | None:
        """Return the sweeper of those stores in which keys expire, None when there is none.

        It begins at `after_s` of the clock, or soon if that is 0.
        """
        expiring = [part for part in stores if part[0].expires]
        return cls(expiring, clock, after_s) if expiring else None

    def wait_s(self) -> float:
        """Return the seconds until the next slice; 0 when it is due."""
        left_s = self._due_s - self._clock.monotonic()
        return left_s if left_s > _AT_ONCE_S else 0.0

    async def sweep(
        self,
        messages: TaskState,
        next_offset: int,
        is_over: Callable[[], bool],
        is_busy: Callable[[bytes], bool],
    ) -> None:
        """Remove what has expired in the next slice; it goes with the next commit.

        The slice ends early when it takes longer than `SLICE_S`, or when `is_over` says so. Keys that `is_busy` names
        are left to the next pass.
        """
        scope = messages.scope
        began_s = self._clock.monotonic()
        scope.now_ms = max(scope.now_ms, self._clock.wall_ms())
        # Before the first input there is no offset that a write could come from.
        if next_offset > 0:
            scope.source_offset = next_offset - 1
            at = self._at
            for store, overlay, key, raw in self._look(scope.now_ms):
                if is_over() or self._clock.monotonic() - began_s > SLICE_S:
                    self._at, self._cursor = at, key
                    break
                if not is_busy(store.home_key(key)):
                    await remove(messages, store, overlay, key, raw)
        self._rest(self._clock.monotonic() - began_s)

    def _look(self, now_ms: int) -> list[tuple[Store[Any, Any], Overlay, bytes, bytes]]:
        store, overlay, held = self._stores[self._at]
        found, last, count = [], None, 0
        for key, raw in held.scan(self._cursor):
            count, last = count + 1, key
            if is_expired(raw, now_ms):
                found.append((store, overlay, key, raw))
            if count >= SLICE_KEYS:
                break
        if count < SLICE_KEYS or last is None:
            self._cursor = None
            self._at = (self._at + 1) % len(self._stores)
        else:
            self._cursor = last + b"\x00"
        return found

    def _rest(self, took_s: float) -> None:
        """Let the next slice wait, after one that took so long; longer after the end of a pass through all stores."""
        is_over = self._cursor is None and self._at == 0
        rest_s = max(LEAST_REST_S, took_s * (1 - SHARE) / SHARE)
        self._due_s = self._clock.monotonic() + (max(PASS_REST_S, rest_s) if is_over else rest_s)


async def remove(messages: TaskState, store: Store[Any, Any], overlay: Overlay, key: bytes, raw: bytes) -> None:
    """Remove an expired key and call its store's hook, all of it or, if the hook raises, nothing."""
    if not overlay.has_write(key):
        # Else a handler or another key's hook was here first: the next round sees what it left.
        error = await _remove(messages, store, key, raw)
        if isinstance(error, UnresolvedSchemaError):
            # The registry is asked once; a later round has the schema, or asks again.
            await error.fetch()
        elif error is not None:
            _log(messages, store, key, error, "it is called again later")
        messages.scope.release()


async def remove_own(ctx: Context, store: Store[Any, Any], *, stops: bool) -> None:
    """Remove the message's own key if it has expired, and call its store's hook, ahead of the message.

    The hook has its own context and the id that it would have in a later round. What it writes belongs to the message's
    savepoint; if it raises, that alone is taken back, and the message is handled.

    Raises:
        HandlerFailedError: the hook raised, and the actor `stops` at errors.
    """
    overlay, key = store.own_place(ctx)
    if overlay.expired(key) is None:
        return
    raw, state = overlay.read(key), ctx._working("on_expire")
    if raw is None:
        raise AssertionError("a value that has expired has write metadata")
    try:
        error = await _remove(state, store, key, raw)
    finally:
        enter_message(ctx)
    if error is None:
        return
    if isinstance(error, UnresolvedSchemaError):
        # The message waits for the schema, as for its own.
        raise error
    if stops:
        raise HandlerFailedError(
            f"on_expire of store {store.name} raised {error_text(error)} for the expired key, ahead of this message",
            topic=ctx.topic,
            partition=ctx.partition,
            offset=ctx.offset,
            key=key,
        ) from error
    again = "a message of the key is handled now: the hook is called again later unless that writes the key"
    _log(state, store, key, error, again)


async def _remove(messages: TaskState, store: Store[Any, Any], key: bytes, raw: bytes) -> BaseException | None:
    """Remove an expired key and call its store's hook; if the hook raises, take that back and return the error."""
    scope, sent = messages.scope, len(messages.outputs)
    written = len(scope.undo)
    internal_record = InternalRecord(
        scope.source_offset, scope.now_ms, key, raw[METADATA_BYTES:], id=_id_of(messages, store, key, raw)
    )
    ctx = Context(messages, internal_record, None, key)
    enter_message(ctx)
    running = None if store.on_expire is None else running_task()
    try:
        messages.overlays[store].delete(key)
        if store.below is not None:
            store.below.removed(messages.overlays[store], key)
        if store.on_expire is not None:
            ctx.key, ctx.expired_in = store.decode_key(key), store
            result = store.on_expire(ctx, store.decode_value(raw[METADATA_BYTES:]))
            if inspect.isawaitable(result):
                await result
    except BaseException as error:
        scope.rollback(written)
        del messages.outputs[sent:]
        if is_closed(error, running) or not _is_hooks(error):
            raise
        newer = newer_in(error)
        if newer is not None:
            raise newer_program(messages.source, internal_record, newer) from newer
        return error
    finally:
        ctx._state = None
    return None


def _log(messages: TaskState, store: Store[Any, Any], key: bytes, error: BaseException, again: str) -> None:
    logger.error(
        "store %s, partition %d: on_expire raised for the expired key %s; %s",
        store.name,
        messages.partition,
        show_bytes(key),
        again,
        exc_info=error,
    )


def _is_hooks(error: BaseException) -> bool:
    """Return whether the hook failed, and not the store or the task, which may have been cancelled."""
    if isinstance(error, asyncio.CancelledError):
        return not is_cancelled()
    return not isinstance(error, (StoreError, *EXITS))


def _id_of(messages: TaskState, store: Store[Any, Any], key: bytes, raw: bytes) -> str:
    """Return the id of an expiry: the same when its hook is called again, another one for each value."""
    digest = blake2b(key + raw[:METADATA_BYTES], digest_size=12).hexdigest()
    return f"{messages.home.topic}-{messages.home.partition}-expired-{store.name}-{digest}"
