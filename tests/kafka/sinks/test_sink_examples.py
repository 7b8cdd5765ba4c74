"""The examples of sinks, sources and large values, on a real broker."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from aiohttp import web

from dev import postgres as postgresql
from dev.parts import Part
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, read_all, send


async def test_orders_are_in_postgresql(brokers: str, database: Part, tmp_path: Path) -> None:
    postgresql.run_sql(database.address, "CREATE TABLE orders (id text PRIMARY KEY, customer text, cents bigint)")
    await make_topics(brokers, "placed-orders")
    orders = [(b"o%d" % number, b'{"customer": "ada", "cents": %d}' % number) for number in range(20)]
    await send(brokers, "placed-orders", [*orders, (b"o3", None)])
    worker = WorkerProcess("examples.postgres_sink", brokers, tmp_path / "w", DATABASE_URL=database.address).start()
    query = "SELECT count(*), sum(cents) FROM orders"
    await eventually(lambda: postgresql.run_sql(database.address, query) == "19,187\n", what=worker.log)
    assert worker.terminate() == 0


@pytest.mark.nightly
async def test_a_source_is_polled_and_each_item_sent_once(brokers: str, tmp_path: Path) -> None:
    asked: list[int] = []

    async def items(request: web.Request) -> web.Response:
        after = int(request.query["after"])
        asked.append(after)
        found = [{"id": str(number), "text": f"item {number}"} for number in range(after, min(after + 3, 10))]
        return web.json_response({"items": found, "cursor": after + len(found)})

    app = web.Application()
    app.router.add_get("/items", items)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/items"
    await make_topics(brokers, "source-polls", "source-items")
    await send(brokers, "source-polls", [(b"news", b'{"type": "poll"}')])
    worker = WorkerProcess(
        "examples.poll_source", brokers, tmp_path / "w", SOURCE_URL=url, SOURCE_EVERY_S="0.1"
    ).start()

    async def texts() -> list[str]:
        return sorted(json.loads(record.value)["text"] for record in await read_all(brokers, "source-items"))

    async def are_there() -> bool:
        return len(await texts()) >= 10

    try:
        await eventually(are_there, what=worker.log)
        worker.kill()
        count = len(asked)
        worker.start()
        await eventually(lambda: len(asked) >= count + 2, what=worker.log)
        assert await texts() == sorted(f"item {number}" for number in range(10))
        assert worker.terminate() == 0
    finally:
        await runner.cleanup()


async def test_a_large_value_is_read_by_its_reference(brokers: str, tmp_path: Path) -> None:
    content = b"cat" * 1000
    digest = hashlib.sha256(content).hexdigest()
    payloads = tmp_path / "payloads"
    payloads.mkdir()
    (payloads / digest).write_bytes(content)
    await make_topics(brokers, "uploads", "lengths")
    await send(brokers, "uploads", [(b"cat", json.dumps({"sha256": digest}).encode())])
    worker = WorkerProcess("examples.large_values", brokers, tmp_path / "w", PAYLOADS=payloads.as_uri()).start()

    async def lengths() -> list[bytes]:
        return [record.value for record in await read_all(brokers, "lengths")]

    assert await eventually(lengths, what=worker.log) == [b"3000"]
    assert worker.terminate() == 0
