"""A web server with questions for keys, and what stands where a worker's tasks would."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from actors import App, Context
from actors._core.group.members import TaskId
from actors._core.partitioner import partition_for
from actors._core.task.lifecycle import State
from actors.ports import Identity
from actors.runtime.committer import Membership
from actors.runtime.meters import WorkerMeters
from actors.runtime.queries.queries import StateReader
from actors.runtime.queries.read_lease import ReadLease
from actors.runtime.spec import ActorSpec, InputSpec
from actors.runtime.state.restore import Restored
from actors.runtime.task.task import Task
from actors.testing.fakes.ports import FakeClock
from actors.web.access.settings import check_access
from actors.web.access.tls import Hops
from actors.web.queries.routing import Directory, Router
from actors.web.queries.standby_reads import StandbyDirectory, StandbyRouter
from actors.web.workers import WorkerClient
from dev.kafka import free_port
from stores._core.record import Position, encode_metadata
from stores.memory import MemoryStore

PARTITIONS = 4
ELSEWHERE = 3
"""The partition that isn't this worker's."""
POSITION = Position(10, 20, 0, 1, "id")
KEYS = [
    "ada",
    "a/b",
    "_x",
    "_count",
    "_many",
    "key 1",
    "ключ",
    "%",
    ".",
    "-",
    "x" * 40_000,
    *(f"k{n}" for n in range(20)),
]


def spec_of(name: str, topic: str, handler: Any, stores: Any, **options: Any) -> ActorSpec:
    """Return the spec of an actor with one input of texts."""
    inputs = (InputSpec(topic, handler, bytes.decode, bytes.decode),)
    return ActorSpec(name=name, stores=stores, inputs=inputs, partition_count=PARTITIONS, changelogs={}, **options)


class Served:
    """An app's web server, and what stands where its tasks and its service would."""

    def __init__(self, **options: Any) -> None:
        self.app = App("quick", broker="kafka://127.0.0.1:1", web_port=free_port(), **options)
        check_access(self.app)
        words = self.app.store("words", key_type=str, value_type=str)

        numbers = self.app.store("numbers", key_type=int, value_type=int)

        @self.app.actor(self.app.topic("in", key_type=str, value_type=str), stores=[words, numbers])
        async def talk(ctx: Context, word: str) -> None: ...

        @self.app.query(talk)
        def add(ctx: Context, number: int, share: float = 0.0) -> list[float]:
            return [number, share]

        self.spec = spec_of("talk", "in", talk, (words, numbers))
        self.store = MemoryStore()
        self.store.apply([(key.encode(), encode_metadata(1, 1) + key[:9].encode()) for key in KEYS], POSITION)
        self.store.apply([(f"big{n}".encode(), encode_metadata(1, 1) + b"x" * 50_000) for n in range(8)], POSITION)
        self.tasks = {TaskId("talk", number): self._task(number) for number in range(PARTITIONS - 1)}
        self.is_member = True
        self.lease = ReadLease(self._confirms, lasts_s=10.0, renew_s=1.0)
        clock, directory, workers = FakeClock(), Directory(_nobody, "w"), WorkerClient(Hops())
        self.queries = SimpleNamespace(
            actors={"talk": self.spec},
            actor={"talk": self.spec}.__getitem__,
            stores={"words": self.spec, "numbers": self.spec},
            router=Router(StateReader(self.tasks.get, self.lease, clock), directory, workers),
            standby_router=StandbyRouter(
                StateReader(self.tasks.get, self.lease, clock, lambda *_: None),
                directory,
                workers,
                StandbyDirectory(_no_copies),
                "",
            ),
            workers=workers,
            worker="w",
            address="",
        )
        service: Any = SimpleNamespace(meters=WorkerMeters())
        self.app.extensions["web"].queries = self.queries
        self.app._actor_service = service
        self.server = self.app.web

    def _task(self, number: int) -> Task:
        settings: Any = SimpleNamespace(queue_records=1)
        nothing: Any = None
        services: Any = SimpleNamespace(clock=FakeClock())
        task = Task(
            self.spec, number, member=Membership(Identity("w", 1)), log=nothing, services=services, settings=settings
        )
        numbers = MemoryStore()
        numbers.apply([(b"1", encode_metadata(1, 1) + b"1")], POSITION)
        task._stores = [Restored(store, POSITION, is_empty=False) for store in (self.store, numbers)]
        task.context.state = State.RUNNING
        return task

    async def _confirms(self, _: Identity) -> bool:
        return self.is_member

    def commits(self, state: State) -> None:
        """Put all tasks into a state, and wake who waits for the end of a commit."""
        for task in self.tasks.values():
            task.context.state = state
            task.context._wake()

    @property
    def waiting(self) -> int:
        """How many questions wait for a commit's end."""
        futures = [wait for task in self.tasks.values() for wait in task.context._commit_waits]
        return sum(not wait.done() for wait in futures)

    async def connect(self, *, tls: ssl.SSLContext | None = None) -> Connection:
        """Open a connection."""
        return Connection(*await asyncio.open_connection("127.0.0.1", self.app.conf.web_port, ssl=tls))


async def _nobody() -> list[Any]:
    return []


async def _no_copies() -> dict[Any, list[str]]:
    return {}


class Connection:
    """A client's connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, *requests: bytes) -> None:
        """Send requests at once."""
        self.writer.write(b"".join(requests))

    async def answer(self) -> tuple[int, list[str], bytes]:
        """Give the next answer: status, headers without the date, body."""
        async with asyncio.timeout(10):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            length = re.search(r"(?i)content-length: (\d+)", head)
            body = await self.reader.readexactly(int(length[1]) if length else 0)
        status, *headers = head.split("\r\n")[:-2]
        return int(status.split()[1]), sorted(line for line in headers if not line.startswith("Date:")), body

    async def close(self) -> None:
        """Hang up."""
        self.writer.close()
        await self.writer.wait_closed()


@asynccontextmanager
async def served(**options: Any) -> Any:
    """Give a running server."""
    found = Served(**options)
    # As it is when Faust starts the server: with its hook of every answer.
    assert found.server.cors
    found.server.init_server()
    await found.server.start_server()
    try:
        yield found
    finally:
        await found.server.stop_server()
        await found.queries.workers.close()
        await found.lease.close()


def get(target: str, *headers: str, method: str = "GET", version: str = "1.1") -> bytes:
    lines = [f"{method} {target} HTTP/{version}", "Host: localhost", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1")


KEY = "/actors/words/ada"


def is_here(key: str) -> bool:
    return partition_for(key.encode(), PARTITIONS) != ELSEWHERE


async def until(found: Callable[[], Any]) -> Any:
    async with asyncio.timeout(10):
        while not (what := found()):  # noqa: ASYNC110  the server knows nothing of who looks
            await asyncio.sleep(0.001)
    return what
