"""What a worker logs while it restores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from tests.kafka.helpers import WorkerProcess, eventually, make_topics, producing, unique

MODULE = "tests.kafka.apps.counter_app"
RECORDS = 200_000
STALLED = "waiting for the last stable offset, held back by an open transaction (counts[0])"


async def begin(brokers: str) -> str:
    """An app with so many records in its changelog."""
    name = unique("progress")
    await make_topics(brokers, f"{name}-in", f"{name}-out", partitions=1)
    await make_topics(brokers, f"{name}--counts-changelog", partitions=1, config={"cleanup.policy": "compact"})
    async with producing(brokers, max_batch_size=900_000) as producer:
        batch, sent = producer.create_batch(), []
        for number in range(RECORDS):
            record = {"key": b"k%d" % number, "value": b"1", "timestamp": None}
            if batch.append(**record) is None:
                sent.append(await producer.send_batch(batch, f"{name}--counts-changelog", partition=0))
                batch = producer.create_batch()
                batch.append(**record)
        sent.append(await producer.send_batch(batch, f"{name}--counts-changelog", partition=0))
        await asyncio.gather(*sent)
    return name


@asynccontextmanager
async def open_transaction(brokers: str, *names: str) -> AsyncIterator[None]:
    """Somebody's transaction at the end of the apps' changelogs, for the time of the block."""
    producer = AIOKafkaProducer(bootstrap_servers=brokers, transactional_id=unique("other"))
    await producer.start()
    try:
        async with producer.transaction():
            for name in names:
                await producer.send_and_wait(f"{name}--counts-changelog", b"2", b"k0", partition=0)
            yield
    finally:
        await producer.stop()


@pytest.mark.nightly
async def test_a_restore_logs_its_progress(brokers: str, tmp_path: Path, workers: list[WorkerProcess]) -> None:
    name = await begin(brokers)
    worker = WorkerProcess(MODULE, brokers, tmp_path / "lines", APP_NAME=name)
    async with open_transaction(brokers, name):
        workers.append(worker.start())
        await eventually(lambda: STALLED in worker.log(), what=worker.log)
    assert "restoring counts[0] 200,000 of 200,001" in worker.log()
    assert "\x1b[" not in worker.log()
    await eventually(lambda: "this worker has partitions of count 0, after" in worker.log(), what=worker.log)
