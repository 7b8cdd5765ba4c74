"""What strangers, readers and members of the group do to the worker, each as often as a minute allows.

An attack returns the statuses that it got, or nothing where there is none to get.
"""

from __future__ import annotations

import asyncio
import functools
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp
from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata

from actors._core.partitioner import partition_for
from tests.hostile.world import ADMIN, LARGE_KEYS, PARTITIONS, READER, World, as_base64

NESTED = b"[" * 5_000 + b"]" * 5_000
CONTROLS = (
    b'{"actor": "\xff"}',
    NESTED,
    b'{"actor": ' + NESTED + b"}",
    b'{"actor": "keep", "do": "drop", "all": true, "id": "1"}',
    b'{"command": "drop", "what": "messages", "actor": "keep", "key": "cGFya2Vk", "id": "x"}',
    b"9" * 5_000,
    b"",
    b"null",
)
ESCAPES = "\x1b]0;owned\x07\n2026-01-01 00:00:00 [ERROR] forged\u202e"


@functools.cache
def bomb() -> bytes:
    """Return 32 MiB in 32 kB. To compress them takes half a second, for which a collection of tests shouldn't wait."""
    return gzip.compress(b"[" + b"1," * (16 << 20) + b"1]")


@dataclass(frozen=True, slots=True)
class Attack:
    """Something done to the worker every `every_s` seconds.

    Attributes:
        allowed: the answers that it may get.
    """

    once: Callable[[World], Awaitable[Iterable[int]]]
    every_s: float
    allowed: frozenset[int] = frozenset()


async def hostile_controls(world: World) -> Iterable[int]:
    """Headers that only our own tools would send."""
    for topic in ("in", "letters"):
        for control in CONTROLS:
            await world.send(topic, b"hostile", b'{"text": "a"}', headers=[("fa-control", control)])
            await world.send(topic, b"parked", b'{"text": "a"}', headers=[("fa-control", control), ("fa-ask", control)])
    return ()


async def hostile_letters(world: World) -> Iterable[int]:
    """Values and keys that no handler takes."""
    for value in (b"\xff\xfe", NESTED, b'{"text": %s}' % NESTED, b"9" * 5_000, b"null", None, b"z" * 800_000):
        await world.send("letters", ESCAPES.encode(), value)
    await world.send("letters", b"\xff\xff", b"{}")
    await world.send("letters", None, b"{}", partition=0)
    return ()


async def hostile_registry(world: World) -> Iterable[int]:
    """Records of the owners' registry that aren't any."""
    for value in (b"\xff", NESTED, b'{"actor": "keep"}', b'{"address": "http://["}', b"null", b"9" * 5_000):
        await world.send("actors-owners", b"keep/9", value, partition=0)
        await world.send("actors-owners", b"store:\xff", value, partition=0)
    return ()


async def compressed_bodies(world: World) -> Iterable[int]:
    """Bombs, without a token and with one."""
    return await asyncio.gather(*(_bomb(world, token) for token in ["wrong", *[""] * 20, READER, ADMIN]))


async def _bomb(world: World, token: str) -> int:
    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(bomb()), 8192):
            yield bomb()[start : start + 8192]

    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    try:
        async with world.session.post(f"{world.url}/actors/texts/_many", data=chunks(), headers=headers) as reply:
            return reply.status
    except aiohttp.ClientConnectionError:
        # The answer may come while the body is still on its way, and the connection is closed behind it.
        return 0


async def large_question(world: World) -> Iterable[int]:
    """Ask a thousand times for one large key, and for a page of all of them."""
    body = {"keys": [f"large-{number % LARGE_KEYS}" for number in range(1000)]}
    many, _ = await world.post("/actors/texts/_many", READER, json=body)
    page, _ = await world.get("/actors/texts?limit=1000", READER)
    exact, _ = await world.get("/actors/texts/_count?exact=true", READER)
    return many, page, exact


async def odd_requests(world: World) -> Iterable[int]:
    """What isn't a question at all."""
    json_type = {"Content-Type": "application/json; charset=nonsense"}
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    found = [
        await world.post("/actors/texts/_many", READER, data=b'{"keys": ["\xff"]}', headers=json_type),
        await world.post("/actors/texts/_many", READER, data=NESTED),
        await world.post("/actors/texts/_many", READER, data=b'{"keys": [%s]}' % (b"9" * 4_400)),
        await world.post("/dashboard/parked/drop", ADMIN, data=b"\xff=\xff", headers=form),
        await world.get("/actors/texts?limit=" + "9" * 4_400, READER),
        await world.get("/dashboard/actor?name=keep&from=" + "9" * 4_400, READER),
    ]
    return [status for status, _ in found]


async def slow_bodies(world: World) -> Iterable[int]:
    """Take 300 places with bodies and headers that never come, for a few seconds."""
    parts = urlsplit(world.url)
    head = f"POST /actors/texts/_many HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {READER}\r\n".encode()

    async def one(number: int) -> None:
        try:
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
        except OSError:
            return
        try:
            writer.write(head + (b"Content-Length: 9\r\n\r\n" if number % 2 else b""))
            await asyncio.sleep(4)
        finally:
            writer.close()

    await asyncio.gather(*(one(number) for number in range(300)))
    return ()


async def look_at_parked(world: World) -> Iterable[int]:
    """Open the page of a key of which much is parked."""
    home = partition_for(b"parked", PARTITIONS)
    where = f"/dashboard/parked?actor=keep&what=message&partition={home}&key={as_base64(b'parked')}"
    return [(await world.get(where, READER))[0]]


async def look_at_dashboard(world: World) -> Iterable[int]:
    """Open what asks all members of the group."""
    found = await asyncio.gather(*(world.get(path, READER) for path in ("/dashboard", "/actors", "/metrics")))
    return [status for status, _ in found]


ATTACKS = (
    Attack(hostile_controls, 2.0),
    Attack(hostile_letters, 3.0),
    Attack(hostile_registry, 5.0),
    Attack(compressed_bodies, 4.0, frozenset({0, 401, 413, 415})),
    Attack(large_question, 4.0, frozenset({200, 413, 503})),
    Attack(odd_requests, 2.0, frozenset({400, 404, 413, 414, 415})),
    Attack(slow_bodies, 6.0),
    Attack(look_at_parked, 3.0, frozenset({200, 503})),
    Attack(look_at_dashboard, 2.0, frozenset({200})),
)


# --- members of the group ------------------------------------------------------------------------------------------


LIES = (NESTED[:1500] + NESTED[-1500:], b"\xff", b"", b'{"version": 1}', b"\x93\x01\xa1i\xa1a")
"""What no worker says of itself: the last one is cut off."""


def _liar(data: bytes) -> type[AbstractPartitionAssignor]:
    class Liar(AbstractPartitionAssignor):
        name = "faust-actors"

        @classmethod
        def metadata(cls, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
            return ConsumerProtocolMemberMetadata(0, list(topics), data)

        @classmethod
        def assign(cls, cluster: object, members: object) -> dict[str, object]:
            raise AssertionError("a liar leads the group")

        @classmethod
        def on_assignment(cls, assignment: object) -> None:
            assert not assignment.partitions(), assignment

    return Liar


@asynccontextmanager
async def lying_members(world: World) -> AsyncIterator[None]:
    """Members that nobody can understand, for the time of the block."""
    members = [
        AIOKafkaConsumer(
            f"{world.name}-in",
            f"{world.name}-letters",
            bootstrap_servers=world.brokers,
            group_id=f"{world.name}-actors",
            partition_assignment_strategy=[_liar(data)],
            enable_auto_commit=False,
        )
        for data in LIES
    ]
    try:
        await asyncio.gather(*(member.start() for member in members))
        yield
    finally:
        await asyncio.gather(*(member.stop() for member in members))
