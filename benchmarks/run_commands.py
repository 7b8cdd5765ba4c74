"""Records per second of the main job on one worker (`make bench`).

2 million run commands of 116 bytes, half of them repeats, 4 partitions, put-if-absent in RocksDB with a changelog, the
first of each forwarded. A real broker and a real `faust worker` process; timed from the moment the worker owns all
partitions until the group has committed every input. Beside it stands a loop that only fetches.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click
from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition

from benchmarks.peers.broker import load, make_topics, start_cluster
from benchmarks.peers.scenarios import half_repeats
from benchmarks.peers.worker import family_cpu_s

PARTITIONS = 4
DEADLINE_S = 300.0
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Result:
    """One run: records per second, and the worker's CPU seconds per million records."""

    records_per_s: float
    cpu_s_per_million: float
    max_rss_mb: float


@click.command()
@click.option("--records", default=2_000_000, show_default=True)
@click.option("--repeat", default=3, show_default=True)
@click.option("--profile", type=click.Path(), default=None, help="Write a py-spy profile (raw) of each run here.")
def main(records: int, repeat: int, profile: str | None) -> None:
    """Measure the main job."""
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        with start_cluster(folder) as cluster:
            asyncio.run(_load(cluster.bootstrap, "bench-input", records))
            plain = [asyncio.run(_plain_loop(cluster.bootstrap, records)) for _ in range(repeat)]
            results = []
            for number in range(repeat):
                results.append(_run(cluster.bootstrap, folder, number, records, profile))
                click.echo(f"run {number + 1}: {results[-1].records_per_s:,.0f} records/s", err=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rates = [result.records_per_s for result in results]
    report = {
        "records": records,
        "records_per_s": round(statistics.median(rates)),
        "min": round(min(rates)),
        "max": round(max(rates)),
        "worker_cpu_s_per_million": round(statistics.median(r.cpu_s_per_million for r in results), 2),
        "plain_getmany_per_s": round(statistics.median(plain)),
        "ratio_to_plain_getmany": round(statistics.median(rates) / statistics.median(plain), 3),
        "worker_max_rss_mb": round(max(r.max_rss_mb for r in results)),
    }
    click.echo(json.dumps(report))


async def _load(brokers: str, topic: str, records: int) -> None:
    """Each command twice: the repeats come after half of all records."""
    await make_topics(brokers, topic, partitions=PARTITIONS)
    await load(brokers, topic, PARTITIONS, half_repeats(records))


async def _plain_loop(brokers: str, records: int) -> float:
    """Return the records/s of a consumer that does nothing with them: the ratio to it is less moved by the machine."""
    consumer = AIOKafkaConsumer(bootstrap_servers=brokers, enable_auto_commit=False)
    await consumer.start()
    consumer.assign([TopicPartition("bench-input", number) for number in range(PARTITIONS)])
    await consumer.seek_to_beginning()
    began_s, left = time.monotonic(), records
    while left > 0:
        left -= sum(len(batch) for batch in (await consumer.getmany(timeout_ms=1000)).values())
    took_s = time.monotonic() - began_s
    await consumer.stop()
    return records / took_s


def _run(brokers: str, folder: Path, number: int, records: int, profile: str | None) -> Result:
    output, app = f"bench-output-{number}", f"bench{number}"
    asyncio.run(make_topics(brokers, output, partitions=PARTITIONS))
    environment = {
        **os.environ,
        "KAFKA_URL": f"kafka://{brokers}",
        "BENCH_APP": app,
        "BENCH_OUTPUT": output,
    }
    worker = start_worker("benchmarks.dedupe_app", folder / app, environment)
    spy = _spy(worker.pid, f"{profile}.{number}") if profile else None
    try:
        seconds, cpu_s = asyncio.run(measure(brokers, f"{app}-actors", "bench-input", records, worker))
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(30)
        if spy is not None:
            spy.wait(30)
    rss_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return Result(records / seconds, cpu_s / records * 1e6, rss_mb)


def start_worker(module: str, folder: Path, environment: Mapping[str, str], *more: str) -> subprocess.Popen[bytes]:
    """Start a worker of an app, with `more` options; its log is beside its data folder."""
    options = ["-A", module, "-D", str(folder), "worker", "--without-web", *more]
    with folder.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "faust", *options], cwd=ROOT, env=environment, stdout=log, stderr=log
        )


def _spy(pid: int, output: str) -> subprocess.Popen[bytes]:
    spy = str(Path(sys.executable).with_name("py-spy"))
    return subprocess.Popen([spy, "record", "-r", "200", "-f", "raw", "-o", output, "-p", str(pid)])


async def measure(
    brokers: str, group: str, topic: str, records: int, worker: subprocess.Popen[bytes], *, partitions: int = PARTITIONS
) -> tuple[float, float]:
    """Return the seconds, and the CPU seconds, from owning all partitions to having committed all records.

    CPU time is that of the worker and its processes.
    """
    consumer = AIOKafkaConsumer(bootstrap_servers=brokers, group_id=group, enable_auto_commit=False)
    await consumer.start()
    sources = [TopicPartition(topic, number) for number in range(partitions)]
    deadline_s = time.monotonic() + DEADLINE_S
    begun_s, begun_cpu_s = 0.0, 0.0
    try:
        while time.monotonic() < deadline_s:
            if worker.poll() is not None:
                raise RuntimeError(f"the worker ended with {worker.returncode}")
            offsets = [await consumer.committed(partition) for partition in sources]
            if not begun_s and None not in offsets:
                begun_s, begun_cpu_s = time.monotonic(), family_cpu_s(worker.pid)
            if sum(offset or 0 for offset in offsets) >= records:
                return time.monotonic() - begun_s, family_cpu_s(worker.pid) - begun_cpu_s
            await asyncio.sleep(0.05)
    finally:
        await consumer.stop()
    raise TimeoutError(f"not done within {DEADLINE_S} s")


if __name__ == "__main__":
    main()
