"""What clients do that bring too much, too slowly, or nothing at all: others are answered meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from actors._core.task.lifecycle import State
from actors.web.access import door, guard
from actors.web.access.guard import GUARD
from actors.web.access.limits import MAX_HELD_BYTES, REQUEST_BYTES, SPARE_BYTES, Room
from actors.web.problems import Problem
from tests.unit.web.query_server import KEY, Connection, get, until
from tests.unit.web.query_server import served as asked
from tests.unit.web.web_part import ADMIN, OLD_READ, READ, TOKENS, bearer, raw, served


@pytest.fixture
async def server() -> AsyncIterator[TestServer]:
    async with served(**TOKENS) as running:
        yield running


def post(path: str, token: str | None, *lines: str) -> bytes:
    shown = () if token is None else (f"Authorization: Bearer {token}",)
    return get(path, *shown, *lines, method="POST")


# --- compressed bodies ---------------------------------------------------------------------------------------------

BOMB = gzip.compress(bytes(64 * 1024 * 1024), 9)
"""64 KiB that unpack to 64 MiB."""


async def hang_up(*connections: Connection) -> None:
    for connection in connections:
        connection.writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await connection.writer.wait_closed()


def chunked(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


async def test_compressed_bodies_without_a_token_dont_hold_the_loop(server: TestServer) -> None:
    head = post("/state/_many", None, "Content-Encoding: gzip", "Transfer-Encoding: chunked")
    connections = []
    for _ in range(24):
        connection = Connection(*await asyncio.open_connection(str(server.host), server.port))
        connection.send(head)
        connections.append(connection)
    latest, longest_s = time.monotonic(), 0.0
    for _ in range(4):
        for connection in connections:
            with contextlib.suppress(ConnectionError):
                connection.send(chunked(BOMB))
            await asyncio.sleep(0)
            now_s = time.monotonic()
            latest, longest_s = now_s, max(longest_s, now_s - latest)
    for connection in connections:
        assert (await connection.answer())[0] == 415
    await hang_up(*connections)
    # To unpack them all takes 10 s.
    assert longest_s < 1.0


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "GZIP", "gzip, gzip", "x", "identity, gzip"])
@pytest.mark.parametrize("token", [READ, None])
async def test_a_compressed_body_is_refused(server: TestServer, encoding: str, token: str | None) -> None:
    for path in ("/state/_many", "/health", "/page/drop"):
        request = post(path, token, f"Content-Encoding: {encoding}", "Content-Length: 4") + b"\x1f\x8b\x08\x00"
        status, answer = await raw(server, request)
        assert status == 415
        assert "Accept-Encoding: identity" in answer
        assert "Connection: close" in answer


async def test_a_body_that_says_that_it_isnt_compressed_is_taken(server: TestServer) -> None:
    for encoding in ("identity", "Identity", ""):
        request = post("/state/_many", READ, f"Content-Encoding: {encoding}", "Content-Length: 4") + b"1234"
        assert (await raw(server, request))[0] == 200


async def test_pages_of_the_app_get_no_compressed_bodies_either() -> None:
    for options in ({}, TOKENS):
        async with asked(**options) as there:
            connection = await there.connect()
            token = ADMIN if options else None
            connection.send(post("/", token, "Content-Encoding: gzip", "Content-Length: 4") + b"1234")
            assert (await connection.answer())[0] == 415
            await connection.close()


async def test_a_refused_requests_connection_is_closed_and_its_body_isnt_kept(server: TestServer) -> None:
    for token, path, status in ((None, "/state/_many", 401), (READ, "/state/drop", 403)):
        reader, writer = await asyncio.open_connection(str(server.host), server.port)
        connection = Connection(reader, writer)
        connection.send(post(path, token, "Transfer-Encoding: chunked"), chunked(b"x" * 100_000))
        found, headers, _ = await connection.answer()
        assert found == status
        assert "Connection: close" in headers
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(10):
                # Also while more of it comes.
                while not reader.at_eof():
                    connection.send(chunked(b"x" * 10_000))
                    await reader.read(100)
                    await asyncio.sleep(0.01)
        await hang_up(connection)


# --- room ----------------------------------------------------------------------------------------------------------


def test_a_client_has_its_share_and_leaves_room_for_any_other() -> None:
    room, most = Room(), (MAX_HELD_BYTES - SPARE_BYTES) // REQUEST_BYTES
    with contextlib.ExitStack() as taken:

        def entered(client: str, **options: bool) -> int:
            count = 0
            with contextlib.suppress(Problem):
                while True:
                    taken.enter_context(room.enter(client, **options))
                    count += 1
            return count

        assert entered("slow", has_body_to_come=True) == pytest.approx(most / 3, abs=1)
        assert entered("slow") == pytest.approx(most / 2 - most / 3, abs=1), "its other requests"
        assert entered("b") == pytest.approx(most / 4, abs=1)
        assert [entered(f"client {number}") > 0 for number in range(6)] == [True] * 6
        assert entered("administrator", is_reader=False) == pytest.approx(SPARE_BYTES / REQUEST_BYTES / 2, abs=2)
        assert entered("another worker", is_reader=False) > 0
    assert not room.held_bytes


async def ask(server: TestServer, headers: dict[str, str], method: str = "GET", path: str = "/state") -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, server.make_url(path), headers=headers, data=b"x" if method == "POST" else None) as one,
    ):
        return one.status


async def test_bodies_that_never_come_take_nobodys_room(server: TestServer) -> None:
    async with contextlib.AsyncExitStack() as stack:
        statuses = []
        for number in range(300):
            connection = Connection(*await asyncio.open_connection(str(server.host), server.port))
            stack.push_async_callback(hang_up, connection)
            connection.send(post("/state/_many", (READ, OLD_READ)[number % 2], "Content-Length: 1000") + b"x")
            if number >= 256:
                statuses.append((await connection.answer())[0])
        assert set(statuses) == {503}
        for token in (READ, ADMIN):
            assert await ask(server, bearer(token)) == 200
        assert await ask(server, {}, path="/health") == 200
        assert await ask(server, bearer(ADMIN), "POST", "/state/drop") == 200
        # A small body comes with its head.
        request = post("/state/_many", READ, "Content-Length: 4") + b"1234"
        assert (await raw(server, request))[0] == 200


async def test_administrators_have_room_when_readers_have_none(server: TestServer) -> None:
    room = server.app[GUARD].room
    with contextlib.ExitStack() as taken:
        for client in ("query token 1", "query token 2", *map(str, range(40))):
            with contextlib.suppress(Problem):
                while True:
                    taken.enter_context(room.enter(client))
        assert await ask(server, bearer(READ)) == 503
        assert await ask(server, bearer(ADMIN)) == 200
        assert await ask(server, bearer(ADMIN), "POST", "/state/drop") == 200
        assert await ask(server, {}, path="/health") == 200
    assert await ask(server, bearer(READ)) == 200


async def test_an_answer_that_nobody_reads_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MAX_SEND_S", 0.2)
    async with asked() as there:
        room = there.server.web_app[GUARD].room
        connection = await there.connect()
        connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
        # 8 values of 50 kB in each.
        request = get("/actors/words?prefix=big&partition=0&limit=1000")
        connection.send(request * 30)
        await until(lambda: room.held_bytes)
        await until(lambda: not there.server._runner.server.connections)
        await until(lambda: not room.held_bytes)
        await hang_up(connection)


async def test_answers_that_nobody_reads_end_their_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "UNREAD_S", 0.5)
    async with asked(**TOKENS) as there:
        connection = await there.connect()
        connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
        connection.send(get(KEY) * 100_000)
        await until(lambda: there.server._runner.server.connections)
        await until(lambda: not there.server._runner.server.connections)
        await hang_up(connection)


# --- connections ---------------------------------------------------------------------------------------------------


async def test_a_connection_that_says_nothing_makes_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "MAX_CONNECTIONS", 20)
    async with asked() as there:
        silent = [await there.connect() for _ in range(18)]
        silent += [await there.connect(), await there.connect()]
        for one in silent[-2:]:
            one.send(b"GET /actors/words/ada HTTP/1.1\r\nHost: local")
        for _ in range(60):
            connection = await there.connect()
            connection.send(get(KEY))
            assert (await connection.answer())[0] == 200
            silent.append(connection)
            assert len(there.server._runner.server.connections) <= 25
        for one in silent[:20]:
            assert await one.reader.read() == b""
        await hang_up(*silent)


async def test_who_only_connects_takes_connections_of_their_own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "MAX_CONNECTIONS", 20)
    async with asked() as there:
        administrators = await there.connect()
        administrators.send(get(KEY))
        assert (await administrators.answer())[0] == 200
        port, from_elsewhere = there.app.conf.web_port, ("127.0.0.2", 0)
        silent = [
            Connection(*await asyncio.open_connection("127.0.0.1", port, local_addr=from_elsewhere)) for _ in range(60)
        ]
        administrators.send(get(KEY))
        assert (await administrators.answer())[0] == 200
        await hang_up(administrators, *silent)


async def test_a_request_under_way_isnt_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "MAX_CONNECTIONS", 10)
    async with asked() as there:
        waiting = [await there.connect() for _ in range(4)]
        for connection in waiting:
            connection.send(get(KEY))
            assert (await connection.answer())[0] == 200
        there.commits(State.COMMITTING)
        for connection in waiting:
            connection.send(get(KEY))
        await until(lambda: there.waiting == 4)
        others = [await there.connect() for _ in range(40)]
        there.commits(State.RUNNING)
        assert [(await connection.answer())[0] for connection in waiting] == [200] * 4
        await hang_up(*waiting, *others)
        assert not there.server.web_app[GUARD].connections.busy


async def test_a_head_that_never_ends_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    options: Any = {"web_application_options": {"handler_args": {"keepalive_timeout": 0.3}}}
    async with asked(**options) as there:
        silent, slow, idle = [await there.connect() for _ in range(3)]
        idle.send(get(KEY))
        assert (await idle.answer())[0] == 200
        slow.send(b"GET /actors/words/ada HTTP/1.1\r\nHost: localhost\r\n")
        began_s = time.monotonic()
        async with asyncio.timeout(10):
            # A close with unread bytes resets the connection, which is no end of file.
            while not (slow.reader.at_eof() or slow.reader.exception()):
                with contextlib.suppress(ConnectionError):
                    slow.send(b"X-A: b\r\n")
                    await asyncio.sleep(0.02)
            assert await silent.reader.read() == b""
            assert await idle.reader.read() == b""
        assert time.monotonic() - began_s < 5
        await hang_up(silent, slow, idle)
