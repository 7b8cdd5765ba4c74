"""`Coordination`: what programs use, workers or not."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Self

from actors._kafka.connection import Connection
from actors._kafka.requests import KafkaRequests
from actors.coordination.client.locking import CALL_S, Seconds
from actors.coordination.client.sharing import Sharing
from actors.coordination.client.transport import Inside, Outside
from actors.coordination.messages import ACTOR
from actors.declare.names import reply_topic
from actors.runtime.clock import SystemClock
from actors.runtime.message.context import Context

CLOSE_S = 2.0
"""`close` takes no longer, though brokers may be away."""
SETTLE_S = 1.0
"""The part of that in which pending requests are withdrawn."""


class Coordination(Sharing):
    """The client of the lock service, for any asyncio program; it connects with the first call.

    Use it in an `async with` block, or `await client.close()` at the end.

    Args:
        brokers: `host:port`, several with commas, or a list of them.
        app: the app that runs the service.
        call_timeout: how long a call waits for an answer, beside what it is told to wait for.
        security: arguments of aiokafka's clients, for brokers that want to know who connects.
    """

    def __init__(
        self,
        brokers: str | Sequence[str],
        *,
        app: str = "coordination",
        call_timeout: Seconds = CALL_S,
        security: Mapping[str, Any] | None = None,
    ) -> None:
        connection = Connection.to(brokers, client_id=f"{app}-client", security=security)
        self._closing: asyncio.Task[None] | None = None
        topic = f"{app}-coordination"
        self._asks = KafkaRequests(connection, group=f"{app}-clients", topic=reply_topic(app), replication_factor=-1)
        super().__init__(
            Outside(self._asks, topic, lambda: self._asks.partitions_of(topic), SystemClock()), call_timeout
        )

    @staticmethod
    def inside(ctx: Context, *, call_timeout: Seconds = CALL_S) -> Sharing:
        """Return the same calls for a handler of the app that runs the service; its actor needs `concurrency=`.

        What is held is to be released before the handler returns. A message that is handled again asks as the same
        owner, so that it isn't kept waiting by what it held itself.
        """
        return Sharing(Inside(ctx, ctx._working("ask").tools.clock or SystemClock(), ACTOR), call_timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect, within `CLOSE_S`. May be called twice.

        Calls that still wait, and all later ones, raise a `CoordinationError` with the reason "closed". Leases that
        weren't released are lost at their next renewal, and end by themselves.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="closing the coordination client")
        await asyncio.wait([self._closing], timeout=CLOSE_S)

    async def _close(self) -> None:
        await self._settle(SETTLE_S)
        await self._asks.close()
