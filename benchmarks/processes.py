"""What `faust worker --processes` is worth: the main job on one worker, under a supervisor, and on two processes.

    python -m benchmarks.processes

The commands and partitions are those of `make bench`, the same for all runs of one broker; the kinds of runs take
turns. A group begins when nobody has joined for 3 s, so that both processes are there from the first assignment. Timed
from then until the group has committed every input.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import statistics
import tempfile
from pathlib import Path

import click

from benchmarks.peers.broker import load, make_topics, start_cluster
from benchmarks.peers.scenarios import half_repeats
from benchmarks.peers.worker import cpu_s
from benchmarks.run_commands import measure, start_worker
from dev.kafka import Cluster

TOPIC = "bench-input"
KINDS = {"one_worker": (), "processes_1": ("--processes", "1"), "processes_2": ("--processes", "2")}


@click.command()
@click.option("--records", default=2_000_000, show_default=True)
@click.option("--partitions", default=4, show_default=True)
@click.option("--repeat", default=3, show_default=True)
def main(records: int, partitions: int, repeat: int) -> None:
    """Measure how a worker's processes scale."""
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    try:
        with start_cluster(folder, overrides={"group.initial.rebalance.delay.ms": "3000"}) as cluster:
            asyncio.run(_load(cluster.bootstrap, records, partitions))
            for number in range(repeat):
                for kind in KINDS:
                    found[kind].append(_run(cluster, folder, kind, number, records, partitions))
                    click.echo(f"{kind}: {found[kind][-1]['records_per_s']:,.0f} records/s", err=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report = {
        kind: {name: statistics.median(run[name] for run in runs) for name in runs[0]} for kind, runs in found.items()
    }
    ratio = statistics.median(
        two["records_per_s"] / one["records_per_s"]
        for one, two in zip(found["one_worker"], found["processes_2"], strict=True)
    )
    given = {"records": records, "partitions": partitions, "repeat": repeat}
    click.echo(json.dumps({**given, **report, "two_processes_to_one_worker": round(ratio, 3)}))


async def _load(brokers: str, records: int, partitions: int) -> None:
    await make_topics(brokers, TOPIC, partitions=partitions)
    await load(brokers, TOPIC, partitions, half_repeats(records))


def _run(cluster: Cluster, folder: Path, kind: str, number: int, records: int, partitions: int) -> dict[str, float]:
    """Return the rate, and the CPU seconds per million records of the workers and of the broker."""
    app, output, broker = f"{kind.replace('_', '')}n{number}", f"bench-output-{kind}-{number}", cluster.pid(1)
    asyncio.run(make_topics(cluster.bootstrap, output, partitions=partitions))
    environment = {
        **os.environ,
        "KAFKA_URL": f"kafka://{cluster.bootstrap}",
        "BENCH_APP": app,
        "BENCH_OUTPUT": output,
    }
    if broker is None:
        raise RuntimeError("the broker has ended")
    worker = start_worker("benchmarks.dedupe_app", folder / app, environment, *KINDS[kind])
    broker_s = cpu_s(broker)
    try:
        measured = measure(cluster.bootstrap, f"{app}-actors", TOPIC, records, worker, partitions=partitions)
        seconds, workers_s = asyncio.run(measured)
        broker_s = cpu_s(broker) - broker_s
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(30)
    return {
        "records_per_s": round(records / seconds),
        "workers_cpu_s_per_million": round(workers_s / records * 1e6, 2),
        "broker_cpu_s_per_million": round(broker_s / records * 1e6, 2),
    }


if __name__ == "__main__":
    main()
