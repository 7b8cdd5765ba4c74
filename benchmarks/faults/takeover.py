"""A worker killed while it holds much state: how long until its successor sends something."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.broker import Group, Outputs, ends, load, make_topics
from benchmarks.peers.systems import Job
from benchmarks.peers.worker import Worker

BURST = 40_000
"""Records that are on their way when a busy worker is killed, and as many that wait for the next one."""
_WAIT_S = 600.0
_SETTLE_S = 0.1


@dataclass(frozen=True, slots=True)
class Takeover:
    """One of them, in seconds from the start of the new process, which is a moment after the kill.

    Attributes:
        cold: Whether the new process found an empty folder.
        first_s: Until its first committed output could be read.
        all_s: Until an output of every partition could be read.
        kill_to_first_s: As `first_s`, from the kill.
    """

    cold: bool
    first_s: float
    all_s: float
    kill_to_first_s: float


async def run(job: Job, folder: Path, keys: int, repeat: int, *, busy: bool) -> list[Takeover]:
    """Build a state of so many keys, then kill the worker again and again: on its folder, then on an empty one.

    A worker that is killed while `busy` leaves a transaction open, which the next one has to settle; one that is idle
    leaves none, so that what takes time is the restore.
    """
    await make_topics(job.brokers, job.source, job.target, partitions=job.partitions)
    await load(job.brokers, job.source, job.partitions, records(0, keys))
    worker = Worker(job, folder)
    worker.start()
    found = []
    try:
        await _until_done(job, worker)
        for number in range(2 * repeat):
            first = keys + number * 2 * BURST
            found.append(await _take_over(job, worker, first, cold=number % 2 == 1, busy=busy))
            await _until_done(job, worker)
    finally:
        worker.kill()
    return found


def records(first: int, count: int) -> Iterator[tuple[bytes, bytes]]:
    """Commands of 116 bytes, no two with the same key."""
    for number in range(first, first + count):
        yield b"command-%08d" % number, b"%0100d" % number


async def _take_over(job: Job, worker: Worker, first: int, *, cold: bool, busy: bool) -> Takeover:
    outputs = await Outputs.open(job.brokers, job.target)
    try:
        await outputs.to_end()
        async with asyncio.timeout(_WAIT_S):
            if busy:
                await load(job.brokers, job.source, job.partitions, records(first, BURST))
                while not await outputs.more():
                    worker.check()
            killed_s = time.monotonic()
            worker.kill()
            if cold:
                shutil.rmtree(worker.folder)
            started_s = time.monotonic()
            worker.start()
            await asyncio.sleep(_SETTLE_S)
            before = await ends(job.brokers, job.target)
            # So that every partition has something left to do, however far the burst was done.
            await load(job.brokers, job.source, job.partitions, records(first + BURST, BURST))
            first_s, all_s = await _until_all_sent(worker, outputs, before)
    finally:
        await outputs.close()
    return Takeover(cold, first_s - started_s, all_s - started_s, first_s - killed_s)


async def _until_all_sent(worker: Worker, outputs: Outputs, before: dict[int, int]) -> tuple[float, float]:
    """Return the times of the first output and of the last partition's first one."""
    waiting = set(before)
    first_s = 0.0
    while waiting:
        worker.check()
        new = [output for output in await outputs.more() if output.offset >= before[output.partition]]
        if new and not first_s:
            first_s = time.monotonic()
        waiting -= {output.partition for output in new}
    return first_s, time.monotonic()


async def _until_done(job: Job, worker: Worker) -> None:
    wanted = await ends(job.brokers, job.source)
    async with asyncio.timeout(_WAIT_S), Group.watching(job.brokers, job.group, job.source) as group:
        while await group.committed() != wanted:
            worker.check()
            await asyncio.sleep(0.1)
