"""Limits of effects on a real broker: no more calls than said run at a time, and begin, whoever is killed."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.kafka.helpers import WorkerProcess, eventually, make_topics, read_all, send, unique

MODULE = "tests.kafka.apps.limits_app"
TENANTS, ORDERS = ("acme", "beta"), 30
LIMIT, RATE = 2, 10


def most_at_once(lines: list[dict[str, Any]], deaths: dict[int, float]) -> int:
    """Return how many calls ran at a time; one that a death cut short ended with it."""
    ended = {(line["id"], line["pid"]): line["at_s"] for line in lines if line["what"] == "ended"}
    steps = []
    for line in lines:
        if line["what"] == "begun":
            end_s = ended.get((line["id"], line["pid"]), deaths.get(line["pid"]))
            assert end_s is not None, line
            steps += [(line["at_s"], 1), (end_s, -1)]
    running = most = 0
    for _, step in sorted(steps):
        running += step
        most = max(most, running)
    return most


@pytest.mark.parametrize("kills", [0, pytest.param(2, marks=pytest.mark.nightly)])
async def test_no_more_than_the_limit_run_whoever_is_killed(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess], kills: int
) -> None:
    name = unique("limits")
    await make_topics(brokers, f"{name}-orders", f"{name}-done")
    settings = {"APP_NAME": name, "EFFECTS_FOLDER": str(tmp_path)}
    pair = [WorkerProcess(MODULE, brokers, tmp_path / each, **settings) for each in ("one", "two")]
    workers += [worker.start() for worker in pair]
    await eventually(lambda: all("owns" in worker.log() for worker in pair))
    await send(
        brokers,
        f"{name}-orders",
        [(f"{tenant}-{number}".encode(), tenant.encode()) for number in range(ORDERS) for tenant in TENANTS],
    )

    def lines() -> list[dict[str, Any]]:
        file = tmp_path / "lines"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    deaths: dict[int, float] = {}
    for kill in range(kills):
        count = len(lines()) + 20
        await eventually(lambda count=count: len(lines()) >= count, what=lambda: pair[0].log()[-2000:])
        worker = pair[kill % 2]
        pid = worker.pid
        worker.kill()
        deaths[pid] = time.time()
        worker.start()

    async def all_done() -> bool:
        return len({record.key for record in await read_all(brokers, f"{name}-done")}) == ORDERS * len(TENANTS)

    await eventually(all_done, deadline_s=150, what=lambda: pair[0].log()[-3000:] + pair[1].log()[-3000:])
    results = Counter(record.key for record in await read_all(brokers, f"{name}-done"))
    assert set(results.values()) == {1}
    for tenant in TENANTS:
        of_tenant = [line for line in lines() if line["tenant"] == tenant]
        assert most_at_once(of_tenant, deaths) <= LIMIT
        times = sorted(line["at_s"] for line in of_tenant if line["what"] == "begun")
        assert all(later - earlier >= 1.0 for earlier, later in zip(times, times[RATE:], strict=False))


@pytest.mark.nightly
async def test_a_worker_that_stops_gives_its_permits_back(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    name = unique("limits")
    await make_topics(brokers, f"{name}-orders", f"{name}-done")
    settings = {"APP_NAME": name, "EFFECTS_FOLDER": str(tmp_path), "TIMEOUT_S": "120", "TAKES_S": "3"}
    worker = WorkerProcess(MODULE, brokers, tmp_path / "one", **settings)
    workers.append(worker.start())
    await send(brokers, f"{name}-orders", [(str(number).encode(), b"acme") for number in range(4)])
    await eventually((tmp_path / "lines").exists, what=worker.log)
    assert worker.terminate() == 0
    worker.start()

    async def all_done() -> bool:
        return len({record.key for record in await read_all(brokers, f"{name}-done")}) == 4

    # Permits that it had kept would be over after two minutes.
    await eventually(all_done, deadline_s=50, what=lambda: worker.log()[-3000:])
