"""What a rebalance stops: only what moves, for no longer than a takeover takes."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer

from actors._core.partitioner import partition_for
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, producing, unique

MODULE = "tests.kafka.apps.counter_app"
PARTITIONS = 6
PACE_S = 0.005
SESSION_S = 6.0
SHORT_PAUSE_S = 0.4
"""Of a partition that doesn't move, on a machine that does little else. The goal is 0.1 s, and this figure has more in
it: the worker that joins starts a Python process, and a reader sees a whole commit interval at once."""
SHARE_OF_A_MOVE = 0.6
"""On a busy machine everything takes longer, also what must not wait. What tells the two apart there is the pause of
the partitions that moved in the same rebalance: one that stays waits for much less."""
LONGEST_PAUSE_S = 2.0
"""On any machine: a death is noticed only after the session, so its moves are no measure."""
TIMES_CALM = 3.0
"""And where no process starts, that is when a worker leaves or dies, what stays pauses for not much longer than it does
in the same run while nothing changes, whatever else the machine does."""
CALM_S = 4.0
LONGEST_TAKEOVER_S = SESSION_S + 4.0


class Flow:
    """A steady flow of records through an app, one key a partition, and when each output became visible."""

    def __init__(self, brokers: str, folder: Path, workers: list[WorkerProcess]) -> None:
        self.name = unique("rebalances")
        self.seen_s: dict[int, list[float]] = defaultdict(list)
        self.values: dict[int, list[int]] = defaultdict(list)
        self._brokers, self._folder, self._workers = brokers, folder, workers

    @contextlib.asynccontextmanager
    async def flowing(self) -> AsyncIterator[Flow]:
        await make_topics(self._brokers, f"{self.name}-in", f"{self.name}-out", partitions=PARTITIONS)
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self._send()), tasks.create_task(self._watch())]
            yield self
            for task in running:
                task.cancel()

    async def _send(self) -> None:
        keys: dict[int, bytes] = {}
        for number in range(1000):
            keys.setdefault(partition_for(b"%d" % number, PARTITIONS), b"%d" % number)
        async with producing(self._brokers) as producer:
            while True:
                for partition, key in keys.items():
                    await producer.send(f"{self.name}-in", b"x", key, partition=partition)
                await asyncio.sleep(PACE_S)

    async def _watch(self) -> None:
        consumer = AIOKafkaConsumer(
            f"{self.name}-out", bootstrap_servers=self._brokers, isolation_level="read_committed"
        )
        await consumer.start()
        try:
            while True:
                for partition, records in (await consumer.getmany(timeout_ms=200)).items():
                    self.seen_s[partition.partition].append(time.monotonic())
                    self.values[partition.partition] += [int(record.value.split(b":")[0]) for record in records]
        finally:
            await consumer.stop()

    def worker(self, number: int) -> WorkerProcess:
        worker = WorkerProcess(MODULE, self._brokers, self._folder / f"w{number}", APP_NAME=self.name)
        self._workers.append(worker.start())
        return worker

    def takeovers(self) -> dict[int, int]:
        """How often each partition was taken over."""
        found: dict[int, int] = defaultdict(int)
        for worker in self._workers:
            for partition in re.findall(r"owns \S+-in\[(\d+)\]", worker.log()):
                found[int(partition)] += 1
        return found

    async def settled(self, *workers: WorkerProcess) -> None:
        """Wait until these workers have had all partitions for a while, and outputs of all come."""

        while True:
            before, since_s = [self.rebalances(worker) for worker in workers], time.monotonic() + 1.5
            await eventually(lambda since=since_s: self._flows(since), deadline_s=60, what=self.takeovers)
            if [self.rebalances(worker) for worker in workers] == before:
                return

    @staticmethod
    def rebalances(worker: WorkerProcess) -> int:
        """In how many generations of the group a worker was."""
        return worker.log().count("Successfully synced group")

    def _flows(self, since_s: float) -> bool:
        return all(self.seen_s[number] and self.seen_s[number][-1] > since_s for number in range(PARTITIONS))

    async def pauses(self, change: Callable[[], Awaitable[object]]) -> tuple[dict[int, float], dict[int, float]]:
        """Make a change; return the longest pauses of partitions that stayed, and of those that moved."""
        before, since_s = self.takeovers(), time.monotonic()
        await change()
        moved = {number for number, count in self.takeovers().items() if count > before[number]}
        longest = {}
        for number, seen in self.seen_s.items():
            times = [since_s, *(at for at in seen if at > since_s)]
            longest[number] = max(later - earlier for earlier, later in pairwise(times))
        stayed = {number: pause for number, pause in longest.items() if number not in moved}
        return stayed, {number: longest[number] for number in moved}

    async def calm_s(self) -> float:
        """Return the longest pause of any partition while nothing changes."""
        until_s = time.monotonic() + CALM_S
        stayed, _ = await self.pauses(lambda: eventually(lambda: time.monotonic() > until_s))
        return max(stayed.values())

    def is_exact(self) -> bool:
        return all(
            values == list(range(values[0], values[0] + len(values))) for values in self.values.values() if values
        )


@pytest.mark.nightly
async def test_a_partition_that_stays_goes_on_while_a_worker_joins_leaves_and_dies(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    async with Flow(brokers, tmp_path, workers).flowing() as flow:
        first, second = flow.worker(0), flow.worker(1)
        await flow.settled(first, second)

        async def join() -> None:
            third = flow.worker(len(workers))
            await eventually(lambda: "owns" in third.log(), deadline_s=60, what=third.log)
            await flow.settled(first, second, third)

        async def leave() -> None:
            await asyncio.to_thread(workers[-1].terminate)
            await flow.settled(first, second)

        async def die() -> None:
            before = flow.rebalances(first)
            workers[-1].kill()
            await eventually(lambda: flow.rebalances(first) > before, deadline_s=60)
            await flow.settled(first, second)
            assert flow.rebalances(first) == before + 1

        calm_s = 0.0
        for change in (join, leave, join, die):
            calm_s = max(calm_s, await flow.calm_s())
            stayed, moved = await flow.pauses(change)
            print(
                f"{change.__name__}: pauses of what stayed {_shown(stayed)}, of what moved {_shown(moved)}, "
                f"while nothing changes {calm_s:.3f} s"
            )
            assert len(stayed) >= PARTITIONS // 2, workers[0].log()[-3000:]
            limit_s = min(LONGEST_PAUSE_S, SHARE_OF_A_MOVE * max(moved.values()))
            if change is not join:
                limit_s = min(limit_s, TIMES_CALM * calm_s)
            assert max(stayed.values()) < max(SHORT_PAUSE_S, limit_s)
            assert max(moved.values()) < LONGEST_TAKEOVER_S
        assert flow.is_exact()


def _shown(pauses: dict[int, float]) -> str:
    return ", ".join(f"{number}: {pause:.3f} s" for number, pause in sorted(pauses.items())) or "none"
