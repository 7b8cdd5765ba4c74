"""What somebody without a token tries at a worker's web server, and somebody with one who wants too much."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from actors.web.access import guard
from actors.web.access.limits import (
    MAX_BODY_BYTES,
    MAX_HEADER_BYTES,
    MAX_PATH_BYTES,
    UNREADABLE,
)
from tests.unit.web.web_part import ADMIN, READ, TOKENS, bearer, raw, served

PATHS = [
    "/state",
    "/state/",
    "//state",
    "/state//",
    "/./state",
    "/state/.",
    "/health/../state",
    "/health/../state/secret",
    "/health/%2e%2e/state/secret",
    "/health/..%2fstate%2fsecret",
    "/health%2f..%2fstate",
    "/%73tate/secret",
    "/state%2fsecret",
    "/state/secret;x=/health",
    "/state/secret?/health",
    "/state/secret#/health",
    "/state/secret%00",
    "/STATE/secret",
    "/page/../state/secret",
    "/page/secret",
    "http://127.0.0.1/state/secret",
    "http://127.0.0.1/health/../state/secret",
    "/health\\..\\state\\secret",
    "*",
    "state",
    "",
]
METHODS = ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE", "CONNECT", "PROPFIND", "get"]


@pytest.fixture(scope="module")
async def guarded() -> object:
    async with served(**TOKENS) as server:
        yield server


def head(method: str, path: str, *lines: str) -> str:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close", *lines, "", ""])


@pytest.mark.parametrize("method", METHODS)
async def test_no_path_leads_around_the_guard(guarded: TestServer, method: str) -> None:
    for path in PATHS:
        for more in (
            (),
            ("X-HTTP-Method-Override: GET",),
            ("X-Original-URL: /health",),
            ("X-Forwarded-For: 127.0.0.1",),
        ):
            status, answer = await raw(guarded, head(method, path, *more))
            assert not 200 <= status < 300, (method, path, more, answer)
            assert '"level"' not in answer
        # A reader gets to nothing that is an administrator's, by any spelling.
        status, answer = await raw(guarded, head(method, path, f"Authorization: Bearer {READ}"))
        assert status != 200 or "secret" not in path.partition("?")[0].partition("#")[0], (method, path, answer)


async def test_the_same_paths_lead_somewhere_for_an_administrator(guarded: TestServer) -> None:
    found = {path: (await raw(guarded, head("GET", path, f"Authorization: Bearer {ADMIN}")))[0] for path in PATHS}
    there = {path for path, status in found.items() if status == 200}
    assert {"/state", "/state/", "/%73tate/secret", "/state/secret?/health"} <= there


async def test_an_upgrade_isnt_a_way_in(guarded: TestServer) -> None:
    lines = ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: MDEyMzQ1"]
    request = "\r\n".join(["GET /state HTTP/1.1", "Host: 127.0.0.1", *lines, "", ""])
    assert (await raw(guarded, request))[0] == 401


async def test_requests_behind_another_one_are_guarded_too(guarded: TestServer) -> None:
    first = "GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    reader, writer = await asyncio.open_connection(str(guarded.host), guarded.port)
    writer.write((first + head("GET", "/state")).encode())
    async with asyncio.timeout(20):
        answer = (await reader.read()).decode()
    writer.close()
    assert [part.split()[0] for part in answer.split("HTTP/1.1 ")[1:]] == ["200", "401"]


LARGE = [
    # lines, status
    (head("GET", "/state?" + "x" * MAX_PATH_BYTES), 414),
    (head("GET", "/state?" + "x" * 9000), 400),
    (head("GET", "/state", *(f"X-{number}: {'x' * 4000}" for number in range(5))), 431),
    (head("GET", "/state", "X-Large: " + "x" * 9000), 400),
    (head("GET", "/state", *(f"X-{number}: x" for number in range(300))), 400),
    (head("GET", "/health", *(f"X-{number}: {'x' * 4000}" for number in range(5))), 431),
    (head("POST", "/state/_many", f"Content-Length: {MAX_BODY_BYTES + 1}"), 413),
    (head("POST", "/health/_many", f"Content-Length: {MAX_BODY_BYTES + 1}"), 413),
    (head("POST", "/state/_many", "Content-Length: 3", "Transfer-Encoding: chunked"), 400),
    (head("POST", "/state/_many", "Content-Length: -1"), 400),
    (head("POST", "/state/_many", "Content-Length: 3", "Content-Length: 4"), 400),
]


@pytest.mark.parametrize(("request_", "status"), LARGE)
async def test_what_is_too_large_is_refused_before_anything_else(
    guarded: TestServer, request_: str, status: int
) -> None:
    assert MAX_HEADER_BYTES < 5 * 4000
    assert (await raw(guarded, request_))[0] == status


async def test_what_aiohttp_cant_read_is_a_line_and_no_traceback(
    guarded: TestServer, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await raw(guarded, head("GET", "/state?" + "secret" * 1500)))[0] == 400
    lines = [record.getMessage() for record in caplog.records]
    assert "refused an unreadable request, asked by 127.0.0.1: 400 LineTooLong" in lines
    assert [record.name for record in caplog.records if record.name == "aiohttp.server"] == []
    assert "secret" not in caplog.text
    assert "Traceback" not in caplog.text


async def test_an_expect_header_that_isnt_text_is_a_line_and_no_traceback(
    guarded: TestServer, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await raw(guarded, head("GET", "/state", "Expect: \xff")))[0] == 500
    assert [record.exc_info for record in caplog.records] == [None]


def test_aiohttps_other_errors_are_written_as_they_are() -> None:
    for error in (RuntimeError("a defect"), None):
        info = None if error is None else (type(error), error, None)
        record = logging.LogRecord("aiohttp.server", logging.ERROR, "", 0, "failed", (), info)
        assert UNREADABLE.filter(record)


async def test_a_body_without_a_length_has_an_end(guarded: TestServer) -> None:
    async def endless() -> object:
        for _ in range(64):
            yield b"x" * 65536

    async with aiohttp.ClientSession(headers=bearer(READ)) as session:
        async with session.post(guarded.make_url("/state/_many"), data=b"x" * MAX_BODY_BYTES) as reply:
            assert (await reply.json())["body"] == MAX_BODY_BYTES
        with contextlib.suppress(aiohttp.ClientConnectionError):
            async with session.post(guarded.make_url("/state/_many"), data=endless()) as reply:
                assert reply.status == 413


async def test_slow_bodies_keep_nobody_waiting(guarded: TestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MAX_BODY_S", 0.3)
    slow = head("POST", "/state/_many", "Content-Length: 1000", f"Authorization: Bearer {READ}") + "x"
    nobody = head("POST", "/state/_many", "Content-Length: 1000") + "x"
    waiting = [asyncio.create_task(raw(guarded, request)) for request in [slow] * 48 + [nobody] * 100]
    # Others are answered meanwhile.
    async with (
        aiohttp.ClientSession() as session,
        session.get(guarded.make_url("/state"), headers=bearer(READ)) as reply,
    ):
        assert reply.status == 200
    statuses = [(await one)[0] for one in waiting]
    assert statuses == [408] * 48 + [401] * 100


async def test_nothing_is_open_where_no_setting_says_who_may() -> None:
    async with served(web_bind="0.0.0.0", queries=False) as server:
        for path, status in (("/state", 403), ("/health", 200)):
            assert (await raw(server, head("GET", path)))[0] == status
