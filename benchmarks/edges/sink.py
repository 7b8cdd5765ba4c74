"""How many rows a second a sink merges into PostgreSQL, and whether any is lost or doubled under kills.

    python -m benchmarks.edges.sink

One worker on a broker and a database of this machine. The rate is that of orders with keys of their own, merged into a
table, from the first row to the last. For the faults each record is a line of a table without a key, while the worker
is killed 5 times and the database 2 times.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click

from benchmarks.peers.broker import load, make_topics, start_cluster
from benchmarks.peers.worker import cpu_s, family_cpu_s
from benchmarks.run_commands import start_worker
from dev import postgres as postgresql
from dev.kafka import Cluster
from dev.parts import Part, PartError

TABLES = (
    "CREATE TABLE orders (id text PRIMARY KEY, customer text NOT NULL, cents bigint NOT NULL)",
    "CREATE TABLE lines (partition integer, at bigint)",
)
WRITTEN = "SELECT coalesce(sum(next_offset), 0) FROM faust_sink_offsets WHERE topic = '{}'"
FAULTS = ("worker", "worker", "database", "worker", "worker", "database", "worker")
DEADLINE_S = 600.0
POLL_S = 0.2


def measure(records: int = 1_000_000, faulty: int = 400_000, partitions: int = 4) -> dict[str, float]:
    """Return `rows_per_s`, `lost`, `doubled`, and the CPU seconds of a million rows."""
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        with start_cluster(folder) as cluster, postgresql.up(folder / "postgres") as database:
            postgresql.run_sql(database.address, *TABLES)
            run = _Run(cluster, database, folder, partitions)
            return {**run.rate(records), **run.faults(faulty)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Run:
    def __init__(self, cluster: Cluster, database: Part, folder: Path, partitions: int) -> None:
        self._cluster = cluster
        self._database = database
        self._folder = folder
        self._partitions = partitions

    def rate(self, records: int) -> dict[str, float]:
        """Return the rows per second, and CPU seconds per million, from when the first ones are there."""
        self._load("bench-orders", records)
        worker = self._start("rate", "bench-orders")
        try:
            begin = self._await("bench-orders", 1)
            begin_s = time.monotonic()
            cpus_s = self._cpus_s(worker)
            self._await("bench-orders", records)
            seconds = time.monotonic() - begin_s
            cpus_s = {name: spent_s - cpus_s[name] for name, spent_s in self._cpus_s(worker).items()}
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait(30)
        count = int(postgresql.run_sql(self._database.address, "SELECT count(*) FROM orders"))
        if count != records:
            raise RuntimeError(f"{count} of {records} rows are there")
        costs = {name: round(spent_s / (records - begin) * 1e6, 1) for name, spent_s in cpus_s.items()}
        return {"rows_per_s": round((records - begin) / seconds), **costs}

    def _cpus_s(self, worker: subprocess.Popen[bytes]) -> dict[str, float]:
        """Return the CPU seconds so far of the worker and of the database with its connections."""
        database = family_cpu_s(self._database.process.pid)
        return {"worker_cpu_s_per_million": cpu_s(worker.pid), "database_cpu_s_per_million": database}

    def faults(self, records: int) -> dict[str, float]:
        """Return how many rows are lost and doubled after kills, each when another share of them is written."""
        self._load("bench-faults", records)
        worker = self._start("faults", "bench-faults", BENCH_LINES="1", BENCH_BATCH="500")
        try:
            for number, fault in enumerate(FAULTS, 1):
                self._await("bench-faults", records * number // (len(FAULTS) + 1))
                if fault == "worker":
                    worker.kill()
                    worker.wait()
                    worker = self._start("faults", "bench-faults", BENCH_LINES="1", BENCH_BATCH="500")
                else:
                    self._database.kill()
                    self._database = postgresql.up(self._database.folder)
            self._await("bench-faults", records)
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait(30)
        query = "SELECT count(*), count(DISTINCT (partition, at)) FROM lines"
        count, distinct = map(int, postgresql.run_sql(self._database.address, query).split(","))
        return {"lost": records - distinct, "doubled": count - distinct}

    def _load(self, topic: str, records: int) -> None:
        async def loaded() -> None:
            await make_topics(self._cluster.bootstrap, topic, partitions=self._partitions)
            await load(self._cluster.bootstrap, topic, self._partitions, _orders(records))

        asyncio.run(loaded())

    def _start(self, app: str, topic: str, **more: str) -> subprocess.Popen[bytes]:
        environment = {"BENCH_APP": f"bench-{app}", "BENCH_INPUT": topic, "BENCH_DATABASE": self._database.address}
        environment |= {"KAFKA_URL": f"kafka://{self._cluster.bootstrap}", **more}
        return start_worker("benchmarks.edges.sink_app", self._folder / app, {**os.environ, **environment})

    def _await(self, topic: str, count: int) -> int:
        """Wait until so many rows are written; return how many are."""
        deadline_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline_s:
            time.sleep(POLL_S)
            try:
                written = int(postgresql.run_sql(self._database.address, WRITTEN.format(topic)))
            except PartError:
                # Before the first claim there is no table of offsets.
                continue
            if written >= count:
                return written
        raise RuntimeError(f"{topic}: {count} rows weren't written within {DEADLINE_S:g} s")


def _orders(count: int) -> Iterator[tuple[bytes, bytes]]:
    for number in range(count):
        yield b"order-%d" % number, b'{"customer": "customer-%d", "cents": %d}' % (number % 1000, number)


@click.command()
@click.option("--records", default=1_000_000, show_default=True)
@click.option("--faulty", default=400_000, show_default=True)
@click.option("--partitions", default=4, show_default=True)
def main(records: int, faulty: int, partitions: int) -> None:
    """Measure the sink into PostgreSQL."""
    click.echo(json.dumps(measure(records, faulty, partitions)))


if __name__ == "__main__":
    main()
