"""What isn't text, numbers, forms or JSON in requests: it is refused, and never a traceback."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from actors.web import metrics
from tests.unit.web.query_server import Served, get, served

LONG = "9" * 4_301
"""Python makes no number of it."""
BIG = "9" * 4_000
JSON = "Content-Type: application/json"
FORM = "Content-Type: application/x-www-form-urlencoded"


@pytest.fixture(scope="module")
async def there() -> AsyncIterator[Served]:
    async with served() as found:
        yield found


def body(target: str, content: bytes, *headers: str) -> bytes:
    return get(target, *headers, f"Content-Length: {len(content)}", method="POST") + content


NUMBERS = [
    "1",
    BIG,
    LONG,
    f"-{BIG}",
    "1e400",
    "1" * 30,
    "Infinity",
    "NaN",
    "0x1",
    "1_000",
    "\uff11",
    "true",
    "\x00",
    "-0",
    " 1",
]
URLS = [
    "/actors/numbers/{}",
    "/actors/numbers/{}?encoding=json",
    "/actors/numbers/{}?encoding=base64",
    "/actors/words/{}?encoding=json",
    "/actors/words/ada?partition={}",
    "/actors/numbers?limit={}",
    "/actors/numbers?partition={}",
    "/actors/numbers?from={}",
    "/actors/numbers?to={}&encoding=json",
    "/actors/numbers?prefix={}",
    "/actors/numbers?cursor={}",
    "/actors/numbers/_count?exact={}",
    "/actors/words/ada?read={}",
    "/actors/talk/_ask/add/ada?number={}",
    "/actors/talk/_ask/add/ada?number=1&share={}",
    "/dashboard/parked?actor=talk&what=message&partition={}&key=",
    "/dashboard/parked?actor=talk&what=message&partition=0&key={}",
]
TEXTS = [
    "",
    "%FF",
    "%",
    "%zz",
    "%00",
    "%ED%A0%80",
    "\u00e4".encode().decode("latin-1"),
    "%F0%9F%98%80",
    "[" * 3_000,
    "{" + "}" * 99,
]


@pytest.mark.parametrize("url", URLS)
async def test_odd_numbers_and_texts_in_urls_are_no_failures(
    there: Served, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    connection = await there.connect()
    for text in [*NUMBERS, *TEXTS]:
        quoted = (
            text if text in TEXTS else "".join(f"%{octet:02X}" for octet in text.encode()) if len(text) < 99 else text
        )
        connection.send(get(url.format(quoted)))
        status, _, answer = await connection.answer()
        # The query gives the number back.
        is_said = "_ask" in url and b"problem:not-json" in answer
        assert is_said or status in (200, 400, 404, 503), (url, text[:50], answer[:500])
        if status == 400 and not answer.startswith(b"{"):
            # aiohttp's own, which ends the connection.
            await connection.close()
            connection = await there.connect()
    await connection.close()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR], caplog.text[:2000]


BODIES = [
    b"",
    b"\xff\xfe",
    b"{",
    b"[" * 100_000,
    b'{"keys": [' + b"[" * 5_000 + b"]" * 5_000 + b"]}",
    b'{"keys": [%s]}' % LONG.encode(),
    b'{"keys": [%s]}' % BIG.encode(),
    b'{"keys": [1e400, 1, -1, true, null, {}, [], "\\ud800"]}',
    b'{"keys": ["\xff"]}',
    b'{"keys": ["ada"], "partition": %s}' % LONG.encode(),
    b'{"keys": ["ada"], "encoding": "x"}',
    b'{"number": %s}' % LONG.encode(),
    b'{"number": %s}' % BIG.encode(),
    b'{"number": 1, "share": 1e400}',
    b'{"number": "\xff"}',
    b"\x1f\x8b\x08\x00broken",
    "{}".encode("utf-16"),
]
TYPES = [
    JSON,
    "Content-Type: application/json; charset=nonsense",
    "Content-Type: application/json; charset=utf-16",
    "Content-Type: application/json; charset=\xff",
    "Content-Type: ;;;",
    "Content-Type: \xff/\xff",
    FORM,
    "X: no type",
]


@pytest.mark.parametrize("content_type", TYPES)
@pytest.mark.parametrize("target", ["/actors/words/_many", "/actors/numbers/_many", "/actors/talk/_ask/add/ada"])
async def test_odd_bodies_are_no_failures(
    there: Served, target: str, content_type: str, caplog: pytest.LogCaptureFixture
) -> None:
    connection = await there.connect()
    for content in BODIES:
        connection.send(body(target, content, content_type))
        status, _, answer = await connection.answer()
        is_said = "_ask" in target and b"problem:not-json" in answer
        assert is_said or status in (200, 400, 415, 503), (content[:50], answer[:500])
    await connection.close()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR], caplog.text[:2000]


FORMS = [
    b"",
    b"\xff",
    b"actor=talk&key=\xff&what=message&partition=0",
    b"actor=%FF",
    b"actor=talk&what=message&partition=" + LONG.encode(),
    b"actor=talk&what=message&partition=0&key=%FF",
    b"actor=talk&what=message&partition=0&key=====",
    b"&".join([b"a=b"] * 50),
    b'{"actor": "talk"}',
]


@pytest.mark.parametrize(
    "content_type", [*TYPES, f"{FORM}; charset=nonsense", f"{FORM}; charset=utf-16", f"{FORM}; charset="]
)
async def test_odd_forms_are_no_failures(there: Served, content_type: str, caplog: pytest.LogCaptureFixture) -> None:
    connection = await there.connect()
    for content in FORMS:
        for verb in ("retry", "drop", "drop-all", "x"):
            connection.send(body(f"/dashboard/parked/{verb}", content, content_type))
            status, _, answer = await connection.answer()
            assert status in (400, 404, 405), (content[:50], answer[:500])
    await connection.close()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR], caplog.text[:2000]


HEADERS = [
    "Actors-Partitions: " + LONG,
    "Actors-Partitions: ,,,",
    "Actors-Partitions: \xb2",
    "Accept: application/openmetrics-text;version=" + LONG,
    "Accept: application/openmetrics-text;version=x.y;escaping=\xff",
    "Accept: text/plain;version=a;escaping=",
    "Accept: ;;;,,,",
    "Accept-Charset: \xff",
    "Cookie: \xff=\xff; a; =",
    "Range: bytes=" + LONG,
    "If-Modified-Since: " + LONG,
    "Host: \xff",
    "X-Forwarded-For: \xff",
    "Origin: \xff",
    "Authorization: \xff \xff",
    "Authorization: Basic \xff",
    "Content-Encoding: \xff",
    "Sec-Fetch-Site: \xff",
]


@pytest.mark.parametrize("target", ["/actors/numbers", "/actors/numbers/1", "/dashboard/nowhere"])
async def test_odd_headers_are_no_failures(there: Served, target: str, caplog: pytest.LogCaptureFixture) -> None:
    for header in HEADERS:
        for hop in ((), ("Actors-Hop: 1",)):
            connection = await there.connect()
            connection.send(get(target, header, *hop))
            status, _, answer = await connection.answer()
            assert status in (200, 400, 401, 403, 404, 415, 417, 421, 503), (header[:50], answer[:500])
            await connection.close()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR], caplog.text[:2000]


@pytest.mark.parametrize("accept", [header[8:] for header in HEADERS if header.startswith("Accept:")])
async def test_an_odd_accept_header_gets_the_metrics(accept: str) -> None:
    host: Any = SimpleNamespace(worker_status=lambda: None, actor_service=SimpleNamespace(setup=None))
    server = TestServer(metrics.metrics_page(host))
    async with TestClient(server) as client, client.get("/", headers={"Accept": accept[:4_000]}) as reply:
        assert reply.status == 200
        assert b"# HELP" in await reply.read()
