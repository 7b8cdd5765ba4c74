"""Browsers: they ask their user for a token, send it for any page that asks, and only our own pages may use that."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from tests.unit.web.web_part import ADMIN, OLD_READ, READ, TOKENS, bearer, password, raw, served


@pytest.fixture
async def server() -> AsyncIterator[TestServer]:
    async with served(**TOKENS) as running:
        yield running


def origin(server: TestServer) -> str:
    return str(server.make_url("")).rstrip("/")


async def status(server: TestServer, method: str, path: str, headers: dict[str, str]) -> int:
    given = {name: value.replace("SAME", origin(server)) for name, value in headers.items()}
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, server.make_url(path), headers=given) as reply,
    ):
        return reply.status


async def test_pages_for_browsers_have_them_ask_for_a_password_and_no_others(server: TestServer) -> None:
    async with aiohttp.ClientSession() as session:
        for path, challenge in (("/page", 'Basic realm="faust-actors", charset="UTF-8"'), ("/state", "Bearer ")):
            for headers in ({}, bearer("guess-0123456789-abc"), password("guess-0123456789-abc")):
                async with session.get(server.make_url(path), headers=headers) as reply:
                    assert reply.status == 401
                    (given,) = reply.headers.getall("WWW-Authenticate")
                    assert given.startswith(challenge)


@pytest.mark.parametrize("user", ["ada", "", "ключ", "a b"])
async def test_a_token_is_a_password_of_any_user(server: TestServer, user: str) -> None:
    async with aiohttp.ClientSession() as session:
        for path in ("/page", "/state"):
            async with session.get(server.make_url(path), headers=password(ADMIN, user)) as reply:
                assert await reply.json() == {"by": "login with admin token 1", "level": "ADMIN", "body": 0}


@pytest.mark.parametrize(
    "given",
    [
        "Basic",
        "Basic ",
        f"Basic {READ}",
        "Basic YWRh",
        "Basic ====",
        "Basic \xff",
        "Basic /////w==",
        password(READ)["Authorization"] + "\r\nAuthorization: " + password(READ)["Authorization"],
        password(READ + ":")["Authorization"],
        "Digest " + password(READ)["Authorization"][6:],
    ],
)
async def test_a_password_that_is_none_is_refused(server: TestServer, given: str) -> None:
    found, answer = await raw(server, f"GET /page HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {given}\r\n\r\n")
    assert found == 401, answer


POSTS = [
    # headers beside the password, status
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
    ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, 403),
    ({"Referer": "SAME/page"}, 403),
]


@pytest.mark.parametrize(("headers", "expected"), POSTS)
async def test_only_the_workers_own_pages_may_change_anything_with_a_password(
    server: TestServer, headers: dict[str, str], expected: int
) -> None:
    for path in ("/page/drop", "/state/drop"):
        assert await status(server, "POST", path, {**headers, **password(ADMIN)}) == expected
        # A page can't have a browser send a bearer token that the page doesn't know.
        assert await status(server, "POST", path, {**headers, **bearer(ADMIN)}) == 200


IMAGE = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
FRAME = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}
LINK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
TYPED = {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
GETS = [
    # headers, status of /state, status of a page for browsers
    ({}, 200, 200),
    (TYPED, 200, 200),
    ({"Sec-Fetch-Site": "same-origin", "Origin": "SAME"}, 200, 200),
    ({"Sec-Fetch-Site": "cross-site"}, 403, 403),
    ({"Sec-Fetch-Site": "same-site"}, 403, 403),
    ({"Origin": "http://evil.example"}, 403, 403),
    ({"Origin": "null"}, 403, 403),
    (IMAGE, 403, 403),
    (FRAME, 403, 403),
    (LINK, 403, 200),
]


@pytest.mark.parametrize(("headers", "of_state", "of_page"), GETS)
@pytest.mark.parametrize("is_guarded", [False, True])
async def test_other_sites_pages_get_no_answers(
    headers: dict[str, str], of_state: int, of_page: int, is_guarded: bool
) -> None:
    async with served(**(TOKENS if is_guarded else {})) as server:
        given = {**headers, **(password(READ) if is_guarded else {})}
        for method in ("GET", "HEAD"):
            assert await status(server, method, "/state", given) == of_state
            assert await status(server, method, "/page", given) == of_page
        assert await status(server, "GET", "/health", given) == 200
        if is_guarded:
            assert await status(server, "GET", "/state", {**headers, **bearer(READ)}) == 200


async def test_a_password_allows_what_its_token_does(server: TestServer) -> None:
    for token, path, expected in (
        (READ, "/page", 200),
        (OLD_READ, "/page", 200),
        (READ, "/page/secret", 403),
        (ADMIN, "/page/secret", 200),
    ):
        assert await status(server, "GET", path, password(token)) == expected
    assert await status(server, "POST", "/page/drop", {**password(READ), "Origin": "SAME"}) == 403
    assert await status(server, "POST", "/page/drop", {**password(ADMIN), "Origin": "SAME"}) == 200


async def test_saying_that_it_was_passed_on_gives_a_password_no_more(server: TestServer) -> None:
    hop = {"Actors-Hop": "1", "Origin": "SAME"}
    assert await status(server, "GET", "/page", {**password(ADMIN), **hop}) == 200
    assert await status(server, "POST", "/page/drop", {**password(ADMIN), **hop}) == 403
