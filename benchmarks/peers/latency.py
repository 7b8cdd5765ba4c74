"""From the moment a record is given to the producer until a read-committed consumer has what came of it.

What the worker and the broker need meanwhile is measured too.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from actors._core.partitioner import partition_for
from benchmarks.peers.broker import Outputs, load, make_topics
from benchmarks.peers.systems import Job
from benchmarks.peers.worker import Worker, cpu_s
from dev import REPOSITORY

BEGUN = "begun"
"""The line with which the measuring client says that sending begins."""
_READY_S = 300.0
_CLIENT_S = 120.0
"""How much longer than it sends the measuring client may take."""
SHARES = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99, "p999_ms": 0.999, "max_ms": 1.0}
PHASES = {
    "fetched": "sent, until a fetch's response has it",
    "inbox": "until it is in its task's inbox",
    "handler": "until its handler begins",
    "handed_in": "until its task's commit begins: the transaction under way, and the rest after it",
    "begun": "until the transaction begins",
    "offsets": "offsets",
    "records": "records",
    "end": "end of the transaction",
    "readable": "until a read-committed consumer has its output",
}
"""The steps of a record and of its commit, each from the one before it."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What is sent, and where its results come.

    Attributes:
        rate: Records per second.
        seconds: How long they are sent.
    """

    brokers: str
    source: str
    target: str
    rate: int
    seconds: float


def value_of(sent_ns: int) -> bytes:
    """Return a value of 100 bytes that has the time at which it is sent."""
    return b"%0100d" % sent_ns


@dataclass(frozen=True, slots=True)
class Latency:
    """One rate; times in milliseconds.

    Attributes:
        rate: Records per second that were sent.
        p50_ms: Half of the outputs came within this time; `SHARES` has the others.
        came: The share of the records whose output came, 1.0 if the system keeps up.
        broker_cores: CPU seconds of the broker per second, for the worker and for the two clients that measure.
        worker_cores: CPU seconds of the worker per second.
        max_rss_mb: The most memory that the worker held so far, MiB.
        connections: From the worker to the broker, at the end.
        started_s: From the start of the process until an output of every partition could be read.
        phases: `SHARES` of the milliseconds of each of `PHASES`, if the job notes them.
    """

    rate: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    came: float
    broker_cores: float
    worker_cores: float
    max_rss_mb: float
    connections: int
    started_s: float
    phases: Mapping[str, Sequence[float]] = field(default_factory=dict)


async def measure(job: Job, folder: Path, rates: Sequence[int], *, seconds: float, broker_pid: int) -> list[Latency]:
    """Send at each rate in turn to one worker; the first third of the time warms up and isn't counted."""
    await make_topics(job.brokers, job.source, job.target, partitions=job.partitions)
    await load(job.brokers, job.source, job.partitions, probes(job.partitions))
    worker = Worker(job, folder)
    outputs = await Outputs.open(job.brokers, job.target)
    try:
        worker.start()
        started_s = await _until_ready(job, worker, outputs)
        await outputs.close()
        run = _Run(job, worker, seconds, broker_pid, started_s)
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
            yield key, value_of(time.perf_counter_ns())
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
    seconds: float
    broker_pid: int
    started_s: float

    async def at(self, rate: int) -> Latency:
        """Send at a rate."""
        traffic = Traffic(self.job.brokers, self.job.source, self.job.target, rate, self.seconds)
        sent, came_ns, cores = await self._sent(traffic)
        self.worker.check()
        if not came_ns:
            raise RuntimeError(f"{self.job.system} sent nothing at {rate}/s")
        warm_ns = min(came_ns) + int(self.seconds / 3 * 1e9)
        warm = {sent_ns: at_ns for sent_ns, at_ns in came_ns.items() if sent_ns >= warm_ns}
        ports = {int(address.rpartition(":")[2]) for address in self.job.brokers.split(",")}
        broker_cores, worker_cores = cores
        return Latency(
            rate=rate,
            **shares([(at_ns - sent_ns) / 1e6 for sent_ns, at_ns in warm.items()]),
            came=len(came_ns) / sent,
            broker_cores=broker_cores,
            worker_cores=worker_cores,
            max_rss_mb=self.worker.max_rss_mb,
            connections=self.worker.connections(ports),
            started_s=self.started_s,
            phases=phases(Path(self.job.phases), warm) if self.job.phases else {},
        )

    async def _sent(self, traffic: Traffic) -> tuple[int, dict[int, int], tuple[float, float]]:
        """Return how many records the client sent, by when each was sent when its output came, and the cores used."""
        command = [sys.executable, "-m", "benchmarks.peers.latency_client", json.dumps(asdict(traffic))]
        client = await asyncio.create_subprocess_exec(*command, cwd=REPOSITORY, stdout=PIPE, limit=1 << 30)
        if client.stdout is None:
            raise AssertionError("its output is a pipe")
        try:
            async with asyncio.timeout(self.seconds + _CLIENT_S):
                if (line := await client.stdout.readline()) != f"{BEGUN}\n".encode():
                    raise RuntimeError(f"the measuring client ended: {line!r}")
                cores = await self._cores()
                result = json.loads(await client.stdout.readline() or "null")
                await client.wait()
        finally:
            if client.returncode is None:
                client.kill()
        if result is None:
            raise RuntimeError(f"the measuring client ended with {client.returncode}")
        return result["sent"], dict(result["times_ns"]), cores

    async def _cores(self) -> tuple[float, float]:
        """Return the CPU seconds per second of broker and worker, from when it is warm to the end of sending."""
        await asyncio.sleep(self.seconds / 3)
        began_s, broker_s, worker_s = time.monotonic(), cpu_s(self.broker_pid), self.worker.cpu_s
        await asyncio.sleep(self.seconds * 2 / 3)
        took_s = time.monotonic() - began_s
        return (cpu_s(self.broker_pid) - broker_s) / took_s, (self.worker.cpu_s - worker_s) / took_s


def shares(values: Sequence[float]) -> dict[str, float]:
    """Return the `SHARES` of values."""
    ordered = sorted(values)
    return {name: ordered[min(len(ordered) - 1, int(len(ordered) * share))] for name, share in SHARES.items()}


def phases(path: Path, came_ns: Mapping[int, int]) -> dict[str, list[float]]:
    """Return the `SHARES` of the milliseconds of each of `PHASES`; `came_ns` has when outputs came, by time sent.

    `path` has the times that `benchmarks.peers.apps.phases` noted.
    """
    by_phase: dict[str, list[float]] = {name: [] for name in PHASES}
    for line in path.read_text().splitlines():
        commit, records = json.loads(line)
        for sent_ns, *steps in records:
            if sent_ns in came_ns:
                times = [sent_ns, *steps, *commit, came_ns[sent_ns]]
                for name, (before, after) in zip(PHASES, itertools.pairwise(times), strict=True):
                    by_phase[name].append((after - before) / 1e6)
    return {name: list(shares(values).values()) for name, values in by_phase.items() if values}
