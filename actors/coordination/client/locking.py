"""The client's locks: mutual exclusion, readers and writers, semaphores, the leader's office."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any
from uuid import uuid4

from actors.coordination import messages as m
from actors.coordination.client.leases import Lease, Leasing
from actors.coordination.client.transport import Transport
from actors.coordination.errors import (
    BusyError,
    CoordinationError,
    CoordinationTimeoutError,
    LeaseLostError,
    ProtocolError,
    TtlError,
    error_of,
)

Seconds = float | timedelta
CALL_S = 10.0
WITHDRAW_S = 30.0


def seconds(what: str, given: Seconds) -> float:
    """Return a duration in seconds.

    Raises:
        TtlError: a time to live that isn't more than nothing.
        CoordinationError: another duration that is negative.
    """
    found = given.total_seconds() if isinstance(given, timedelta) else float(given)
    if what == "ttl" and not 0.0 < found <= m.MAX_TTL_MS / 1000:
        raise TtlError(f"ttl={given!r}: it has to be more than 0 s and at most {m.MAX_TTL_MS // 1000} s", "ttl")
    if not found >= 0.0:
        raise CoordinationError(f"{what}={given!r}: a duration isn't negative", "argument")
    return found


class Locks:
    """Locks, semaphores and elections. All durations are seconds or timedeltas.

    Every call may raise `CoordinationTimeoutError` (nobody answered within `call_timeout`, beside what it was to wait)
    and `CoordinationError`. Cancelled calls are withdrawn in the background.
    """

    def __init__(self, transport: Transport, call_timeout: Seconds = CALL_S) -> None:
        self._transport = transport
        self._call_s = seconds("call_timeout", call_timeout)
        self._withdrawing: set[asyncio.Task[Any]] = set()

    def lock(
        self,
        name: str,
        ttl: Seconds = 30.0,
        *,
        timeout: Seconds | None = None,
        shared: bool = False,
        owner: str | None = None,
        data: str = "",
    ) -> Leasing:
        """Return the lock for an `async with` block, whose value is the `Lease`.

        Args:
            name: of the resource.
            ttl: the lock falls to others so long after the last renewal; it is renewed at a third of that.
            timeout: how long to wait for it; half a day when left out.
            shared: as one of many readers.
            owner: for a reentrant lock: who has it already, by this name, gets it again with the same token. Each block
                is an owner of its own when it is left out.
            data: what others see of the holder.

        Raises:
            CoordinationTimeoutError: nobody let go in time.
            BusyError: too many wait for it already.
            TtlError: the ttl is too short for the service.
            LockMismatchError: the resource is in use as another kind of lock.
            LeaseLostError: at the end of the block, if it was lost in it; or on the way in, if it was granted and over
                again before the answer came: this program, or its connection, stood still.
        """
        return Leasing(
            functools.partial(self.acquire, name, ttl, timeout=timeout, shared=shared, owner=owner, data=data)
        )

    def semaphore(
        self, name: str, limit: int, ttl: Seconds = 30.0, *, permits: int = 1, timeout: Seconds | None = None
    ) -> Leasing:
        """Hold `permits` of the `limit` permits; else as `lock`. All callers have to name the same limit."""
        return Leasing(functools.partial(self.acquire, name, ttl, timeout=timeout, permits=permits, limit=limit))

    def campaign(self, name: str, data: str = "", ttl: Seconds = 15.0, *, timeout: Seconds | None = None) -> Leasing:
        """Wait to be the leader, and be it in the block: `lease.lost` says that another may be. `data` says who.

        Leaving the block is resigning.
        """
        return self.lock(name, ttl, timeout=timeout, data=data)

    async def try_lock(
        self,
        name: str,
        ttl: Seconds = 30.0,
        *,
        shared: bool = False,
        owner: str | None = None,
        limit: int | None = None,
        permits: int = 1,
    ) -> Lease | None:
        """Return the lease if it can be had at once, else None. Release it with `await lease.release()`."""
        try:
            return await self.acquire(name, ttl, timeout=0.0, shared=shared, owner=owner, permits=permits, limit=limit)
        except BusyError:
            return None

    async def acquire(
        self,
        name: str,
        ttl: Seconds = 30.0,
        *,
        timeout: Seconds | None = None,
        shared: bool = False,
        owner: str | None = None,
        data: str = "",
        permits: int = 1,
        limit: int | None = None,
    ) -> Lease:
        """Return the lease, for as long as until it is released: see `lock`."""
        ttl_s, wait_s = seconds("ttl", ttl), m.MAX_WAIT_MS / 1000
        if timeout is not None:
            wait_s = min(wait_s, seconds("timeout", timeout))
        who = owner or self._transport.new_owner(name)
        request = m.Acquire(
            owner=who,
            ttl_ms=int(ttl_s * 1000),
            kind="lock" if limit is None else "semaphore",
            shared=shared,
            permits=permits,
            limit=limit or 1,
            wait_ms=int(wait_s * 1000),
            data=data,
            claim=uuid4().hex,
            anew=owner is None,
        )
        try:
            return await self._granted(name, request, ttl_s)
        except (CoordinationTimeoutError, LeaseLostError, asyncio.CancelledError):
            # It may be granted to nobody, later.
            self._withdraw(name, m.GiveUp(owner=who, claim=request.claim))
            raise

    async def _granted(self, name: str, request: m.Acquire, ttl_s: float) -> Lease:
        begin_s = self._transport.clock.monotonic()
        reply = await self._transport.ask(name, request, request.wait_ms / 1000 + self._call_s)
        if not isinstance(reply, m.Grant):
            raise _refused(f"acquiring {name!r}", reply)
        lease = Lease(
            self._transport,
            name,
            request.owner,
            token=reply.token,
            ttl_s=ttl_s,
            from_s=begin_s,
            first_s=reply.ttl_ms / 1000,
            renewal=m.Renew(owner=request.owner, token=reply.token, ttl_ms=request.ttl_ms, claim=request.claim),
            ending=m.Release(owner=request.owner, token=reply.token, claim=request.claim),
        )
        return await lease.begin()

    async def look(self, name: str) -> m.View:
        """Return the view of a resource: holders, waiters, node, members.

        A resource that nobody has used has version 0.
        """
        request = m.Look()
        return self._viewed(name, request, await self._transport.ask(name, request, self._call_s))

    async def break_lock(self, name: str) -> None:
        """Take a lock from its holders. They notice at their next renewal; only tokens stop them earlier.

        Raises:
            UnknownLockError: nobody ever held it.
        """
        if not (await self.look(name)).last_token:
            raise error_of(f"breaking {name!r}", m.Refusal("unknown", "nobody ever held it"))
        await self._done(name, m.Break())

    @staticmethod
    def _viewed(name: str, request: m.AnyRequest, reply: m.Reply) -> m.View:
        if not isinstance(reply, m.View):
            raise _refused(f"{type(request).__name__} {name!r}", reply)
        return reply

    async def _done(self, name: str, request: m.AnyRequest, wait_s: float = 0.0) -> int:
        reply = await self._transport.ask(name, request, wait_s + self._call_s)
        if not isinstance(reply, m.Done):
            raise _refused(f"{type(request).__name__} {name!r}", reply)
        return reply.number

    def _withdraw(self, name: str, request: m.AnyRequest) -> None:
        self._in_background(self._transport.undo(name, request, WITHDRAW_S))

    def _in_background(self, work: Awaitable[Any]) -> None:
        async def run() -> None:
            await work

        task = asyncio.create_task(run(), name="withdrawing a request")
        self._withdrawing.add(task)
        task.add_done_callback(self._withdrawn)

    def _withdrawn(self, task: asyncio.Task[Any]) -> None:
        self._withdrawing.discard(task)
        if not task.cancelled():
            task.exception()

    async def _settle(self, within_s: float) -> None:
        if self._withdrawing:
            await asyncio.wait(self._withdrawing, timeout=within_s)
        for task in self._withdrawing:
            task.cancel()


def _refused(what: str, reply: m.Reply) -> CoordinationError:
    if isinstance(reply, m.Refusal):
        return error_of(what, reply)
    return ProtocolError(f"{what}: the service answered with {type(reply).__name__}: use its version", "protocol")
