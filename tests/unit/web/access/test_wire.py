"""What is tried at the bytes of requests: odd headers, origins, hosts and partitions, and how much is logged of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp.test_utils import TestServer

from actors.web.access.callers import _authority, names_this_machine
from actors.web.access.signature import HOP, PARTITIONS
from tests.unit.web.query_server import KEY, get
from tests.unit.web.query_server import served as asked
from tests.unit.web.web_part import ADMIN, READ, TOKENS, password, raw, served

REFUSALS = "actors.web.access.limits"


async def test_a_token_that_is_taken_back_ends_on_connections_that_are_open(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(READ)
    async with asked(query_tokens=file) as server:
        connection = await server.connect()
        for token, expected in ((READ, 200), ("reader-after-0123456789", 401)):
            file.write_text(token)
            server.app.extensions["web"].files.look()
            server.app.extensions["web"].files.look()
            connection.send(get(KEY, f"Authorization: Bearer {READ}"))
            assert (await connection.answer())[0] == expected
            connection.send(get(KEY, f"Authorization: Bearer {READ}"))
            assert (await connection.answer())[0] == expected
        await connection.close()


@pytest.mark.parametrize("given", ["0,0,0", ",".join(["0", "1"] * 500)])
async def test_a_partition_that_is_named_twice_is_looked_at_once(given: str) -> None:
    async with asked() as server:
        connection = await server.connect()
        answers = []
        for partitions in ("0,1" if "1" in given else "0", given):
            for target in ("/actors/words?limit=1000", "/actors/words/_count?exact=true"):
                connection.send(get(target, f"{HOP}: 1", f"{PARTITIONS}: {partitions}"))
                status, _, body = await connection.answer()
                assert status == 200
                answers.append(msgspec.json.decode(body))
        await connection.close()
    assert answers[0]["items"] == answers[2]["items"]
    assert answers[1]["count"] == answers[3]["count"] > 0


async def test_each_request_of_a_connection_has_its_own_headers() -> None:
    large = [f"Authorization: Bearer {READ}", *(f"X-{number}: {'x' * 6_000}" for number in range(3))]
    async with asked(**TOKENS) as server:
        connection = await server.connect()
        statuses = []
        for target, headers in ((KEY, large[:1]), ("/", large), (KEY, large), (KEY, []), (KEY, large[:1])):
            connection.send(get(target, *headers))
            statuses.append((await connection.answer())[0])
        await connection.close()
    assert statuses == [200, 200, 431, 401, 200]


# --- origins and hosts ---------------------------------------------------------------------------------------------


@pytest.fixture
async def server() -> Any:
    async with served(**TOKENS) as running:
        yield running


NO_ORIGINS = ["https://xn--", "https://[::1]x2[@", "https://[", "https://a..b:99999", "null", "", "\x7f", "https://%"]


@pytest.mark.parametrize("origin", NO_ORIGINS)
async def test_an_origin_that_is_none_is_a_foreign_one(
    server: TestServer, origin: str, caplog: pytest.LogCaptureFixture
) -> None:
    shown = f"Authorization: {password(ADMIN)['Authorization']}"
    for method, path in (("POST", "/page/drop"), ("GET", "/page"), ("GET", "/state")):
        given = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{shown}\r\nOrigin: {origin}\r\n\r\n"
        status, _ = await raw(server, given)
        assert status == (400 if "\x7f" in origin else 403)
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("host", ["[::1]x2[@", "xn--", "[", "a..b", "@", ":", "\udcff"])
def test_a_host_that_is_none_is_not_this_machine(host: str) -> None:
    assert not names_this_machine(host)
    assert _authority(f"https://{host}") != _authority("https://127.0.0.1")
