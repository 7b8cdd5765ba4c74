"""What Faust and the app itself mount on the web server: behind the guard where a setting says who may."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import faust
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from actors import App, Context
from actors.web.access.settings import check_access
from dev.kafka import free_port
from tests.certificates import Authority
from tests.unit.web.web_part import ADMIN, READ, TOKENS, bearer

SECRET = "for readers only"
OPEN = {
    ("GET", "/health"),
    ("GET", "/health/live"),
    ("GET", "/health/startup"),
    ("GET", "/health/ready"),
    ("GET", "/open/{name}/"),
    ("POST", "/open/{name}/"),
}
"""What takes no token; every other route, also one that is new, does."""
EVERYTHING: dict[str, Any] = {
    "debug": True,
    "web_stats_enabled": True,
    "web_graph_enabled": True,
    "web_metrics_enabled": True,
    "open_pages": ["/open/{name}/"],
}


class Served:
    """An app's web server as Faust starts it, with an actor, a table, an agent, and pages of its own."""

    def __init__(self, folder: Path, **options: Any) -> None:
        app = self.app = App(
            "rest", broker="kafka://127.0.0.1:1", web_port=free_port(), datadir=folder, **{**EVERYTHING, **options}
        )
        words = app.topic("in", key_type=str, value_type=str)
        app.Table("sums", default=int)

        @app.actor(words, stores=[app.store("words", key_type=str, value_type=str)])
        async def talk(ctx: Context, word: str) -> None: ...

        @app.page("/mine/")
        async def mine(self: Any, request: Any) -> Any:
            return self.text(SECRET)

        @app.page("/open/{name}/")
        class Open(faust.web.View):
            async def get(self, request: Any, name: str) -> Any:
                return self.text(f"open to {name}", headers={"X-Open": "1"})

            async def post(self, request: Any, name: str) -> Any:
                return self.text(f"{len(await request.content.read())} bytes of {name}", headers={"X-Open": "1"})

        @app.page("/upload/")
        class Upload(faust.web.View):
            async def post(self, request: Any) -> Any:
                return self.text(str(len(await request.content.read())))

        (folder / "static").mkdir()
        (folder / "static" / "file.txt").write_text(SECRET)
        app.web.add_static("/files", folder / "static")
        stranger = web.Application()
        stranger.router.add_get("/x", _said)
        app.web.web_app.add_subapp("/stranger", stranger)
        self.web = app.web
        self.url = f"http://127.0.0.1:{app.conf.web_port}"

    def routes(self) -> list[tuple[str, str]]:
        """Every route's method and path."""
        return [
            ("GET" if route.method == "*" else route.method, route.resource.canonical)
            for route in self.web.web_app.router.routes()
            if route.resource is not None
        ]

    async def ask(self, method: str, path: str, headers: dict[str, str] | None = None, **more: Any) -> tuple[int, str]:
        """Give status and text of an answer."""
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, self.url + path, headers=headers, allow_redirects=False, **more) as reply,
        ):
            return reply.status, await reply.text()

    async def raw(self, content: str) -> str:
        """Send bytes as they are, and give all that comes until the connection is closed."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.app.conf.web_port)
        writer.write(content.encode())
        async with asyncio.timeout(20):
            found = await reader.read()
        writer.close()
        return found.decode()


async def _said(_: web.Request) -> web.Response:
    return web.Response(text="a stranger's")


@asynccontextmanager
async def serving(folder: Path, **options: Any) -> AsyncIterator[Served]:
    found = Served(folder, **options)
    check_access(found.app)
    # As when Faust starts it, which may say so twice.
    assert found.web.cors
    found.web.init_server()
    found.app.on_webserver_init(found.web)
    await found.web.start_server()
    try:
        yield found
    finally:
        await found.web.stop_server()


def filled(path: str) -> str:
    """A path of a route with something in each of its places."""
    return "/".join("x" if part.startswith("{") else part for part in path.split("/"))


async def test_every_route_of_the_server_asks_who_it_is(tmp_path: Path) -> None:
    async with serving(tmp_path, **TOKENS) as served:
        routes = served.routes()
        paths = {path for _, path in routes}
        # Of Faust, of the app, of ours: what is walked is what there is.
        assert {"/", "/graph/", "/table/", "/router/", "/performance/", "/mine/", "/files", "/stranger/x"} <= paths
        assert {"/actors/{store}", "/dashboard", "/metrics", "/health/live"} <= paths
        found = {(method, path): (await served.ask(method, filled(path)))[0] for method, path in routes}
        unasked = {route for route, status in found.items() if status != 401}
        assert unasked - {("HEAD", path) for _, path in OPEN} == OPEN


TRICKS = [
    "/mine/",
    "/mine",
    "//mine/",
    "/./mine/",
    "/open/../mine/",
    "/open/x/../../mine/",
    "/open/%2e%2e/mine/",
    "/open/x/%2e%2e/%2e%2e/mine/",
    "/open/..%2fmine/",
    "/open/%252e%252e/mine/",
    "/health/live/../../mine/",
    "/%6dine/",
    "/MINE/",
    "/mine/?/open/x/",
    "/mine/#/open/x/",
    "/mine/;/open/x/",
    "http://127.0.0.1/mine/",
    "http://127.0.0.1/open/../mine/",
    "/files/file.txt",
    "/files/../mine/",
    "/files/%2e%2e/mine/",
    "*",
]


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_no_spelling_leads_around_the_guard(tmp_path: Path, version: str) -> None:
    async with serving(tmp_path, **TOKENS) as served:
        for method in ("GET", "HEAD", "OPTIONS", "POST", "PUT", "TRACE", "SEARCH"):
            for path in TRICKS:
                for body in (
                    "\r\n",
                    "Content-Length: 3\r\n\r\nabc",
                    "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
                ):
                    said = await served.raw(
                        f"{method} {path} HTTP/{version}\r\nHost: 127.0.0.1\r\nConnection: close\r\n{body}"
                    )
                    assert " 200 " not in said.partition("\r\n")[0] or "X-Open" in said, (method, path, said)
                    assert SECRET not in said, (method, path, said)
        # Behind another one on the same connection.
        first = "GET /open/ada/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        said = await served.raw(first + "GET /mine/ HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        assert [part.split()[0] for part in said.split("HTTP/1.1 ")[1:]] == ["200", "401"]


async def test_who_may_read_gets_fausts_pages_and_the_apps(tmp_path: Path) -> None:
    async with serving(tmp_path, **TOKENS) as served:
        for path in ("/", "/table/", "/mine/", "/files/file.txt", "/stranger/x"):
            assert (await served.ask("GET", path, bearer(READ)))[0] == 200, path
        assert (await served.ask("GET", "/nowhere", bearer(READ)))[0] == 404
        assert (await served.ask("GET", "/nowhere"))[0] == 401
        assert await served.ask("GET", "/open/ada/") == (200, "open to ada")
        # What changes something takes an administrator, and comes as it is: of any size.
        large = b"x" * 3_000_000
        assert (await served.ask("POST", "/upload/", bearer(READ), data=io.BytesIO(large)))[0] == 403
        assert await served.ask("POST", "/upload/", bearer(ADMIN), data=io.BytesIO(large)) == (200, "3000000")
        assert await served.ask("POST", "/open/ada/", data=b"1234") == (200, "4 bytes of ada")


@pytest.mark.parametrize("options", [{}, {"queries_unprotected": True}, {"web_bind": "0.0.0.0", "queries": False}])
async def test_where_nobody_is_asked_they_are_as_faust_has_them(tmp_path: Path, options: dict[str, Any]) -> None:
    async with serving(tmp_path, **options) as served:
        assert await served.ask("GET", "/mine/") == (200, SECRET)
        assert (await served.ask("POST", "/upload/", data=b"12"))[0] == 200


async def test_a_certificate_is_asked_for_too(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    certificate, key = authority.certificate("worker")
    options = {"web_certificate": certificate, "web_key": key, "web_client_ca": authority.file}
    async with serving(tmp_path, **options) as served:
        url = served.url.replace("http", "https") + "/mine/"
        for client, status in ((None, 401), (authority.certificate("reader"), 200)):
            connector = aiohttp.TCPConnector(ssl=authority.trust(client))
            async with aiohttp.ClientSession(connector=connector) as session, session.get(url) as reply:
                assert reply.status == status


async def test_an_own_middleware_runs_behind_the_guard(tmp_path: Path) -> None:
    seen: list[str] = []

    @web.middleware
    async def own(request: web.Request, handler: Callable[..., Awaitable[Any]]) -> Any:
        seen.append(request.path)
        return await handler(request)

    async with serving(tmp_path, web_application_options={"middlewares": [own]}, **TOKENS) as served:
        assert (await served.ask("GET", "/mine/"))[0] == 401
        assert seen == []
        assert (await served.ask("GET", "/mine/", bearer(READ)))[0] == 200
        assert seen == ["/mine/"]


async def test_a_browsers_question_before_its_request_takes_no_token(tmp_path: Path) -> None:
    anybody = {"*": faust.web.ResourceOptions(allow_headers="*", allow_methods="*")}
    async with serving(tmp_path, web_cors_options=anybody, **TOKENS) as served:
        asks = {"Origin": "http://page.example", "Access-Control-Request-Method": "GET"}
        assert (await served.ask("OPTIONS", "/mine/", asks))[0] == 200
        assert (await served.ask("GET", "/mine/", {"Origin": "http://page.example"}))[0] == 401


async def test_the_prometheus_page_of_faust_asks_too(tmp_path: Path) -> None:
    from faust.sensors.prometheus import setup_prometheus_sensors

    async def prepared() -> int:
        served = Served(tmp_path, **TOKENS)
        setup_prometheus_sensors(served.app, registry=CollectorRegistry())
        served.web.init_server()
        await served.web.start_server()
        try:
            assert (await served.ask("GET", "/metrics", bearer(READ)))[0] == 200
            return (await served.ask("GET", "/metrics"))[0]
        finally:
            await served.web.stop_server()

    assert await prepared() == 401
