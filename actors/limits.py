"""Limits of effects, over all workers: how many calls run at a time, and how many begin within a time.

A call of a limited effect begins with a permit, which the actor `permits` grants; its key is the effect and what `per=`
gives of the call. The actor's state has the permits that are out, each with a time at which it is over, and the
questions for further ones, which it answers in their order. So permits are committed like any state:

    a worker dies          its permits come back when they are over; until then its calls count as running
    the actor's owner dies the next one has the same permits and the same questions
    an answer is lost      the permit comes back when it is over, and the worker asks for another

A permit is good for the time that a worker waits for it and the effect's timeout, from its grant on. A call begins
within the first and ends by the second, so none outlives its permit but one whose process was stopped, or whose plain
function runs on in its thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from actors.errors import AskTimeoutError
from actors.runtime.handlers.actor import Actor, receive
from actors.runtime.handlers.effect import retry_after_s
from actors.runtime.handlers.methods import timer
from actors.runtime.message.tools import AnswerLater

ACTOR = "permits"
PARTITIONS = 8
MOST = 1_000
"""The largest limit, and the largest number in a rate: all of these are in one value."""
WAIT = timedelta(seconds=30)
"""How long a worker waits for a permit before it asks for another one."""
ASKING = 8
"""How many calls of one key a partition asks permits for at a time; further ones wait in the worker."""
MARGIN_MS = 1_000
"""How much longer than said the time of a rate is: a call begins that much behind its permit's grant at the most."""
_SPANS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Acquire(msgspec.Struct, tag="acquire"):
    """A question for a permit, with the limits that the asking program has."""

    id: str
    wait_ms: int
    lease_ms: int
    limit: int
    count: int
    period_ms: int


class Release(msgspec.Struct, tag="release"):
    """The end of a call, or of the wait for its permit; `pause_ms` is how long no other one is to begin."""

    id: str
    pause_ms: int


class Waiting(msgspec.Struct):
    """A question that has no answer yet."""

    id: str
    until_ms: int
    lease_ms: int
    later: AnswerLater


class Held(msgspec.Struct):
    """The permits of a key: those that are out with the times at which they are over, and when the last ones began."""

    limit: int = 0
    count: int = 0
    period_ms: int = 0
    paused_ms: int = 0
    out: dict[str, int] = {}
    begun: list[int] = []
    waiting: list[Waiting] = []

    def next_ms(self) -> int:
        """Return when the next permit can be granted."""
        moments = [self.paused_ms]
        if self.limit and len(self.out) >= self.limit:
            moments.append(min(self.out.values()))
        if self.count and len(self.begun) >= self.count:
            moments.append(self.begun[-self.count] + self.period_ms + MARGIN_MS)
        return max(moments)


def declare(app: Any) -> None:
    """Declare the actor of an app's permits, unless it is there.

    Raises:
        ConfigurationError: another actor has its name.
    """
    name = f"{app.app_id}-permits"
    if name in app.made_topics:
        return
    topic, app.made_topics[name] = app.topic(name, key_type=str), PARTITIONS

    @app.actor(topic, name=ACTOR)
    class Permits(Actor[Held, str]):
        state_ttl = timedelta(days=2)

        @receive
        async def acquire(self, message: Acquire) -> bool:
            self.ctx.forget_answer()
            later, state, now_ms = self.ctx.answer_later(), self.state, self.ctx.now_ms
            state.limit, state.count, state.period_ms = message.limit, message.count, message.period_ms
            if later is not None:
                waiting = Waiting(message.id, now_ms + message.wait_ms, message.lease_ms, later)
                state.waiting.append(waiting)
            self._grant()
            return True

        @receive
        async def release(self, message: Release) -> None:
            self.state.out.pop(message.id, None)
            self.state.waiting = [later for later in self.state.waiting if later.id != message.id]
            self.state.paused_ms = max(self.state.paused_ms, self.ctx.now_ms + message.pause_ms)
            self._grant()

        @timer
        async def look(self) -> None:
            self._grant()

        def _grant(self) -> None:
            state, now_ms = self.state, self.ctx.now_ms
            state.out = {id: until_ms for id, until_ms in state.out.items() if until_ms > now_ms}
            state.begun = state.begun[-state.count :] if state.count else []
            state.waiting = [waiting for waiting in state.waiting if waiting.until_ms > now_ms]
            while state.waiting and state.next_ms() <= now_ms:
                first = state.waiting.pop(0)
                state.out[first.id] = now_ms + first.lease_ms
                state.begun += [now_ms] * bool(state.count)
                self.ctx.answer(first.later, True)
            if state.waiting:
                at = datetime.fromtimestamp(state.next_ms() / 1000, UTC)
                self.ctx.schedule(self.look, at=at, name="next")


@dataclass(slots=True, kw_only=True, eq=False)
class Limit:
    """The limits of an effect in a worker. `per` gives the text by which calls are counted together."""

    app: Any
    effect: str
    limit: int
    count: int
    period_ms: int
    per: Callable[..., Any] | None
    _releases: set[asyncio.Task[None]] = field(default_factory=set)

    @classmethod
    def of(cls, app: Any, effect: str, *, limit: Any, rate: Any, per: Any) -> Limit:
        """Check the arguments of `App.effect`, and declare the actor of permits.

        Raises:
            ValueError: one can't be meant.
        """
        parsed = re.fullmatch(r"([1-9]\d*)/([smhd])", rate) if isinstance(rate, str) else None
        if rate is not None and (parsed is None or int(parsed[1]) > MOST):
            raise ValueError(
                f'rate={rate!r}: it is how many calls begin within a second, minute, hour or day, as "100/m", and up '
                f"to {MOST}"
            )
        if limit is not None and not (isinstance(limit, int) and 0 < limit <= MOST):
            raise ValueError(f"limit={limit!r}: it is how many calls run at a time, from 1 to {MOST}")
        if per is not None and not callable(per):
            raise ValueError(f"per={per!r}: it is a function of the effect's arguments, as per=lambda tenant: tenant")
        if limit is None and rate is None:
            raise ValueError("per= without limit= or rate= limits nothing: leave it out")
        declare(app)
        count, period_ms = (int(parsed[1]), _SPANS_MS[parsed[2]]) if parsed else (0, 0)
        return cls(app=app, effect=effect, limit=limit or 0, count=count, period_ms=period_ms, per=per)

    async def permit(
        self, turns: dict[str, Any], timeout: timedelta, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Permit:
        """Wait for a permit of a call that takes `timeout` at the most; `turns` is the caller's, for this."""
        of = "" if self.per is None else self.per(*args, **kwargs)
        key = f"{self.effect}/{of}"
        async with _turn(turns, key):
            id, until_s = await self._acquire(key, timeout)
        return Permit(limit=self, key=key, id=id, until_s=until_s)

    def give_back(self, key: str, release: Release) -> None:
        """Send the end of a call. It isn't awaited: the call's outcome isn't to wait for it."""
        sending = asyncio.ensure_future(self.app.tell(ACTOR, key, release))
        self._releases.add(sending)
        sending.add_done_callback(self._released)

    def _released(self, release: asyncio.Task[None]) -> None:
        self._releases.discard(release)
        if not release.cancelled():
            # One that can't be sent comes back when it is over.
            release.exception()

    async def _acquire(self, key: str, timeout: timedelta) -> tuple[str, float]:
        loop = asyncio.get_running_loop()
        wait_s = WAIT.total_seconds()
        while True:
            id, began_s = uuid.uuid4().hex, loop.time()
            lease_ms = int((wait_s + timeout.total_seconds()) * 1000)
            question = Acquire(id, int(wait_s * 900), lease_ms, self.limit, self.count, self.period_ms)
            try:
                await self.app.ask(ACTOR, key, question, timeout=WAIT)
            except AskTimeoutError:
                continue
            except asyncio.CancelledError:
                # A permit for nobody would hold up the next owner's calls.
                self.give_back(key, Release(id, 0))
                raise
            if loop.time() - began_s < wait_s:
                return id, began_s + wait_s
            self.give_back(key, Release(id, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Permit:
    """A permit of a call, which is good if the call begins before `until_s` of the event loop's time."""

    limit: Limit
    key: str
    id: str
    until_s: float

    def end(self, error: BaseException | None) -> None:
        """Return the permit; the error that the call ended with may say how long no other one is to begin."""
        self.limit.give_back(self.key, Release(self.id, int(retry_after_s(error) * 1000)))


@contextlib.asynccontextmanager
async def _turn(turns: dict[str, Any], key: str) -> AsyncIterator[None]:
    turn = turns.setdefault(key, [asyncio.Semaphore(ASKING), 0])
    turn[1] += 1
    try:
        async with turn[0]:
            yield
    finally:
        turn[1] -= 1
        if not turn[1]:
            turns.pop(key, None)
