"""Digests of a partition's rows by bucket: an oracle, rows that are over, the rows of a bucket, and refusals."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from actors.web.queries.digests import MAX_BUCKETS, bucket_count
from stores._core.record import encode_metadata
from stores._core.windows import PROGRESS_KEY, Progress, encode_progress
from tests.unit.web.query_server import POSITION, Served, get, served

EXPIRES_MS = 5_000


@pytest.fixture
async def there() -> AsyncIterator[Served]:
    async with served() as server:
        yield server


async def ask(there: Served, store: str = "words", **body: Any) -> tuple[int, Any]:
    raw = json.dumps(body)
    headers = ("Content-Type: application/json", f"Content-Length: {len(raw)}")
    connection = await there.connect()
    connection.send(get(f"/actors/{store}/_digests", *headers, method="POST") + raw.encode())
    status, _, answer = await connection.answer()
    await connection.close()
    return status, json.loads(answer)


def expected(there: Served, buckets: int, *, as_of_ms: int, without: bytes | None = None) -> list[int]:
    """The digests, made the plain way."""
    sums = [0] * buckets
    for key, raw in there.store.scan():
        expires_ms = int.from_bytes(raw[17:25], "big")
        if key == without:
            continue
        if not expires_ms or expires_ms > as_of_ms:
            sums[zlib.crc32(key) % buckets] ^= int.from_bytes(hashlib.sha256(key + raw).digest()[:8], "big")
    return [value - (1 << 64) if value >> 63 else value for value in sums]


async def test_digests_are_those_of_the_rows_that_have_not_expired(there: Served) -> None:
    there.store.apply([(b"brief", encode_metadata(1, 2, EXPIRES_MS) + b"x")], POSITION)
    for as_of_ms in (EXPIRES_MS - 1, EXPIRES_MS):
        status, answer = await ask(there, partition=1, as_of_ms=as_of_ms, buckets=8)
        assert (status, answer["digests"], answer["rows"]) == (200, expected(there, 8, as_of_ms=as_of_ms), [])
        assert (answer["position"]["changelog_offset"], answer["position"]["epoch"]) == (20, 1)
    assert expected(there, 8, as_of_ms=0) != expected(there, 8, as_of_ms=EXPIRES_MS)


async def test_values_that_are_exchanged_make_another_digest(there: Served) -> None:
    _, before = await ask(there, partition=0, as_of_ms=0, buckets=1)
    rows = dict(there.store.scan())
    there.store.apply([(b"k1", rows[b"k2"]), (b"k2", rows[b"k1"])], POSITION)
    _, after = await ask(there, partition=0, as_of_ms=0, buckets=1)
    assert before["digests"] != after["digests"]


async def test_the_rows_of_a_bucket_are_those_of_its_digest(there: Served) -> None:
    _, answer = await ask(there, partition=0, as_of_ms=0, buckets=4, rows=[2])
    rows = {base64.b64decode(row["key"]): base64.b64decode(row["value"]) for row in answer["rows"]}
    assert rows == {key: raw for key, raw in there.store.scan() if zlib.crc32(key) % 4 == 2}
    assert answer["digests"] == []


def window_row(start_ms: int) -> bytes:
    return b"w" + start_ms.to_bytes(8) + b"a"


@pytest.mark.parametrize("damage", [b"", b"damaged "])
async def test_windows_that_are_past_their_retention_are_left_out(there: Served, damage: bytes) -> None:
    progress = encode_progress(Progress(stream_ms=9, expired=window_row(5)[:-1]))
    rows = {PROGRESS_KEY: damage + progress} | dict.fromkeys(map(window_row, (4, 5, 6)), b"v1")
    there.store.apply([(row, encode_metadata(1, 1) + value) for row, value in rows.items()], POSITION)
    _, plain = await ask(there, partition=1, as_of_ms=0, buckets=8)
    assert plain["digests"] == expected(there, 8, as_of_ms=0)
    there.queries.stores["words"] = replace(there.spec, windows=(SimpleNamespace(name="words"),))
    _, answer = await ask(there, partition=1, as_of_ms=0, buckets=8)
    past = None if damage else window_row(4)
    assert answer["digests"] == expected(there, 8, as_of_ms=0, without=past)
    for bucket in range(8):
        _, answer = await ask(there, partition=1, as_of_ms=0, buckets=8, rows=[bucket])
        keys = {base64.b64decode(row["key"]) for row in answer["rows"]}
        wanted = {key for key, _ in there.store.scan() if zlib.crc32(key) % 8 == bucket and key != past}
        assert keys == wanted | {PROGRESS_KEY}


def test_buckets_follow_the_number_of_keys() -> None:
    assert [bucket_count(keys) for keys in (-1, 0, 63, 64, 100_000)] == [1, 1, 1, 2, 2048]
    assert bucket_count(10**9) == MAX_BUCKETS


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"partition": 9, "as_of_ms": 0}, "partition 9 of 4"),
        ({"partition": -1, "as_of_ms": 0}, "partition"),
        ({"partition": 0, "as_of_ms": 0, "buckets": 0}, "buckets"),
        ({"partition": 0, "as_of_ms": 0, "rows": [1]}, "say how many there are"),
        ({"as_of_ms": 0}, "partition"),
    ],
)
async def test_other_bodies_are_refused(there: Served, body: dict[str, Any], text: str) -> None:
    status, answer = await ask(there, **body)
    assert status == 400
    assert text in answer["detail"]


async def test_rows_that_are_too_long_are_refused(there: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.web.queries.digests.MAX_ROWS_BYTES", 1_000)
    status, answer = await ask(there, partition=0, as_of_ms=0, buckets=1, rows=[0])
    assert status == 413
    assert "ask for fewer buckets" in answer["detail"]


async def test_a_partition_of_another_worker_is_not_answered(there: Served) -> None:
    status, _ = await ask(there, partition=3, as_of_ms=0)
    assert status == 503
