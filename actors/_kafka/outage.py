"""Brokers that can't be reached: how often they are tried, and what is said about it.

aiokafka tries to connect for each request that it wants to send, ten times a second and client, and logs each failure
on its way up. Here all clients of a worker share what is known: a broker that refused is tried again after a back-off,
a request to it fails at once until then, and one line per interval says so.

A broker that hangs accepts connections and never answers. Where there are others, no client waits for it as long as for
an answer to a request, and it isn't tried again for as long as the last try took.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
import weakref
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.errors import KafkaConnectionError

from actors._core.logs import escaping
from actors._kafka.permissions import UNAUTHORIZED

logger = escaping(logging.getLogger(__name__))

FIRST_RETRY_S = 0.05
LAST_RETRY_S = 1.0
REMIND_S = 10.0
NEEDED_S = 60.0
"""A broker that nobody tried for so long isn't needed: others have its partitions, or it left the cluster."""
CONNECT_S = 5.0
"""How long a broker may take to answer on a new connection, where others may answer in its place."""
METADATA_S = 4.0
"""How long a look at the cluster's leaders may take, with all brokers that are asked; more after it was too short."""
_NOISE = ("Authenticated ", "Discovered coordinator ", "Updating subscribed topics ")


@dataclass(slots=True)
class _Down:
    address: str
    since_s: float
    said_s: float
    retry_s: float
    retry_at_s: float


class Outages:
    """The brokers of one cluster that are away."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._down: dict[Any, _Down] = {}
        self.throttled_s = 0.0
        """For how long quotas held up connections, as the brokers' answers said."""
        # Brokers of the bootstrap list by address, and when it was said; brokers don't name one that they gave up.
        self._unanswered: dict[str, float] = {}
        _quiet.know(self)

    @property
    def ongoing(self) -> bool:
        """Whether some broker can't be reached."""
        return bool(self._down)

    @property
    def away(self) -> list[str]:
        """The addresses of brokers that can't be reached."""
        return [down.address for down in self._down.values()]

    @property
    def unreachable(self) -> int:
        """How many brokers were tried within `NEEDED_S`, in vain."""
        now_s = self._now_s()
        return sum(now_s - down.retry_at_s < NEEDED_S for down in self._down.values())

    def watch(self, client: AIOKafkaClient) -> None:
        """Make a client share what is known about brokers that are away, and count how long quotas hold it up."""
        connect = client._get_conn
        client.bootstrap = self._in_turn(client)
        client._metadata_update = _prompt(client)
        self._count_throttling(client)
        # The client's own lock has it wait for one broker before it connects to another, which may be healthy.
        client._get_conn_lock_value = contextlib.nullcontext()
        locks: defaultdict[Any, asyncio.Lock] = defaultdict(asyncio.Lock)

        async def shared(node_id: Any, **options: Any) -> Any:
            place = node_id, options.get("group", ConnectionGroup.DEFAULT)
            held = client._conns.get(place)
            # A connection that stands is good, whatever others met.
            if held is not None and held.connected() and (node_id not in self._down or self._is_waiting(node_id)):
                return held
            async with locks[place]:
                if self._is_waiting(node_id):
                    client.force_metadata_update()
                    return None
                began_s = self._now_s()
                connection = await _connected(client, connect(node_id, **options))
            if connection is not None:
                if self._down:
                    self._reached(node_id, client.cluster.broker_metadata(node_id))
            elif client.cluster.broker_metadata(node_id) is not None:
                self._failed(node_id, client.cluster.broker_metadata(node_id), began_s)
            return connection

        client._get_conn = shared

    def _count_throttling(self, client: AIOKafkaClient) -> None:
        send = client.send

        async def counted(node_id: Any, request: Any, **options: Any) -> Any:
            response = await send(node_id, request, **options)
            # A broker doesn't read from the connection for so long after its answer.
            self.throttled_s += getattr(response, "throttle_time_ms", 0) / 1000
            return response

        client.send = counted

    def _is_waiting(self, node_id: Any) -> bool:
        """Whether a broker that is away isn't to be tried yet."""
        down = self._down.get(node_id)
        return down is not None and self._now_s() < down.retry_at_s

    def _in_turn(self, client: AIOKafkaClient) -> Callable[[], Awaitable[None]]:
        """Give the client's `bootstrap`: it asks brokers that didn't answer another client last, and none for long.

        The client itself asks them in any order.
        """
        ask = client.bootstrap

        async def bootstrap() -> None:
            await ask()
            if not client.cluster.brokers():
                # Fenced by its controller, as after a pause; or it refused a token, which aiokafka takes for success.
                # aiokafka would fail with an AssertionError later.
                await client.close()
                why = "it knows no broker that is up"
                if client._sasl_mechanism == "OAUTHBEARER":
                    why += ", or doesn't take this token: see broker_credentials"
                raise KafkaConnectionError(f"{', '.join(client._bootstrap_servers)}: {why}")

        async def bootstrapped() -> None:
            servers, usual_ms = client._bootstrap_servers, client._request_timeout_ms
            if len(servers) == 1:
                await bootstrap()
                return
            client._request_timeout_ms = min(usual_ms, int(CONNECT_S * 1000))
            last = {*self.away, *self._unanswered}
            try:
                for address in sorted(random.sample(servers, len(servers)), key=last.__contains__):
                    client._bootstrap_servers = [address]
                    try:
                        await bootstrap()
                    except KafkaConnectionError:
                        self._pass_over(address)
                    else:
                        self._unanswered.pop(address, None)
                        return
                raise KafkaConnectionError(f"Unable to bootstrap from {', '.join(servers)}")
            finally:
                client._bootstrap_servers, client._request_timeout_ms = servers, usual_ms

        return bootstrapped

    def _pass_over(self, address: str) -> None:
        now_s = self._now_s()
        if now_s - self._unanswered.get(address, float("-inf")) >= REMIND_S:
            self._unanswered[address] = now_s
            logger.warning("broker %s can't be reached; the other brokers of the list are asked", address)

    def _failed(self, node_id: Any, broker: Any, began_s: float) -> None:
        now_s, address = self._now_s(), f"{broker.host}:{broker.port}"
        down = self._down.get(node_id)
        if down is None:
            down = self._down[node_id] = _Down(address, now_s, now_s, FIRST_RETRY_S, 0.0)
            logger.warning("broker %s can't be reached; it is tried again until it answers", down.address)
        elif now_s - down.said_s >= REMIND_S:
            down.said_s = now_s
            away_s = now_s - down.since_s
            logger.warning("broker %s can't be reached since %.0f s; it is tried again", down.address, away_s)
        # A broker may come back at another address.
        down.address = address
        # Spread, so that the workers of a cluster don't all come back in the same moment.
        down.retry_at_s = now_s + max(down.retry_s, now_s - began_s) * random.uniform(0.8, 1.2)
        down.retry_s = min(down.retry_s * 2, LAST_RETRY_S)

    def _reached(self, node_id: Any, broker: Any) -> None:
        down = self._down.pop(node_id, None)
        if down is None:
            return
        address = down.address if broker is None else f"{broker.host}:{broker.port}"
        where = "" if address == down.address else f", at {address} now"
        logger.warning("broker %s is reached again after %.1f s%s", down.address, self._now_s() - down.since_s, where)


def _prompt(client: AIOKafkaClient) -> Callable[..., Awaitable[bool]]:
    """Give the client's `_metadata_update`, which gives up a broker that doesn't answer.

    All produces that were refused by a former leader wait for it. Who still needs metadata asks again, another broker.
    """
    update, timeouts = client._metadata_update, 0

    async def updated(cluster: Any, topics: Any) -> bool:
        nonlocal timeouts
        try:
            # All brokers may be slow.
            async with asyncio.timeout(METADATA_S * 2 ** min(timeouts, 2)):
                is_updated = bool(await update(cluster, topics))
        except TimeoutError:
            timeouts += 1
            return False
        timeouts = 0
        return is_updated

    return updated


async def _connected(client: AIOKafkaClient, connecting: Awaitable[Any]) -> Any:
    """Give the connection, None if the broker doesn't answer on it and there are others."""
    try:
        async with asyncio.timeout(CONNECT_S if max(len(client.cluster.brokers()), len(client.hosts)) > 1 else None):
            return await connecting
    except TimeoutError:
        client.force_metadata_update()
        return None


class _Quiet(logging.Filter):
    """Lets each kind of aiokafka's messages pass once per interval while a broker is away.

    The same holds at any time for those about a missing permission, or a request that is tried again.

    What each connection and each producer says of itself when all is well is for DEBUG only.
    """

    def __init__(self) -> None:
        super().__init__()
        self._known: weakref.WeakSet[Outages] = weakref.WeakSet()
        self._passed_s: dict[tuple[str, str], float] = {}

    def know(self, outages: Outages) -> None:
        """Look at another cluster, and at the loggers that have come since."""
        self._known.add(outages)
        for name in list(logging.root.manager.loggerDict):
            if name.startswith("aiokafka"):
                escaping(logging.getLogger(name)).addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether a message is to be seen."""
        if record.levelno == logging.INFO and str(record.msg).startswith(_NOISE):
            # Faust's handlers have levels, and its loggers let everything pass.
            record.levelno, record.levelname = logging.DEBUG, "DEBUG"
            return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)
        is_repeated = record.levelno >= logging.WARNING and (_is_denial(record) or "retrying" in str(record.msg))
        if not is_repeated and not any(outages.ongoing for outages in self._known):
            return True
        kind, now_s = (record.name, str(record.msg)), time.monotonic()
        if now_s - self._passed_s.get(kind, float("-inf")) < REMIND_S:
            return False
        self._passed_s[kind] = now_s
        return True


def _is_denial(record: logging.LogRecord) -> bool:
    """Tell whether a message is about a missing permission, which our own messages name."""
    error = record.exc_info[1] if record.exc_info else None
    return isinstance(error, UNAUTHORIZED) or "uthoriz" in record.getMessage()


_quiet = _Quiet()
