"""Real workers whose sinks write files, call a service and a function, while workers are killed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from aiohttp import web

from tests.kafka.helpers import WorkerProcess, eventually, make_topics, read_all, send, unique

MODULE = "tests.kafka.apps.targets_app"


class Service:
    """Takes batches; answers every fifth call with 503, and one with 429."""

    def __init__(self) -> None:
        self.url = ""
        self.items: dict[str, int] = {}
        self.keys: list[str] = []

    async def take(self, request: web.Request) -> web.Response:
        self.keys.append(request.headers["Idempotency-Key"])
        if len(self.keys) % 5 == 0:
            return web.Response(status=503)
        if len(self.keys) == 3:
            return web.Response(status=429, headers={"Retry-After": "0.1"})
        self.items |= {entry["at"]: entry["number"] for entry in await request.json()}
        return web.Response()


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    """A running one."""
    service, app = Service(), web.Application()
    app.router.add_post("/", service.take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    service.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    yield service
    await runner.cleanup()


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in folder.glob("*.lines") for line in file.read_text().splitlines()]


def offsets_of(folder: Path) -> list[tuple[int, int]]:
    places: list[tuple[int, int]] = []
    for file in (folder / "lake").rglob("*.parquet"):
        table = pq.ParquetFile(file).read()
        places += zip(table["_partition"].to_pylist(), table["_offset"].to_pylist(), strict=True)
    return sorted(places)


def tokens_of(folder: Path) -> list[list[int]]:
    """The tokens of each partition's lines, in their order."""
    return [[json.loads(line)["token"] for line in file.read_text().splitlines()] for file in folder.glob("*.lines")]


@pytest.mark.parametrize("kills", [0, pytest.param(2, marks=pytest.mark.nightly)])
async def test_files_have_each_record_once_and_a_service_and_a_function_at_least_once(
    brokers: str, tmp_path: Path, service: Service, kills: int
) -> None:
    name = unique("targets")
    await make_topics(brokers, f"{name}-numbers", f"{name}-doubles")
    variables = {"APP_NAME": name, "SINK_FOLDER": str(tmp_path), "SINK_URL": service.url}
    workers = [WorkerProcess(MODULE, brokers, tmp_path / f"w{number}", **variables) for number in range(2)]
    for worker in workers:
        worker.start()
    for number in range(3):
        records = [(b"k%d" % key, b"%d" % (1000 * number + key)) for key in range(1000)]
        await send(brokers, f"{name}-numbers", records)
        await eventually(lambda number=number: len(service.items) > 1000 * number, what=workers[0].log)
        if number < kills:
            workers[number % 2].kill()
            workers[number % 2].start()
    wanted = sorted(2 * number for number in range(3000))
    await eventually(lambda: sorted(service.items.values()) == wanted, what=workers[0].log)
    await eventually(lambda: len(offsets_of(tmp_path)) >= 3000, what=workers[0].log)
    await eventually(lambda: {n for line in lines_of(tmp_path) for n in line["numbers"]} == set(wanted))
    records = await read_all(brokers, f"{name}-doubles")
    assert offsets_of(tmp_path) == sorted((record.partition, record.offset) for record in records)
    assert all(tokens == sorted(tokens) for tokens in tokens_of(tmp_path))
    assert all(worker.terminate() == 0 for worker in workers)
    assert "didn't stop" not in workers[0].log() + workers[1].log()
