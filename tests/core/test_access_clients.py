"""What clients send to whom: tokens go where they were meant to, and credentials never in the clear by mistake."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import faust
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from actors import App, ConfigurationError
from actors._faust.setup import connection
from actors.client import StateClient, StateUnavailableError
from tests.certificates import Authority
from tests.core.web_part import READ

POSITION = {"partition": 0, "changelog_offset": 1, "source_offset": 1, "epoch": 1, "changelog_id": "x"}


@asynccontextmanager
async def worker(owner: str, asked: list[str], context: ssl.SSLContext | None = None) -> AsyncIterator[TestServer]:
    """A worker that says that `owner` has everything, and keeps what tokens it was shown."""

    async def overview(_: web.Request) -> web.Response:
        stores = [{"store": "s", "actor": "a", "placement": "key", "partitions": 1, "keys": "text"}]
        return web.json_response({"stores": stores, "partitions": [{"actor": "a", "partition": 0, "address": owner}]})

    async def one(request: web.Request) -> web.Response:
        asked.append(request.headers.get("Authorization", ""))
        return web.json_response({"value": 1, "expires_at_ms": None, "position": POSITION})

    app = web.Application()
    app.router.add_get("/actors", overview)
    app.router.add_get("/actors/s/{key}", one)
    server = TestServer(app, scheme="http" if context is None else "https")
    await server.start_server(ssl=context)
    try:
        yield server
    finally:
        await server.close()


@pytest.mark.parametrize("is_secure", [False, True])
async def test_a_token_that_was_sent_encrypted_goes_nowhere_in_the_clear(tmp_path: Path, is_secure: bool) -> None:
    authority, context = Authority(tmp_path), None
    if is_secure:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*authority.certificate("worker"))
    here: list[str] = []
    there: list[str] = []
    async with worker("", there) as owner, worker(str(owner.make_url("")).rstrip("/"), here, context) as first:
        url = str(first.make_url(""))
        async with StateClient(url, token=READ, ssl=authority.trust() if is_secure else None) as client:
            assert await client.get("s", "key") == 1
    assert (here, there) == (([f"Bearer {READ}"], []) if is_secure else ([], [f"Bearer {READ}"]))


async def test_a_worker_that_isnt_trusted_is_shown_nothing(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path / "authority"), Authority(tmp_path / "stranger")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*stranger.certificate("worker"))
    asked: list[str] = []
    async with worker("", asked, context) as server:
        for trust in (authority.trust(), None):
            url, timeout = str(server.make_url("")), timedelta(seconds=0.2)
            async with StateClient(url, token=READ, ssl=trust, timeout=timeout) as client:
                with pytest.raises(StateUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
                    await client.get("s", "key")
    assert asked == []


async def test_a_client_that_asks_too_often_asks_again_later() -> None:
    answers = [429, 429, 200]

    async def one(_: web.Request) -> web.Response:
        status = answers.pop(0)
        content = {"value": 1, "expires_at_ms": None, "position": POSITION} if status == 200 else {"retry_after_ms": 10}
        return web.Response(status=status, body=msgspec.json.encode(content))

    app = web.Application()
    app.router.add_get("/actors/s/{key}", one)
    async with TestServer(app) as server, StateClient(str(server.make_url("")), follow_owners=False) as client:
        assert await client.get("s", "key") == 1


CONTEXT = ssl.create_default_context()
PASSWORD = faust.SASLCredentials(username="alice", password="secret-0123")
SETTINGS = [
    ({}, "PLAINTEXT", None),
    ({"ssl_context": CONTEXT}, "SSL", CONTEXT),
    ({"broker_credentials": PASSWORD}, "SASL_PLAINTEXT", None),
    # Faust would leave the context aside.
    ({"broker_credentials": PASSWORD, "ssl_context": CONTEXT}, "SASL_SSL", CONTEXT),
    ({"broker_credentials": faust.SSLCredentials(CONTEXT)}, "SSL", CONTEXT),
]


@pytest.mark.parametrize(("options", "protocol", "context"), SETTINGS)
def test_settings_become_what_clients_connect_with(options: dict[str, Any], protocol: str, context: Any) -> None:
    found = connection(App("brokers", broker="kafka://127.0.0.1:9093", **options))
    arguments = found.arguments("test")
    assert (arguments["security_protocol"], arguments.get("ssl_context")) == (protocol, context)
    assert arguments["bootstrap_servers"] == ["127.0.0.1:9093"]
    assert "secret-0123" not in repr(found)


@pytest.mark.parametrize("url", ["kafka://alice:secret-0123@127.0.0.1:9092", "kafka://a:1;kafka://alice@127.0.0.1:2"])
def test_a_password_in_a_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="broker_credentials") as refused:
        connection(App("brokers", broker=url))
    assert "secret-0123" not in str(refused.value)
