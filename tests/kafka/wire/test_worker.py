"""Whole workers behind a connection that fails at random: what is committed is the input, once and in order."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.kafka.helpers import WorkerProcess, eventually, send
from tests.kafka.runtime.test_exactly_once import MODULE, PARTITIONS, all_echoed, begin, expected_echo, records, stored
from tests.kafka.wire.proxy import Chaos, WireProxy

INPUTS = 20_000
SHARE = 200
FAULTS = 40


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.nightly), 2], ids=["one worker", "two workers"])
async def test_workers_behind_a_bad_network(
    brokers: str, proxy: WireProxy, tmp_path: Path, workers: list[WorkerProcess], count: int
) -> None:
    """Connections end before and after requests, requests are late and come twice; seeded, and bounded in number."""
    name = await begin(brokers)
    sent = records(INPUTS, seed=count)
    for number in range(count):
        worker = WorkerProcess(
            MODULE, proxy.bootstrap, tmp_path / f"data-{number}", APP_NAME=name, MAX_POLL_RECORDS="20"
        )
        workers.append(worker.start())
        await eventually(lambda worker=worker: "owns" in worker.log(), what=worker.log)
    chaos = Chaos(count, faults=FAULTS, chance=0.1)
    proxy.on(None, chaos, times=None)
    done = 0
    while chaos.left:
        assert done < len(sent), f"{chaos.left} faults are left"
        await send(brokers, f"{name}-in", sent[done : done + SHARE], partitions=PARTITIONS)
        done += SHARE
        await all_echoed(brokers, name, sent[:done], *workers)
    # Blocks otherwise, and the workers' way to the broker is in this loop.
    assert [await asyncio.to_thread(worker.terminate) for worker in workers] == [0] * count
    if count == 1:
        held = stored(workers[0].folder, name)
        assert held == {key: len(values) for key, values in expected_echo(sent[:done]).items()}
