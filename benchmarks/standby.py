"""What standbys and warm-ups are worth: pauses while a group grows, and the takeover from a killed worker.

One worker builds a state of a million keys. From then on each partition gets a record every 20 ms, and whoever reads
the outputs notes when they come. Two empty workers join; when the tasks are spread evenly, and their standbys have all,
one worker is killed.

    python -m benchmarks.standby --keys 1000000

`longest_pause_s` has the longest time without an output by partition while the group grew. `notice_to_output_s` are the
times from the group's notice of the death (its coordinator begins a rebalance) to the next output of each partition
that the dead worker owned, `notice_to_owner_s` to the line in the new owner's log that says that it works.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path

import click
from aiokafka.admin import AIOKafkaAdminClient

from actors._core.partitioner import partition_for
from benchmarks.peers.broker import Outputs, load, make_topics, producing, start_cluster
from benchmarks.run_commands import ROOT

PARTITIONS = 8
WORKERS = 3
EVERY_S = 0.02
GROUP = "standby-actors"
DEADLINE_S = 150.0
QUIET_S = 3.0
"""For so long nothing may change before the group counts as settled."""


@click.command()
@click.option("--keys", default=1_000_000, show_default=True)
@click.option("--standbys", default=1, show_default=True)
def main(keys: int, standbys: int) -> None:
    """Measure a group that grows from one to three workers, and a takeover."""
    folder = Path(tempfile.mkdtemp(prefix="standby-"))
    fleet = Fleet(folder, standbys)
    try:
        with start_cluster(folder) as cluster:
            fleet.brokers = cluster.bootstrap
            try:
                report = asyncio.run(_measure(fleet, keys))
            finally:
                fleet.kill_all()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    click.echo(json.dumps({"keys": keys, "partitions": PARTITIONS, "standbys": standbys, **report}))


class Fleet:
    """The workers, and what their logs say."""

    def __init__(self, folder: Path, standbys: int) -> None:
        self.folder, self.brokers = folder, ""
        self._environment = {**os.environ, "BENCH_APP": "standby", "BENCH_STANDBYS": str(standbys)}
        self._workers: dict[int, subprocess.Popen[bytes]] = {}

    def start(self) -> int:
        """Start one more worker; return its number."""
        number = len(self._workers)
        environment = {**self._environment, "KAFKA_URL": f"kafka://{self.brokers}"}
        options = ["-A", "benchmarks.standby_app", "-D", str(self.folder / f"w{number}")]
        with (self.folder / f"w{number}.log").open("wb") as log:
            self._workers[number] = subprocess.Popen(
                [sys.executable, "-m", "faust", *options, "worker", "-l", "info", "--without-web"],
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=log,
            )
        return number

    def terminate(self, number: int) -> None:
        self._workers[number].terminate()
        self._workers[number].wait()

    def kill(self, number: int) -> None:
        self._workers[number].kill()
        self._workers[number].wait()

    def kill_all(self) -> None:
        for number in self._workers:
            self.kill(number)

    def log(self, number: int) -> str:
        return (self.folder / f"w{number}.log").read_text(errors="replace")

    def events(self) -> Iterator[tuple[float, int, int]]:
        """Return (time, worker, partition) of each takeover, in order."""
        found = []
        for number in self._workers:
            for line in self.log(number).splitlines():
                owns = re.search(r"owns standby-input\[(\d+)\]", line)
                said = re.search(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})\]", line)
                if owns and said:
                    at_s = datetime.strptime(said[1], "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp()
                    found.append((at_s, number, int(owns[1])))
        return iter(sorted(found))

    def owners(self) -> dict[int, int]:
        """Return the worker that took each partition over last."""
        return {partition: number for _, number, partition in self.events()}

    def restored(self) -> list[int]:
        """Return the records that each restore read."""
        text = "".join(self.log(number) for number in self._workers)
        return [int(count) for count in re.findall(r"changelog\[\d+\]: restored (\d+) records", text)]


class Watch:
    """When outputs of each partition were seen."""

    def __init__(self) -> None:
        self.seen_s: dict[int, list[float]] = {partition: [] for partition in range(PARTITIONS)}

    @contextlib.asynccontextmanager
    async def running(self, brokers: str) -> AsyncIterator[None]:
        """Send records and note outputs for the time of the block."""
        tasks = [asyncio.create_task(self._send(brokers)), asyncio.create_task(self._read(brokers))]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for task in tasks:
                if not task.cancelled():
                    task.result()

    async def _send(self, brokers: str) -> None:
        keys: dict[int, bytes] = {}
        number = 0
        while len(keys) < PARTITIONS:
            keys.setdefault(partition_for(b"watch-%d" % number, PARTITIONS), b"watch-%d" % number)
            number += 1
        async with producing(brokers) as producer:
            while True:
                for partition, key in keys.items():
                    await producer.send("standby-input", b"now", key, partition=partition)
                await asyncio.sleep(EVERY_S)

    async def _read(self, brokers: str) -> None:
        outputs = await Outputs.open(brokers, "standby-output")
        try:
            while True:
                for output in await outputs.more():
                    self.seen_s[output.partition].append(time.time())
        finally:
            await outputs.close()

    def longest_s(self, since_s: float, until_s: float) -> dict[int, float]:
        """Return the longest time without an output between two moments, by partition."""
        longest = {}
        for partition, seen in self.seen_s.items():
            moments = [since_s, *(at_s for at_s in seen if since_s <= at_s <= until_s), until_s]
            longest[partition] = max(later - before for before, later in itertools.pairwise(moments))
        return longest

    def first_after_s(self, partition: int, since_s: float) -> float:
        """Return how long after a moment the next output came."""
        return next(at_s for at_s in self.seen_s[partition] if at_s > since_s) - since_s


async def _measure(fleet: Fleet, keys: int) -> Mapping[str, object]:
    await make_topics(fleet.brokers, "standby-input", "standby-output", partitions=PARTITIONS)
    fleet.start()
    await load(fleet.brokers, "standby-input", PARTITIONS, ((b"key-%09d" % n, b"load") for n in range(keys)))
    watch = Watch()
    async with watch.running(fleet.brokers):
        # An output comes when all that was loaded before is counted.
        await _until(lambda: all(watch.seen_s.values()))
        await asyncio.sleep(QUIET_S)
        began_s = time.time()
        for _ in range(WORKERS - 1):
            fleet.start()
        await _settled(fleet)
        settled_s = time.time()
        grown = watch.longest_s(began_s, settled_s)
        takeovers, before = list(fleet.events()), fleet.owners()
        restored = fleet.restored()
        dead = before[0]
        async with _notice(fleet.brokers) as notice:
            fleet.kill(dead)
            killed_s = time.time()
            noticed_s = await notice
        orphans = [partition for partition, number in before.items() if number == dead]
        await _until(lambda: all(fleet.owners()[partition] != dead for partition in orphans))
        await asyncio.sleep(QUIET_S)
    last = {partition: at_s for at_s, _, partition in fleet.events()}
    return {
        "grow_s": round(settled_s - QUIET_S - began_s, 1),
        "owned": [list(before.values()).count(number) for number in range(WORKERS)],
        "takeovers_while_growing": sum(at_s > began_s for at_s, _, _ in takeovers),
        "longest_pause_s": [round(seconds, 2) for seconds in grown.values()],
        "kill_to_notice_s": round(noticed_s - killed_s, 2),
        "notice_to_owner_s": [round(last[partition] - noticed_s, 2) for partition in orphans],
        "notice_to_output_s": [round(watch.first_after_s(partition, noticed_s), 2) for partition in orphans],
        "restored_while_growing": max(restored, default=0),
        "restored_in_takeover": max(fleet.restored()[len(restored) :], default=0),
    }


async def _settled(fleet: Fleet) -> None:
    """Wait until the tasks are spread evenly and nothing has moved, nor a standby become current, for a while."""
    before: object = None
    since_s = time.monotonic()
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        owned = list(fleet.owners().values())
        even = all(owned.count(number) >= PARTITIONS // WORKERS for number in range(WORKERS))
        logs = [fleet.log(number) for number in range(WORKERS)]
        now = ([log.count(" owns ") for log in logs], [log.count(" copy that has all ") for log in logs])
        if not even or now != before:
            before, since_s = now, time.monotonic()
        elif time.monotonic() - since_s > QUIET_S:
            return
        await asyncio.sleep(0.1)
    raise TimeoutError(f"the group didn't settle: {owned}")


@contextlib.asynccontextmanager
async def _notice(brokers: str) -> AsyncIterator[asyncio.Task[float]]:
    """Yield a task that ends, with the time, when the group's coordinator begins a rebalance."""

    async def watch() -> float:
        while True:
            answers = await admin.describe_consumer_groups([GROUP])
            if answers[0].groups[0][2] != "Stable":
                return time.time()
            await asyncio.sleep(0.01)

    admin = AIOKafkaAdminClient(bootstrap_servers=brokers)
    await admin.start()
    task = asyncio.create_task(watch())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
        await admin.close()


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110  logs and lists have no events
            await asyncio.sleep(0.02)


if __name__ == "__main__":
    main()
