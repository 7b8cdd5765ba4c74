"""How many connections a worker needs: they don't grow with its tasks, and little with its brokers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.peers.worker import connections
from dev.kafka import Cluster
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, read_all, send, unique

MODULE = "tests.kafka.apps.counter_app"
PARTITIONS = 16
FOR_EACH_BROKER = 5


@pytest.mark.nightly
@pytest.mark.parametrize("count", [1, 3])
async def test_a_worker_has_at_most_five_connections_to_each_broker(
    tmp_path: Path, workers: list[WorkerProcess], count: int
) -> None:
    with await asyncio.to_thread(Cluster.up, tmp_path / "kafka", brokers=count) as cluster:
        name, brokers = unique("counter"), cluster.bootstrap
        await make_topics(brokers, f"{name}-in", f"{name}-out", partitions=PARTITIONS, replicas=count)
        worker = WorkerProcess(MODULE, brokers, tmp_path / "data", APP_NAME=name)
        workers.append(worker.start())
        sent = [(b"key-%d" % number, b"1") for number in range(200)]
        await send(brokers, f"{name}-in", sent, partitions=PARTITIONS)

        async def has_all() -> bool:
            return len(await read_all(brokers, f"{name}-out")) == len(sent)

        await eventually(has_all, what=worker.log)
        ports = {int(address.rpartition(":")[2]) for address in brokers.split(",")}
        # Those of the takeovers' restores end.
        await eventually(lambda: 0 < connections(worker.pid, ports) <= FOR_EACH_BROKER * count)
        worker.kill()
