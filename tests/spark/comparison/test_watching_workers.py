"""`watch` with a real worker: what is planted in its store, or written to its changelog by another program."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import urllib3
from click.testing import CliRunner

from actors._core.partitioner import partition_for
from dev.kafka import free_port
from spark_replay import Workers
from spark_replay.cli import main
from stores._core.record import METADATA_HEADER, encode_metadata
from stores.folder import DataFolder
from stores.rocks import RocksStore
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, producing, send, unique

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS, STORE = 2, "counts"
WITHIN_S = {100_000: 90.0, 1_000_000: 180.0}
"""By number of keys, how soon a mismatch is named on a machine that may do other things beside."""
AT_ONCE = 50_000


def home(key: str) -> int:
    return partition_for(key.encode(), PARTITIONS)


class Running:
    """A worker, and the command that watches it."""

    def __init__(self, brokers: str, folder: Path) -> None:
        self.brokers, self.folder, self.name = brokers, folder, unique("watch")
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.worker = WorkerProcess(
            "tests.kafka.apps.query_app", brokers, folder / "worker", APP_NAME=self.name, WEB_PORT=str(port)
        )

    @property
    def changelog(self) -> str:
        return f"{self.name}--{STORE}-changelog"

    async def begin(self) -> None:
        topics = (f"{self.name}-{suffix}" for suffix in ("in", "out", "accounts"))
        await make_topics(self.brokers, *topics, partitions=PARTITIONS)
        self.worker.start(web=True)

    def count(self, *keys: str) -> None:
        """Have the worker count keys."""
        asyncio.run(
            send(self.brokers, f"{self.name}-in", [(key.encode(), b"x") for key in keys], partitions=PARTITIONS)
        )

    async def handled(self, key: str, count: int) -> None:
        """Wait until the worker has counted a key so often."""

        def is_handled() -> bool:
            answer = urllib3.request("GET", f"{self.url}/actors/{STORE}/{key}", retries=False)
            return answer.status == 200 and answer.json()["value"] == count

        def is_handled_there() -> bool:
            with suppress(urllib3.exceptions.HTTPError):
                return is_handled()
            return False

        await eventually(is_handled_there, deadline_s=240, what=self.worker.log)

    def epoch(self, partition: int) -> int:
        with closing(Workers([self.url])) as workers:
            return workers.digests(STORE, partition, as_of_ms=0).position.epoch

    def write(self, key: str, value: bytes) -> int:
        """Write to the changelog as no owner does; return the offset."""
        partition = home(key)
        header = (METADATA_HEADER, encode_metadata(self.epoch(partition), 0))

        async def produce() -> int:
            async with producing(self.brokers) as producer:
                record = await producer.send_and_wait(
                    self.changelog, value, key.encode(), partition=partition, headers=[header]
                )
                return record.offset

        return asyncio.run(produce())

    def plant(self, key: str, value: bytes) -> None:
        """Change a value in the store, while the worker is stopped."""
        self.worker.terminate()
        data = DataFolder.open(self.worker.folder / "v1" / "actors", app=self.name)
        with closing(data), closing(RocksStore.open(data.store_path(STORE, home(key)))) as store:
            position, raw = store.position(), store.get(key.encode())
            assert position is not None
            assert raw is not None
            store.apply([(key.encode(), raw[:25] + value)], position)
        self.worker.start(web=True)

    @property
    def command(self) -> list[str]:
        options = ["--brokers", self.brokers, "--changelog", self.changelog, "--live", self.url]
        return ["watch", *options, "--store", STORE, "--state", str(self.folder / "state")]

    def watch(self, *more: str) -> tuple[int, dict[str, Any]]:
        done = CliRunner().invoke(main, [*self.command, "--once", "--json", *more])
        assert done.stdout, done.output
        return done.exit_code, json.loads(done.stdout)


@pytest.fixture
def running(brokers: str, tmp_path: Path) -> Iterator[Running]:
    running = Running(brokers, tmp_path)
    asyncio.run(running.begin())
    yield running
    running.worker.kill()


@pytest.mark.nightly
def test_what_another_program_writes_is_named(spark: SparkSession, running: Running, tmp_path: Path) -> None:
    keys = [f"key-{number}" for number in range(20)]
    running.count(*keys)
    for key in keys:
        asyncio.run(running.handled(key, 1))
    code, result = running.watch("--metrics", str(tmp_path / "watch.prom"))
    assert (code, result["totals"]["equal"], result["examples"]) == (0, 20, {})

    partition = home("key-3")
    offset = running.write("key-3", b"99")
    code, result = running.watch()
    assert (code, result["totals"]["mismatches"], result["totals"]["violations"]) == (1, 0, 1)
    (finding,) = result["findings"]
    assert f"partition {partition} offset {offset} key key-3 value 99 " in finding["examples"][0]

    # the owner goes on behind it
    other = next(key for key in keys if key != "key-3" and home(key) == partition)
    running.count(other)
    asyncio.run(running.handled(other, 2))
    code, result = running.watch("--metrics", str(tmp_path / "watch.prom"))
    assert (code, result["totals"]["mismatches"], result["totals"]["equal"]) == (1, 1, 19)
    ((example,),) = result["examples"].values()
    assert (example["partition"], example["key"], example["log"]["offset"]) == (partition, "key-3", offset)
    assert (example["log"]["value"], example["export"]["value"]) == ("99", "1")
    labels = f'{{app="{running.name}",store="{STORE}"}}'
    assert f"faust_actors_watch_mismatches{labels} 1.0" in (tmp_path / "watch.prom").read_text().splitlines()


@pytest.mark.nightly
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("many", WITHIN_S)
def test_a_changed_value_is_named_in_time(running: Running, tmp_path: Path, many: int) -> None:
    """By a process that goes on, with Spark's own settings; it ends by SIGTERM."""
    for first in range(0, many, AT_ONCE):
        running.count(*(f"key-{number}" for number in range(first, first + AT_ONCE)))
    file = tmp_path / "watch.log"
    command = [sys.executable, "-m", "spark_replay", *running.command, "--every", "1s", "--json"]
    with file.open("wb") as log, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log) as process:
        try:
            asyncio.run(eventually(lambda: f"equal: {many:,} keys" in file.read_text(), deadline_s=900))
            running.plant("key-5", b"7")
            asyncio.run(running.handled("key-5", 7))
            began_s = time.monotonic()
            asyncio.run(eventually(lambda: "different_value" in file.read_text(), deadline_s=WITHIN_S[many]))
            print(f"named in {time.monotonic() - began_s:.1f} s, load {os.getloadavg()[0]:.1f}")
            process.terminate()
            stdout, _ = process.communicate(timeout=120)
        finally:
            process.kill()
    result = json.loads(stdout)
    assert (process.returncode, result["totals"]["mismatches"], result["totals"]["equal"]) == (1, 1, many - 1)
    ((example,),) = result["examples"].values()
    assert (example["key"], example["log"]["value"], example["export"]["value"]) == ("key-5", "1", "7")
    assert example["cause"] == "different_value"
