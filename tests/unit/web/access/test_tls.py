"""Connections with TLS: certificates that have expired or are somebody else's, old protocols, and silence."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from actors import App
from actors.client import StateClient, StateUnavailableError
from actors.web.access import callers, door
from actors.web.access.settings import check_access
from actors.web.workers import WorkerClient
from tests.certificates import Authority
from tests.unit.web.access.test_load import hang_up
from tests.unit.web.query_server import KEY, Connection, get
from tests.unit.web.query_server import served as asked
from tests.unit.web.web_part import READ, served

PAST = datetime.now(UTC) - timedelta(days=1)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def settings(authority: Authority, worker: tuple[Path, Path]) -> dict[str, Any]:
    return {"web_certificate": worker[0], "web_key": worker[1], "web_client_ca": authority.file}


async def status(server: TestServer, context: ssl.SSLContext) -> int:
    """Give the status of an answer, 0 if there is no connection."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        try:
            async with session.get(server.make_url("/state")) as reply:
                return reply.status
        except aiohttp.ClientError:
            return 0


async def test_a_clients_certificate_that_has_expired_doesnt_get_through_the_handshake(authority: Authority) -> None:
    worker = authority.certificate("worker")
    async with served(**settings(authority, worker)) as server:
        assert await status(server, authority.trust(authority.certificate("reader"))) == 200
        assert await status(server, authority.trust(authority.certificate("late", ends=PAST))) == 0


async def test_a_certificate_that_expires_on_an_open_connection_is_nobodys(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, reader = authority.certificate("worker"), authority.certificate("reader")
    async with asked(**settings(authority, worker)) as there:
        connection = await there.connect(tls=authority.trust(reader))
        for now_s, expected in ((time.time(), 200), (time.time() + 3600 * 24 * 365 * 1000, 401)):
            monkeypatch.setattr(callers, "time", SimpleNamespace(time=lambda now_s=now_s: now_s))
            connection.send(get(KEY))
            assert (await connection.answer())[0] == expected
        await hang_up(connection)


WORKERS = [
    # of the worker's certificate, what is said of it
    ({"ends": PAST}, "certificate has expired"),
    ({"hosts": ["elsewhere.example"]}, "certificate is not valid for '127.0.0.1'"),
]


@pytest.mark.parametrize(("of_it", "said"), WORKERS)
async def test_a_worker_with_a_wrong_certificate_is_asked_nothing(
    authority: Authority, of_it: dict[str, Any], said: str
) -> None:
    own = settings(authority, authority.certificate("worker"))
    workers = WorkerClient(App("hops", query_tokens=[READ], **own).extensions["web"].files.hops())
    async with served(**settings(authority, authority.certificate("wrong", **of_it))) as server:
        url = str(server.make_url("")).rstrip("/")
        with pytest.raises(aiohttp.ClientError, match=said):
            await workers.fetch("GET", url, "/state", partitions=[0])
        async with StateClient(url, token=READ, ssl=authority.trust(), timeout=timedelta(seconds=1)) as client:
            with pytest.raises(StateUnavailableError, match=said):
                await client.get("s", "key")
    await workers.close()


async def test_old_protocols_and_handshakes_without_end_are_refused(authority: Authority) -> None:
    worker = authority.certificate("worker")
    app = App("tls", broker="kafka://127.0.0.1:1", **settings(authority, worker))
    async with served(**settings(authority, worker)) as server:
        old = authority.trust(authority.certificate("reader"))
        with contextlib.suppress(ValueError):
            old.set_ciphers("DEFAULT:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        assert await status(server, old) == 0
    check_access(app)
    assert app.conf.web_ssl_context.options & ssl.OP_NO_RENEGOTIATION


async def test_handshakes_that_never_end_take_nobodys_connections(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "MAX_CONNECTIONS", 10)
    async with asked(**settings(authority, authority.certificate("worker"))) as there:
        silent = [await there.connect() for _ in range(30)]
        reader = authority.trust(authority.certificate("reader"))
        for _ in range(3):
            connection: Connection = await there.connect(tls=reader)
            connection.send(get(KEY))
            assert (await connection.answer())[0] == 200
            silent.append(connection)
        async with asyncio.timeout(10):
            for one in silent[:20]:
                with contextlib.suppress(ConnectionError):
                    assert await one.reader.read() == b""
        await hang_up(*silent)
