"""A changelog that is deleted, and created again or not, under a busy worker: nothing runs twice, no copy is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.kafka.helpers import (
    WorkerProcess,
    delete,
    eventually,
    make_topics,
    producing,
    read_all,
    topic_id,
    unique,
)

MODULE = "tests.kafka.apps.once_app"
COMPACTED = {"cleanup.policy": "compact"}
PARTITIONS = 2


class Keys:
    """An app's input: each key is sent once, by `busy` all the time, and then again by `repeat`."""

    def __init__(self, brokers: str, name: str) -> None:
        self.brokers = brokers
        self.name = name
        self.sent = 0

    async def send(self, count: int) -> None:
        """Send further keys."""
        async with producing(self.brokers) as producer:
            for number in range(self.sent, self.sent + count):
                await producer.send(f"{self.name}-in", b'"x"', b'"k%d"' % number)
            await producer.flush()
        self.sent += count

    @contextlib.asynccontextmanager
    async def busy(self) -> AsyncIterator[None]:
        """Send all the time."""

        is_over = asyncio.Event()

        async def on() -> None:
            while not is_over.is_set():
                await self.send(20)
                # Each key is sent and read back several times later.
                await asyncio.sleep(0.1)

        task = asyncio.create_task(on())
        try:
            yield
        finally:
            is_over.set()
            await task

    async def repeat(self) -> None:
        """Send all keys again, and a new one to see that they were handled."""
        sent, self.sent = self.sent, 0
        await self.send(sent)
        await self.send(PARTITIONS * 8)

    async def ran(self) -> Counter[bytes]:
        """How often each key ran."""
        return Counter(record.key for record in await read_all(self.brokers, f"{self.name}-out"))

    async def all_ran(self, worker: WorkerProcess) -> None:
        """Wait until all keys ran, and see that none ran twice."""

        async def done() -> bool:
            ran = await self.ran()
            assert max(ran.values(), default=0) <= 1, f"{sum(n > 1 for n in ran.values())} keys ran twice"
            return len(ran) == self.sent

        await eventually(done, deadline_s=90, what=worker.log)


async def new_app(brokers: str) -> tuple[Keys, str]:
    name = unique("once")
    await make_topics(brokers, f"{name}-in", f"{name}-out", partitions=PARTITIONS)
    return Keys(brokers, name), f"{name}--seen-changelog"


async def says(worker: WorkerProcess, *texts: str, times: int = 1) -> None:
    def said() -> bool:
        return all(worker.log().count(text) >= times for text in texts)

    await eventually(said, deadline_s=90, what=worker.log)


async def owns_all(worker: WorkerProcess) -> None:
    await says(worker, "actor once owns", times=PARTITIONS)


async def test_a_changelog_that_is_created_again_under_a_busy_worker_is_written_back(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    keys, changelog = await new_app(brokers)

    def worker(folder: str, log: str, **environment: str) -> WorkerProcess:
        made = WorkerProcess(MODULE, brokers, tmp_path / folder, APP_NAME=keys.name, **environment)
        made.log_file = tmp_path / f"{log}.log"
        workers.append(made)
        return made.start()

    first = worker("data", "first")
    await keys.send(300)
    await keys.all_ran(first)
    async with keys.busy():
        former = await delete(brokers, changelog)
        await make_topics(brokers, changelog, partitions=PARTITIONS, config=COMPACTED)
        await says(first, "actor once is stopped on", times=PARTITIONS)
    now = await topic_id(brokers, changelog)
    assert f"with the id {former}, and is the topic with the id {now} now" in first.log()
    assert 'lost_changelog="restore"' in first.log()
    assert await asyncio.to_thread(first.terminate) == 0

    refused = worker("data", "refused")
    assert await asyncio.to_thread(refused.wait, 60) != 0
    assert f"with the id {former}, and is the topic with the id {now} now" in refused.log()

    # One that has no copy doesn't begin without the state.
    empty = worker("empty", "empty", LOST_CHANGELOG="restore")
    await says(
        empty, "actor once is stopped on", "this worker has no copy of it", "the last owner is", times=PARTITIONS
    )
    assert await asyncio.to_thread(empty.terminate) == 0
    plain = worker("empty", "plain")
    await says(plain, "this worker has no copy of it", times=PARTITIONS)
    assert await asyncio.to_thread(plain.terminate) == 0

    restoring = worker("data", "restoring", LOST_CHANGELOG="restore")
    await owns_all(restoring)
    assert restoring.log().count("keys back that the topic had lost") == PARTITIONS
    await keys.repeat()
    await keys.all_ran(restoring)
    assert await asyncio.to_thread(restoring.terminate) == 0

    # From then on without the setting, on this disk and on others.
    for folder in ("data", "another"):
        later = worker(folder, f"later-{folder}")
        await owns_all(later)
        await keys.repeat()
        await keys.all_ran(later)
        assert await asyncio.to_thread(later.terminate) == 0


@pytest.mark.nightly
async def test_a_changelog_that_is_deleted_under_a_busy_worker_is_not_replaced_by_an_empty_one(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    keys, changelog = await new_app(brokers)

    def worker(log: str, **environment: str) -> WorkerProcess:
        made = WorkerProcess(MODULE, brokers, tmp_path / "data", APP_NAME=keys.name, **environment)
        made.log_file = tmp_path / f"{log}.log"
        workers.append(made)
        return made.start()

    first = worker("first")
    await keys.send(300)
    await keys.all_ran(first)
    async with keys.busy():
        former = await delete(brokers, changelog)
        # What all partitions meet is logged once a minute.
        await says(first, "isn't on the broker: it was deleted")
    assert await asyncio.to_thread(first.terminate) == 0

    refused = worker("refused")
    assert await asyncio.to_thread(refused.wait, 60) != 0
    assert f"with the id {former}, and was deleted" in refused.log()
    assert await topic_id(brokers, changelog) is None, "a start that is refused makes no topic"

    # As a broker would that creates topics by itself.
    await make_topics(brokers, changelog, partitions=1)
    misfit = worker("misfit", LOST_CHANGELOG="restore")
    assert await asyncio.to_thread(misfit.wait, 60) != 0
    assert "has cleanup.policy=delete" in misfit.log()
    await delete(brokers, changelog)

    restoring = worker("restoring", LOST_CHANGELOG="restore")
    await owns_all(restoring)
    await keys.repeat()
    await keys.all_ran(restoring)
    assert await asyncio.to_thread(restoring.terminate) == 0
    later = worker("later")
    await owns_all(later)
    await keys.repeat()
    await keys.all_ran(later)
    assert await asyncio.to_thread(later.terminate) == 0
