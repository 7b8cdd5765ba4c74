"""Who may ask a worker's web server, by table: a real server, real requests, raw ones where a client would tidy up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from actors import App
from actors._faust.access import Level, caller_of, needs, protect

READ = "reader-0123456789-abcdef"
OLD_READ = "reader-before-0123456789"
ADMIN = "admin-0123456789-abcdefg"
TOKENS: Mapping[str, Any] = {"query_tokens": [READ, OLD_READ], "admin_tokens": [ADMIN]}


async def said(request: web.Request) -> web.Response:
    caller = caller_of(request)
    return web.json_response({"by": caller.name, "level": caller.level.name, "body": len(await request.read())})


@needs(Level.READ)
async def many(request: web.Request) -> web.Response:
    return await said(request)


@needs(Level.ADMIN)
async def secret(request: web.Request) -> web.Response:
    return await said(request)


def part() -> web.Application:
    found = web.Application()
    found.router.add_get("", said)
    found.router.add_get("/", said)
    found.router.add_get("/secret", secret)
    found.router.add_post("/_many", many)
    found.router.add_post("/drop", said)
    found.router.add_get("/to/{key:.*}", said)
    return found


@asynccontextmanager
async def served(**options: Any) -> AsyncIterator[TestServer]:
    app = App("access", broker="kafka://127.0.0.1:1", **options)
    web_app = web.Application()
    protect(app, web_app, "/state", part())
    protect(app, web_app, "/page", part(), login=True)
    protect(app, web_app, "/health", part(), level=Level.OPEN)
    async with TestServer(web_app) as server:
        yield server


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


CASES = [
    # method, path, token, status
    ("GET", "/state", READ, 200),
    ("GET", "/state", OLD_READ, 200),
    ("GET", "/state", ADMIN, 200),
    ("GET", "/state", None, 401),
    ("GET", "/state", "reader-0123456789-abcdeX", 401),
    ("GET", "/state/nowhere", None, 401),
    ("GET", "/state/nowhere", READ, 404),
    ("PUT", "/state/drop", READ, 405),
    ("GET", "/state/secret", READ, 403),
    ("GET", "/state/secret", ADMIN, 200),
    ("HEAD", "/state/secret", READ, 403),
    ("POST", "/state/_many", READ, 200),
    ("POST", "/state/_many", None, 401),
    ("POST", "/state/drop", READ, 403),
    ("POST", "/state/drop", ADMIN, 200),
    ("OPTIONS", "/state", None, 401),
    ("HEAD", "/state", None, 401),
    ("GET", "/health", None, 200),
    ("GET", "/health", "anything at all, wrong as it is", 200),
    ("POST", "/health/drop", None, 401),
]


@pytest.mark.parametrize(("method", "path", "token", "status"), CASES)
async def test_who_may_do_what(method: str, path: str, token: str | None, status: int) -> None:
    async with served(**TOKENS) as server, aiohttp.ClientSession() as session:
        headers = {} if token is None else bearer(token)
        async with session.request(method, server.make_url(path), headers=headers) as reply:
            assert reply.status == status
            if status == 401:
                assert reply.headers["WWW-Authenticate"].startswith('Bearer realm="faust-actors"')
                assert reply.content_type == "application/problem+json"
