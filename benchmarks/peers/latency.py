"""From the moment a record is given to the producer until a read-committed consumer has what came of it.

What the worker and the broker need meanwhile is measured too.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from actors._core.partitioner import partition_for
from benchmarks.peers.broker import Outputs, load, make_topics, producing
from benchmarks.peers.systems import Job
from benchmarks.peers.worker import Worker, connections, cpu_s

_TICK_S = 0.002
_READY_S = 300.0
_DRAIN_S = 20.0


@dataclass(frozen=True, slots=True)
class Latency:
    """One rate; times in milliseconds.

    Attributes:
        rate: Records per second that were sent.
        p50_ms: Half of the outputs came within this time.
        p99_ms: 99 of 100 did.
        came: The share of the records whose output came, 1.0 if the system keeps up.
        broker_cores: CPU seconds of the broker per second, for the worker and for the two clients that measure.
        worker_cores: CPU seconds of the worker per second.
        max_rss_mb: The most memory that the worker held so far, MiB.
        connections: From the worker to the broker, at the end.
        started_s: From the start of the process until an output of every partition could be read.
    """

    rate: int
    p50_ms: float
    p99_ms: float
    came: float
    broker_cores: float
    worker_cores: float
    max_rss_mb: float
    connections: int
    started_s: float


async def measure(job: Job, folder: Path, rates: Sequence[int], *, seconds: float, broker_pid: int) -> list[Latency]:
    """Send at each rate in turn to one worker; the first third of the time warms up and isn't counted."""
    await make_topics(job.brokers, job.source, job.target, partitions=job.partitions)
    await load(job.brokers, job.source, job.partitions, probes(job.partitions))
    worker = Worker(job, folder)
    outputs = await Outputs.open(job.brokers, job.target)
    try:
        worker.start()
        started_s = await _until_ready(job, worker, outputs)
        run = _Run(job, worker, outputs, seconds, broker_pid, started_s)
        return [await run.at(rate) for rate in rates]
    finally:
        worker.kill()
        await outputs.close()
        shutil.rmtree(folder, ignore_errors=True)


def probes(partitions: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield a record for each partition."""
    missing = set(range(partitions))
    for number in itertools.count():
        key = b"probe-%08d" % number
        if (home := partition_for(key, partitions)) in missing:
            missing.remove(home)
            yield key, _value()
        if not missing:
            return


async def _until_ready(job: Job, worker: Worker, outputs: Outputs) -> float:
    """Return the seconds until the probes of all partitions came through."""
    began_s = time.monotonic()
    came = 0
    async with asyncio.timeout(_READY_S):
        while came < job.partitions:
            worker.check()
            came += len(await outputs.more())
    return time.monotonic() - began_s


@dataclass(frozen=True, slots=True)
class _Run:
    """A worker that is ready."""

    job: Job
    worker: Worker
    outputs: Outputs
    seconds: float
    broker_pid: int
    started_s: float

    async def at(self, rate: int) -> Latency:
        """Send at a rate."""
        warm_ns = time.perf_counter_ns() + int(self.seconds / 3 * 1e9)
        deadline_s = time.monotonic() + self.seconds + _DRAIN_S
        found: list[tuple[int, int]] = []
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(self._send(rate))
            using = group.create_task(self._cores())
            while time.monotonic() < deadline_s and not (sending.done() and len(found) >= sending.result()):
                new = await self.outputs.more(wait_ms=100)
                now_ns = time.perf_counter_ns()
                found += [(int(output.value or b"0"), now_ns) for output in new]
        self.worker.check()
        took_ms = sorted((came_ns - sent_ns) / 1e6 for sent_ns, came_ns in found if sent_ns >= warm_ns)
        if not took_ms:
            raise RuntimeError(f"{self.job.system} sent nothing at {rate}/s")
        ports = {int(address.rpartition(":")[2]) for address in self.job.brokers.split(",")}
        broker_cores, worker_cores = using.result()
        return Latency(
            rate=rate,
            p50_ms=_share(took_ms, 0.5),
            p99_ms=_share(took_ms, 0.99),
            came=len(found) / sending.result(),
            broker_cores=broker_cores,
            worker_cores=worker_cores,
            max_rss_mb=self.worker.max_rss_mb,
            connections=connections(self.worker.pid, ports),
            started_s=self.started_s,
        )

    async def _cores(self) -> tuple[float, float]:
        """Return the CPU seconds per second of broker and worker, from when it is warm to the end of sending."""
        await asyncio.sleep(self.seconds / 3)
        began_s, broker_s, worker_s = time.monotonic(), cpu_s(self.broker_pid), self.worker.cpu_s
        await asyncio.sleep(self.seconds * 2 / 3)
        took_s = time.monotonic() - began_s
        return (cpu_s(self.broker_pid) - broker_s) / took_s, (self.worker.cpu_s - worker_s) / took_s

    async def _send(self, rate: int) -> int:
        sent = 0
        async with producing(self.job.brokers) as producer:
            began_s = time.monotonic()
            waiting = []
            while (elapsed_s := time.monotonic() - began_s) < self.seconds:
                for _ in range(int(elapsed_s * rate) - sent):
                    waiting.append(await producer.send(self.job.source, _value(), b"at-%05d-%08d" % (rate, sent)))
                    sent += 1
                await asyncio.sleep(_TICK_S)
            await asyncio.gather(*waiting)
        return sent


def _value() -> bytes:
    """100 bytes that say when."""
    return b"%0100d" % time.perf_counter_ns()


def _share(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
