"""What queries cost the main job: its records/s and CPU with and without 500 questions a second.

The main job of `benchmarks.run_commands` on one worker, with a web server, in pairs: without and with
`benchmarks.queries_asker`, a program that asks for keys at a fixed rate.

    python -m benchmarks.queries --pairs 3
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.peers.broker import make_topics
from benchmarks.run_commands import PARTITIONS, ROOT, _load, measure, start_cluster
from dev.kafka import free_port


@dataclass(frozen=True, slots=True)
class Run:
    """One run: records/s, the worker's CPU seconds per million records, and what was asked meanwhile."""

    records_per_s: float
    cpu_s_per_million: float
    asked: dict[str, float]


@click.command()
@click.option("--records", default=2_000_000, show_default=True)
@click.option("--pairs", default=3, show_default=True)
@click.option("--rate", default=500, show_default=True, help="Questions per second.")
@click.option("--many", default=0, show_default=True, help="Ask for so many keys at once with each question.")
def main(records: int, pairs: int, rate: int, many: int) -> None:
    """Measure the main job with and without questions."""
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    without: list[Run] = []
    with_questions: list[Run] = []
    try:
        with start_cluster(folder) as cluster:
            asyncio.run(_load(cluster.bootstrap, "bench-input", records))
            for number in range(2 * pairs):
                # Each pair in the other order than the one before.
                asks = number % 4 in (1, 2)
                run = _run(cluster.bootstrap, folder, number, records, rate if asks else 0, many)
                (with_questions if asks else without).append(run)
                click.echo(f"{'with' if asks else 'without'}: {run}", err=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    ratios = [b.records_per_s / a.records_per_s for a, b in zip(without, with_questions, strict=True)]
    report = {
        "records": records,
        "rate": rate,
        "many": many,
        "records_per_s_without": [round(run.records_per_s) for run in without],
        "records_per_s_with": [round(run.records_per_s) for run in with_questions],
        "median_ratio": round(statistics.median(ratios), 3),
        "cpu_s_per_million_without": [round(run.cpu_s_per_million, 2) for run in without],
        "cpu_s_per_million_with": [round(run.cpu_s_per_million, 2) for run in with_questions],
        "asked": [run.asked for run in with_questions],
    }
    click.echo(json.dumps(report))


def _run(brokers: str, folder: Path, number: int, records: int, rate: int, many: int) -> Run:
    output, app, port = f"bench-output-{number}", f"bench{number}", free_port()
    asyncio.run(make_topics(brokers, output, partitions=PARTITIONS))
    environment = {
        **os.environ,
        "KAFKA_URL": f"kafka://{brokers}",
        "BENCH_APP": app,
        "BENCH_OUTPUT": output,
        "BENCH_GUARANTEE": "exactly_once",
        "WEB_PORT": str(port),
    }
    command = [sys.executable, "-m", "faust", "-A", "benchmarks.dedupe_app", "-D", str(folder / app)]
    with (folder / f"{app}.log").open("wb") as log:
        worker = subprocess.Popen([*command, "worker", "--with-web"], cwd=ROOT, env=environment, stdout=log, stderr=log)
    asker = _start_asking(port, rate, many) if rate else None
    try:
        seconds, cpu_s = asyncio.run(measure(brokers, f"{app}-actors", "bench-input", records, worker))
    finally:
        asked = _stop_asking(asker)
        worker.send_signal(signal.SIGTERM)
        worker.wait(30)
    return Run(records / seconds, cpu_s / records * 1e6, asked)


def _start_asking(port: int, rate: int, many: int) -> subprocess.Popen[bytes]:
    arguments = [str(port), str(rate), str(many)]
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.queries_asker", *arguments], cwd=ROOT, stdout=subprocess.PIPE
    )


def _stop_asking(asker: subprocess.Popen[bytes] | None) -> dict[str, float]:
    if asker is None:
        return {}
    asker.send_signal(signal.SIGTERM)
    output, _ = asker.communicate(timeout=30)
    found: dict[str, float] = json.loads(output)
    return found


if __name__ == "__main__":
    main()
