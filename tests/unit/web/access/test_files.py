"""Files with tokens and certificates that change while a worker runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from cryptography import x509

from actors import App
from actors.web.access import files
from tests.certificates import Authority
from tests.kafka.helpers import eventually
from tests.unit.web.web_part import ADMIN, OLD_READ, READ, bearer, password, served

NEW_READ, NEW_ADMIN = "reader-after-0123456789", "admin-after-0123456789-a"


@pytest.fixture(autouse=True)
def looks(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Have it looked often; gives one for each look."""
    look, found = files.AccessFiles.look, []

    def counted(self: files.AccessFiles) -> None:
        found.append(None)
        look(self)

    monkeypatch.setattr(files.AccessFiles, "look", counted)
    monkeypatch.setattr(files, "LOOK_EVERY_S", 0.02)
    return found


def mounted(folder: Path, number: int, **contents: str) -> None:
    """Put files into a folder as Kubernetes does: each is a link into a folder that is exchanged in one step."""
    data = folder / f"..{number}"
    data.mkdir(parents=True)
    for name, text in contents.items():
        (data / name).write_text(text)
    (folder / "..new").symlink_to(data.name)
    (folder / "..new").replace(folder / "..data")
    for name in contents:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")


async def status(server: TestServer, headers: dict[str, str], path: str = "/state") -> int:
    async with aiohttp.ClientSession() as session, session.get(server.make_url(path), headers=headers) as reply:
        return reply.status


async def takes(server: TestServer, token: str) -> bool:
    return await status(server, bearer(token)) == 200


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == files.__name__]


@pytest.fixture
async def secrets(tmp_path: Path) -> Path:
    mounted(tmp_path / "secrets", 1, query=f"{READ}\n{OLD_READ}\n", admin=ADMIN)
    return tmp_path / "secrets"


@pytest.fixture
async def server(secrets: Path) -> AsyncIterator[TestServer]:
    async with served(query_tokens=secrets / "query", admin_tokens=secrets / "admin") as running:
        yield running


async def test_new_tokens_are_taken_and_old_ones_no_longer(
    server: TestServer, secrets: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=files.__name__)
    assert await status(server, password(ADMIN), "/state/secret") == 200
    mounted(secrets, 2, query=f"{NEW_READ}\n{READ}", admin=NEW_ADMIN)
    await eventually(lambda: takes(server, NEW_READ))
    assert [await takes(server, token) for token in (READ, OLD_READ, ADMIN, NEW_ADMIN)] == [True, False, False, True]
    assert await status(server, password(ADMIN), "/state/secret") == 401
    assert await status(server, password(NEW_ADMIN), "/state/secret") == 200
    (line,) = lines(caplog)
    assert "was read again" in line
    assert not any(token in caplog.text for token in (READ, NEW_READ, ADMIN, NEW_ADMIN))


BROKEN: list[dict[str, str]] = [
    {"query": "", "admin": NEW_ADMIN},
    {"query": "short", "admin": NEW_ADMIN},
    {"query": NEW_ADMIN, "admin": NEW_ADMIN},
    {"query": NEW_READ, "admin": "with a space in it, and long"},
    {"admin": NEW_ADMIN},
]


@pytest.mark.parametrize("broken", BROKEN)
async def test_files_that_cant_be_used_leave_the_old_tokens_and_say_so_once(
    server: TestServer,
    secrets: Path,
    looks: list[None],
    caplog: pytest.LogCaptureFixture,
    broken: dict[str, str],
) -> None:
    mounted(secrets, 2, **broken)
    await eventually(lambda: lines(caplog))
    looks.clear()
    await eventually(lambda: len(looks) > 5)
    assert [await takes(server, token) for token in (READ, OLD_READ, ADMIN, NEW_READ)] == [True, True, True, False]
    (line,) = lines(caplog)
    assert "its former content stays in use: write it again" in line
    assert str(secrets / "query") in line
    assert not any(token in line for token in broken.values() if token)
    mounted(secrets, 3, query=NEW_READ, admin=NEW_ADMIN)
    await eventually(lambda: takes(server, NEW_READ))


def test_a_file_that_is_being_written_isnt_read_yet(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"{READ}\n{OLD_READ}")
    app = App("written", query_tokens=file)
    read, tokens = app.extensions["web"].files, app.secrets.tokens
    for text in (NEW_READ[:17], NEW_READ, f"{NEW_READ}\n{NEW_ADMIN[:18]}", f"{NEW_READ}\n{NEW_ADMIN}"):
        file.write_text(text)
        read.look()
        assert (len(tokens), tokens.find(READ) is not None) == (2, True)
    read.look()
    assert [tokens.find(token) is not None for token in (READ, NEW_READ, NEW_ADMIN)] == [False, True, True]


def test_what_a_worker_shows_others_is_of_the_first_token_of_now(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"{READ}\n{OLD_READ}")
    read = App("hops", query_tokens=file).extensions["web"].files
    keys = read.hops().keys
    before = keys()
    file.write_text(f"{OLD_READ}\n{READ}")
    read.look()
    read.look()
    assert before[::-1] == keys() == App("hops", query_tokens=[OLD_READ, READ]).extensions["web"].files.hops().keys()


async def test_nothing_is_looked_at_where_no_setting_names_a_file() -> None:
    async with served(query_tokens=[READ]) as server:
        assert [hook for hook in server.app.on_startup if hook.__module__ == files.__name__] == []
        assert await takes(server, READ)


async def test_looking_ends_with_the_web_server(secrets: Path) -> None:
    async with served(query_tokens=secrets / "query") as server:
        (begin,) = [hook for hook in server.app.on_startup if hook.__module__ == files.__name__]
        watcher = begin.__self__._watcher
        assert not watcher.done()
    assert watcher.cancelled()


# --- certificates --------------------------------------------------------------------------------------------------


def settings(authority: Authority) -> dict[str, Any]:
    certificate, key = authority.certificate("worker")
    return {"web_certificate": certificate, "web_key": key, "web_client_ca": authority.file}


async def shown(server: TestServer, authority: Authority) -> int:
    """The serial number of the certificate that a new connection is shown."""
    _, writer = await asyncio.open_connection(str(server.host), server.port, ssl=authority.trust())
    raw = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return x509.load_der_x509_certificate(raw).serial_number


async def knows(server: TestServer, trusted: Authority, client: tuple[Path, Path]) -> bool:
    connector = aiohttp.TCPConnector(ssl=trusted.trust(client))
    async with aiohttp.ClientSession(connector=connector) as session:
        try:
            async with session.get(server.make_url("/state")) as reply:
                return reply.status == 200
        except aiohttp.ClientError:
            return False


async def test_a_new_certificate_is_shown_and_a_broken_one_isnt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=files.__name__)
    authority = Authority(tmp_path / "authority")
    options = settings(authority)
    async with served(**options) as server:
        first = await shown(server, authority)
        authority.certificate("worker")
        await eventually(lambda: _differs(server, authority, first))
        second, said = await shown(server, authority), len(lines(caplog))
        # One of another key, the other way round, and half a file.
        certificate, key = (file.read_bytes() for file in authority.certificate("other"))
        whole = options["web_certificate"].read_bytes(), options["web_key"].read_bytes()
        for contents in ((certificate, whole[1]), (whole[0], key), (whole[0], whole[1][:50])):
            for name, content in zip(("web_certificate", "web_key"), contents, strict=True):
                options[name].write_bytes(content)
            await eventually(lambda said=said: len(lines(caplog)) > said)
            assert "web_certificate" in lines(caplog)[said]
            assert "write it again" in lines(caplog)[said]
            assert await shown(server, authority) == second
            said += 1
        authority.certificate("worker")
        await eventually(lambda: _differs(server, authority, second))


async def _differs(server: TestServer, authority: Authority, serial: int) -> bool:
    return await shown(server, authority) != serial


async def test_a_new_authority_of_clients_is_trusted(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "one"), Authority(tmp_path / "other")
    client = other.certificate("reader")
    options = settings(authority)
    async with served(**options) as server:
        assert not await knows(server, authority, client)
        before = authority.file.read_bytes()
        authority.file.write_bytes(before + other.file.read_bytes())
        trusting = Authority(tmp_path / "unused")
        trusting.file.write_bytes(before)
        await eventually(lambda: knows(server, trusting, client))


def test_what_a_worker_asks_others_with_is_renewed_too(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "one"), Authority(tmp_path / "other")
    read = App("hops", broker="kafka://127.0.0.1:1", **settings(authority)).extensions["web"].files
    tls = read.hops().tls
    assert tls is not None
    before = len(tls.get_ca_certs())
    authority.file.write_bytes(authority.file.read_bytes() + other.file.read_bytes())
    read.look()
    read.look()
    assert len(tls.get_ca_certs()) == before + 1
    assert read.hops().tls is tls
