"""Restoring a store from its changelog beside restoring it from a snapshot: the same worker, an empty disk.

A changelog of N keys is written in batches, and `python -m spark_replay snapshot` makes a snapshot of it in a folder;
with `--by-worker` a worker does, in a bucket of moto's S3 server on this machine. A worker starts on an empty folder,
with and without the snapshot, and on a folder that has everything. The clock runs from the start of the process to its
owning all partitions; what a start costs with everything there is taken off for the restore's own time.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import click

from benchmarks.peers.broker import load, make_topics, start_cluster
from stores._core.record import encode_metadata
from tests.s3 import running_s3

PARTITIONS = 4
DEADLINE_S = 600.0
POLL_S = 0.01
APP = "snapshotbench"
CHANGELOG = f"{APP}--seen-changelog"
ROOT = Path(__file__).resolve().parents[1]
POOL = random.Random(1).randbytes(1 << 20)


@click.command()
@click.option("--keys", default=10_000_000, show_default=True)
@click.option("--repeat", default=3, show_default=True)
@click.option("--incompressible", is_flag=True, help="Values of random bytes instead of 100 digits.")
@click.option("--by-worker", is_flag=True, help="A worker writes the snapshot to object storage, not Spark.")
def main(keys: int, repeat: int, incompressible: bool, by_worker: bool) -> None:
    """Measure restores of N keys of 16 bytes with values of 100 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="bench-snapshot-"))
    try:
        with start_cluster(folder) as cluster, running_s3(folder) if by_worker else nullcontext() as s3:
            brokers, place = cluster.bootstrap, str(folder / "snapshots")
            if s3 is not None:
                os.environ |= s3.environment
                place = s3.make_bucket("snapshots")
            asyncio.run(make_topics(brokers, "bench-input", "bench-output", partitions=PARTITIONS))
            _start(brokers, folder, "first", snapshot=None)  # makes the changelog
            began_s = time.monotonic()
            asyncio.run(_fill(brokers, keys, incompressible))
            click.echo(f"{keys:,} keys written in {time.monotonic() - began_s:.0f} s", err=True)
            made = (_have_written if by_worker else _make_snapshot)(brokers, folder, place)
            runs: dict[str, list[float]] = {"changelog": [], "snapshot": [], "warm": []}
            for number in range(repeat):
                runs["changelog"].append(_start(brokers, folder, f"log-{number}", snapshot=None))
                runs["warm"].append(_start(brokers, folder, f"log-{number}", snapshot=None))
                shutil.rmtree(folder / f"log-{number}")
                runs["snapshot"].append(_start(brokers, folder, f"snapshot-{number}", snapshot=place))
                _check_begun(folder / f"snapshot-{number}.log", keys)
                shutil.rmtree(folder / f"snapshot-{number}")
                click.echo({name: round(times[-1], 2) for name, times in runs.items()}, err=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    click.echo(json.dumps(_report(keys, made, runs)))


def _report(keys: int, made: dict[str, float], runs: dict[str, list[float]]) -> dict[str, object]:
    start = {name: statistics.median(times) for name, times in runs.items()}
    restore = {name: max(start[name] - start["warm"], 1e-3) for name in ("changelog", "snapshot")}
    return {
        "keys": keys,
        "snapshot_made_in_s": made["seconds"],
        "snapshot_mb": round(made["size_bytes"] / 1e6),
        "start_s": {name: [round(time_s, 2) for time_s in sorted(times)] for name, times in runs.items()},
        "restore_s": {name: round(time_s, 2) for name, time_s in restore.items()},
        "records_per_s": {name: round(keys / time_s) for name, time_s in restore.items()},
        "start_ratio": round(start["changelog"] / start["snapshot"], 1),
        "restore_ratio": round(restore["changelog"] / restore["snapshot"], 1),
    }


async def _fill(brokers: str, keys: int, incompressible: bool) -> None:
    records: Iterator[tuple[bytes, bytes]] = (
        (b"command-%08d" % number, _random(number) if incompressible else b"%0100d" % number) for number in range(keys)
    )
    # write metadata of no owner, so that the group may begin at the start of the empty input
    await load(brokers, CHANGELOG, PARTITIONS, records, metadata=lambda number: encode_metadata(0, number))


def _random(number: int) -> bytes:
    first = number * 7919 % (len(POOL) - 100)
    return POOL[first : first + 100]


def _have_written(brokers: str, folder: Path, place: str) -> dict[str, float]:
    """Have a worker write snapshots; return the time and the size of all, without its start."""
    _start(brokers, folder, "writer", snapshot=place, every="1s", until=" snapshot at offset ")
    written = re.findall(
        r"written to .* ([\d.]+) MB in ([\d.]+) s", (folder / "writer.log").read_text(errors="replace")
    )
    shutil.rmtree(folder / "writer")
    figures = [(float(megabytes), float(seconds)) for megabytes, seconds in written[:PARTITIONS]]
    return {
        "seconds": sum(seconds for _, seconds in figures),
        "size_bytes": 1e6 * sum(megabytes for megabytes, _ in figures),
    }


def _make_snapshot(brokers: str, _: Path, place: str) -> dict[str, float]:
    options = ["--brokers", brokers, "--changelog", CHANGELOG, "--app", APP, "--to", place]
    done = subprocess.run(
        [sys.executable, "-m", "spark_replay", "snapshot", *options],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    click.echo(f"snapshot: {told}", err=True)
    return told


def _start(
    brokers: str, folder: Path, name: str, *, snapshot: str | None, every: str = "0", until: str = " owns bench-input"
) -> float:
    """Start a worker, wait until it has logged `until` for all partitions, end it, and return the seconds that took."""
    environment = {**os.environ, "KAFKA_URL": f"kafka://{brokers}", "BENCH_APP": APP}
    environment.pop("STATE_SNAPSHOT", None)
    if snapshot is not None:
        environment |= {"STATE_SNAPSHOT": snapshot, "STATE_SNAPSHOT_EVERY": every}
    log, began_s = folder / f"{name}.log", time.monotonic()
    command = [sys.executable, "-m", "faust", "-A", "benchmarks.dedupe_app", "-D", str(folder / name)]
    with log.open("wb") as output:
        worker = subprocess.Popen(
            [*command, "worker", "--without-web", "-l", "info"], cwd=ROOT, env=environment, stdout=output, stderr=output
        )
    try:
        while log.read_text(errors="replace").count(until) < PARTITIONS:
            if worker.poll() is not None or time.monotonic() - began_s > DEADLINE_S:
                raise RuntimeError(f"the worker doesn't own its partitions: {log.read_text(errors='replace')[-3000:]}")
            time.sleep(POLL_S)
        return time.monotonic() - began_s
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(60)


def _check_begun(log: Path, keys: int) -> None:
    """A run that fell back to the changelog is no measurement."""
    text = log.read_text(errors="replace")
    begun = sum(map(int, re.findall(r"begun with (\d+) keys", text)))
    if begun != keys or "restored " in text:
        raise RuntimeError(f"begun with {begun} of {keys} keys: {text[-3000:]}")


if __name__ == "__main__":
    main()
