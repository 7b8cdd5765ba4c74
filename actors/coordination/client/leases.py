"""Leases: each is renewed at a third of its time, and is lost when no renewal came through in time.

The lease counts from the moment at which the request was sent, by the client's monotonic clock, however long it waited:
the service counts from a later one, and in whole milliseconds. With a hundredth taken off, the client gives up first,
unless its clock is slower than the service's by more than that. So a lease that was waited for is over or nearly so
when it is here: it is renewed before anybody sees it. What the service's clock says, which may be set, changes nothing.
A program that was stopped for longer than its lease doesn't notice before
it runs on: only the fencing token protects what it then still writes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from actors._core.logs import escaping, text_of
from actors.coordination import messages as m
from actors.coordination.client.transport import Transport
from actors.coordination.errors import CoordinationError, CoordinationTimeoutError, LeaseLostError, error_of
from actors.runtime.cancellation import end

logger = escaping(logging.getLogger(__name__))

RELEASE_S = 10.0
DRIFT = 0.01
"""By how much of a lease the clocks of client and service may differ at its end."""
ROUNDING_S = 0.002
"""The service's milliseconds: of the request, and of how long it waited."""


class Lease:
    """Something that is held, and renewed in the background, until it is released or lost.

    Attributes:
        name: of the resource.
        owner: who holds it, by its name for the service.
        token: the fencing token: hand it to what the lease protects, which refuses a smaller one than it has seen.
            0 for what has none: a membership, an ephemeral node.
        lost: set when it is over without having been released; `why` says why.
    """

    def __init__(
        self,
        transport: Transport,
        name: str,
        owner: str,
        *,
        token: int,
        ttl_s: float,
        from_s: float,
        first_s: float | None = None,
        renewal: m.AnyRequest,
        ending: m.AnyRequest,
    ) -> None:
        self.name = name
        self.owner = owner
        self.token = token
        self.lost = asyncio.Event()
        self.why = ""
        self._transport = transport
        self._clock = transport.clock
        self._ttl_s = ttl_s
        self._sure_s = _sure(ttl_s)
        self._until_s = from_s + _sure(ttl_s if first_s is None else min(first_s, ttl_s))
        self._renewal = renewal
        self._ending: m.AnyRequest | None = ending
        self._renewing: asyncio.Task[None] | None = None
        self._releasing: asyncio.Task[None] | None = None
        self._is_released = False

    @property
    def is_held(self) -> bool:
        """True while the lease is ours by this program's clock, also if the event loop was held up."""
        return not (self._is_released or self.lost.is_set()) and self._clock.monotonic() < self._until_s

    @property
    def left_s(self) -> float:
        """How many seconds it lasts if no renewal comes through."""
        return max(0.0, self._until_s - self._clock.monotonic()) if self.is_held else 0.0

    def check(self) -> None:
        """Do nothing if it is held.

        Raises:
            LeaseLostError: it isn't.
        """
        if not self.is_held:
            why = self.why or ("it was released" if self._is_released else "its time is over")
            raise LeaseLostError(f"{self.name!r}: {why}: acquire it again before going on", "expired")

    async def renew(self) -> None:
        """Renew it now.

        Raises:
            CoordinationError: it was refused, or nobody answered in its time.
        """
        await self._renew_within(self._until_s - self._clock.monotonic())

    async def _renew_within(self, within_s: float) -> None:
        begin_s = self._clock.monotonic()
        reply = await self._transport.ask(self.name, self._renewal, max(0.0, within_s))
        if isinstance(reply, m.Refusal):
            raise error_of(f"renewing {self.name!r}", reply)
        self._until_s = max(self._until_s, begin_s + self._sure_s)

    async def begin(self) -> Self:
        """Renew it in the background from now on; first of all, if it was long on its way.

        Raises:
            LeaseLostError: it was over before it was here.
        """
        left_s = self._until_s - self._clock.monotonic()
        if left_s < self._sure_s * 2 / 3:
            try:
                # What is left by our clock may be nothing, though the service has it for us.
                await self._renew_within(max(left_s, self._sure_s / 3))
            except CoordinationError as error:
                raise LeaseLostError(f"{self.name!r} was over before its answer came: {error}", "expired") from error
        self._renewing = asyncio.create_task(self._keep(), name=f"renewing {self.name}")
        return self

    async def _keep(self) -> None:
        while True:
            left_s = self._until_s - self._clock.monotonic()
            await self._clock.sleep(max(0.0, left_s - self._sure_s * 2 / 3))
            try:
                await self.renew()
            except CoordinationTimeoutError as error:
                self._lose(f"no renewal was answered within its {self._ttl_s:g} s ({error})")
                return
            except Exception as error:
                self._lose(text_of(error))
                return

    def _lose(self, why: str) -> None:
        self.why = why
        self.lost.set()
        logger.warning("the lease of %r (token %d) is lost: %s", self.name, self.token, why)

    async def release(self) -> None:
        """Release the lease. May be called twice; a lost lease, or one that can't be released, ends with its time.

        The release goes on in the background if the call is cancelled.
        """
        if self._releasing is None:
            self._is_released = True
            self._releasing = asyncio.create_task(self._give_back(), name=f"releasing {self.name}")
        await asyncio.shield(self._releasing)

    def replaced(self) -> None:
        """End it without a release, and not as lost: another lease has its grant now."""
        self._is_released, self._ending = True, None
        if self._renewing is not None:
            self._renewing.cancel()

    async def _give_back(self) -> None:
        await end(self._renewing)
        if self.lost.is_set() or self._ending is None:
            return
        try:
            reply = await self._transport.undo(self.name, self._ending, RELEASE_S)
        except CoordinationError as error:
            logger.warning("releasing %r: %s; it ends by itself within %g s", self.name, error, self._ttl_s)
            return
        if isinstance(reply, m.Refusal):
            logger.info("releasing %r: %s", self.name, reply.text)


def _sure(ttl_s: float) -> float:
    """Return how long, from before its request on, a lease is ours without doubt."""
    return ttl_s * (1.0 - DRIFT) - ROUNDING_S


class Leasing:
    """A context manager that acquires on the way in and releases on the way out. One block at a time.

    On the way out it raises `LeaseLostError` if the lease was lost meanwhile and the block raised nothing itself: what
    it did may not have been alone.
    """

    def __init__(self, acquire: Callable[[], Awaitable[Lease]]) -> None:
        self._acquire = acquire
        self._lease: Lease | None = None
        self._is_used = False

    async def __aenter__(self) -> Lease:
        """Acquire it.

        Raises:
            CoordinationError: it is in use: another block would lose sight of the first one's lease.
        """
        if self._is_used:
            raise CoordinationError(
                "this is in use by another block or task: call lock(…), semaphore(…), campaign(…) or join(…) for each",
                "argument",
            )
        self._is_used = True
        try:
            self._lease = lease = await self._acquire()
        except BaseException:
            self._is_used = False
            raise
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lease = self._lease
        if lease is None:
            return
        was_held = lease.is_held or lease._is_released
        self._lease, self._is_used = None, False
        await lease.release()
        if kind is None and not was_held:
            raise LeaseLostError(
                f"{lease.name!r} was lost before the block ended ({lease.why or 'its time is over'}): what the block "
                "did may not have been alone; resources that check tokens refused it",
                "expired",
            )
