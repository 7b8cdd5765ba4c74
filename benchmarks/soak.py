"""`python -m benchmarks.soak`: one worker at full speed for half an hour, its memory watched.

Every key is written once, then keys at random again and again: each message replaces the key's value of 100 bytes and
is forwarded. The input is kept filled, so the worker never waits for it; it shares the cores with the broker and the
producer. The last line is JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.console import Console

from benchmarks.peers.broker import Group, load, make_topics, start_cluster
from benchmarks.peers.systems import EXACTLY_ONCE, OURS, Job
from benchmarks.peers.tables import Table, write_readme
from benchmarks.peers.worker import Worker

PARTITIONS = 4
BACKLOG = 600_000
REFILL = 200_000
SAMPLE_S = 1.0
ROWS = 15
_COMMAND = ".venv/bin/python -m benchmarks.soak"
_RETENTION = {
    # Input and output are thrown away behind the worker; the backlog is a tenth of what is kept.
    "log.retention.bytes": str(512 << 20),
    "log.segment.bytes": str(64 << 20),
    "log.retention.check.interval.ms": "10000",
}
_progress = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Sample:
    """What was seen at a time: seconds since the start, inputs committed, and resident MiB of the worker."""

    at_s: float
    records: int
    rss_mb: float


@click.command()
@click.option("--minutes", default=30.0, show_default=True)
@click.option("--keys", default=10_000_000, show_default=True)
@click.option("--write", is_flag=True, help="Put the table into benchmarks/README.md.")
def main(minutes: float, keys: int, write: bool) -> None:
    """Watch the memory of a worker at full speed."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    try:
        with start_cluster(folder, overrides=_RETENTION) as cluster:
            samples = asyncio.run(_soak(cluster.bootstrap, folder, minutes * 60, keys))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    table = _table(samples, keys)
    table.show()
    if write:
        write_readme(table, _COMMAND)
    click.echo(json.dumps(_summary(samples, keys)))


async def _soak(brokers: str, folder: Path, seconds: float, keys: int) -> list[Sample]:
    job = Job(OURS, "table", EXACTLY_ONCE, brokers, "soak", "soak-in", "soak-out")
    await make_topics(brokers, job.source, job.target, partitions=PARTITIONS)
    worker = Worker(job, folder / "worker")
    commands = _commands(keys)
    sent = await load(brokers, job.source, PARTITIONS, itertools.islice(commands, BACKLOG))
    worker.start()
    samples: list[Sample] = []
    try:
        async with Group.watching(brokers, job.group, job.source) as group:
            watching = asyncio.create_task(_watch(group, worker, samples))
            try:
                while not samples or samples[-1].at_s < seconds:
                    worker.check()
                    if watching.done():
                        watching.result()
                    # So much as the worker does until the next look must be there beforehand.
                    if not samples or sent - samples[-1].records >= BACKLOG:
                        await asyncio.sleep(0.1)
                        continue
                    sent += await load(brokers, job.source, PARTITIONS, itertools.islice(commands, REFILL))
            finally:
                watching.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await watching
    finally:
        worker.kill()
    return samples


async def _watch(group: Group, worker: Worker, samples: list[Sample]) -> None:
    begun_s = shown_s = time.monotonic()
    while True:
        records = sum((await group.committed()).values())
        now_s = time.monotonic()
        samples.append(Sample(now_s - begun_s, records, worker.rss_mb))
        if now_s - shown_s >= 60.0:
            shown_s = now_s
            _progress.print(samples[-1])
        await asyncio.sleep(SAMPLE_S)


def _commands(keys: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield (key, value of 100 bytes): every key once, then any."""
    numbers = random.Random(1)
    for number in itertools.count():
        key = number if number < keys else numbers.randrange(keys)
        yield b"command-%08d" % key, b"%0100d" % number


def _table(samples: Sequence[Sample], keys: int) -> Table:
    title = (
        f"One worker at full speed, exactly once: {keys:,} keys with values of 100 bytes, each message replaces one "
        "and is forwarded; first each key once, then keys at random. Resident memory of the worker, the least and most "
        "in each span."
    )
    step = max(1, len(samples) // ROWS)
    rows = []
    for first in range(0, len(samples) - step, step):
        span = samples[first : first + step + 1]
        rows.append(
            (
                f"{span[0].at_s / 60:.0f} to {span[-1].at_s / 60:.0f} min",
                f"{span[-1].records / 1e6:,.1f}",
                f"{(span[-1].records - span[0].records) / (span[-1].at_s - span[0].at_s):,.0f}",
                f"{min(sample.rss_mb for sample in span):,.0f} to {max(sample.rss_mb for sample in span):,.0f}",
            )
        )
    return Table("soak", title, ("", "million records so far", "records/s", "resident MiB"), rows)


def _summary(samples: Sequence[Sample], keys: int) -> dict[str, object]:
    """Return the figures; the slope is that of a line through the second half."""
    half = samples[len(samples) // 2 :]
    slope = statistics.linear_regression([one.at_s / 3600 for one in half], [one.rss_mb for one in half]).slope
    return {
        "minutes": round(samples[-1].at_s / 60, 1),
        "keys": keys,
        "records": samples[-1].records,
        "records_per_s": round(samples[-1].records / samples[-1].at_s),
        "max_rss_mb": round(max(one.rss_mb for one in samples)),
        "second_half_mb_per_hour": round(slope, 1),
        "last": {name: round(value, 1) for name, value in asdict(samples[-1]).items()},
    }


main()
