"""Standbys and warm-ups with real workers: who gets what when, and what a takeover has to read."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.kafka.helpers import WorkerProcess, eventually, make_topics, read_all, send, unique

MODULE = "tests.kafka.apps.standby_app"
PARTITIONS = 4
KEYS = 12_000
RESTORED_MOST = 2_000
"""Less than what each partition holds."""


class Group:
    """Workers of one app, and what was sent to it."""

    def __init__(self, brokers: str, folder: Path, workers: list[WorkerProcess], **environment: str) -> None:
        self.brokers, self.folder, self.workers = brokers, folder, workers
        self.environment = environment
        self.name = unique("standby")
        self.sent: Counter[bytes] = Counter()

    async def begin(self) -> WorkerProcess:
        """Start the first worker, and have it count each key once."""
        await make_topics(self.brokers, f"{self.name}-in", f"{self.name}-out", partitions=PARTITIONS)
        first = self.start()
        await self.send(KEYS)
        await self.all_counted()
        return first

    def start(self) -> WorkerProcess:
        number = len(self.workers)
        worker = WorkerProcess(MODULE, self.brokers, self.folder / f"w{number}", APP_NAME=self.name, **self.environment)
        self.workers.append(worker.start())
        return worker

    async def send(self, count: int) -> None:
        keys = [b"key-%05d" % number for number in range(count)]
        self.sent.update(keys)
        await send(self.brokers, f"{self.name}-in", [(key, b"x") for key in keys], partitions=PARTITIONS)

    async def all_counted(self) -> None:
        """Wait for an echo of each message, and see that each key was counted 1, 2, 3, …"""
        total = self.sent.total()
        records: list = []

        async def are_all_there() -> bool:
            records[:] = await read_all(self.brokers, f"{self.name}-out")
            return len(records) >= total

        await eventually(are_all_there, what=self.logs)
        seen: dict[bytes, list[int]] = {}
        for record in records:
            seen.setdefault(record.key, []).append(int(record.value))
        assert {key: list(range(1, count + 1)) for key, count in self.sent.items()} == seen

    def logs(self) -> str:
        return "\n---\n".join(worker.log()[-3000:] for worker in self.workers)


def owned(worker: WorkerProcess) -> list[int]:
    return [int(found) for found in re.findall(r"owns \S+-in\[(\d+)\] from offset", worker.log())]


def restored(log: str) -> int:
    return sum(int(found) for found in re.findall(r"-changelog\[\d+\]: restored (\d+) records", log))


async def warm_up(group: Group) -> WorkerProcess:
    """Start a cold worker, and see that it gets its share only when it is warm."""
    second = group.start()
    await eventually(lambda: len(set(owned(second))) == PARTITIONS // 2, what=group.logs)
    before, _, after = second.log().partition("warm copies, asking for a rebalance")
    assert after, "it never warmed up"
    assert "owns" not in before, "it got a partition although it was cold"
    assert restored(second.log()) < RESTORED_MOST
    return second


async def test_a_cold_worker_warms_up_and_takes_over_from_a_killed_one(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    group = Group(brokers, tmp_path, workers)
    first = await group.begin()
    assert len(owned(first)) == PARTITIONS
    second = await warm_up(group)
    await group.send(500)
    await group.all_counted()
    await eventually(lambda: second.log().count("is a standby") >= PARTITIONS // 2, what=group.logs)
    before = len(second.log())
    await group.send(KEYS // 3)
    first.kill()
    await group.all_counted()
    taken = second.log()[before:]
    assert len(set(re.findall(r"owns \S+-in\[(\d+)\]", taken))) == PARTITIONS
    assert restored(taken) < RESTORED_MOST, taken


@pytest.mark.parametrize("plant", ["ignore warmth"])
async def test_the_checks_see_an_assignment_that_ignores_warmth(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess], plant: str
) -> None:
    group = Group(brokers, tmp_path, workers, PLANT=plant)
    await group.begin()
    with pytest.raises(AssertionError, match=r"it never warmed up|although it was cold"):
        await warm_up(group)
