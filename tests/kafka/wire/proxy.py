"""A TCP proxy between clients and brokers that understands frames, so that a fault hits the request it is meant for.

Each client connection has one of its own to the broker, and one request at a time is on its way there, as the broker
itself would have it. A `Rule` picks requests by API and client id, and hands them to an action instead:

    async def action(exchange: Exchange) -> bytes | None

It asks the broker, now, later, twice or never, and gives the reply that the client gets, None for none at all. `Cut`
ends the client's connection; what was asked by then has reached the broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from aiokafka.protocol.commit import OffsetCommitRequest_v3
from aiokafka.protocol.coordination import FindCoordinatorRequest_v1
from aiokafka.protocol.transaction import AddOffsetsToTxnRequest_v0, AddPartitionsToTxnRequest_v0, EndTxnRequest_v0

from actors._kafka.transaction_requests import (
    EndTxnRequest_v5,
    InitProducerIdRequest_v3,
    OffsetFetchRequest_v7,
    ProduceRequest_v9,
    ProduceRequest_v12,
    TxnOffsetCommitRequest_v3,
    TxnOffsetCommitRequest_v5,
)
from tests.kafka.helpers import eventually

HOST = "127.0.0.1"
LATE_ANSWER_S = 10.0


class Api(enum.IntEnum):
    """The keys of Kafka's protocol that rules name."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    API_VERSIONS = 18
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28


TRANSACTIONAL = (Api.TXN_OFFSET_COMMIT, Api.END_TXN)
TRANSACTIONAL_1 = (Api.ADD_PARTITIONS_TO_TXN, Api.ADD_OFFSETS_TO_TXN, *TRANSACTIONAL)
"""What is sent in transactions of version 1."""


class Cut(Exception):  # noqa: N818  an order to the proxy, not an error
    """Close the client's connection."""


class _Link:
    """A connection to a broker, opened when it is needed."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, frame: bytes) -> bytes:
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._address)
        reader, writer = self._streams
        writer.write(len(frame).to_bytes(4, "big") + frame)
        return await _read_frame(reader)

    async def close(self) -> None:
        if self._streams is not None:
            await _close(self._streams[1])


@dataclass
class Exchange:
    """One request, and the way to its broker."""

    api: int
    version: int
    client: str
    frame: bytes
    _link: _Link
    _address: tuple[str, int]
    _advertise: Callable[[bytes], bytes]

    @property
    def correlation(self) -> bytes:
        """What the reply begins with."""
        return self.frame[4:8]

    @property
    def kind(self) -> Any:
        """The request's structure, of one of those that commits and takeovers send."""
        return _REQUESTS[self.api, self.version]

    @property
    def asked(self) -> Any:
        """What is asked, decoded."""
        end = 10 + max(0, int.from_bytes(self.frame[8:10], "big", signed=True))
        return self.kind.decode(self.frame[end + self.kind.FLEXIBLE_VERSION :])

    def answer(self, *fields: Any) -> bytes:
        """Return a reply with these fields."""
        return self.correlation + b"\0" * self.kind.FLEXIBLE_VERSION + self.kind.RESPONSE_TYPE(*fields).encode()

    def answer_with(self, code: int) -> bytes:
        """Return a reply that says the same of everything that was asked for."""
        api, tags = self.api, [{}] * self.kind.FLEXIBLE_VERSION
        if api in (Api.INIT_PRODUCER_ID, Api.END_TXN) and tags:
            return self.answer(0, code, -1, -1, {})
        if api in (Api.ADD_OFFSETS_TO_TXN, Api.END_TXN):
            return self.answer(0, code)
        if api == Api.FIND_COORDINATOR:
            return self.answer(0, code, None, -1, "", -1)
        if api == Api.ADD_PARTITIONS_TO_TXN:
            return self.answer(0, [(topic, [(number, code) for number in parts]) for topic, parts in self.asked.topics])
        if api == Api.OFFSET_COMMIT:
            topics = [(topic, [(part, code) for part, *_ in parts]) for topic, parts in self.asked.topics]
            return self.answer(0, topics)
        if api == Api.PRODUCE:
            parts = {topic: [part for part, *_ in parts] for topic, parts, _ in self.asked.topics}
            return self.produced({topic: (numbers, code) for topic, numbers in parts.items()})
        topics = [(topic, [(part, code, {}) for part, *_ in parts], {}) for topic, parts, _ in self.asked.topics]
        return self.answer(0, topics, {})

    def produced(self, codes: dict[str, tuple[list[int], int]]) -> bytes:
        """Return a reply to a produce, with a code for the partitions of each topic."""
        topics = [
            (topic, [(number, code, -1, -1, -1, [], None, {}) for number in numbers], {})
            for topic, (numbers, code) in codes.items()
        ]
        return self.answer(topics, 0, {})

    async def ask(self) -> bytes:
        """Let the request reach the broker, and give the reply."""
        reply = await self._link.ask(self.frame)
        return self._advertise(reply) if self.api in (Api.METADATA, Api.FIND_COORDINATOR) else reply

    async def ask_late(self) -> bytes:
        """Let the request reach the broker over another connection: the client's may be gone."""
        link = _Link(self._address)
        try:
            async with asyncio.timeout(LATE_ANSWER_S):
                return await link.ask(self.frame)
        finally:
            await link.close()


Action = Callable[[Exchange], Awaitable[bytes | None]]


@dataclass
class Rule:
    """Which requests an action gets: those `times` after the first `skip` that match."""

    api: Api | None
    action: Action
    client: str = ""
    containing: bytes = b""
    skip: int = 0
    times: int | None = 1
    seen: int = 0
    hits: int = field(default=0)

    def takes(self, exchange: Exchange) -> bool:
        """Count the request, and tell whether it is one for the action."""
        if self.api is not None and exchange.api != self.api:
            return False
        if self.client not in exchange.client or self.containing not in exchange.frame:
            return False
        self.seen += 1
        wanted = self.seen > self.skip and (self.times is None or self.hits < self.times)
        self.hits += wanted
        return wanted

    async def was_hit(self, times: int = 1) -> None:
        """Wait until the action had so many requests."""
        await eventually(lambda: self.hits >= times, deadline_s=20.0, what=f"{self} was hit {times} times")


class WireProxy:
    """A listener for each broker. Its clients connect to `bootstrap`, and find no other address in what they read."""

    def __init__(self, brokers: str) -> None:
        hosts = (broker.rpartition(":") for broker in brokers.split(","))
        self._brokers = [(host, int(port)) for host, _, port in hosts]
        self._ports: list[int] = []
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[Any]] = set()
        self._rules: list[Rule] = []
        self._failures: list[Exception] = []

    async def __aenter__(self) -> WireProxy:
        for address in self._brokers:
            server = await asyncio.start_server(
                lambda reader, writer, address=address: self._serve(address, reader, writer), HOST, 0
            )
            self._servers.append(server)
            self._ports.append(server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        if self._failures:
            raise ExceptionGroup("actions of the proxy failed", self._failures)

    @property
    def bootstrap(self) -> str:
        """The addresses that clients are given."""
        return ",".join(f"{HOST}:{port}" for port in self._ports)

    def on(self, api: Api | None, action: Action, **options: Any) -> Rule:
        """Give the action all requests that match, see `Rule`; the newest rule comes first."""
        rule = Rule(api, action, **options)
        self._rules.insert(0, rule)
        return rule

    @contextlib.contextmanager
    def watching(self, api: Api, client: str) -> Iterator[Rule]:
        """Count requests for the time of the block."""
        rule = self.on(api, forward, client=client, times=None)
        try:
            yield rule
        finally:
            self._rules.remove(rule)

    def calm(self) -> None:
        """Forget all rules."""
        self._rules.clear()

    def _advertise(self, reply: bytes) -> bytes:
        """Put the proxy's ports where a reply names the brokers'. The host's name stays, so no length changes."""
        for (host, port), own in zip(self._brokers, self._ports, strict=True):
            reply = reply.replace(
                host.encode() + port.to_bytes(4, "big"),
                host.encode() + own.to_bytes(4, "big"),
            )
        return reply

    async def _serve(
        self, address: tuple[str, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        link = _Link(address)
        try:
            while True:
                exchange = self._exchange(address, link, await _read_frame(reader))
                reply = await self._action(exchange)(exchange)
                if reply is not None:
                    writer.write(len(reply).to_bytes(4, "big") + reply)
                    await writer.drain()
        except (Cut, OSError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            # asyncio's server reports a cancelled handler as a failure.
            pass
        except Exception as error:
            # Nobody waits for this task: the proxy's end says it.
            self._failures.append(error)
        finally:
            self._connections.discard(task)
            await link.close()
            await _close(writer)

    def _exchange(self, address: tuple[str, int], link: _Link, frame: bytes) -> Exchange:
        length = int.from_bytes(frame[8:10], "big", signed=True)
        client = frame[10 : 10 + max(length, 0)].decode()
        api, version = int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big")
        return Exchange(api, version, client, frame, link, address, self._advertise)

    def _action(self, exchange: Exchange) -> Action:
        for rule in self._rules:
            if rule.takes(exchange):
                return rule.action
        return forward


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await reader.readexactly(4), "big")
    return await reader.readexactly(size)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError, asyncio.CancelledError):
        await writer.wait_closed()


# --- actions ----------------------------------------------------------------------------------------------------------


async def forward(exchange: Exchange) -> bytes:
    """No fault."""
    return await exchange.ask()


async def lose_request(exchange: Exchange) -> None:
    """The connection ends before the broker has the request."""
    raise Cut


async def lose_reply(exchange: Exchange) -> None:
    """The connection ends after the broker did what it was asked."""
    await exchange.ask()
    raise Cut


async def swallow_request(exchange: Exchange) -> None:
    """The request gets lost, and the connection stays: nothing says so."""


async def swallow_reply(exchange: Exchange) -> None:
    """The broker does what it was asked, and nothing says so."""
    await exchange.ask()


async def repeat(exchange: Exchange) -> bytes:
    """The broker gets the request twice; the client sees the first reply."""
    reply = await exchange.ask()
    await exchange.ask_late()
    return reply


def delayed(seconds: float) -> Action:
    """The request reaches the broker late, by so much."""

    async def action(exchange: Exchange) -> bytes:
        await asyncio.sleep(seconds)
        return await exchange.ask()

    return action


def answered(reply: Callable[[Exchange], bytes]) -> Action:
    """The broker never has the request; the client gets this reply."""

    async def action(exchange: Exchange) -> bytes:
        return reply(exchange)

    return action


def coded(code: int) -> Action:
    """The broker does what it was asked, and the reply of this transactional request says that it didn't."""

    async def action(exchange: Exchange) -> bytes:
        await exchange.ask()
        return exchange.answer_with(code)

    return action


def refused(code: int) -> Action:
    """The broker never has the request; the client gets the answer that it is refused with this code, all of it."""
    return answered(lambda exchange: exchange.answer_with(code))


_REQUESTS: dict[tuple[int, int], Any] = {
    (kind.API_KEY, kind.API_VERSION): kind
    for kind in (
        ProduceRequest_v9,
        ProduceRequest_v12,
        OffsetCommitRequest_v3,
        OffsetFetchRequest_v7,
        FindCoordinatorRequest_v1,
        InitProducerIdRequest_v3,
        AddPartitionsToTxnRequest_v0,
        AddOffsetsToTxnRequest_v0,
        EndTxnRequest_v0,
        EndTxnRequest_v5,
        TxnOffsetCommitRequest_v3,
        TxnOffsetCommitRequest_v5,
    )
}


class Hold:
    """The connection ends, and the request stays on its way until the test delivers it."""

    def __init__(self) -> None:
        self._held: Exchange | None = None

    async def __call__(self, exchange: Exchange) -> None:
        self._held = exchange
        raise Cut

    async def deliver(self) -> int:
        """Let the request reach the broker now; give the error code of a transactional request's reply."""
        assert self._held is not None, "nothing is held"
        reply = await self._held.ask_late()
        kind = self._held.kind
        said = kind.RESPONSE_TYPE.decode(reply[4 + kind.FLEXIBLE_VERSION :])
        if self._held.api == Api.TXN_OFFSET_COMMIT:
            return max(code for _, parts, _ in said.topics for _, code, _ in parts)
        if self._held.api == Api.ADD_PARTITIONS_TO_TXN:
            return max(code for _, parts in said.errors for _, code in parts)
        return -1 if self._held.api == Api.PRODUCE else int(said.error_code)


class Gate:
    """The request, or with `replies` its reply, waits until the test opens the gate."""

    def __init__(self, *, replies: bool = False) -> None:
        self._replies = replies
        self._opened = asyncio.Event()

    async def __call__(self, exchange: Exchange) -> bytes:
        if self._replies:
            reply = await exchange.ask()
            await self._opened.wait()
            return reply
        await self._opened.wait()
        return await exchange.ask()

    def open(self) -> None:
        """Let everything pass."""
        self._opened.set()


class Chaos:
    """Random faults, as many as `faults`, the same ones for the same seed and the same requests."""

    UNREPEATABLE = (Api.JOIN_GROUP, Api.FETCH)
    """A join without a member id leaves a member behind that nobody is; a fetch that waits would wait twice."""

    def __init__(self, seed: int, *, faults: int, chance: float) -> None:
        self._random = random.Random(seed)
        self._chance = chance
        self.left = faults

    async def __call__(self, exchange: Exchange) -> bytes | None:
        if self.left <= 0 or self._random.random() >= self._chance:
            return await exchange.ask()
        self.left -= 1
        faults: list[Action] = [lose_request, lose_reply, delayed(self._random.uniform(0.01, 0.3))]
        if exchange.api not in self.UNREPEATABLE:
            faults.append(repeat)
        return await self._random.choice(faults)(exchange)
