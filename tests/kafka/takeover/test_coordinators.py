"""The brokers that coordinate a worker's transactions and its group die while it commits."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiokafka.client import AIOKafkaClient, CoordinationType

from actors.declare.names import worker_transactional_id
from dev.kafka import Cluster
from stores.folder import DataFolder
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, send, unique
from tests.kafka.runtime.test_exactly_once import MODULE, PARTITIONS, all_echoed, echoed, records

BROKERS = 3


async def coordinator(brokers: str, kind: object, name: str) -> int:
    """The broker that coordinates it."""
    client = AIOKafkaClient(bootstrap_servers=brokers)
    await client.bootstrap()
    try:
        return int(await client.coordinator_lookup(kind, name))
    finally:
        await client.close()


@pytest.mark.nightly
@pytest.mark.timeout(600)
async def test_commits_outlive_coordinators_that_die_in_the_middle(
    tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    """The others take over while the broker is away: nothing is lost, doubled or stopped."""
    with Cluster.up(tmp_path / "kafka", brokers=BROKERS) as cluster:
        name, brokers = unique("coordinators"), cluster.bootstrap
        await make_topics(brokers, f"{name}-in", f"{name}-out", partitions=PARTITIONS, replicas=BROKERS)
        options = {"APP_NAME": name, "MAX_POLL_RECORDS": "5", "REPLICATION": str(BROKERS)}
        worker = WorkerProcess(MODULE, brokers, tmp_path / "data", **options)
        workers.append(worker.start())
        await eventually(lambda: worker.log().count("owns") == PARTITIONS, what=worker.log)
        transactional_id = worker_transactional_id(name, DataFolder.inspect(tmp_path / "data" / "v1" / "actors").id)
        sent: list[tuple[bytes, bytes]] = []
        for kind, coordinated in (
            (CoordinationType.TRANSACTION, transactional_id),
            (CoordinationType.GROUP, f"{name}-actors"),
        ):
            node, more = await coordinator(brokers, kind, coordinated), records(3_000, seed=len(sent))
            before = sum(map(len, (await echoed(brokers, name)).values()))
            sending = asyncio.create_task(send(brokers, f"{name}-in", more, partitions=PARTITIONS))
            sent += more

            async def is_busy(before: int = before) -> bool:
                return sum(map(len, (await echoed(brokers, name)).values())) > before

            await eventually(is_busy, what=worker.log)
            await asyncio.to_thread(cluster.kill, node)
            await sending
            await all_echoed(brokers, name, sent, worker)
            assert await coordinator(brokers, kind, coordinated) != node
            await asyncio.to_thread(cluster.start, node)
        assert "is stopped on" not in worker.log()
        assert worker.terminate() == 0, worker.log()[-3000:]
