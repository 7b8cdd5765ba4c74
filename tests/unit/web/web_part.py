"""A part of a web server behind the guard, served on a real port, for tests of who may ask."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from actors import App
from actors.web.access import Level, caller_of, needs, protect
from actors.web.access.limits import HANDLER_ARGS
from actors.web.access.settings import check_access
from actors.web.access.tls import Hops
from dev.kafka import free_port

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


class Both(web.View):
    """A view whose GET is for administrators too."""

    @needs(Level.ADMIN)
    async def get(self) -> web.Response:
        return await said(self.request)

    async def post(self) -> web.Response:
        return await said(self.request)


def part() -> web.Application:
    found = web.Application()
    found.router.add_get("", said)
    found.router.add_get("/", said)
    found.router.add_get("/secret", secret)
    found.router.add_post("/_many", many)
    found.router.add_post("/drop", said)
    found.router.add_view("/both", Both)
    found.router.add_get(r"/to/{key:[\s\S]*}", said)
    return found


def make_app(**options: Any) -> App:
    """An app as `served` has it, for what its other workers and clients do."""
    return App("access", broker="kafka://127.0.0.1:1", **options)


def hop(server: TestServer, method: str, path: str, body: bytes | None = None, **options: Any) -> dict[str, str]:
    """What another worker sends with a request that it passes on."""
    return Hops.of(make_app(**options)).headers(method, str(server.make_url("")).rstrip("/"), path, body=body)


@asynccontextmanager
async def served(**options: Any) -> AsyncIterator[TestServer]:
    """Serve `/state`, `/page` with a login, and `/health` for everybody."""
    app = make_app(**{"web_port": free_port(), **options})
    check_access(app)
    web_app = web.Application(handler_args=HANDLER_ARGS)
    protect(app, web_app, "/state", part())
    protect(app, web_app, "/page", part(), login=True)
    protect(app, web_app, "/health", part(), level=Level.OPEN)
    context = app.conf.web_ssl_context
    server = TestServer(web_app, scheme="http" if context is None else "https", port=int(app.conf.web_port))
    # As Faust does: aiohttp's own log would have whole URLs.
    await server.start_server(ssl=context, access_log=None)
    try:
        yield server
    finally:
        await server.close()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def password(token: str, user: str = "ada") -> dict[str, str]:
    """What a browser sends whose user was asked for a password."""
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{token}".encode()).decode()}


async def raw(server: TestServer, request: str | bytes, *, deadline_s: float = 20.0) -> tuple[int, str]:
    """Send bytes as they are; give status and all of the answer, 0 if there is none."""
    content = request.encode("latin-1") if isinstance(request, str) else request
    async with asyncio.timeout(deadline_s):
        reader, writer = await asyncio.open_connection(str(server.host), server.port)
        try:
            writer.write(content)
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                (
                    int(line.split(b":")[1])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length:")
                ),
                0,
            )
            is_empty = content.startswith(b"HEAD ")
            body = b"" if is_empty else await reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return 0, ""
        finally:
            writer.close()
    return int(head.split(b" ", 2)[1]), (head + body).decode("latin-1")
