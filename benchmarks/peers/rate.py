"""Records per second, by one method for all systems: the group's committed offsets, as the coordinator tells them."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.peers.broker import Group, ends, make_topics
from benchmarks.peers.systems import Job
from benchmarks.peers.worker import Worker

_POLL_S = 0.02
_LEAST_SHARE = 0.5
"""A measurement that saw less than this share of all records is none."""


@dataclass(frozen=True, slots=True)
class Rate:
    """One run.

    Attributes:
        records_per_s: Records committed per second.
        cpu_s_per_million: CPU seconds of all workers, user and kernel, per million of those records.
        max_rss_mb: The most memory that one worker held, MiB.
        started_s: From the start of the processes until the measurement could begin.
        state_mb: What the state of all workers takes on disk when they have stopped, MiB; None where it isn't measured.
    """

    records_per_s: float
    cpu_s_per_million: float
    max_rss_mb: float
    started_s: float
    state_mb: float | None = None


async def measure(job: Job, folder: Path, workers: int, *, timeout_s: float, weighs_state: bool = False) -> Rate:
    """Run `workers` processes from nothing to the end of the input.

    The clock starts when the group has a committed offset, and with several workers when all of them are members and
    every partition has one; it stops when the offsets have reached the input's end. What was committed before the
    clock started doesn't count. With `weighs_state` the workers are stopped in an orderly way then, so that
    what they hold in memory is on disk.

    Raises:
        TimeoutError: it took longer than `timeout_s`.
        RuntimeError: a worker ended by itself, or most records were done before the clock started.
    """
    await make_topics(job.brokers, job.target, partitions=job.partitions)
    # Each a member of its own, and a state folder of its own.
    processes = [Worker(replace(job, instance=""), folder / f"worker-{number}") for number in range(workers)]
    try:
        async with asyncio.timeout(timeout_s):
            found = await _measure(job, processes)
        if not weighs_state:
            return found
        for process in processes:
            process.stop()
        return replace(found, state_mb=sum(process.state_mb for process in processes))
    finally:
        for process in processes:
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)


async def _measure(job: Job, processes: Sequence[Worker]) -> Rate:
    total = 0
    for topic in job.inputs:
        total += sum((await ends(job.brokers, topic)).values())
    launched_s = time.monotonic()
    for process in processes:
        process.start()
    async with contextlib.AsyncExitStack() as stack:
        groups = [
            await stack.enter_async_context(Group.watching(job.brokers, job.group, topic)) for topic in job.inputs
        ]
        begun = 1 if len(processes) == 1 else job.partitions
        while len(committed := await _committed(groups)) < begun or not await _has_members(groups[0], processes):
            await _pause(processes)
        begun_s, begun_cpu_s, already = time.monotonic(), _cpu_s(processes), sum(committed.values())
        if already > total * (1 - _LEAST_SHARE):
            raise RuntimeError(f"{already:,} of {total:,} records were done before the clock started: take more")
        while sum(committed.values()) < total:
            await _pause(processes)
            committed = await _committed(groups)
    seconds, counted = time.monotonic() - begun_s, total - already
    return Rate(
        records_per_s=counted / seconds,
        cpu_s_per_million=(_cpu_s(processes) - begun_cpu_s) / counted * 1e6,
        max_rss_mb=max(process.max_rss_mb for process in processes),
        started_s=begun_s - launched_s,
    )


async def _has_members(group: Group, processes: Sequence[Worker]) -> bool:
    return not processes[0].job.has_group or await group.has_members(len(processes))


async def _committed(groups: Sequence[Group]) -> dict[tuple[int, int], int]:
    """Return the offsets by input and partition."""
    found: dict[tuple[int, int], int] = {}
    for number, group in enumerate(groups):
        found |= {(number, partition): offset for partition, offset in (await group.committed()).items()}
    return found


async def _pause(processes: Sequence[Worker]) -> None:
    for process in processes:
        process.check()
    await asyncio.sleep(_POLL_S)


def _cpu_s(processes: Sequence[Worker]) -> float:
    return sum(process.cpu_s for process in processes)
