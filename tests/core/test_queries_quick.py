"""Questions for a key that are answered while they are read: as aiohttp's own way would answer them, and in order."""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from aiohttp import web

from actors import App, Context
from actors._core.lifecycle import State
from actors._core.partitioner import partition_for
from actors._faust.access.settings import check_access
from actors._faust.access.tls import Hops
from actors._faust.queries import quick
from actors._faust.queries.copies import CopyDirectory, CopyRouter
from actors._faust.queries.routing import Directory, Router
from actors._faust.queries.server import answer_quickly
from actors.errors import NotReadyError
from actors.ports import Identity, TopicPartition
from actors.runtime.copy_queries import CopyReader
from actors.runtime.lease import Lease, LeaseSettings
from actors.runtime.meters import WorkerMeters
from actors.runtime.queries import MAX_COUNTS, Bounds, StateReader
from actors.runtime.spec import ActorSpec
from actors.runtime.state import Restored
from actors.runtime.task import Task
from actors.testing.ports import FakeClock
from dev.kafka import free_port
from stores._core.record import Position, encode_stamp
from stores.memory import MemoryStore

PARTITIONS = 4
ELSEWHERE = 3
"""The partition that isn't this worker's."""
POSITION = Position(10, 20, 0, 1, "id")
KEYS = ["ada", "a/b", "_x", "_count", "key 1", "ключ", "%", ".", "-", "x" * 40_000, *(f"k{n}" for n in range(20))]


class Served:
    """An app's web server, and what stands where its tasks and its service would."""

    def __init__(self, **options: Any) -> None:
        self.app = App("quick", broker="kafka://127.0.0.1:1", web_port=free_port(), **options)
        check_access(self.app)
        words = self.app.store("words", key_type=str, value_type=str)

        @self.app.actor(self.app.topic("in", key_type=str, value_type=str), stores=[words])
        async def talk(ctx: Context, word: str) -> None: ...

        self.spec = ActorSpec("talk", "in", PARTITIONS, talk, bytes.decode, bytes.decode, (words,), {})
        self.store = MemoryStore()
        self.store.apply([(key.encode(), encode_stamp(1, 1) + key[:9].encode()) for key in KEYS], POSITION)
        self.store.apply([(f"big{n}".encode(), encode_stamp(1, 1) + b"x" * 50_000) for n in range(8)], POSITION)
        self.tasks = {TopicPartition("in", number): self._task(number) for number in range(PARTITIONS - 1)}
        self.is_member = True
        self.lease = Lease(self._confirms, LeaseSettings(lasts_s=10.0, renew_s=1.0))
        clock, directory = FakeClock(), Directory(_nobody, "w")
        self.queries = SimpleNamespace(
            actors={"talk": self.spec},
            stores={"words": self.spec},
            router=Router(StateReader(self.tasks.get, self.lease, clock), directory, Hops()),
            copies=CopyRouter(
                CopyReader(self.tasks.get, self.lease, clock, lambda *_: None),
                directory,
                CopyDirectory(_no_copies),
                "",
                Hops(),
            ),
            worker="w",
            address="",
        )
        service: Any = SimpleNamespace(queries=self.queries, meters=WorkerMeters())
        self.app._actor_service = service
        self.server = self.app.web
        self.begun = 0

    def _task(self, number: int) -> Task:
        settings: Any = SimpleNamespace(queue_records=1)
        nothing: Any = None
        task = Task(self.spec, number, identity=Identity("w", 1), log=nothing, services=nothing, settings=settings)
        task._stores = [Restored(self.store, POSITION, is_empty=False)]
        task._ownership.state = State.RUNNING
        return task

    async def _confirms(self, _: Identity) -> bool:
        return self.is_member

    def commits(self, state: State) -> None:
        """Put all tasks into a state, and wake who waits for the end of a commit."""
        for task in self.tasks.values():
            task._ownership.state = state
            task._ownership._wake()

    @property
    def waiting(self) -> int:
        """How many questions wait for a commit's end."""
        return sum(not wait.done() for task in self.tasks.values() for wait in task._ownership._commit_waits)

    async def connect(self, tls: ssl.SSLContext | None = None) -> Connection:
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
async def served(
    *, is_quick: bool = True, prepare: Callable[[web.Application], None] | None = None, **options: Any
) -> Any:
    """Give a running server."""
    found = Served(**options)
    with pytest.MonkeyPatch.context() as patch:
        if not is_quick:
            patch.setattr("actors._faust.faust_app.answer_quickly", lambda _: None)
        if prepare is not None:
            prepare(found.server.web_app)
        # As it is when Faust starts the server: with its hook of every answer.
        assert found.server.cors
        found.server.init_server()
    await found.server.start_server()
    if isinstance(server := found.server._runner.server, quick._QuickServer):
        begin = server.quick.handler

        def counted(request: web.Request) -> Any:
            found.begun += 1
            return begin(request)

        server.quick.handler = counted
    try:
        yield found
    finally:
        await found.server.stop_server()
        await found.queries.router.close()
        await found.queries.copies.close()
        await found.lease.close()


@pytest.fixture
async def there() -> AsyncIterator[Served]:
    async with served() as found:
        yield found


def get(target: str, *headers: str, method: str = "GET", version: str = "1.1") -> bytes:
    lines = [f"{method} {target} HTTP/{version}", "Host: localhost", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1")


KEY = "/actors/words/ada"
QUICK = [
    get(KEY),
    get("/actors/words/k1"),
    get("/actors/words/nobody"),
    get("/actors/words/a%2Fb"),
    get("/actors/words/_x"),
    get("/actors/words/key%201"),
    get("/actors/words/%D0%BA%D0%BB%D1%8E%D1%87"),
    get("/actors/words/%25"),
    get("/actors/words/%"),
    get("/actors/words/%zz"),
    get("/actors/words/-"),
    get("/actors/words/;a=b"),
    get("/actors/words/ada?"),
    get("/actors/words/ada?raw=true"),
    get("/actors/words/%22ada%22?encoding=json"),
    get("/actors/words/YWRh?encoding=base64"),
    get("/actors/words/!?encoding=base64"),
    get("/actors/words/ada?encoding=rot13"),
    get(f"/actors/words/ada?partition={partition_for(b'ada', PARTITIONS)}"),
    get("/actors/words/ada?partition=9"),
    get("/actors/words/ada?raw=true&raw=true"),
    get("/actors/words/ada?x=1"),
    get("/actors/words/ada?read=standby"),
    get("/actors/nowhere/ada"),
    get("/actors/_many/ada"),
    get(KEY, "Actors-Hop: 1"),
    get(KEY, "Content-Length: 0"),
    get(KEY, "Authorization: Bearer wrong"),
    get(KEY, "X-Forwarded-For: 10.0.0.1"),
    get(KEY, "Cookie: actors-session=wrong"),
    get(f"/actors/words/{'y' * 5000}"),
    get(KEY, "Accept-Encoding: gzip", "Cookie: a=b", "If-None-Match: *"),
    b"GET /actors/words/ada HTTP/1.1\r\nHost: example.org\r\n\r\n",
]
ORDINARY = [
    get("/actors/words/_count"),
    get("/actors/words/_count?exact=true"),
    get("/actors/words/_many"),
    get("/actors/words/%5Fcount"),
    get("/actors/words/%5fmany"),
    get("/actors/words/_count%0A"),
    get("/actors/words/_ask/x/ada"),
    get("/actors/words/_ask%2Fx"),
    get("/actors/words/"),
    get("/actors/words"),
    get("/actors/words/."),
    get("/actors/words/.."),
    get("/actors/words/%2E%2E"),
    get("/actors//ada"),
    get("/actors/{/ada"),
    get("/actors/wo}rds/ada"),
    get("/actors/words//ada"),
    get("/actors/words/ada/"),
    get("/actors/w%6Frds/ada"),
    get("/actors/words/ada#x"),
    get("/actors/words/\xc3\xa4"),
    get("/actors/words/\xff"),
    get("//actors/words/ada"),
    get("/Actors/words/ada"),
    get("/actorsx/words/ada"),
    get("http://localhost/actors/words/ada"),
    get(KEY, "Expect: 100-continue"),
    get(KEY, "Expect: other"),
    get(KEY, "Connection: Upgrade", "Upgrade: websocket"),
    get(KEY, method="DELETE"),
    get(KEY, method="POST") + b"",
    get(KEY, "Connection: close"),
    get(KEY, version="1.0"),
    get(KEY, "Connection: keep-alive", version="1.0"),
    get("/nowhere"),
    b"nonsense\r\n\r\n",
    b"GET /actors/words/ada HTTP/1.1\r\nHost: localhost:1\r\nHost: example.org\r\n\r\n",
]


async def test_an_answer_is_the_one_that_aiohttp_would_give(there: Served) -> None:
    async with served(is_quick=False) as plain:
        assert type(plain.server._runner.server) is web.Server
        for is_quick, requests in ((True, QUICK), (False, ORDINARY)):
            for request in requests:
                before, answers = there.begun, []
                for one in (there, plain):
                    connection = await one.connect()
                    connection.send(request)
                    answers.append(await connection.answer())
                    await connection.close()
                assert answers[0] == answers[1], request[:200]
                assert (there.begun > before) == is_quick, request[:200]


async def test_all_keys_over_one_connection(there: Served) -> None:
    connection = await there.connect()
    for key in KEYS:
        # A key that is too long for a line ends the connection.
        if len(key) > 1_000 or not _is_here(key):
            continue
        connection.send(get("/actors/words/" + "".join(f"%{octet:02X}" for octet in key.encode())))
        status, _, body = await connection.answer()
        assert status == 200
        assert key == "_count" or msgspec.json.decode(body)["value"] == key[:9]
    await connection.close()


async def test_requests_that_come_together_are_answered_in_order(there: Served) -> None:
    connection = await there.connect()
    asked = [QUICK[0], QUICK[2], ORDINARY[0], QUICK[1], get("/nowhere"), QUICK[0], ORDINARY[9], QUICK[1]]
    connection.send(*asked)
    together = [await connection.answer() for _ in asked]
    apart = []
    for request in asked:
        connection.send(request)
        apart.append(await connection.answer())
    assert together == apart
    await connection.close()


async def test_a_client_that_doesnt_read_is_waited_for(there: Served) -> None:
    connection = await there.connect()
    connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
    (protocol,) = await _until(lambda: there.server._runner.server.connections)
    big = get("/actors/words/" + next(f"big{n}" for n in range(8) if _is_here(f"big{n}")))
    sent = 0
    while not protocol.writing_paused:
        connection.send(big)
        sent += 1
        await _until(lambda expected=sent: there.begun == expected or protocol.writing_paused)
    begun = there.begun
    connection.send(big, QUICK[0])
    await _until(lambda: protocol._request_in_progress)
    assert there.begun == begun
    connection.writer.transport.resume_reading()  # type: ignore[attr-defined]
    for _ in range(sent + 1):
        status, _, body = await connection.answer()
        assert status == 200
        assert len(body) > 50_000
    assert b'"key":"ada"' in (await connection.answer())[2]
    await connection.close()


def _is_here(key: str) -> bool:
    return partition_for(key.encode(), PARTITIONS) != ELSEWHERE


async def _until(found: Callable[[], Any]) -> Any:
    async with asyncio.timeout(10):
        while not (what := found()):  # noqa: ASYNC110  the server knows nothing of who looks
            await asyncio.sleep(0.001)
    return what


async def test_it_waits_for_the_commit_that_is_under_way(there: Served) -> None:
    connection, other = await there.connect(), await there.connect()
    connection.send(QUICK[0])
    await connection.answer()
    there.commits(State.COMMITTING)
    connection.send(QUICK[0])
    await _until(lambda: there.waiting)
    # What comes behind it waits too, also when it needs no commit's end.
    connection.send(get("/nowhere"), QUICK[0], ORDINARY[0])
    other.send(get("/nowhere"))
    await other.answer()
    assert there.begun == 2
    there.store.apply([(b"ada", encode_stamp(1, 1) + b"new")], POSITION)
    there.commits(State.RUNNING)
    answers = [await connection.answer() for _ in range(4)]
    assert [status for status, _, _ in answers] == [200, 404, 200, 503]
    assert b'"value":"new"' in answers[0][2]
    assert answers[0] == answers[2]
    await connection.close()
    await other.close()


async def test_a_commit_that_takes_too_long_is_a_503(there: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.runtime.queries.WAIT_S", 0.05)
    connection = await there.connect()
    there.commits(State.COMMITTING)
    connection.send(QUICK[0])
    status, headers, body = await connection.answer()
    assert status == 503
    assert "Retry-After: 1" in headers
    assert b"a commit takes longer" in body
    there.commits(State.RUNNING)
    connection.send(QUICK[0])
    assert (await connection.answer())[0] == 200
    await connection.close()


async def test_a_commit_may_end_in_the_turn_in_which_the_wait_is_over(
    there: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.runtime.queries.WAIT_S", 0.02)
    there.commits(State.COMMITTING)
    reader = there.queries.router.reader
    asked = asyncio.create_task(reader.hold(there.spec, (0,)))
    await _until(lambda: there.waiting)
    asyncio.get_running_loop().call_later(0.03, there.commits, State.RUNNING)
    # A handler holds the loop until both are due.
    time.sleep(0.05)  # noqa: ASYNC251
    with pytest.raises(NotReadyError, match="a commit takes longer"):
        await asked


async def test_exact_counts_dont_pile_up(there: Served) -> None:
    there.commits(State.COMMITTING)
    reader = there.queries.router.reader
    counts = [asyncio.create_task(reader.count(there.spec, "words", (0,), Bounds())) for _ in range(MAX_COUNTS)]
    await _until(lambda: there.waiting)
    connection = await there.connect()
    count = get("/actors/words/_count?exact=true&partition=0")
    connection.send(count)
    status, headers, body = await connection.answer()
    assert status == 503
    assert "Retry-After: 1" in headers
    assert b"exact counts" in body
    there.commits(State.RUNNING)
    assert await asyncio.gather(*counts) == [len(KEYS) + 8] * MAX_COUNTS
    connection.send(count)
    assert (await connection.answer())[0] == 200
    await connection.close()


async def test_who_hangs_up_or_waits_too_much_leaves_nothing_behind(there: Served) -> None:
    there.commits(State.COMMITTING)
    connections = [await there.connect() for _ in range(257)]
    for connection in connections:
        connection.send(QUICK[0])
    (refused,) = [done.result() for done in (await _first([one.answer() for one in connections]))]
    assert refused[0] == 503
    assert b"busy" in refused[2]
    for connection in connections:
        await connection.close()
    await _until(lambda: not there.server._runner.server.connections)
    there.commits(State.RUNNING)
    again = [await there.connect() for _ in range(256)]
    there.commits(State.COMMITTING)
    for connection in again:
        connection.send(QUICK[0])
    await _until(lambda: there.waiting == 256)
    there.commits(State.RUNNING)
    assert [(await one.answer())[0] for one in again] == [200] * 256
    for connection in again:
        await connection.close()


async def _first(answers: list[Any]) -> set[asyncio.Task[Any]]:
    tasks = [asyncio.create_task(answer) for answer in answers]
    done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=10)
    for task in left:
        task.cancel()
    await asyncio.wait(left)
    return done


async def test_a_server_that_stops_answers_who_waits() -> None:
    async with served() as there:
        connection, idle = await there.connect(), await there.connect()
        idle.send(QUICK[0])
        await idle.answer()
        there.commits(State.COMMITTING)
        connection.send(QUICK[0])
        await _until(lambda: there.waiting)
        stopping = asyncio.create_task(there.server.stop_server())
        await asyncio.sleep(0.01)
        there.commits(State.RUNNING)
        assert (await connection.answer())[0] == 200
        async with asyncio.timeout(10):
            await stopping
            assert await connection.reader.read() == b""
            assert await idle.reader.read() == b""
        for one in (connection, idle):
            await one.close()


async def test_another_workers_partition_is_asked_for_in_a_task(there: Served) -> None:
    key = next(key for key in KEYS if not _is_here(key) and key.isalnum())
    connection = await there.connect()
    for headers, status, word in (((), 503, b"no worker has taken it over yet"), (("Actors-Hop: 1",), 421, b"aren't")):
        connection.send(get(f"/actors/words/{key}", *headers), QUICK[0])
        answer = await connection.answer()
        assert answer[0] == status
        assert word in answer[2]
        assert (await connection.answer())[0] == 200
    await connection.close()


async def test_without_a_lease_there_is_no_answer(there: Served) -> None:
    connection = await there.connect()
    there.is_member = False
    connection.send(QUICK[0])
    status, _, body = await connection.answer()
    assert status == 503
    assert b"doesn't know this worker" in body
    there.is_member = True
    connection.send(QUICK[0])
    assert (await connection.answer())[0] == 200
    await connection.close()


async def test_a_defect_is_a_500(there: Served, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    connection = await there.connect()
    connection.send(QUICK[0])
    await connection.answer()

    def fails(*_: Any) -> None:
        raise RuntimeError("defect")

    monkeypatch.setattr(there.store, "get", fails)
    connection.send(QUICK[0], get("/nowhere"))
    assert (await connection.answer())[0] == 500
    assert (await connection.answer())[0] == 404
    assert "defect" in caplog.text
    await connection.close()


async def test_what_runs_around_all_of_the_users_requests_runs_around_these() -> None:
    seen = []

    @web.middleware
    async def watch(request: web.Request, handler: Any) -> Any:
        seen.append(request.path)
        return await handler(request)

    async with served(prepare=lambda app: app.middlewares.append(watch)) as there:
        connection = await there.connect()
        connection.send(QUICK[0])
        assert (await connection.answer())[0] == 200
        await connection.close()
    assert seen == [KEY]


async def test_an_unknown_aiohttp_answers_in_its_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "_USED", {"_something_else"})
    async with served() as there:
        assert type(there.server._runner.server) is web.Server
        answer_quickly(there.server)
        connection = await there.connect()
        connection.send(QUICK[0])
        assert (await connection.answer())[0] == 200
        await connection.close()
