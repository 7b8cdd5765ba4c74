"""How a registry is asked: who asks, over TLS, through redirects."""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from typing import Any

import aiohttp
import pytest
import trustme
from aiohttp import web

from actors.formats.registry import CONTENT_TYPE, Registry
from actors.testing import FakeRegistry
from tests.unit.formats.served import served


def asked(registry: Registry, *request: Any) -> Any:
    return asyncio.run(registry.request(*(request or ("GET", "subjects"))))


def test_user_and_password_or_a_token_go_with_each_request() -> None:
    headers: list[Any] = []

    async def note(request: web.Request) -> None:
        headers.append(request.headers)

    with served(FakeRegistry(), note) as address:
        secret = address.replace("//", "//ada:s%C3%A4ge%2F@")
        assert asked(Registry(url=secret)) == (200, [])
        asked(Registry(url=secret, token="a token"))
        asked(Registry(url=address), "POST", "subjects/orders-value/versions", {"schema": '"string"'})
        assert str(Registry(url=secret)) == f"Registry({address})"
    own = [each.get("Authorization") for each in headers]
    assert own == [f"Basic {b64encode('ada:säge/'.encode()).decode()}", "Bearer a token", None]
    assert headers[2]["Content-Type"] == CONTENT_TYPE


def test_a_redirect_is_followed_and_another_server_gets_no_secret() -> None:
    came: list[Any] = []

    async def note(request: web.Request) -> None:
        came.append(request.headers.get("Authorization"))

    with served(FakeRegistry(), note) as other:

        async def redirect(request: web.Request) -> web.Response:
            return web.Response(status=307, headers={"Location": f"{other}{request.raw_path}"})

        with served(FakeRegistry(), redirect) as address:
            assert asked(Registry(url=address, token="a token")) == (200, [])
    assert came == [None]


async def test_a_certificate_is_checked_by_the_context_that_is_given() -> None:
    authority, context = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    app = web.Application()

    async def answer(_: web.Request) -> web.Response:
        return web.json_response(["orders-value"])

    app.router.add_get("/subjects", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    url = f"https://127.0.0.1:{runner.addresses[0][1]}"
    try:
        own = ssl.create_default_context()
        authority.configure_trust(own)
        assert await Registry(url=url, ssl_context=own).request("GET", "subjects") == (200, ["orders-value"])
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await Registry(url=url).request("GET", "subjects")
    finally:
        await runner.cleanup()
