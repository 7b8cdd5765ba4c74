"""What clients send to whom: tokens go where they were meant to, and credentials never in the clear by mistake."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import faust
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from actors import App, ConfigurationError
from actors._faust.setup import connection
from actors.client import StateClient, StateError, StateRequestError, StateUnavailableError
from actors.web.access import Level, needs, protect
from actors.web.access.settings import check_access
from spark_replay.cli.options import open_workers
from spark_replay.errors import LiveError
from tests.certificates import Authority
from tests.unit.web.web_part import READ

POSITION = {"partition": 0, "changelog_offset": 1, "source_offset": 1, "epoch": 1, "changelog_id": "x"}


@asynccontextmanager
async def worker(owner: str, asked: list[str], context: ssl.SSLContext | None = None) -> AsyncIterator[TestServer]:
    """A worker that says that `owner` has everything, and keeps what tokens it was shown."""

    async def overview(_: web.Request) -> web.Response:
        stores = [
            {"store": "s", "actor": "a", "placement": "key", "partitions": 1, "keys": "text", "partitioner": "murmur2"}
        ]
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


@pytest.mark.parametrize(
    ("options", "is_followed"),
    [
        ({"token": READ}, False),
        ({"token": READ, "trust_hosts": ["10.0.*", "*.localhost"]}, False),
        ({"token": READ, "trust_hosts": ["Local*"]}, True),
        ({"token": READ, "trust_hosts": ["*"]}, True),
        ({}, True),
    ],
)
async def test_a_token_is_sent_to_hosts_that_the_caller_named(options: dict[str, Any], is_followed: bool) -> None:
    here: list[str] = []
    there: list[str] = []
    shown = f"Bearer {READ}" if "token" in options else ""
    async with (
        worker("", there) as owner,
        worker(f"http://localhost:{owner.port}", here) as first,
        StateClient(f"http://127.0.0.1:{first.port}", **options) as client,
    ):
        assert await client.get("s", "key") == 1
    assert (here, there) == (([], [shown]) if is_followed else ([shown], []))


@pytest.mark.parametrize("path", ["/any/path?x=", ":99999", "/", "["])
async def test_an_owner_is_followed_to_an_origin_only(path: str) -> None:
    here: list[str] = []
    there: list[str] = []
    async with worker("", there) as owner:
        address = str(owner.make_url("")).rstrip("/")
        async with worker(address + path, here) as first, StateClient(str(first.make_url(""))) as client:
            assert await client.get("s", "key") == 1
    assert (len(here), len(there)) == ((0, 1) if path == "/" else (1, 0))


async def test_a_client_doesnt_follow_redirects() -> None:
    asked: list[str] = []

    async def elsewhere(_: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect(f"http://localhost:{owner.port}/actors/s/key")

    app = web.Application()
    app.router.add_get("/{path:.*}", elsewhere)
    async with worker("", asked) as owner, TestServer(app) as first:
        client = StateClient(str(first.make_url("")), token=READ, follow_owners=False)
        with pytest.raises(StateRequestError):
            await client.get("s", "key")
        await client.close()
    assert asked == []


@pytest.mark.parametrize("options", [{"urls": "nowhere", "token": READ}, {"urls": "http://a", "trust_hosts": "a"}])
def test_clients_that_cant_be_meant_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(StateError):
        StateClient(**options)


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


@needs(Level.READ)
async def digests(_: web.Request) -> web.Response:
    position = {"source_offset": 1, "changelog_offset": 1, "wall_time_ms": 1, "epoch": 1, "changelog_id": "x"}
    return web.json_response({"position": position, "digests": [7], "rows": []})


@asynccontextmanager
async def asked_live(authority: Authority) -> AsyncIterator[str]:
    """A guarded worker with TLS that answers what `spark_replay validate --live` asks; gives its URL."""
    certificate, key = authority.certificate("worker")
    files = {"web_certificate": certificate, "web_key": key, "web_client_ca": authority.file}
    app = App("live", broker="kafka://127.0.0.1:1", query_tokens=[READ], **files)
    check_access(app)
    web_app, part = web.Application(), web.Application()
    part.router.add_post("/{store}/_digests", digests)
    protect(app, web_app, "/actors", part)
    server = TestServer(web_app, scheme="https")
    await server.start_server(ssl=app.conf.web_ssl_context)
    try:
        yield str(server.make_url(""))
    finally:
        await server.close()


LIVE = [
    # what of token, authority and certificate is given; what is said, None for an answer
    (("live_token_file", "live_ca"), None),
    (("live_ca", "live_certificate", "live_key"), None),
    (("live_ca",), "401"),
    (("live_token_file",), "no worker answers"),
]


@pytest.mark.parametrize(("given", "said"), LIVE)
async def test_a_validation_gets_into_workers_as_its_options_say(
    tmp_path: Path, given: tuple[str, ...], said: str | None
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.certificate("auditor")
    token_file = tmp_path / "token"
    token_file.write_text(f"{READ}\n")
    files = {"live_token_file": token_file, "live_ca": authority.file, "live_certificate": certificate, "live_key": key}
    options = {name: file if name in given else None for name, file in files.items()}
    async with asked_live(authority) as url:
        with open_workers(url, options) as workers:
            if said is None:
                answer = await asyncio.to_thread(workers.digests, "s", 0, as_of_ms=0)
                assert answer.digests == [7]
            else:
                with pytest.raises(LiveError, match=said) as failure:
                    await asyncio.to_thread(workers.digests, "s", 0, as_of_ms=0)
                assert READ not in str(failure.value)


def test_live_options_that_cant_be_meant(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n")
    nothing = dict.fromkeys(("live_token_file", "live_ca", "live_certificate", "live_key"))
    with pytest.raises(click.UsageError, match="--live-certificate"):
        open_workers("http://127.0.0.1:1", {**nothing, "live_key": empty})
    with pytest.raises(LiveError, match="no token"):
        open_workers("http://127.0.0.1:1", {**nothing, "live_token_file": empty})
    with pytest.raises(LiveError, match="can't be used"):
        open_workers("http://127.0.0.1:1", {**nothing, "live_ca": empty})
