"""How requests reach the service: over a broker from any program, or through `ctx.ask` inside a handler."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from hashlib import blake2b
from typing import Protocol
from uuid import uuid4

from actors._core.outside import MALFORMED
from actors._core.partitioner import partition_for
from actors.coordination import messages as m
from actors.coordination.errors import CoordinationError, CoordinationTimeoutError, ProtocolError, error_of
from actors.errors import (
    AskClosedError,
    AskError,
    AskTimeoutError,
    BrokerRefusedError,
    BrokerUnavailableError,
    UnknownTopicError,
)
from actors.ports import ActorReply, ActorRequest, Clock, Requests
from actors.runtime.message.context import Context
from actors.runtime.message.outputs import Recipient
from actors.runtime.requests.requests import OK, carry, deadline_header

AGAIN_S = 5.0
"""A question without an answer is asked again after so long: with its id, so that it isn't handled twice."""

SKEW_S = 300.0
"""How far the service's clocks may be ahead of ours: its workers skip requests whose deadline is over."""

LEAST_S = 0.001
"""Less than this is no time to ask in: a wait of it ends at once, and would be tried for ever."""


class Transport(Protocol):
    """Carries requests to the service."""

    @property
    def clock(self) -> Clock:
        """The clock that leases are measured with."""

    def new_owner(self, name: str) -> str:
        """Return a unique name for the owner of a request."""

    async def ask(self, name: str, request: m.AnyRequest, timeout_s: float) -> m.Reply:
        """Ask, again with the same id as long as there is time, and give the answer.

        Raises:
            CoordinationTimeoutError: none came in time; whether the request is carried out is unknown.
            CoordinationError: the service failed, or the client was closed; the name isn't one.
        """

    async def undo(self, name: str, request: m.AnyRequest, timeout_s: float) -> m.Reply:
        """As `ask`, for what takes something back: also when the handler that asked has ended."""


class Outside:
    """From a program that is no worker.

    Args:
        asks: carries questions.
        topic: the service's input.
        partitions: gives how many it has.
        clock: the time.
    """

    def __init__(self, asks: Requests, topic: str, partitions: Callable[[], Awaitable[int]], clock: Clock) -> None:
        self._asks = asks
        self._topic = topic
        self._partitions = partitions
        self.clock = clock

    def new_owner(self, name: str) -> str:
        """Return a unique name for the owner of a request."""
        return f"{name[:100]}-{uuid4().hex}"

    async def ask(self, name: str, request: m.AnyRequest, timeout_s: float) -> m.Reply:
        """Ask, again with the same id as long as there is time, and return the answer."""
        clock, question_id = self.clock, uuid4().hex
        until_s = clock.monotonic() + timeout_s
        key, raw = _encoded(name, request)
        what = f"{type(request).__name__} {name!r}"
        deadline = deadline_header(clock, timedelta(seconds=timeout_s + SKEW_S))

        async def once(left_s: float) -> ActorReply:
            async with asyncio.timeout(left_s):
                try:
                    count = await self._partitions()
                except UnknownTopicError as error:
                    # The service makes its topic when it starts, which may be later.
                    raise BrokerUnavailableError(f"the service was never started: {error}") from error
                partition = partition_for(key, count)
                return await self._asks.ask(
                    ActorRequest(question_id, self._topic, partition, key, raw, [deadline]), left_s
                )

        while True:
            left_s = until_s - clock.monotonic()
            try:
                answer = await carry(once, clock, timedelta(seconds=max(0.0, min(left_s, AGAIN_S))), what)
            except AskClosedError as error:
                raise CoordinationError(f"{what}: {error}: make a new client", "closed") from error
            except BrokerRefusedError as error:
                raise CoordinationError(f"{what}: {error}", "broker-refused") from error
            except AskTimeoutError as error:
                if until_s - clock.monotonic() < LEAST_S:
                    raise CoordinationTimeoutError(
                        f"{what}: no answer within {timeout_s:g} s: whether it is carried out is unknown. Is a worker "
                        f"of the service running, does it read {self._topic}, and is its clock less than {SKEW_S:g} s "
                        f"ahead of this machine's? ({error})"
                    ) from error
                continue
            return _opened(what, answer)

    undo = ask


class Inside:
    """From a handler, whose message takes no lane while it waits; handled again, it asks as the same owners.

    Args:
        ctx: the message's context.
        clock: the time.
        actor: the service's actor in this app.
    """

    def __init__(self, ctx: Context, clock: Clock, actor: str) -> None:
        self._ctx = ctx
        self._actor = actor
        self.clock = clock
        state = ctx._working("ask")
        asker = state.tools.asks
        if asker is None:
            raise CoordinationError("the app of this handler doesn't run the service: call coordination(app)")
        self._asker = asker
        inbox = state.resolve_output(Recipient(actor))

        async def partitions() -> int:
            return inbox.partition_count

        self._beyond = Outside(asker.asks, inbox.name, partitions, clock)

    def new_owner(self, name: str) -> str:
        """Return the same name when the message is handled again, which then still holds its lock."""
        # A count of its own for each name: what else the handler asks keeps its ids however often this is tried.
        id = self._ctx.next_id(f"lock {name}").encode(errors="surrogatepass")
        return f"{self._ctx.message_id[-150:]}-{blake2b(id, digest_size=8).hexdigest()}"

    async def ask(self, name: str, request: m.AnyRequest, timeout_s: float) -> m.Reply:
        """Ask, again with the same id as long as there is time, and return the answer."""
        _encoded(name, request)
        try:
            # An id that isn't counted with the message's own: how often a lease is renewed must not change the ids of
            # what the handler asks. And a new one each time: the first answer may be of a lease that is over.
            raw = await self._asker.ask(
                self._ctx, self._actor, name, m.encode(request), timedelta(seconds=timeout_s), id=uuid4().hex
            )
        except AskTimeoutError as error:
            raise CoordinationTimeoutError(str(error)) from error
        except AskClosedError as error:
            raise CoordinationError(str(error), "closed") from error
        except AskError as error:
            raise CoordinationError(str(error)) from error
        return _reply(f"{type(request).__name__} {name!r}", raw)

    async def undo(self, name: str, request: m.AnyRequest, timeout_s: float) -> m.Reply:
        """Undo through the process's connection, which outlives the message."""
        return await self._beyond.ask(name, request, timeout_s)


def _encoded(name: str, request: m.AnyRequest) -> tuple[bytes, bytes]:
    """Return a request and its key as bytes.

    Raises:
        CoordinationError: the name is too long or none, a text isn't one that UTF-8 has, or the request can't be meant.
    """
    if not 0 < len(name) <= m.MAX_NAME:
        raise CoordinationError(f"name {name[:40]!r}: it has to be a text of 1 to {m.MAX_NAME} characters", "argument")
    problem = m.problem(request, 0)
    if problem is not None:
        raise error_of(f"{type(request).__name__} {name!r}", problem)
    try:
        return name.encode(), m.encode(request)
    except UnicodeEncodeError as error:
        raise CoordinationError(
            f"{type(request).__name__} {name!r}: a text isn't Unicode ({error}): use one without lone surrogates",
            "argument",
        ) from error


def _opened(what: str, answer: ActorReply) -> m.Reply:
    raw = answer.value or b""
    if answer.status != OK:
        raise CoordinationError(f"{what}: the service failed: {raw.decode(errors='replace')}")
    return _reply(what, raw)


def _reply(what: str, raw: bytes) -> m.Reply:
    try:
        return m.decode_reply(raw)
    except MALFORMED as error:
        raise ProtocolError(
            f"{what}: the service's answer isn't understood ({error}): use its version", "protocol"
        ) from error
