"""Increments while the worker is killed again and again: what a reader of the committed outputs sees in the end."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aiokafka.errors import UnknownTopicOrPartitionError

from benchmarks.faults.verdict import Verdict, fold, judge
from benchmarks.peers.broker import Group, Output, Outputs, ends, load, make_topics, read_committed
from benchmarks.peers.systems import Job
from benchmarks.peers.worker import Worker

PARTITIONS = 4
READ_S = 20.0
"""How long the outputs and the changelog may take to be read at the end."""
MAX_ENDS = 10
"""A worker that ends by itself so often won't go on."""
_SETTLE_S = 0.1
"""What a killed process had on its way to the broker has arrived by then."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What is sent, and when the worker is killed.

    Attributes:
        inputs: How many increments.
        keys: Over how many keys, which take turns.
        key_bytes: How long a key is.
        kill_after: The worker is killed when a reader has so many outputs.
        kill_delay_s: And so many seconds later, to be in the middle of the next commit interval.
        bound_s: After so many seconds the run is over.
    """

    inputs: int = 60_000
    keys: int = 1_000
    key_bytes: int = 16
    kill_after: Sequence[int] = (5_000, 25_000, 45_000)
    kill_delay_s: float = 0.0
    bound_s: float = 120.0

    def records(self) -> Iterator[tuple[bytes, bytes]]:
        """The increments, the keys taking turns."""
        for number in range(self.inputs):
            yield b"%0*d" % (self.key_bytes, number % self.keys), b"%0100d" % number


@dataclass(slots=True)
class Run:
    """What happened.

    Attributes:
        kills: How many of the kills were made; fewer than planned if progress ended before.
        slowest_s: The most seconds from a kill until an output of the next process could be read; None if one never
            came.
        ended_itself: How often the worker ended without being killed, and was started again.
        finished_s: Seconds until all inputs were committed; None if they weren't in time.
    """

    kills: int = 0
    slowest_s: float | None = 0.0
    ended_itself: int = 0
    finished_s: float | None = None
    verdict: Verdict | None = None


@dataclass(slots=True)
class _Kill:
    at_s: float
    before: dict[int, int]


@dataclass(slots=True)
class _Watch:
    outputs: Outputs
    seen: list[Output] = field(default_factory=list)

    async def more(self) -> list[Output]:
        new = await self.outputs.more()
        self.seen += new
        return new


async def run(job: Job, folder: Path, workload: Workload) -> Run:
    """Send all increments, run one worker and kill it, judge what came out."""
    await make_topics(job.brokers, job.source, job.target, partitions=PARTITIONS)
    await load(job.brokers, job.source, PARTITIONS, workload.records())
    worker = Worker(job, folder)
    watch = _Watch(await Outputs.open(job.brokers, job.target))
    found = Run()
    try:
        await _work(job, worker, watch, workload, found)
        worker.stop()
        await _read_rest(job, watch)
    finally:
        worker.kill()
        await watch.outputs.close()
    state = await _state(job)
    inputs: defaultdict[bytes, list[int]] = defaultdict(list)
    for key, value in workload.records():
        inputs[key].append(int(value))
    found.verdict = judge(inputs, [_told(output) for output in watch.seen], state)
    return found


def _told(output: Output) -> tuple[bytes, int, int]:
    count, _, number = (output.value or b"0:-1").partition(b":")
    return output.key, int(count), int(number)


async def _work(job: Job, worker: Worker, watch: _Watch, workload: Workload, found: Run) -> None:
    wanted = await ends(job.brokers, job.source)
    began_s = time.monotonic()
    worker.start()
    kill: _Kill | None = None
    async with Group.watching(job.brokers, job.group, job.source) as group:
        while time.monotonic() < began_s + workload.bound_s:
            new = await watch.more()
            if kill is not None and any(output.offset >= kill.before[output.partition] for output in new):
                found.slowest_s = max(found.slowest_s or 0.0, time.monotonic() - kill.at_s)
                kill = None
            if not worker.is_running:
                found.ended_itself += 1
                if found.ended_itself >= MAX_ENDS:
                    if not watch.seen:
                        worker.check()
                    break
                worker.start()
                await asyncio.sleep(1.0)
            due = found.kills < len(workload.kill_after) and len(watch.seen) >= workload.kill_after[found.kills]
            if kill is None and due:
                await asyncio.sleep(workload.kill_delay_s)
                kill = await _kill(job, worker)
                found.kills += 1
            elif not new and await group.committed() == wanted:
                found.finished_s = time.monotonic() - began_s
                break
    if kill is not None and found.finished_s is None:
        found.slowest_s = None


async def _kill(job: Job, worker: Worker) -> _Kill:
    at_s = time.monotonic()
    worker.kill()
    worker.start()
    await asyncio.sleep(_SETTLE_S)
    return _Kill(at_s, await ends(job.brokers, job.target))


async def _read_rest(job: Job, watch: _Watch) -> None:
    """Read on to the end, or as far as an open transaction lets a reader get."""
    wanted = await ends(job.brokers, job.target)
    deadline_s = time.monotonic() + READ_S
    while not await watch.outputs.is_past(wanted) and time.monotonic() < deadline_s:
        await watch.more()


async def _state(job: Job) -> dict[bytes, int] | None:
    try:
        records = await read_committed(job.brokers, job.changelog, patience_s=READ_S)
    except UnknownTopicOrPartitionError:
        return None
    if records is None:
        return None
    # A key has one partition, so the order across partitions doesn't matter.
    ordered = sorted(records, key=lambda record: (record.partition, record.offset))
    return fold(
        (job.read_key(record.key), None if record.value is None else job.read_count(record.value)) for record in ordered
    )
