"""What the looks of event time cost: a forwarder and windows behind it, with looks and without them.

    python -m benchmarks.backlog.looks

Records come at a fixed rate to all partitions of an input that is read with `by=`; no window closes meanwhile, so that
all runs have the same work. Measured are `--seconds` under that traffic and as many at rest. Runs of both kinds take
turns, after one that isn't counted: a broker that has just started compiles. The last line is JSON.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import click
from rich.console import Console
from rich.table import Table

from benchmarks.peers.broker import Group, ends, make_topics, producing, start_cluster
from benchmarks.peers.systems import OURS, Job
from benchmarks.peers.worker import Worker, cpu_s
from dev.kafka import Cluster

MODES = ("with", "without")
REQUESTS = 3
"""Of one look, with one broker: committed offsets, ends, topics."""
_SETTLE_S, _READY_S, _TICK_S = 5.0, 180.0, 0.1
Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class LooksJob(Job):
    """The row `windows_by` by `benchmarks.backlog.looks_app`; `looks` is one of `MODES`."""

    looks: str = ""

    def command(self, folder: Path) -> list[str]:
        """Return the worker's command line."""
        options = ["-A", "benchmarks.backlog.looks_app", "-D", str(folder), "worker", "-l", "info", "--without-web"]
        return [sys.executable, "-m", "faust", *options]

    def environment(self, folder: Path) -> dict[str, str]:
        """Return the worker's environment."""
        return {**super(LooksJob, self).environment(folder), "LOOKS": self.looks}


@click.command()
@click.option("--partitions", default=64, show_default=True, help="Of the input, and of the topic that is made of it.")
@click.option("--workers", default=4, show_default=True)
@click.option("--rate", default=2_000, show_default=True, help="Records per second.")
@click.option("--seconds", default=20, show_default=True, help="Of traffic, and of rest.")
@click.option("--repeat", default=3, show_default=True, help="Runs with looks and without; figures are medians.")
def main(partitions: int, workers: int, rate: int, seconds: int, repeat: int) -> None:
    """Measure looks."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    folder = Path(tempfile.mkdtemp(prefix="looks-"))
    runs: dict[str, list[dict[str, Figures]]] = {looks: [] for looks in MODES}
    try:
        overrides = {"group.initial.rebalance.delay.ms": "3000"}
        with start_cluster(folder, overrides=overrides) as cluster:
            for number, looks in enumerate([MODES[-1], *MODES * repeat]):
                app = f"looks-{number}-{looks}"
                figures = asyncio.run(_run(cluster, folder, app, looks, partitions, workers, rate, seconds))
                print(app, json.dumps(figures), file=sys.stderr)
                if number:
                    runs[looks].append(figures)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    results = {looks: _medians(of) for looks, of in runs.items()}
    table = Table("", *(f"{looks}, {when}" for looks in MODES for when in results[looks]))
    columns = [figures for runs in results.values() for figures in runs.values()]
    for name in columns[0]:
        table.add_row(name, *(f"{figures[name]:,.2f}" for figures in columns))
    Console().print(table)
    print(json.dumps(results))


def _medians(runs: Sequence[dict[str, Figures]]) -> dict[str, Figures]:
    return {
        when: {name: median(run[when][name] for run in runs) for name in figures} for when, figures in runs[0].items()
    }


async def _run(
    cluster: Cluster, folder: Path, app: str, looks: str, partitions: int, workers: int, rate: int, seconds: int
) -> dict[str, Figures]:
    brokers, broker_pid = cluster.bootstrap, cluster.pid(1)
    job = LooksJob(OURS, "windows_by", "exactly_once", brokers, app, f"{app}-in", f"{app}-out", looks=looks)
    await make_topics(brokers, job.source, job.target, partitions=partitions)
    processes = [Worker(job, folder / f"{app}-{number}") for number in range(workers)]
    try:
        for worker in processes:
            worker.start()
        async with (
            Group.watching(brokers, job.group, job.source) as group,
            producing(brokers, linger_ms=20) as producer,
        ):

            async def send(duration_s: float) -> None:
                began_s, count = time.monotonic(), 0
                while (passed_s := time.monotonic() - began_s) < duration_s:
                    while count < passed_s * rate:
                        user, place = f"user-{count % 9_973}".encode(), count % partitions
                        await producer.send(job.source, value=user, key=user, partition=place)
                        count += 1
                    await asyncio.sleep(_TICK_S)

            bound_s = time.monotonic() + _READY_S
            while not await group.has_members(workers) or len(await group.committed()) < partitions:
                if time.monotonic() > bound_s:
                    raise TimeoutError(f"not all partitions are handled after {_READY_S} s")
                await send(1.0)
            await send(_SETTLE_S)
            traffic = asyncio.create_task(send(seconds))
            busy = await _measured(job, group, processes, broker_pid, seconds)
            await traffic
            # Looks are ever less often at rest.
            await asyncio.sleep(3 * _SETTLE_S)
            return {"traffic": busy, "rest": await _measured(job, group, processes, broker_pid, seconds)}
    finally:
        for worker in processes:
            worker.stop()


async def _measured(
    job: LooksJob, group: Group, workers: Sequence[Worker], broker_pid: int | None, seconds: int
) -> Figures:
    """Return figures per second of all workers together, and of the broker."""
    assert broker_pid is not None

    async def sample() -> dict[str, float]:
        ends_of = await ends(job.brokers, f"{job.app}--work-{job.source}-repartition")
        looks = [_looks(worker) for worker in workers]
        return {
            "at": time.monotonic(),
            "records": sum((await group.committed()).values()),
            # Records and markers: a transaction has a marker in each partition that it writes to.
            "repartition offsets": sum(ends_of.values()),
            "looks": sum(count for count, _ in looks),
            "look CPU, ms": 1000 * sum(look_s for _, look_s in looks),
            "worker CPU, ms": 1000 * sum(worker.cpu_s for worker in workers),
            "broker CPU, ms": 1000 * cpu_s(broker_pid),
        }

    before = await sample()
    await asyncio.sleep(seconds)
    after = await sample()
    took_s = after["at"] - before["at"]
    figures = {f"{name}/s": (after[name] - before[name]) / took_s for name in before if name != "at"}
    return {"requests/s": REQUESTS * figures["looks/s"], **figures}


def _looks(worker: Worker) -> tuple[int, float]:
    """Return how many looks a worker had so far, and the CPU seconds of their own steps."""
    worker.check()
    file = Path(f"{worker.folder}.looks")
    count, look_s = (file.read_text() if file.exists() else "").split() or ("0", "0")
    return int(count), float(look_s)


if __name__ == "__main__":
    main()
