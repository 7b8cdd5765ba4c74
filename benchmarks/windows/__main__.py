"""A million windows that close at once: for how long does input stand still?

One worker on 4 partitions, exactly once, counts each key once in one minute. Then a probe goes to each partition in
turn, first with times in that minute, then with times behind it: with the first of these all windows close, and each
final count is sent. The clock of the machine tells when a probe was sent, when it was handled, and when a
read-committed reader saw its answer.

    python -m benchmarks.windows --windows 1000000

The last line is JSON: for the time before (`calm`) and while windows close (`closing`), `longest_pause_ms` has the
longest time between two probes that a partition handled, `longest_wait_ms` the longest from a probe's sending to its
handling, `p50_ms` and `p99_ms` the times from sending to the reader. Probes of one partition come `every_ms`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from actors._core.partitioner import partition_for
from benchmarks.peers.broker import Group, Outputs, ends, load, make_topics, producing, read_committed, start_cluster
from benchmarks.run_commands import start_worker

PARTITIONS = 4
INPUT, FINALS, PROBES, GROUP = "closing-input", "closing-finals", "closing-probes", "closing-actors"
MINUTE_MS = 60_000
CALM_S = 5.0
DEADLINE_S = 900.0


class Probe(NamedTuple):
    """An answer: `closed` windows at that time, and the moments in seconds of the machine's monotonic clock."""

    partition: int
    sent_s: float
    handled_s: float
    closed: int
    seen_s: float


@click.command()
@click.option("--windows", default=1_000_000, show_default=True, help="How many close at once.")
@click.option("--rate", default=500, show_default=True, help="Probes per second, over all partitions.")
def main(windows: int, rate: int) -> None:
    """Measure input while windows close."""
    folder = Path(tempfile.mkdtemp(prefix="closing-"))
    try:
        with start_cluster(folder) as cluster:
            report = asyncio.run(_run(cluster.bootstrap, folder, windows, rate))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    click.echo(json.dumps({"windows": windows, "every_ms": 1000 * PARTITIONS / rate, **report}))


async def _run(brokers: str, folder: Path, windows: int, rate: int) -> dict[str, object]:
    await make_topics(brokers, INPUT, FINALS, PROBES, partitions=PARTITIONS)
    minute_ms = int(time.time()) // 60 * MINUTE_MS - 3_600_000
    keys = ((b"key-%09d" % number, b"") for number in range(windows))
    await load(brokers, INPUT, PARTITIONS, keys, timestamp_ms=lambda n: minute_ms + n * MINUTE_MS // windows)
    worker = start_worker("benchmarks.windows.app", folder / "state", {**os.environ, "KAFKA_URL": f"kafka://{brokers}"})
    try:
        async with asyncio.timeout(DEADLINE_S):
            await _all_counted(brokers, worker)
            watch = Watch(brokers, minute_ms, rate)
            async with watch.running():
                await asyncio.sleep(CALM_S)
                watch.close_all()
                while watch.closed < windows + PARTITIONS:
                    _check(worker)
                    await asyncio.sleep(0.05)
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(60)
    finals = await read_committed(brokers, FINALS, patience_s=DEADLINE_S)
    if finals is None or len({final.key for final in finals}) != len(finals) or len(finals) != windows + PARTITIONS:
        raise RuntimeError(f"{windows + PARTITIONS} windows closed, and their final counts aren't that many, one each")
    return watch.report()


async def _all_counted(brokers: str, worker: subprocess.Popen[bytes]) -> None:
    total = sum((await ends(brokers, INPUT)).values())
    async with Group.watching(brokers, GROUP, INPUT) as group:
        while sum((await group.committed()).values()) < total:
            _check(worker)
            await asyncio.sleep(0.1)


def _check(worker: subprocess.Popen[bytes]) -> None:
    if worker.poll() is not None:
        raise RuntimeError(f"the worker ended with {worker.returncode}")


class Watch:
    """Sends probes, and notes their answers."""

    def __init__(self, brokers: str, minute_ms: int, rate: int) -> None:
        self._brokers = brokers
        self._at_ms = minute_ms
        self._every_s = 1 / rate
        self._closing_s = float("inf")
        self.probes: list[Probe] = []

    @property
    def closed(self) -> int:
        """How many windows are closed; what closed them may not be committed yet."""
        return self.probes[-1].closed if self.probes else 0

    def close_all(self) -> None:
        """From now on, probes are of the next minute."""
        self._at_ms += MINUTE_MS
        self._closing_s = time.monotonic()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Send and read for the time of the block."""
        tasks = [asyncio.create_task(self._send()), asyncio.create_task(self._read())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for task in tasks:
                if not task.cancelled():
                    task.result()

    async def _send(self) -> None:
        keys: dict[int, bytes] = {}
        for number in itertools.count():
            keys.setdefault(partition_for(b"probe-%d" % number, PARTITIONS), b"probe-%d" % number)
            if len(keys) == PARTITIONS:
                break
        async with producing(self._brokers) as producer:
            due_s = time.monotonic()
            for partition, key in itertools.cycle(keys.items()):
                due_s += self._every_s
                await asyncio.sleep(due_s - time.monotonic())
                # Of its moment, not of when it was due: a sender that is held up must not count against the worker.
                now = b"%d" % time.monotonic_ns()
                await producer.send(INPUT, now, key, partition=partition, timestamp_ms=self._at_ms)

    async def _read(self) -> None:
        outputs = await Outputs.open(self._brokers, PROBES)
        try:
            while True:
                found = await outputs.more()
                seen_s = time.monotonic()
                for output in found:
                    sent, handled, closed = map(int, (output.value or b"").split())
                    self.probes.append(Probe(output.partition, sent / 1e9, handled / 1e9, closed, seen_s))
        finally:
            await outputs.close()

    def report(self) -> dict[str, object]:
        """Return the figures of both times."""
        last = max(probe.closed for probe in self.probes)
        over_s = min(probe.handled_s for probe in self.probes if probe.closed == last)
        calm = [probe for probe in self.probes if probe.sent_s < self._closing_s]
        closing = [probe for probe in self.probes if self._closing_s <= probe.sent_s and probe.handled_s <= over_s]
        seconds = over_s - self._closing_s
        return {
            "closing_s": round(seconds, 2),
            "closes_per_s": round(last / seconds),
            "calm": figures(calm),
            "closing": figures(closing),
        }


def figures(probes: Sequence[Probe]) -> dict[str, float]:
    """Return how long probes waited, and the longest time in which a partition handled none, milliseconds."""
    pauses_s = [0.0]
    for partition in {probe.partition for probe in probes}:
        handled_s = sorted(probe.handled_s for probe in probes if probe.partition == partition)
        pauses_s += [later - earlier for earlier, later in itertools.pairwise(handled_s)]
    took_s = sorted(probe.seen_s - probe.sent_s for probe in probes)
    found_s = {
        "longest_pause_ms": max(pauses_s),
        "longest_wait_ms": max(probe.handled_s - probe.sent_s for probe in probes),
        "p50_ms": statistics.median(took_s),
        "p99_ms": took_s[int(0.99 * (len(took_s) - 1))],
    }
    return {"probes": len(probes), **{name: round(1000 * seconds, 1) for name, seconds in found_s.items()}}


if __name__ == "__main__":
    main()
