"""The login of a browser: a cookie that only the worker's own pages have sent, and where it leads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from yarl import URL

from actors._faust.access.callers import COOKIE
from actors._faust.access.guard import Guard, Pass, pass_of
from tests.core.web_part import ADMIN, OLD_READ, READ, TOKENS, bearer, served

HTML = {"Accept": "text/html,application/xhtml+xml"}


@pytest.fixture
async def server() -> AsyncIterator[TestServer]:
    async with served(**TOKENS) as running:
        yield running


def browser() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True), headers=HTML)


def origin(server: TestServer) -> str:
    return str(server.make_url("")).rstrip("/")


async def log_in(session: aiohttp.ClientSession, server: TestServer, token: str, where: str = "/page") -> str:
    form = {"token": token, "next": where}
    headers = {"Origin": origin(server)}
    url = server.make_url("/page/login")
    async with session.post(url, data=form, headers=headers, allow_redirects=False) as reply:
        assert reply.status == 303
        return reply.headers["Location"]


async def test_a_browser_is_sent_to_the_login_and_back(server: TestServer) -> None:
    async with browser() as session:
        async with session.get(server.make_url("/page/to/a%2Fb?x=1&y=%26"), allow_redirects=False) as reply:
            assert reply.status == 303
            where = reply.headers["Location"]
            assert where.startswith("/page/login?next=")
        async with session.get(URL(origin(server) + where, encoded=True)) as reply:
            text = await reply.text()
            assert reply.status == 200
            assert reply.headers["Content-Security-Policy"].startswith("default-src 'none'")
            assert 'value="/page/to/a%2Fb?x=1&amp;y=%26"' in text
        assert await log_in(session, server, ADMIN, "/page/to/a%2Fb?x=1&y=%26") == "/page/to/a%2Fb?x=1&y=%26"
        async with session.get(server.make_url("/page")) as reply:
            assert await reply.json() == {"by": "login with admin token 1", "level": "ADMIN", "body": 0}


async def test_programs_are_told_and_not_sent_anywhere(server: TestServer) -> None:
    async with aiohttp.ClientSession() as session:
        for path, headers in (
            ("/page", {"Accept": "*/*"}),
            ("/state", HTML),
            ("/page", {"Accept": "text/event-stream"}),
        ):
            async with session.get(server.make_url(path), headers=headers, allow_redirects=False) as reply:
                assert (reply.status, reply.content_type) == (401, "application/problem+json")


async def test_the_cookie_is_out_of_reach_of_pages_and_other_sites(server: TestServer) -> None:
    async with browser() as session:
        form, headers = {"token": READ}, {"Origin": origin(server)}
        async with session.post(
            server.make_url("/page/login"), data=form, headers=headers, allow_redirects=False
        ) as reply:
            cookie = reply.headers["Set-Cookie"]
        for part in ("HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"):
            assert part in cookie
        assert READ not in cookie


async def test_a_token_counts_for_a_connection_and_a_cookie_for_one_request(
    server: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    admit, passes = Guard.admit, []

    def seen(guard: Guard, request: Any, level: Any) -> Any:
        found = admit(guard, request, level)
        passes.append(pass_of(request))
        return found

    monkeypatch.setattr(Guard, "admit", seen)
    async with browser() as session:
        await log_in(session, server, READ)
        passes.clear()
        for headers in ({}, bearer(READ)):
            async with session.get(server.make_url("/page"), headers=headers) as reply:
                assert reply.status == 200
    assert passes == [None, Pass("query token 1", 0)]


POSTS = [
    # headers beside the cookie, status
    ({"Origin": "SAME"}, 200),
    ({"Origin": "SAME", "Sec-Fetch-Site": "same-origin"}, 200),
    ({"Sec-Fetch-Site": "same-origin"}, 200),
    ({}, 403),
    ({"Origin": "null"}, 403),
    ({"Origin": "http://evil.example"}, 403),
    ({"Origin": "http://127.0.0.1:1"}, 403),
    ({"Origin": "SAME.evil.example"}, 403),
    ({"Origin": "SAME", "Sec-Fetch-Site": "cross-site"}, 403),
    ({"Sec-Fetch-Site": "same-site"}, 403),
    ({"Referer": "SAME/page"}, 403),
]


@pytest.mark.parametrize(("headers", "status"), POSTS)
async def test_only_the_workers_own_pages_may_change_anything(
    server: TestServer, headers: dict[str, str], status: int
) -> None:
    given = {name: value.replace("SAME", origin(server)) for name, value in headers.items()}
    async with browser() as session:
        await log_in(session, server, ADMIN)
        for path in ("/page/drop", "/state/drop"):
            async with session.post(server.make_url(path), headers=given) as reply:
                assert reply.status == status, await reply.text()


async def test_a_login_allows_what_its_token_does(server: TestServer) -> None:
    async with browser() as session:
        await log_in(session, server, READ)
        async with session.get(server.make_url("/page")) as reply:
            assert (await reply.json())["level"] == "READ"
        async with session.get(server.make_url("/page/secret")) as reply:
            assert reply.status == 403
        async with session.post(server.make_url("/page/drop"), headers={"Origin": origin(server)}) as reply:
            assert reply.status == 403


async def test_a_cookie_holds_on_another_worker_as_long_as_its_token(server: TestServer) -> None:
    async with browser() as session:
        await log_in(session, server, OLD_READ)
        kept = {cookie.key: cookie.value for cookie in session.cookie_jar}
    for tokens, status in ((TOKENS, 200), ({"query_tokens": [READ], "admin_tokens": [ADMIN]}, 401)):
        async with (
            served(**tokens) as other,
            aiohttp.ClientSession() as session,
            session.get(other.make_url("/state"), cookies=kept) as reply,
        ):
            assert reply.status == status


async def test_logging_out_takes_the_cookie_away(server: TestServer) -> None:
    async with browser() as session:
        await log_in(session, server, ADMIN)
        url = server.make_url("/page/logout")
        async with session.post(url, headers={"Origin": "http://evil.example"}, allow_redirects=False) as reply:
            assert reply.status == 403
        async with session.post(url, headers={"Origin": origin(server)}, allow_redirects=False) as reply:
            assert reply.status == 303
        assert COOKIE not in {cookie.key for cookie in session.cookie_jar}


async def test_wrong_tokens_are_told_so_and_soon_have_to_wait(
    server: TestServer, caplog: pytest.LogCaptureFixture
) -> None:
    statuses = []
    async with browser() as session:
        for _ in range(12):
            headers = {"Origin": origin(server)}
            async with session.post(
                server.make_url("/page/login"), data={"token": "guess-0123456789"}, headers=headers
            ) as reply:
                statuses.append(reply.status)
                assert "guess" not in await reply.text()
        assert not list(session.cookie_jar)
    assert statuses[:10] == [401] * 10
    assert 429 in statuses
    assert "POST /page/login, asked by 127.0.0.1: 401 unauthorized" in caplog.text
    assert "guess" not in caplog.text


@pytest.mark.parametrize(
    "where",
    [
        "//evil.example",
        "https://evil.example/page",
        "/state",
        "/pages",
        "/page/../state",
        "/page/%2e%2E/state",
        "/page/.%2e//evil.example",
        "/page\\evil",
        "/page\r\nSet-Cookie: x=1",
        "javascript:alert(1)",
        "/page\u2028",
        "",
        "page",
    ],
)
async def test_a_login_leads_nowhere_else(server: TestServer, where: str) -> None:
    async with browser() as session:
        assert await log_in(session, server, READ, where) == "/page"


async def test_a_foreign_page_cant_log_anybody_in(server: TestServer) -> None:
    async with browser() as session:
        for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            async with session.post(
                server.make_url("/page/login"), data={"token": READ}, headers=headers, allow_redirects=False
            ) as reply:
                assert reply.status == 403


async def test_what_is_shown_again_is_shown_as_text(server: TestServer) -> None:
    async with browser() as session:
        url = server.make_url("/page/login").with_query({"next": '/page/"><script>alert(1)</script>'})
        async with session.get(url) as reply:
            assert "<script>" not in await reply.text()
        async with session.get(server.make_url("/page"), headers=bearer(READ)) as reply:
            assert reply.status == 200
