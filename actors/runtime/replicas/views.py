"""`TopicView`: a compacted topic as a read-only mapping that follows the topic.

What is applied, is mended and is kept is `ViewReplica`'s; here are keys and values, waiting, and callbacks.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from heapq import merge
from operator import itemgetter
from typing import Any, Generic, Self, TypeVar

from actors._core.logs import escaping
from actors._core.outside import EXITS
from actors._core.partitioner import MURMUR2, Partitioner
from actors._core.view_rules import Change
from actors.errors import ViewClosedError, ViewError, ViewFailedError, ViewTimeoutError, show_bytes
from actors.runtime.cancellation import end, is_closed, running_task
from actors.runtime.message.unresolved import resolved
from actors.runtime.replicas.view_replica import ViewParts, ViewReplica
from stores._core.overlay import after_prefix
from stores._core.record import METADATA_BYTES, is_expired
from stores.errors import StoreError

logger = escaping(logging.getLogger(__name__))

K = TypeVar("K")
V = TypeVar("V")

CHUNKS_WAITING = 16
"""How many chunks of changes may wait for callbacks; more hold the view up."""
LOOK_AGAIN_S = 1.0
"""How often what is waited for is looked at although nothing came: keys expire without a record."""
_first = itemgetter(0)

Callback = Callable[[Any, Any, Any], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class ViewCodecs:
    """How the topic's keys and values become bytes and back, and where most of its producers place keys."""

    encode_key: Callable[[Any], bytes]
    decode_key: Callable[[bytes], Any]
    decode_value: Callable[[bytes], Any]
    partitioner: Partitioner = MURMUR2


class TopicView(Generic[K, V]):
    """All keys and values of a compacted topic, or of a store's changelog, in this process.

    It holds what is committed, as of some moment not long ago (see `caught_up`). Use it in an `async with` block; a
    worker opens the views of its app itself. Reads don't wait for anything and may be made in an actor's handler; what
    they give isn't a part of the message's commit, and may be older or newer when the message is handled again.

    Args:
        topic: gives the topic's name.
        codecs: gives how keys and values are encoded.
        connect: gives what it works with, each time that it is opened.
    """

    def __init__(
        self,
        topic: Callable[[], str],
        *,
        codecs: Callable[[], ViewCodecs],
        connect: Callable[[], Awaitable[ViewParts]],
    ) -> None:
        self._topic = topic
        self._make_codecs = codecs
        self._connect = connect
        self._codecs: ViewCodecs | None = None
        self._copy: ViewReplica | None = None
        self._callbacks: list[Callback] = []
        self._waiting: asyncio.Queue[tuple[int, Sequence[Change]]] | None = None
        self._calling: asyncio.Task[None] | None = None
        self._is_opening = False
        self._failure: Exception | None = None

    def __repr__(self) -> str:
        return f"<View of {self._topic()}>"

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._topic()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def open(self, parts: ViewParts | None = None) -> None:
        """Read the topic to its end, or what of it isn't kept yet, and begin to follow it.

        Args:
            parts: what to work with in the place of what it would connect to.

        Raises:
            UnknownTopicError: there is no such topic.
            ConfigurationError: it isn't compacted, or got partitions since the view was kept.
            BrokerUnavailableError: no broker answers.
            RestoreError: reading all of it took longer than the topic keeps deletes.
            StoreError: the folder can't be used.
            ViewError: it is open already.
        """
        if self._copy is not None or self._is_opening:
            raise ViewError(f"the view of {self.topic} is open already: close it first, or share it")
        self._is_opening, self._failure = True, None
        try:
            self._codecs = self._make_codecs()
            parts = parts or await self._connect()
            self._waiting = asyncio.Queue(CHUNKS_WAITING)
            copy = ViewReplica(self.topic, parts, self._changed)
            try:
                await copy.open()
            except BaseException:
                await copy.close()
                raise
            self._copy = copy
        finally:
            self._is_opening = False

    async def close(self) -> None:
        """Stop following; who waits gets a `ViewClosedError`. May be called twice, and opened again."""
        copy, self._copy = self._copy, None
        self._waiting = None
        calling, self._calling = self._calling, None
        if calling is not asyncio.current_task():
            await end(calling)
        if copy is not None:
            await copy.close()

    def fail(self, error: Exception) -> None:
        """Make reads raise `ViewFailedError` for this reason, until the view is opened."""
        self._failure = error

    def forget(self) -> None:
        """Take it for closed: the process that had opened it is gone."""
        self._copy = self._calling = self._waiting = None

    def get(self, key: K, default: V | None = None) -> V | None:
        """Return the value of `key`, or `default` when it is absent or expired.

        Raises:
            ViewClosedError: the view isn't open.
            ViewFailedError: it has ended; the text says why.
            CodecError: key or value aren't what the topic is declared to hold.
        """
        raw = self._read(key)
        return default if raw is None else self._opened().decode_value(raw)

    def __contains__(self, key: K) -> bool:
        return self._read(key) is not None

    def __len__(self) -> int:
        """Count the keys; that takes a walk through all of them."""
        return sum(1 for _ in self._scan(None, None, reverse=False))

    def items(self) -> Iterator[tuple[K, V]]:
        """Return all (key, value) in byte order of the encoded keys, as of the call."""
        return self._decoded(self._scan(None, None, reverse=False))

    def range(self, start: K | None = None, end: K | None = None, *, reverse: bool = False) -> Iterator[tuple[K, V]]:
        """Return (key, value) from `start`, included, to `end`, not included, in byte order of the encoded keys."""
        encode = self._opened().encode_key
        first, last = (None if key is None else encode(key) for key in (start, end))
        return self._decoded(self._scan(first, last, reverse=reverse))

    def prefix(self, prefix: K) -> Iterator[tuple[K, V]]:
        """Return (key, value) of the keys whose bytes begin with those of `prefix`."""
        raw = self._opened().encode_key(prefix)
        return self._decoded(self._scan(raw, after_prefix(raw), reverse=False))

    async def caught_up(self, *, timeout: timedelta | None = None) -> None:
        """Wait until the view has all that is committed at the moment of this call.

        Raises:
            ViewTimeoutError: it took longer; the view goes on.
            BrokerUnavailableError: no broker answers.
            ViewFailedError, ViewClosedError: the view ended.
        """
        await self._in_time(self._running().caught_up(), timeout, lambda: f"the view of {self.topic} isn't caught up")

    async def wait_for(
        self, key: K, *, timeout: timedelta | None = None, predicate: Callable[[V | None], bool] | None = None
    ) -> V | None:
        """Wait until `key` is there, or until `predicate` holds, and give the value.

        Args:
            key: the key.
            timeout: how long to wait; for ever when left out.
            predicate: of the value, which is None while the key is absent; called when something may have changed.

        Raises:
            ViewTimeoutError: it didn't come to that in time.
            ViewFailedError, ViewClosedError: the view ended.
        """
        fits = predicate or (lambda value: value is not None)

        async def wait() -> V | None:
            while True:
                value = self.get(key)
                if fits(value):
                    return value
                await self._until_moved()

        what = "is missing" if predicate is None else "isn't what is waited for"
        found: V | None = await self._in_time(wait(), timeout, lambda: f"the view of {self.topic}: key {key!r} {what}")
        return found

    def on_change(self, callback: Callback) -> Callable[[], None]:
        """Call `callback(key, old, new)` for each change from now on; None stands for absent.

        A write of the value that is there already is no change. The changes of a partition come in their order, one
        callback at a time; those that a rebuild finds come as its difference. A key that expired is absent for reads at
        once; the change comes when its owner removes it. A callback that raises is logged. A slow one holds the view
        up after some thousand changes. Changes that no callback was called for when the view is closed are gone.

        Args:
            callback: a function, or an async one.

        Returns:
            A function that takes the callback away.
        """
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback) if callback in self._callbacks else None

    async def callbacks_done(self) -> None:
        """Wait until the callbacks were called for all that is applied now."""
        if self._waiting is None or self._calling is None:
            return
        done = asyncio.create_task(self._waiting.join())
        try:
            # A view that is closed calls nothing any more.
            await asyncio.wait([done, self._calling], return_when=asyncio.FIRST_COMPLETED)
        finally:
            done.cancel()

    async def _changed(self, partition: int, changes: Sequence[Change]) -> None:
        if not self._callbacks or self._waiting is None:
            return
        if self._calling is None or self._calling.done():
            self._calling = asyncio.create_task(self._call(self._waiting), name=f"callbacks of {self.topic}")
        await self._waiting.put((partition, changes))

    async def _call(self, waiting: asyncio.Queue[tuple[int, Sequence[Change]]]) -> None:
        while True:
            partition, changes = await waiting.get()
            for change in changes:
                for callback in list(self._callbacks):
                    await self._call_one(callback, partition, change)
                    if self._waiting is not waiting:
                        # The callback has closed the view.
                        return
            waiting.task_done()

    async def _call_one(self, callback: Callback, partition: int, change: Change) -> None:
        raw_key, old, new = change
        codecs, running = self._opened(), running_task()

        def value(raw: bytes | None) -> Any:
            return None if raw is None else codecs.decode_value(raw[METADATA_BYTES:])

        try:
            result = callback(*await resolved(lambda: (codecs.decode_key(raw_key), value(old), value(new))))
            if inspect.isawaitable(result):
                await result
        except (asyncio.CancelledError, *EXITS):
            raise
        except BaseException as error:
            if is_closed(error, running):
                raise
            logger.exception(
                "%s[%d]: the callback for key %s failed; the view goes on", self.topic, partition, show_bytes(raw_key)
            )

    def _running(self) -> ViewReplica:
        if self._copy is None:
            if self._failure is not None:
                raise ViewFailedError(f"the view of {self.topic} isn't open: {self._failure}") from self._failure
            raise ViewClosedError(f"the view of {self.topic} isn't open: use it inside `async with view:`")
        self._copy.check()
        return self._copy

    def _opened(self) -> ViewCodecs:
        if self._codecs is None:
            raise ViewClosedError(f"the view of {self.topic} was never opened: use it inside `async with view:`")
        return self._codecs

    def _read(self, key: K) -> bytes | None:
        """Return the value's bytes: from the partition where the key belongs, or, if it isn't there, any other."""
        copy, codecs = self._running(), self._opened()
        raw_key = codecs.encode_key(key)
        home = codecs.partitioner.home(raw_key, copy.partitions)
        with _noting_damage(copy):
            with_metadata = copy.store(home).get(raw_key)
            if with_metadata is None and copy.partitions > 1:
                with_metadata = self._elsewhere(copy, raw_key, home)
        return (
            None
            if with_metadata is None or is_expired(with_metadata, copy.clock.wall_ms())
            else with_metadata[METADATA_BYTES:]
        )

    @staticmethod
    def _elsewhere(copy: ViewReplica, raw_key: bytes, home: int) -> bytes | None:
        """Look where a writer with another partitioner may have put the key."""
        for number, store in copy.stores.items():
            with_metadata = None if number == home else store.get(raw_key)
            if with_metadata is not None:
                return with_metadata
        return None

    def _scan(self, start: bytes | None, end: bytes | None, *, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        copy = self._running()
        now_ms, stores = copy.clock.wall_ms(), list(copy.stores.values())
        with _noting_damage(copy):
            # Begun here, not at the first row: they show the state as of the call.
            scans = [store.scan(start, end, reverse=reverse) for store in stores]
            rows = scans[0] if len(scans) == 1 else merge(*scans, key=_first, reverse=reverse)
        return _live(copy, rows, now_ms)

    def _decoded(self, rows: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[K, V]]:
        codecs = self._opened()
        return ((codecs.decode_key(key), codecs.decode_value(value)) for key, value in rows)

    async def _until_moved(self) -> None:
        try:
            async with asyncio.timeout(LOOK_AGAIN_S):
                await self._running().moved()
        except TimeoutError:
            return

    @staticmethod
    async def _in_time(work: Any, timeout: timedelta | None, what: Callable[[], str]) -> Any:
        if timeout is None:
            return await work
        limit = asyncio.timeout(timeout.total_seconds())
        try:
            async with limit:
                return await work
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise ViewTimeoutError(
                f"{what()} after {timeout.total_seconds():g} s: look whether its writer runs"
            ) from error


@contextmanager
def _noting_damage(copy: ViewReplica) -> Iterator[None]:
    """Have what can't be read be built again; the error is for the caller, who may try again later."""
    try:
        yield
    except StoreError as error:
        copy.doubt(error)
        raise


def _live(copy: ViewReplica, rows: Iterator[tuple[bytes, bytes]], now_ms: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows that haven't expired, without their metadata."""
    with _noting_damage(copy):
        for key, with_metadata in rows:
            if not is_expired(with_metadata, now_ms):
                yield key, with_metadata[METADATA_BYTES:]
