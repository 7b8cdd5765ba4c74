"""State whose keys or folders move: records of another number of partitions, and swapped data folders."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from actors._core.partitioner import partition_for
from tests.kafka.helpers import (
    WorkerProcess,
    add_partitions,
    eventually,
    make_topics,
    producing,
    read_all,
    send,
    unique,
)

MODULE = "tests.kafka.apps.grown_app"
KEYS = [b"key-%d" % number for number in range(5_000)]


async def said(brokers: str, name: str) -> Counter[tuple[bytes, bytes]]:
    return Counter((record.key, record.value.strip(b'"')) for record in await read_all(brokers, f"{name}-out"))


async def running(brokers: str, name: str, folder: Path, partitions: int) -> WorkerProcess:
    worker = WorkerProcess(MODULE, brokers, folder, APP_NAME=name, SAYS="1").start()
    await eventually(lambda: worker.log().count(f"actor keep owns {name}-in") == partitions, what=worker.log)
    return worker


async def test_repeats_that_are_placed_by_more_partitions_run_nowhere_as_the_first(
    brokers: str, tmp_path: Path
) -> None:
    """The worker is busy with records of producers that don't know of the new partitions yet."""
    name = unique("grew")
    await make_topics(brokers, f"{name}-in", partitions=4)
    await make_topics(brokers, f"{name}-plain", f"{name}-out", partitions=1)
    worker = await running(brokers, name, tmp_path / "data", 4)
    try:
        await send(brokers, f"{name}-in", [(key, b'"a"') for key in KEYS], partitions=4)
        firsts = {(key, b"first"): 1 for key in KEYS}

        async def all_ran() -> bool:
            return dict(await said(brokers, name)) == firsts

        await eventually(all_ran, what=worker.log)
        await add_partitions(brokers, f"{name}-in", total=6)
        async with producing(brokers) as producer:
            for number, key in enumerate(KEYS):
                # One producer knows of the new partitions, the other one doesn't.
                new = b"new-%d" % number
                await producer.send(f"{name}-in", b'"b"', new, partition=partition_for(new, 4))
                await producer.send(f"{name}-in", b'"b"', key, partition=partition_for(key, 6))
        await eventually(lambda: worker.log().count("actor keep is stopped on") >= 4, what=worker.log)
        grown = f"topic {name}-in, the input of actor keep, was given more partitions than 4, it has 6"
        await eventually(lambda: grown in worker.log(), what=worker.log)
        assert "No record was handled in another partition than its key's state" in worker.log()
        found = await said(brokers, name)
        assert [key for key in KEYS if found[key, b"first"] != 1] == []
    finally:
        assert worker.terminate() == 0


@pytest.mark.nightly
async def test_swapped_folders_stop_their_partitions_until_they_are_moved_back(brokers: str, tmp_path: Path) -> None:
    name, data = unique("swapped"), tmp_path / "data"
    await make_topics(brokers, f"{name}-in", partitions=2)
    await make_topics(brokers, f"{name}-plain", f"{name}-out", partitions=1)
    keys = KEYS[:200]

    async def ran(runs: int) -> bool:
        return sum((await said(brokers, name)).values()) == runs

    worker = await running(brokers, name, data, 2)
    await send(brokers, f"{name}-in", [(key, b'"a"') for key in keys])
    await eventually(lambda: ran(len(keys)), what=worker.log)
    assert worker.terminate() == 0

    def swap() -> None:
        store = next(data.glob("**/stores/kept"))
        (store / "0").rename(store / "moved")
        (store / "1").rename(store / "0")
        (store / "moved").rename(store / "1")

    swap()
    worker = WorkerProcess(MODULE, brokers, data, APP_NAME=name, SAYS="1").start()
    await send(brokers, f"{name}-in", [(key, b'"b"') for key in keys])
    await eventually(lambda: worker.log().count("actor keep is stopped on") == 2, what=worker.log)
    assert worker.terminate() == 0
    for number in (0, 1):
        text = f"is of store kept, partition {1 - number} (app {name}, cluster "
        assert text in worker.log()
        assert f"belongs to store kept, partition {number} (app {name}, cluster " in worker.log()
    assert await ran(len(keys))

    swap()
    worker = await running(brokers, name, data, 2)
    await eventually(lambda: ran(2 * len(keys)), what=worker.log)
    assert worker.terminate() == 0
    assert set((await said(brokers, name)).values()) == {1}
