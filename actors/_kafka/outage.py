"""Brokers that can't be reached: how often they are tried, and what is logged about it.

aiokafka tries to connect for each request that it wants to send, ten times a second and client, and logs each failure
several times. Here all clients of a worker share what they know: a broker that refused is tried again after a back-off,
a request to it fails at once until then, and one line per interval reports it.

A broker that hangs accepts connections and never answers. Where there are other brokers, a client waits for it at most
`CONNECT_S`, and doesn't try it again for as long as the last try took.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import re
import time
import weakref
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.errors import KafkaConnectionError

from actors._core.backoff import Backoff
from actors._core.logs import Reminders, escaping
from actors._kafka.permissions import UNAUTHORIZED

logger = escaping(logging.getLogger(__name__))

RETRY = Backoff(0.05, longest_s=1.0)
REMIND_S = 10.0
NEEDED_S = 60.0
"""A broker that no client tried for so long isn't needed: others have its partitions, or it left the cluster."""
CONNECT_S = 5.0
"""How long a broker may take to answer on a new connection, where others may answer in its place."""
METADATA_S = 4.0
"""How long a look at the cluster's leaders may take, with all brokers that are asked; more after it was too short."""
_FIRST_CONTACT = ('Unable connect to "%s:%s": %s', 'Unable to request metadata from "%s:%s": %s')
"""The log messages of aiokafka where a broker of the bootstrap list doesn't answer: it reports that in no other way."""
_NOISE = ("Authenticated ", "Discovered coordinator ", "Updating subscribed topics ")
_failures: ContextVar[list[str] | None] = ContextVar("actors_first_contact", default=None)
"""Why the brokers of the list don't answer the client that asks them now."""


@dataclass(slots=True)
class _Down:
    address: str
    since_s: float
    failures: int = 0
    retry_at_s: float = 0.0


class Outages:
    """The brokers of one cluster that are away."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._down: dict[Any, _Down] = {}
        self.throttled_s = 0.0
        """For how long quotas held up connections, as the brokers' answers said."""
        # Brokers of the bootstrap list, by address: no metadata names one that the cluster gave up.
        self._unanswered: set[str] = set()
        self._reminders = Reminders(REMIND_S)
        _quiet.know(self)

    @property
    def ongoing(self) -> bool:
        """Return whether some broker can't be reached."""
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
        """Share what is known about brokers that are away with a client, and count how long quotas delay it."""
        connect = client._get_conn
        client.bootstrap = self._in_turn(client)
        client._metadata_update = _prompt(client)
        self._count_throttling(client)
        # The client's own lock is one for all brokers: a broker that hangs would block connections to the others.
        client._get_conn_lock_value = contextlib.nullcontext()
        locks: defaultdict[Any, asyncio.Lock] = defaultdict(asyncio.Lock)

        async def shared(node_id: Any, **options: Any) -> Any:
            place = node_id, options.get("group", ConnectionGroup.DEFAULT)
            held = client._conns.get(place)
            # An open connection is used, even if other clients failed to connect.
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
            # The broker reads nothing from the connection for so long after its answer.
            self.throttled_s += getattr(response, "throttle_time_ms", 0) / 1000
            return response

        client.send = counted

    def _is_waiting(self, node_id: Any) -> bool:
        """Return whether it is too early to try a broker again."""
        down = self._down.get(node_id)
        return down is not None and self._now_s() < down.retry_at_s

    def _in_turn(self, client: AIOKafkaClient) -> Callable[[], Awaitable[None]]:
        """Return a `bootstrap` for the client that asks brokers which didn't answer another client last.

        It waits for each broker at most `CONNECT_S`. The client's own one asks the brokers in any order. The error says
        why they don't answer, as far as that is known.
        """
        ask = client.bootstrap

        async def bootstrap() -> None:
            failures: list[str] = []
            token = _failures.set(failures)
            try:
                await ask()
            except KafkaConnectionError:
                raise KafkaConnectionError(*failures[-1:]) from None
            finally:
                _failures.reset(token)
            if not client.cluster.brokers():
                # The controller fenced the broker, or the broker refused a token, which aiokafka takes for success.
                # Without this check aiokafka fails later, with an AssertionError.
                await client.close()
                why = "it knows no broker that is up"
                if client._sasl_mechanism == "OAUTHBEARER":
                    why += ", or doesn't take this token: see broker_credentials"
                raise KafkaConnectionError(why)

        async def bootstrapped() -> None:
            servers, usual_ms = client._bootstrap_servers, client._request_timeout_ms
            if len(servers) == 1:
                await bootstrap()
                return
            client._request_timeout_ms = min(usual_ms, int(CONNECT_S * 1000))
            last, failed = {*self.away, *self._unanswered}, dict[str, str]()
            try:
                for address in sorted(random.sample(servers, len(servers)), key=last.__contains__):
                    client._bootstrap_servers = [address]
                    try:
                        await bootstrap()
                    except KafkaConnectionError as error:
                        failed[address] = why_away(error)
                        self._pass_over(address, failed[address])
                    else:
                        self._answered(address)
                        return
                raise KafkaConnectionError("; ".join(f"{one}: {failed[one] or 'no answer'}" for one in servers))
            finally:
                client._bootstrap_servers, client._request_timeout_ms = servers, usual_ms

        return bootstrapped

    def _pass_over(self, address: str, why: str) -> None:
        self._unanswered.add(address)
        if self._reminders.is_due(self._now_s(), address):
            shown = f" ({why})" if why else ""
            logger.warning("broker %s can't be reached%s; the other brokers of the list are asked", address, shown)

    def _answered(self, address: str) -> None:
        self._unanswered.discard(address)
        self._reminders.forget(address)

    def _failed(self, node_id: Any, broker: Any, began_s: float) -> None:
        now_s, address = self._now_s(), f"{broker.host}:{broker.port}"
        down = self._down.setdefault(node_id, _Down(address, now_s))
        if self._reminders.is_due(now_s, node_id):
            since = f" since {now_s - down.since_s:.0f} s" if down.failures else ""
            logger.warning("broker %s can't be reached%s; it is tried again until it answers", down.address, since)
        # A broker may come back at another address.
        down.address = address
        # Spread, so that the workers of a cluster don't all come back in the same moment.
        down.failures += 1
        down.retry_at_s = now_s + max(RETRY.delay_s(down.failures), now_s - began_s) * random.uniform(0.8, 1.2)

    def _reached(self, node_id: Any, broker: Any) -> None:
        down = self._down.pop(node_id, None)
        if down is None:
            return
        self._reminders.forget(node_id)
        address = down.address if broker is None else f"{broker.host}:{broker.port}"
        where = "" if address == down.address else f", at {address} now"
        logger.warning("broker %s is reached again after %.1f s%s", down.address, self._now_s() - down.since_s, where)


def why_away(error: KafkaConnectionError) -> str:
    """Return why brokers of the bootstrap list don't answer, "" where that is unknown."""
    return str(error.args[0]) if error.args else ""


def _told(error: object) -> str:
    """Return why a connection failed, in words: asyncio's have addresses as Python writes them."""
    error = getattr(error, "_given", error)
    codes = {os.strerror(int(code)) for code in re.findall(r"\[Errno (\d+)\]", str(error))}
    return ", ".join(sorted(codes)) or getattr(error, "strerror", None) or str(error) or "no answer in time"


def _prompt(client: AIOKafkaClient) -> Callable[..., Awaitable[bool]]:
    """Return a `_metadata_update` for the client that gives up a broker which doesn't answer.

    All produces that a former leader refused wait for the update. A caller that still needs it asks another broker.
    """
    update, timeouts = client._metadata_update, 0

    async def updated(cluster: Any, topics: Any) -> bool:
        nonlocal timeouts
        try:
            # All brokers may be slow.
            async with asyncio.timeout(Backoff(METADATA_S, 4 * METADATA_S).delay_s(timeouts + 1)):
                is_updated = bool(await update(cluster, topics))
        except TimeoutError:
            timeouts += 1
            return False
        timeouts = 0
        return is_updated

    return updated


async def _connected(client: AIOKafkaClient, connecting: Awaitable[Any]) -> Any:
    """Return the connection, None if the broker doesn't answer on it and there are other brokers."""
    try:
        async with asyncio.timeout(CONNECT_S if max(len(client.cluster.brokers()), len(client.hosts)) > 1 else None):
            return await connecting
    except TimeoutError:
        client.force_metadata_update()
        return None


class _Quiet(logging.Filter):
    """Passes each kind of aiokafka's messages once per interval while a broker is away.

    Messages about a missing permission or a retried request are limited at any time. Routine messages of connections
    and producers become DEBUG messages.
    """

    def __init__(self) -> None:
        super().__init__()
        self._known: weakref.WeakSet[Outages] = weakref.WeakSet()
        self._reminders = Reminders(REMIND_S)

    def know(self, outages: Outages) -> None:
        """Watch another cluster, and filter the loggers that were made since."""
        self._known.add(outages)
        for name in list(logging.root.manager.loggerDict):
            if name.startswith("aiokafka"):
                escaping(logging.getLogger(name)).addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a message is to be written."""
        failures = _failures.get()
        if failures is not None and record.msg in _FIRST_CONTACT and isinstance(record.args, tuple):
            failures.append(_told(record.args[-1]))
            return False
        if record.levelno == logging.INFO and str(record.msg).startswith(_NOISE):
            # Faust's handlers have levels, and its loggers let everything pass.
            record.levelno, record.levelname = logging.DEBUG, "DEBUG"
            return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)
        is_repeated = record.levelno >= logging.WARNING and (_is_denial(record) or "retrying" in str(record.msg))
        if not is_repeated and not any(outages.ongoing for outages in self._known):
            return True
        return self._reminders.is_due(time.monotonic(), (record.name, str(record.msg)))


def _is_denial(record: logging.LogRecord) -> bool:
    """Return whether a message is about a missing permission, which our own messages name."""
    error = record.exc_info[1] if record.exc_info else None
    return isinstance(error, UNAUTHORIZED) or "uthoriz" in record.getMessage()


_quiet = _Quiet()
