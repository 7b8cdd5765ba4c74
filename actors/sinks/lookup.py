"""Values from outside of Kafka by key, for handlers: of a table in a database, or of a service."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from datetime import timedelta
from typing import Generic, TypeVar

from actors.declare.arguments import check_span
from actors.errors import ConfigurationError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Lookup(Generic[K, V]):
    """Values by key, from a function that is called for a key that isn't cached.

    Calls for one key at the same time share one call of the function. Its errors are raised to all of them, and aren't
    cached.

    Args:
        load: an async function of a key, that returns its value, or None where there is none.
        ttl: how long a value is used.
        absent_ttl: how long it is remembered that there is no value.
        most: how many keys are cached; the least recently used go first.

    Raises:
        ConfigurationError: an argument can't be meant.
    """

    def __init__(
        self,
        load: Callable[[K], Awaitable[V | None]],
        *,
        ttl: timedelta = timedelta(minutes=5),
        absent_ttl: timedelta = timedelta(seconds=30),
        most: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_span("Lookup", "ttl", ttl)
        check_span("Lookup", "absent_ttl", absent_ttl, may_be_zero=True)
        if most < 1:
            raise ConfigurationError(f"Lookup: most={most} has to be a number of keys, 1 or more")
        self._load = load
        self._ttl_s, self._absent_ttl_s = ttl.total_seconds(), absent_ttl.total_seconds()
        self._most = most
        self._clock = clock
        self._cached: OrderedDict[K, tuple[V | None, float]] = OrderedDict()
        self._loading: dict[K, asyncio.Task[V | None]] = {}

    async def get(self, key: K) -> V | None:
        """Return the value of a key, None if there is none; at most as old as the cache may be."""
        cached = self._cached.get(key)
        if cached is not None and self._clock() < cached[1]:
            self._cached.move_to_end(key)
            return cached[0]
        loading = self._loading.get(key)
        if loading is None:
            loading = self._loading[key] = asyncio.create_task(self._loaded(key))
        # One who waits may be cancelled without the others.
        return await asyncio.shield(loading)

    def forget(self, key: K) -> None:
        """Load the key again when it is asked for the next time."""
        self._cached.pop(key, None)
        self._loading.pop(key, None)

    async def close(self) -> None:
        """Disconnect what loads values, if it has connections. May be called twice."""
        close = getattr(self._load, "close", None)
        if close is not None:
            await close()

    async def _loaded(self, key: K) -> V | None:
        task = asyncio.current_task()
        try:
            value = await self._load(key)
            # A key that was forgotten meanwhile is loaded again.
            if self._loading.get(key) is task:
                ttl_s = self._absent_ttl_s if value is None else self._ttl_s
                self._cached[key] = value, self._clock() + ttl_s
                self._cached.move_to_end(key)
                while len(self._cached) > self._most:
                    self._cached.popitem(last=False)
            return value
        finally:
            if self._loading.get(key) is task:
                del self._loading[key]
