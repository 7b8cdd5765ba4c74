"""What workers show each other, and where they do."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from actors import ConfigurationError
from actors._faust.settings.secrets import worker_keys
from actors.errors import NotReadyError
from actors.web.access.settings import check_access
from actors.web.access.signature import HOP, MAX_AGE_S, PARTITIONS, PURPOSE, SignedRequest, sign
from actors.web.access.tls import Hops
from actors.web.dashboard.group import Room, Seen, ask_worker
from actors.web.workers import WorkerClient
from tests.certificates import Authority
from tests.unit.web.web_part import TOKENS, hop, make_app, served

SECRET = "a-secret-of-the-workers-0123456789"


@pytest.fixture
async def server() -> AsyncIterator[TestServer]:
    async with served(**TOKENS) as running:
        yield running


async def ask(
    server: TestServer, headers: dict[str, str], method: str = "GET", path: str = "/state", body: bytes | None = None
) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, server.make_url(path), headers=headers, data=body) as reply,
    ):
        return reply.status, await reply.text()


async def test_a_signature_is_for_one_request_to_one_worker(server: TestServer) -> None:
    headers = hop(server, "POST", "/state/_many?a=1", b"{}", **TOKENS)
    assert (await ask(server, headers, "POST", "/state/_many?a=1", b"{}"))[0] == 200
    others: list[tuple[str, str, bytes | None]] = [
        ("POST", "/state/_many?a=2", b"{}"),
        ("POST", "/state/_many", b"{}"),
        ("POST", "/page/_many?a=1", b"{}"),
        ("POST", "/state/_many?a=1", b"{ }"),
        ("POST", "/state/_many?a=1", None),
        ("GET", "/state/_many?a=1", None),
    ]
    for method, path, body in others:
        assert (await ask(server, headers, method, path, body))[0] == 401, (method, path, body)
    assert (await ask(server, {**headers, PARTITIONS: "1"}, "POST", "/state/_many?a=1", b"{}"))[0] == 401
    async with served(**TOKENS) as another:
        for host in ({}, {"Host": f"127.0.0.1:{server.port}"}):
            status, said = await ask(another, {**headers, **host}, "POST", "/state/_many?a=1", b"{}")
            assert status == 401
            assert "canonical_url" in said


@pytest.mark.parametrize(("off_s", "status"), [(0, 200), (-50, 200), (50, 200), (-70, 401), (70, 401), (-(10**6), 401)])
async def test_a_signature_holds_for_a_minute(server: TestServer, off_s: int, status: int) -> None:
    key = worker_keys(make_app(**TOKENS), PURPOSE)[0]
    asked = SignedRequest("GET", f"http://127.0.0.1:{server.port}", "/state")
    headers = {HOP: "1", "Authorization": sign(key, asked, None, time.time_ns() // 1_000_000 + off_s * 1000)}
    found, said = await ask(server, headers)
    assert found == status
    assert status == 200 or ("clocks of both workers" in said and f"{MAX_AGE_S} s" in said)


async def test_it_allows_to_read_as_another_worker_and_no_more(server: TestServer) -> None:
    assert '"by": "another worker", "level": "READ"' in (await ask(server, hop(server, "GET", "/state", **TOKENS)))[1]
    for path in ("/state/secret", "/state/drop"):
        method = "POST" if path.endswith("drop") else "GET"
        assert (await ask(server, hop(server, method, path, **TOKENS), method, path))[0] == 403
    without_hop = hop(server, "GET", "/state", **TOKENS)
    del without_hop[HOP]
    assert (await ask(server, without_hop))[0] == 401


@pytest.mark.parametrize(
    "given", ["", "x", "1.2.3", "..", f"{time.time_ns()}.{'0' * 64}.{'0' * 64}", "nan.x.y", "٣.x.y", "\xff.\xff.\xff"]
)
async def test_a_signature_that_isnt_one_is_refused(server: TestServer, given: str) -> None:
    assert (await ask(server, {HOP: "1", "Authorization": f"Actors-Mac {given}"}))[0] == 401


async def test_a_workers_secret_takes_the_place_of_tokens(server: TestServer) -> None:
    theirs = {**TOKENS, "worker_secret": SECRET}
    async with served(**theirs) as secret:
        assert (await ask(secret, hop(secret, "GET", "/state", worker_secret=SECRET)))[0] == 200
        assert (await ask(secret, hop(secret, "GET", "/state", **TOKENS)))[0] == 401
    assert (await ask(server, hop(server, "GET", "/state", **theirs)))[0] == 401


# --- where workers are asked -----------------------------------------------------------------------------------------


class Thief:
    """A server that a member of the group announced."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, str]]] = []
        self.location = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.seen.append((request.raw_path, dict(request.headers)))
        if self.location:
            return web.Response(status=307, headers={"Location": self.location})
        return web.json_response({})


@pytest.fixture
async def thief() -> AsyncIterator[tuple[Thief, TestServer]]:
    found, app = Thief(), web.Application()
    app.router.add_route("*", "/{path:.*}", found.answer)
    server = TestServer(app)
    await server.start_server()
    try:
        yield found, server
    finally:
        await server.close()


async def fetch(address: str, **options: Any) -> bytes:
    workers = WorkerClient(Hops.of(make_app(**options)))
    try:
        return await workers.fetch("GET", address, "/dashboard/status.json", partitions=())
    finally:
        await workers.close()


async def test_what_a_member_of_the_group_gets_is_good_for_no_other_worker(
    server: TestServer, thief: tuple[Thief, TestServer]
) -> None:
    await fetch(f"http://127.0.0.1:{thief[1].port}", **TOKENS)
    ((path, headers),) = thief[0].seen
    assert path == "/dashboard/status.json"
    for target in ("/state", "/dashboard/status.json"):
        for host in (headers["Host"], f"127.0.0.1:{server.port}"):
            assert (await ask(server, {**headers, "Host": host}, path=target))[0] in (401, 404)
            assert (await ask(server, {**headers, "Host": host}, path="/state"))[0] == 401


async def test_a_redirect_isnt_followed(server: TestServer, thief: tuple[Thief, TestServer]) -> None:
    thief[0].location = f"http://127.0.0.1:{server.port}/state"
    with pytest.raises(NotReadyError):
        await fetch(f"http://127.0.0.1:{thief[1].port}", **TOKENS)
    assert len(thief[0].seen) == 1


@pytest.mark.parametrize(
    "address", ["http://[", "http://a:99999", "http://127.0.0.1:{port}/any/path?x=", "http://u:p@127.0.0.1:{port}", "x"]
)
async def test_an_address_that_isnt_an_origin_isnt_asked(address: str, thief: tuple[Thief, TestServer]) -> None:
    with pytest.raises(NotReadyError, match="can't be asked"):
        await fetch(address.format(port=thief[1].port), **TOKENS)
    assert thief[0].seen == []


async def test_a_host_that_the_settings_dont_name_isnt_asked(thief: tuple[Thief, TestServer]) -> None:
    address = f"http://127.0.0.1:{thief[1].port}"
    with pytest.raises(NotReadyError, match="worker_hosts"):
        await fetch(address, worker_hosts=["10.0.*", "*.bank.internal"])
    assert thief[0].seen == []
    assert await fetch(address, worker_hosts=["127.0.0.*"]) == b"{}"
    hops = Hops(hosts=("*.bank.internal",))
    assert hops.origin("http://W1.Bank.internal") == "http://w1.bank.internal:80"
    for other in ("http://bank.internal", "http://w1.bank.internal.evil.example", "http://evil.example"):
        with pytest.raises(NotReadyError):
            hops.origin(other)


def test_with_https_no_worker_is_asked_without() -> None:
    assert Hops(is_secure=True).origin("https://a") == "https://a:443"
    with pytest.raises(NotReadyError, match="it has no https"):
        Hops(is_secure=True).origin("http://a")
    assert Hops.of(make_app(web_ssl_context=object())).is_secure
    assert not Hops.of(make_app()).is_secure


def test_a_worker_whose_own_host_isnt_named_doesnt_start() -> None:
    with pytest.raises(ConfigurationError, match="worker_hosts doesn't name this worker's own host"):
        check_access(make_app(worker_hosts=["*.bank.internal"]))
    check_access(make_app(worker_hosts=["127.0.0.1"]))


@pytest.mark.parametrize("address", ["http://[", "http://a:99999", "http://a..b", "http://127.0.0.1:1/x", "\ud800"])
async def test_a_worker_with_an_odd_address_is_shown_as_one_that_doesnt_answer(address: str) -> None:
    workers, seen = WorkerClient(Hops.of(make_app())), Seen("odd", address)
    await ask_worker(workers, seen, Room())
    await workers.close()
    assert "its address" in seen.trouble


@pytest.mark.parametrize("is_secure", [False, True])
async def test_a_worker_answers_what_another_one_passes_on(tmp_path: Path, is_secure: bool) -> None:
    options = dict(TOKENS)
    if is_secure:
        authority = Authority(tmp_path)
        certificate, key = authority.certificate("worker")
        options |= {"web_certificate": certificate, "web_key": key, "web_client_ca": authority.file}
    workers = WorkerClient(make_app(**options).extensions["web"].files.hops())
    async with served(**options) as server:
        address = str(server.make_url(""))
        assert address.startswith("https:") == is_secure
        for method, path, body in (
            ("GET", "/state/to/a%2Fb%20%C3%A4?x=+&y", None),
            ("POST", "/state/_many", b"[1]"),
        ):
            said = await workers.fetch(method, address, path, body=body, partitions=[0, 7])
            assert b'"by": "another worker"' in said
    await workers.close()
