"""From the moment a record is given to the producer until a read-committed consumer has what came of it."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.broker import Outputs, make_topics, producing
from benchmarks.peers.systems import Job
from benchmarks.peers.worker import Worker

PARTITIONS = 4
_TICK_S = 0.002
_READY_S = 90.0
_DRAIN_S = 20.0
_PROBES = 50


@dataclass(frozen=True, slots=True)
class Latency:
    """One rate; times in milliseconds.

    Attributes:
        rate: Records per second that were sent.
        p50_ms: Half of the outputs came within this time.
        p99_ms: 99 of 100 did.
        came: The share of the records whose output came, 1.0 if the system keeps up.
    """

    rate: int
    p50_ms: float
    p99_ms: float
    came: float


async def measure(job: Job, folder: Path, rates: Sequence[int], *, seconds: float) -> list[Latency]:
    """Send at each rate in turn to one worker; the first third of the time warms up and isn't counted."""
    await make_topics(job.brokers, job.source, job.target, partitions=PARTITIONS)
    worker = Worker(job, folder)
    outputs = await Outputs.open(job.brokers, job.target)
    try:
        worker.start()
        await _until_ready(job, worker, outputs)
        return [await _at_rate(job, outputs, rate, seconds) for rate in rates]
    finally:
        worker.kill()
        await outputs.close()
        shutil.rmtree(folder, ignore_errors=True)


async def _until_ready(job: Job, worker: Worker, outputs: Outputs) -> None:
    """Wait until probes of every partition came through."""
    async with producing(job.brokers) as producer:
        for number in range(_PROBES):
            await producer.send_and_wait(job.source, _value(), b"probe-%08d" % number)
    came = 0
    async with asyncio.timeout(_READY_S):
        while came < _PROBES:
            worker.check()
            came += len(await outputs.more())


async def _at_rate(job: Job, outputs: Outputs, rate: int, seconds: float) -> Latency:
    warm_ns = time.perf_counter_ns() + int(seconds / 3 * 1e9)
    deadline_s = time.monotonic() + seconds + _DRAIN_S
    found: list[tuple[int, int]] = []
    sending = asyncio.create_task(_send(job, rate, seconds))
    try:
        while time.monotonic() < deadline_s and not (sending.done() and len(found) >= sending.result()):
            new = await outputs.more(wait_ms=100)
            now_ns = time.perf_counter_ns()
            found += [(int(output.value or b"0"), now_ns) for output in new]
        sent = await sending
    finally:
        sending.cancel()
    took_ms = sorted((came_ns - sent_ns) / 1e6 for sent_ns, came_ns in found if sent_ns >= warm_ns)
    if not took_ms:
        raise RuntimeError(f"{job.system} sent nothing at {rate}/s")
    return Latency(rate, _share(took_ms, 0.5), _share(took_ms, 0.99), len(found) / sent)


async def _send(job: Job, rate: int, seconds: float) -> int:
    sent = 0
    async with producing(job.brokers) as producer:
        began_s = time.monotonic()
        waiting = []
        while (elapsed_s := time.monotonic() - began_s) < seconds:
            for _ in range(int(elapsed_s * rate) - sent):
                waiting.append(await producer.send(job.source, _value(), b"at-%05d-%08d" % (rate, sent)))
                sent += 1
            await asyncio.sleep(_TICK_S)
        await asyncio.gather(*waiting)
    return sent


def _value() -> bytes:
    """100 bytes that say when."""
    return b"%0100d" % time.perf_counter_ns()


def _share(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
