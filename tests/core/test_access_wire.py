"""What is tried at the bytes of requests: the quick way against aiohttp's own, odd headers, forms, and partitions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from actors._faust.access import limits
from actors._faust.access.callers import COOKIE, HOP, names_this_machine
from actors._faust.access.limits import RefusalLog
from actors._faust.access.origin import _authority
from actors._faust.queries import quick
from actors._faust.queries.routing import PARTITIONS
from tests.certificates import Authority
from tests.core.query_server import KEY, Connection, Served, get, until
from tests.core.query_server import served as asked
from tests.core.test_queries_quick import ORDINARY, QUICK
from tests.core.test_queries_quick import REFUSED as REFUSED_QUICKLY
from tests.core.web_part import ADMIN, READ, TOKENS, bearer, raw, served

REFUSALS = "actors._faust.access.limits"
SHOWN = [
    [],
    [f"Authorization: Bearer {READ}"],
    [f"Authorization: Bearer {ADMIN}"],
    ["Authorization: Bearer guess-0123456789-abc"],
    [f"Authorization: Bearer {READ}", f"Authorization: Bearer {READ}"],
    [f"Authorization: Bearer {READ}", f"{HOP}: 1"],
    [f"Cookie: {COOKIE}=1.2.3"],
    [f"X-1: {'x' * 8_000}", f"X-2: {'x' * 8_000}", f"X-3: {'x' * 8_000}"],
]
TARGETS = [KEY, "/actors/words/nobody", "/actors/nowhere/ada", "/actors/../ada", "/actors/./x", f"{KEY}?x=%0A%0Dforged"]


@pytest.fixture
def refused(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give the lines of refusals since the last call; there is one for each."""
    monkeypatch.setattr(limits, "LOG_LINES_PER_S", 1_000_000)
    caplog.set_level(logging.INFO)

    def lines() -> list[str]:
        found = [record.getMessage() for record in caplog.records if record.name == REFUSALS]
        assert all(line.isprintable() for line in found)
        caplog.clear()
        # Not what a server of another test has yet to say; and whether what comes behind nonsense is read is by chance.
        return [line for line in found if "more requests" not in line and "unreadable" not in line]

    return lines


async def both(one: Served, two: Served, request: bytes, refused: Any) -> list[tuple[Any, list[str]]]:
    """Give the answers of two servers to bytes that are sent twice over one connection, and what each wrote down."""
    found = []
    for server in (one, two):
        connection, answers = await server.connect(), []
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            for _ in range(2):
                connection.send(request)
                answers.append(await connection.answer())
        await connection.close()
        found.append((answers, refused()))
    return found


async def test_the_quick_way_refuses_what_the_other_one_does_and_writes_it_down(refused: Any) -> None:
    options = {**TOKENS, "queries_per_second": 0}
    async with asked(**options) as one, asked(is_quick=False, **options) as two:
        assert isinstance(one.server._runner.server, quick._QuickServer)
        assert type(two.server._runner.server) is web.Server
        requests = [get(target, *shown) for target in TARGETS for shown in SHOWN]
        statuses = set()
        # One that expects a word to go on has two answers.
        others = [other for other in [*QUICK, *REFUSED_QUICKLY, *ORDINARY] if b"Expect:" not in other]
        for request in [*requests, *others]:
            quickly, plainly = await both(one, two, request, refused)
            assert quickly == plainly, request[:200]
            answers, lines = quickly
            found = [status for status, _, _ in answers]
            if request in requests:
                assert len(lines) == sum(status in (401, 403, 431) for status in found)
            statuses |= set(found)
    assert {200, 401, 404, 431} <= statuses
    assert one.quick > 5


async def test_the_quick_way_has_the_same_limit_per_second(refused: Any) -> None:
    options = {**TOKENS, "queries_per_second": 0.5}
    request = get(KEY, f"Authorization: Bearer {READ}")
    found = []
    for is_quick in (True, False):
        async with asked(is_quick=is_quick, **options) as server:
            connection = await server.connect()
            answers = []
            for _ in range(3):
                connection.send(request)
                answers.append(await connection.answer())
            found.append(([status for status, _, _ in answers], [line.split()[1] for line in refused()]))
            await connection.close()
    assert found[0] == found[1] == ([200, 429, 429], ["GET", "GET"])


async def test_the_quick_way_knows_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.certificate("worker")
    options = {"web_certificate": certificate, "web_key": key, "web_client_ca": authority.file}
    async with asked(**options) as server:
        for client, expected in ((None, 401), (authority.certificate("reader"), 200)):
            connection = await server.connect(tls=authority.trust(client))
            for _ in range(3):
                connection.send(get(KEY))
                assert (await connection.answer())[0] == expected
            await hang_up(connection)
        assert server.quick == 2


async def hang_up(connection: Connection) -> None:
    # A TLS connection that is closed in order waits for the server's word.
    connection.writer.transport.abort()


async def test_a_token_that_is_taken_back_ends_on_connections_that_are_open(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(READ)
    async with asked(query_tokens=file) as server:
        connection = await server.connect()
        for token, expected in ((READ, 200), ("reader-after-0123456789", 401)):
            file.write_text(token)
            server.app.access_files.look()
            server.app.access_files.look()
            connection.send(get(KEY, f"Authorization: Bearer {READ}"))
            assert (await connection.answer())[0] == expected
            connection.send(get(KEY, f"Authorization: Bearer {READ}"))
            assert (await connection.answer())[0] == expected
        await connection.close()
        assert server.quick == 1


@pytest.mark.parametrize("given", ["0,0,0", ",".join(["0", "1"] * 500)])
async def test_a_partition_that_is_named_twice_is_looked_at_once(given: str) -> None:
    async with asked() as server:
        connection = await server.connect()
        answers = []
        for partitions in ("0,1" if "1" in given else "0", given):
            for target in ("/actors/words?limit=1000", "/actors/words/_count?exact=true"):
                connection.send(get(target, f"{HOP}: 1", f"{PARTITIONS}: {partitions}"))
                status, _, body = await connection.answer()
                assert status == 200
                answers.append(msgspec.json.decode(body))
        await connection.close()
    assert answers[0]["items"] == answers[2]["items"]
    assert answers[1]["count"] == answers[3]["count"] > 0


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is the test's."""

    now_s = 1_000.0

    def time(self) -> float:
        return self.now_s


@pytest.mark.parametrize("per_s", [20, 40, 200])
def test_a_minute_of_refusals_is_a_few_lines_a_second(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, per_s: int
) -> None:
    async def refuse(log: RefusalLog) -> None:
        for _ in range(60 * per_s):
            log.write("1.2.3.4", "GET /", "401 unauthorized")
            loop.now_s += 1 / per_s
            await asyncio.sleep(0)
        loop.now_s += 2
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    loop = VirtualLoop()
    monkeypatch.setattr(limits, "time", SimpleNamespace(monotonic=loop.time))
    try:
        loop.run_until_complete(refuse(RefusalLog()))
    finally:
        loop.close()
    lines = [record.getMessage() for record in caplog.records if record.name == REFUSALS]
    counted = [int(line.split()[1]) for line in lines if "more requests" in line]
    assert len(lines) - len(counted) + sum(counted) == 60 * per_s
    # Ten, and how many more there were: at the end of a second, or when the next one begins.
    assert len(counted) <= 2 * 62
    assert len(lines) <= 12 * 62


async def test_headers_that_are_too_large_for_a_question_arent_learned_from_another_page() -> None:
    large = [f"Authorization: Bearer {READ}", *(f"X-{number}: {'x' * 6_000}" for number in range(3))]
    async with asked(**TOKENS) as server:
        connection = await server.connect()
        statuses = []
        # The first question is aiohttp's, whatever comes before: the worker asks the group whether it is in it.
        for target, headers in ((KEY, large[:1]), ("/", large), ("/", large), (KEY, large)):
            connection.send(get(target, *headers))
            statuses.append((await connection.answer())[0])
        await connection.close()
    assert statuses == [200, 200, 200, 431]


async def test_a_body_that_comes_behind_its_headers_is_no_request() -> None:
    """Somebody's proxy that is sent a GET with a body would give its answers to others."""
    body = get("/actors/words/k1")
    head = get(KEY, f"Content-Length: {len(body)}")
    async with asked() as server:
        connection = await server.connect()
        answers = []
        for first, then in ((head + body, b""), (head + body, b""), (head, body), (head, body), (get(KEY), b"")):
            quickly = server.quick
            connection.send(first)
            if then:
                (protocol,) = server.server._runner.server.connections
                await until(lambda quickly=quickly, one=protocol: one._taken or server.quick > quickly)
                connection.send(then)
            answers.append((await connection.answer())[2])
        await connection.close()
    assert [b'"key":"ada"' in answer for answer in answers] == [True] * 5


# --- what is sent to the login, and with it ------------------------------------------------------------------------


@pytest.fixture
async def server() -> Any:
    async with served(**TOKENS) as running:
        yield running


NO_ORIGINS = ["https://xn--", "https://[::1]x2[@", "https://[", "https://a..b:99999", "null", "", "\x7f", "https://%"]


@pytest.mark.parametrize("origin", NO_ORIGINS)
async def test_an_origin_that_is_none_is_a_foreign_one(
    server: TestServer, origin: str, caplog: pytest.LogCaptureFixture
) -> None:
    for path in ("/page/login", "/page/logout", "/page/drop"):
        given = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: {origin}\r\nContent-Length: 0\r\n\r\n"
        status, _ = await raw(server, given)
        assert status in ((400, 401) if path == "/page/drop" or "\x7f" in origin else (403,))
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("host", ["[::1]x2[@", "xn--", "[", "a..b", "@", ":", "\udcff"])
def test_a_host_that_is_none_is_not_this_machine(host: str) -> None:
    assert not names_this_machine(host)
    assert _authority(f"https://{host}") != _authority("https://127.0.0.1")


async def test_a_login_of_many_fields_is_refused_and_no_failure(
    server: TestServer, caplog: pytest.LogCaptureFixture
) -> None:
    headers = {"Origin": str(server.make_url("")).rstrip("/"), "Content-Type": "application/x-www-form-urlencoded"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(server.make_url("/page/login"), data="&".join(["token=x"] * 20), headers=headers) as reply,
    ):
        assert reply.status == 400
    assert "400 bad-body" in caplog.text
    assert "Traceback" not in caplog.text


async def test_a_cookie_that_somebody_put_there_gives_nobody_more(server: TestServer) -> None:
    """Another site under the same name can set a cookie: one of its own login, or any text."""
    own = {"Origin": str(server.make_url("")).rstrip("/")}
    async with aiohttp.ClientSession() as session:
        async with session.post(
            server.make_url("/page/login"), data={"token": READ}, headers=own, allow_redirects=False
        ) as reply:
            planted = reply.cookies[COOKIE].value
        # Whoever logs in afterwards has a cookie of the own token, and the planted one stays what it was.
        form = {"token": ADMIN}
        headers = {**own, "Cookie": f"{COOKIE}={planted}"}
        async with session.post(
            server.make_url("/page/login"), data=form, headers=headers, allow_redirects=False
        ) as reply:
            assert reply.cookies[COOKIE].value != planted
        for headers, status in (
            ({"Cookie": f"{COOKIE}={planted}"}, 403),
            ({"Cookie": f"{COOKIE}={planted}", **bearer(ADMIN)}, 200),
            ({"Cookie": f"{COOKIE}=forged.x.y"}, 401),
        ):
            async with session.get(server.make_url("/state/secret"), headers=headers) as reply:
                assert reply.status == status
