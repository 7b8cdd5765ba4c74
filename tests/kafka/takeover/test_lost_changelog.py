"""A changelog whose broker lost its tail: the worker that has it stops, and writes it back when it is told to."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dev.kafka import Cluster
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, read_all, send, unique

MODULE = "tests.kafka.apps.grown_app"
BATCH_HEADER = 12
"""A batch begins with its base offset, 8 bytes, and the length of what follows, 4 bytes."""


def truncate(partition: Path, end: int) -> None:
    """Remove a log's batches from an offset on, and what the broker knows of them beside the log."""
    (segment,) = partition.glob("*.log")
    raw, place = segment.read_bytes(), 0
    while place < len(raw) and int.from_bytes(raw[place : place + 8], "big") < end:
        place += BATCH_HEADER + int.from_bytes(raw[place + 8 : place + BATCH_HEADER], "big")
    assert place < len(raw), "there is nothing to lose"
    segment.write_bytes(raw[:place])
    beside = ("*.index", "*.timeindex", "*.txnindex", "*.snapshot")
    data = partition.parent
    for path in [path for pattern in beside for path in partition.glob(pattern)]:
        path.unlink()
    for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        (data / name).unlink(missing_ok=True)


async def folded(brokers: str, topic: str) -> dict[bytes, bytes]:
    return {record.key: record.value for record in await read_all(brokers, topic)}


async def run(worker: WorkerProcess, *texts: str) -> None:
    """Start a worker, wait until it said this since, and stop it."""
    before = len(worker.log()) if worker.log_file.exists() else 0
    worker.start()

    def said() -> bool:
        return all(text in worker.log()[before:] for text in texts)

    try:
        await eventually(said, deadline_s=90, what=worker.log)
    finally:
        await asyncio.to_thread(worker.terminate)


@pytest.mark.nightly
async def test_what_a_changelog_lost_is_in_the_store_until_somebody_chooses(tmp_path: Path) -> None:
    with Cluster.up(tmp_path / "kafka") as cluster:
        brokers, name = cluster.bootstrap, unique("lost")
        await make_topics(brokers, f"{name}-in", f"{name}-plain", f"{name}-out", partitions=1)
        changelog, folder = f"{name}--kept-changelog", tmp_path / "data"
        worker = WorkerProcess(MODULE, brokers, folder, APP_NAME=name).start()
        await eventually(lambda: "actor keep owns" in worker.log(), deadline_s=60, what=worker.log)
        for number in range(4):
            await send(brokers, f"{name}-in", [(b"key-%d" % number, b'"%d"' % number)], partitions=1)

            async def kept(count: int = number + 1) -> bool:
                return len(await folded(brokers, changelog)) == count

            await eventually(kept, deadline_s=60, what=worker.log)
        assert await asyncio.to_thread(worker.terminate) == 0
        whole = await folded(brokers, changelog)
        (third,) = [record.offset for record in await read_all(brokers, changelog) if record.key == b"key-2"]
        await asyncio.to_thread(cluster.stop, 1)
        truncate(cluster.data_dir(1) / f"{changelog}-0", third)
        await asyncio.to_thread(cluster.start, 1)
        left = await folded(brokers, changelog)
        assert len(left) == 2

        await run(worker, "the changelog ends at", 'lost_changelog="restore"', "actor keep is stopped on")
        assert await folded(brokers, changelog) == left, "nothing was written"
        restoring = WorkerProcess(MODULE, brokers, folder, APP_NAME=name, LOST_CHANGELOG="restore")
        await run(restoring, "wrote 2 keys back", "actor keep owns")
        assert await folded(brokers, changelog) == whole
        await run(worker, "actor keep owns")
        assert await folded(brokers, changelog) == whole
