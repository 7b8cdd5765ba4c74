"""A browser whose user has given it a token: our own pages use it, and other sites' pages get nothing by it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from actors import App
from actors.web.access import caller_of, protect
from actors.web.access.settings import check_access
from tests.browser.visits import browsers, needs_chromium
from tests.unit.web.web_part import ADMIN, TOKENS

pytestmark = needs_chromium

OWN = """<!doctype html><link rel="icon" href="data:,"><title>own</title>
<form method="post" action="/page/drop"><button>Drop</button></form>"""
FOREIGN = """<!doctype html><link rel="icon" href="data:,"><title>foreign</title>
<a href="HOME/page">a link</a><iframe name="frame"></iframe>
<form method="post" action="HOME/page/drop" target="frame"></form>
<script>
(async () => {
  for (const path of ['/page', '/page/drop', '/state'])
    for (const method of ['GET', 'POST'])
      for (const mode of ['no-cors', 'cors'])
        await fetch('HOME' + path, {method, mode, credentials: 'include'}).catch(() => 0);
  const image = new Image(), frame = document.querySelector('iframe');
  await new Promise(done => { image.onload = image.onerror = done; image.src = 'HOME/page?image' });
  await new Promise(done => { frame.onload = done; frame.src = 'HOME/page?frame' });
  await new Promise(done => { frame.onload = done; document.forms[0].submit(); });
  document.title = 'tried';
})();
</script>"""


@pytest.fixture
async def browser() -> AsyncIterator[Any]:
    async for opened in browsers():
        yield opened


@pytest.mark.parametrize("host", ["localhost", pytest.param("127.0.0.1", marks=pytest.mark.nightly)])
async def test_other_sites_cant_use_the_password_that_a_browser_has(browser: Any, host: str) -> None:
    """Chromium itself doesn't send the password for another host's page, but does for one of another port."""
    seen: list[tuple[str, str, str]] = []

    async def page(request: web.Request) -> web.Response:
        seen.append((request.method, request.path, caller_of(request).name))
        return web.Response(text=OWN, content_type="text/html")

    app = App("password", broker="kafka://127.0.0.1:1", **TOKENS)
    check_access(app)
    web_app, foreign = web.Application(), web.Application()
    for prefix, login in (("/page", True), ("/state", False)):
        part = web.Application()
        part.router.add_get("", page)
        part.router.add_post("/drop", page)
        protect(app, web_app, prefix, part, login=login)

    async def lure(_: web.Request) -> web.Response:
        home = str(worker.make_url("")).rstrip("/")
        return web.Response(text=FOREIGN.replace("HOME", home), content_type="text/html")

    foreign.router.add_get("/", lure)
    async with TestServer(web_app) as worker, TestServer(foreign, host=host) as site:
        context = await browser.new_context(http_credentials={"username": "ada", "password": ADMIN})
        tab = await context.new_page()
        await tab.goto(str(worker.make_url("/page")))
        await tab.get_by_role("button", name="Drop").click()
        await tab.wait_for_url("**/page/drop")
        me = "login with admin token 1"
        assert seen == [("GET", "/page", me), ("POST", "/page/drop", me)]
        seen.clear()
        await tab.goto(str(site.make_url("/")))
        async with asyncio.timeout(30):
            await tab.wait_for_function("() => document.title === 'tried'")
        assert seen == []
        await tab.get_by_role("link", name="a link").click()
        await tab.wait_for_url("**/page")
        assert seen == [("GET", "/page", me)]
        await context.close()
