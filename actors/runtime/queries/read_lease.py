"""How a worker knows, without asking each time, that nobody else owns what the group gave it.

The group's coordinator answers a heartbeat: at that moment, which is after the question was sent, this member is in the
current generation. Another member can own its partitions in a later generation only. That one begins when all members
have joined again, this one among them, and what it still has when it joins is given to nobody; or without it, when it
was silent for a session, or didn't join for a rebalance time-out. So until the shorter of the two has passed since the
question was sent, by this worker's clock, nobody else owns what it has, in whichever generation.

It doesn't hold where a member is taken out of the group by force. A static identity is: another process with the same
one takes its place at once. Such a worker asks the coordinator after each query came, once for all that wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from actors._core.logs import text_of
from actors.errors import NotReadyError
from actors.ports import Identity
from actors.runtime.cancellation import end
from actors.runtime.clock import awake_s

MARGIN = 0.9
"""Which part of the time-outs counts: clocks of two machines don't run equally fast."""
ANSWER_S = 2.0
SPACING_S = 0.01
"""The least time between two questions: those who come meanwhile wait for the next answer."""


def _take_error(renewal: asyncio.Task[None]) -> None:
    if not renewal.cancelled():
        renewal.exception()


class ReadLease:
    """The worker's membership. Asks the coordinator only when somebody wants to know.

    Args:
        confirm: asks the coordinator whether a member is in the group's current generation.
        lasts_s: the shorter of the group's session and rebalance time-outs: for so long an answer counts.
        renew_s: how old an answer gets before a new one is fetched in the background.
        is_exclusive: whether nobody can take the member's place before its time is over.
        now_s: returns seconds that never go back, also not while the machine is suspended.
    """

    def __init__(
        self,
        confirm: Callable[[Identity], Awaitable[bool]],
        *,
        lasts_s: float,
        renew_s: float,
        is_exclusive: bool = True,
        now_s: Callable[[], float] = awake_s,
    ) -> None:
        self._confirm = confirm
        self._lasts_s = lasts_s * MARGIN if is_exclusive else 0.0
        self._renew_s = renew_s
        self._now_s = now_s
        self._member_id: str | None = None
        self._asked_s = 0.0
        self._renewal: asyncio.Task[None] | None = None

    def now_s(self) -> float:
        """Return the lease's time, for `holds`."""
        return self._now_s()

    def holds(self, member: Identity, since_s: float | None = None) -> bool:
        """Return whether nobody else owned this member's partitions at `since_s` or later, up to this call.

        `since_s` is of the lease's time, now by default.
        """
        if member.member_id != self._member_id:
            return False
        now_s = self._now_s()
        # The same as asked_s >= since_s where the answer itself is all that counts.
        is_held = self._asked_s >= (now_s if since_s is None else since_s) or now_s - self._asked_s < self._lasts_s
        if is_held and now_s - self._asked_s > self._renew_s and self._lasts_s and self._renewal is None:
            self._renewal = asyncio.create_task(self._ask(member), name="actors lease")
            # Nobody waits for it; who finds the lease over asks again, and hears why.
            self._renewal.add_done_callback(_take_error)
        return is_held

    async def renew(self, member: Identity) -> None:
        """Ask the coordinator, together with all who want to know now.

        Raises:
            NotReadyError: it doesn't answer, or doesn't know the member any more.
        """
        if self._renewal is None:
            self._renewal = asyncio.create_task(self._ask(member), name="actors lease")
        renewal = self._renewal
        await asyncio.wait([renewal])
        if renewal.cancelled():
            raise NotReadyError("the worker is stopping")
        error = renewal.exception()
        if error is not None:
            raise error

    async def _ask(self, member: Identity) -> None:
        try:
            await asyncio.sleep(max(0.0, self._asked_s + SPACING_S - self._now_s()))
            asked_s = self._now_s()
            try:
                async with asyncio.timeout(ANSWER_S):
                    is_member = await self._confirm(member)
            except Exception as error:
                raise NotReadyError(
                    f"the group's coordinator doesn't confirm the assignment: {text_of(error, repr)}"
                ) from error
            if not is_member:
                raise NotReadyError("the group is changing, or this worker is unknown to it")
            self._member_id, self._asked_s = member.member_id, asked_s
        finally:
            self._renewal = None

    async def close(self) -> None:
        """End what runs in the background. May be called twice."""
        await end(self._renewal)
