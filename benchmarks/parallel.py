"""What key-parallel handlers are worth: they wait 5 ms, on 100 keys in one partition, one at a time and side by side.

A real broker and a real `faust worker` process; timed from the moment the worker owns the partition until the group has
committed every input.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from benchmarks.peers.broker import load, make_topics, start_cluster
from benchmarks.run_commands import measure, start_worker

KEYS = 100


@click.command()
@click.option("--one-at-a-time", default=2_000, show_default=True, help="Records for the run without concurrency.")
@click.option("--side-by-side", default=100_000, show_default=True, help="Records for the run with it.")
@click.option("--concurrency", default=100, show_default=True)
def main(one_at_a_time: int, side_by_side: int, concurrency: int) -> None:
    """Measure handlers that wait."""
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        with start_cluster(folder) as cluster:
            single = _run(cluster.bootstrap, folder, one_at_a_time, 1)
            many = _run(cluster.bootstrap, folder, side_by_side, concurrency)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report = {
        "one_at_a_time_per_s": round(single),
        f"{concurrency}_side_by_side_per_s": round(many),
        "times": round(many / single, 1),
    }
    click.echo(json.dumps(report))


def _run(brokers: str, folder: Path, records: int, concurrency: int) -> float:
    app = f"parallel{concurrency}"
    topic = f"{app}-input"

    async def fill() -> None:
        await make_topics(brokers, topic, partitions=1)
        await load(brokers, topic, 1, _records(records))

    asyncio.run(fill())
    environment = {
        **os.environ,
        "KAFKA_URL": f"kafka://{brokers}",
        "BENCH_APP": app,
        "BENCH_INPUT": topic,
        "BENCH_CONCURRENCY": str(concurrency),
    }
    worker = start_worker("benchmarks.parallel_app", folder / app, environment)
    try:
        seconds, _ = asyncio.run(measure(brokers, f"{app}-actors", topic, records, worker, partitions=1))
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(30)
    return records / seconds


def _records(count: int) -> Iterator[tuple[bytes, bytes]]:
    return ((b"key-%d" % (number % KEYS), b"x") for number in range(count))


if __name__ == "__main__":
    main()
