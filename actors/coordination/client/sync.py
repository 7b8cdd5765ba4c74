"""The client for programs without an event loop: it has one of its own, in a thread, where leases are renewed."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, Self, TypeVar

from actors.coordination import messages as m
from actors.coordination.client.client import CLOSE_S, Coordination
from actors.coordination.client.leases import Lease, Leasing
from actors.coordination.client.locking import Seconds
from actors.coordination.client.sharing import Sharing
from actors.coordination.errors import CoordinationError
from actors.coordination.locks import Holder

T = TypeVar("T")

END_S = 2.0
"""So long the thread has for its own end after the client is closed."""


class SyncLease:
    """A `Lease` for threads."""

    def __init__(self, facade: SyncCoordination, lease: Lease) -> None:
        self._facade = facade
        self._lease = lease
        self.name = lease.name
        self.token = lease.token

    @property
    def is_held(self) -> bool:
        """True while the lease is ours by this program's clock."""
        return self._lease.is_held

    def check(self) -> None:
        """Do nothing if it is held.

        Raises:
            LeaseLostError: it isn't.
        """
        self._lease.check()

    def wait_lost(self, timeout_s: float) -> bool:
        """Wait until it is lost, at most so long; tell whether it is."""

        async def wait() -> bool:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._lease.lost.wait(), timeout_s)
            return self._lease.lost.is_set()

        return self._facade.run(wait())

    def release(self) -> None:
        """Release the lease. May be called twice."""
        self._facade.run(self._lease.release())


class SyncCoordination:
    """`Coordination` for programs without an event loop; from any thread. Use it in a `with` block.

    Args:
        brokers: `host:port`, several with commas.
        client: in its place, one that was made already; it must have been used on no loop.
        options: those of `Coordination`.
    """

    def __init__(self, brokers: str = "", *, client: Sharing | None = None, **options: Any) -> None:
        self.client: Sharing = Coordination(brokers, **options) if client is None else client
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._is_closed = False
        self._calls: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="coordination", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run any call of the asyncio client, as in `sync.run(sync.client.members("group"))`, and give its result.

        Interrupting it withdraws the call.

        Raises:
            CoordinationError: the client was closed before, or meanwhile.
        """
        with self._lock:
            if self._is_closed:
                work.close()
                raise _closed()
            future = asyncio.run_coroutine_threadsafe(self._known(work), self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError as error:
            if self._is_closed:
                raise _closed() from error
            raise
        except BaseException:
            future.cancel()
            raise

    @contextlib.contextmanager
    def lock(self, name: str, ttl: Seconds = 30.0, **options: Any) -> Iterator[SyncLease]:
        """As `Coordination.lock`."""
        with self._held(self.client.lock(name, ttl, **options)) as lease:
            yield lease

    @contextlib.contextmanager
    def semaphore(self, name: str, limit: int, ttl: Seconds = 30.0, **options: Any) -> Iterator[SyncLease]:
        """As `Coordination.semaphore`."""
        with self._held(self.client.semaphore(name, limit, ttl, **options)) as lease:
            yield lease

    @contextlib.contextmanager
    def campaign(self, name: str, data: str = "", ttl: Seconds = 15.0, **options: Any) -> Iterator[SyncLease]:
        """As `Coordination.campaign`."""
        with self._held(self.client.campaign(name, data, ttl, **options)) as lease:
            yield lease

    def try_lock(self, name: str, ttl: Seconds = 30.0, **options: Any) -> SyncLease | None:
        """As `Coordination.try_lock`."""
        lease = self.run(self.client.try_lock(name, ttl, **options))
        return None if lease is None else SyncLease(self, lease)

    def leader(self, name: str) -> Holder | None:
        """As `Coordination.leader`."""
        return self.run(self.client.leader(name))

    def look(self, name: str) -> m.View:
        """As `Coordination.look`."""
        return self.run(self.client.look(name))

    def get(self, name: str) -> tuple[str, int] | None:
        """As `Coordination.get`."""
        return self.run(self.client.get(name))

    def put(self, name: str, data: str, *, version: int | None = None) -> int:
        """As `Coordination.put`."""
        return self.run(self.client.put(name, data, version=version))

    def delete(self, name: str, *, version: int | None = None) -> int:
        """As `Coordination.delete`."""
        return self.run(self.client.delete(name, version=version))

    def barrier(self, name: str, parties: int, *, timeout: Seconds = 60.0) -> int:
        """As `Coordination.barrier`."""
        return self.run(self.client.barrier(name, parties, timeout=timeout))

    def close(self) -> None:
        """Disconnect and end the thread, within seconds. May be called twice.

        Calls of other threads, and all later ones, raise a `CoordinationError` with the reason "closed".
        """
        with self._lock:
            if self._is_closed:
                return
            # What was handed to the loop before is there when this comes to it; nothing is handed to it any more.
            self._is_closed = True
            ending = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        with contextlib.suppress(TimeoutError):
            ending.result(CLOSE_S + END_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(END_S)
        if not self._thread.is_alive():
            self._loop.close()

    async def _end(self) -> None:
        """End the calls of other threads, and the client, which withdraws them; then what is left: renewals."""
        await _cancel(self._calls)
        if isinstance(self.client, Coordination):
            await self.client.close()
        await _cancel({task for task in asyncio.all_tasks() if task is not asyncio.current_task()})

    async def _known(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        if task is None:
            raise AssertionError("a coroutine runs in a task")
        self._calls.add(task)
        try:
            return await work
        finally:
            self._calls.discard(task)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _held(self, leasing: Leasing) -> Iterator[SyncLease]:
        lease = SyncLease(self, self.run(leasing.__aenter__()))
        try:
            yield lease
        except BaseException as error:
            self.run(leasing.__aexit__(type(error), error, error.__traceback__))
            raise
        self.run(leasing.__aexit__(None, None, None))


async def _cancel(tasks: set[asyncio.Task[Any]]) -> None:
    tasks = set(tasks)
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=END_S / 4)


def _closed() -> CoordinationError:
    return CoordinationError("the client was closed: make a new one", "closed")
