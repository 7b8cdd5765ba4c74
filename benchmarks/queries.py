"""What queries cost the main job: its records/s and CPU with and without 500 questions a second.

The main job of `benchmarks.run_commands` on one worker with a web server, which isn't started anew: in turns of some
seconds `benchmarks.queries_asker`, a program of its own, asks it for keys at a fixed rate, rests, or asks
`benchmarks.queries_stand_in` in its place. Asker, broker and worker share the machine, so a turn with questions is
also slower for what the asker takes; a turn with the stand-in for that and what answering takes at the least. From
what the worker's CPU time per record is comes what a question costs it.

    python -m benchmarks.queries
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
from aiokafka import AIOKafkaConsumer, TopicPartition

from benchmarks.peers.broker import load, make_topics, start_cluster
from benchmarks.peers.scenarios import all_distinct
from benchmarks.peers.worker import cpu_s
from benchmarks.run_commands import DEADLINE_S, PARTITIONS, ROOT
from dev.kafka import free_port

BLOCK = 10_000
KINDS = ("without", "stand_in", "with")
ORDERS = tuple(itertools.permutations(KINDS))
WARM_UP, MARGIN = 200_000, 100_000
"""Records before the first turn, and those that have to be left after the last."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: records/s, the worker's CPU seconds per million records and per second, and what was asked."""

    records: int
    records_per_s: float
    cpu_s_per_million: float
    cpu_share: float
    asked: dict[str, float]

    @property
    def questions(self) -> float:
        """How many questions were answered, whatever the answer."""
        return sum(count for name, count in self.asked.items() if name.isdigit())


class Job:
    """The worker at its work.

    Args:
        worker: its process.
        consumer: in its group, to look at the committed offsets.
    """

    def __init__(self, worker: subprocess.Popen[bytes], consumer: AIOKafkaConsumer) -> None:
        self._worker = worker
        self._consumer = consumer

    async def look(self) -> tuple[float, float, int]:
        """Return the time, the worker's CPU seconds so far, and how many records it has committed."""
        if self._worker.poll() is not None:
            raise RuntimeError(f"the worker ended with {self._worker.returncode}")
        sources = [TopicPartition("bench-input", number) for number in range(PARTITIONS)]
        offsets = [await self._consumer.committed(source) or 0 for source in sources]
        return time.monotonic(), cpu_s(self._worker.pid), sum(offsets)

    async def begun(self) -> None:
        """Wait until it is at full speed."""
        async with asyncio.timeout(DEADLINE_S):
            while (await self.look())[2] < WARM_UP:  # noqa: ASYNC110  the worker knows nothing of who looks
                await asyncio.sleep(0.1)

    async def turn(self, seconds: float, asker: asyncio.subprocess.Process | None) -> Turn:
        """Measure for some seconds, with questions or without."""
        began_s, began_cpu_s, began = await self.look()
        if asker is None:
            await asyncio.sleep(seconds)
            asked = {}
        else:
            assert asker.stdin is not None
            assert asker.stdout is not None
            asker.stdin.write(f"{seconds}\n".encode())
            asked = json.loads(await asker.stdout.readline())
        ended_s, ended_cpu_s, ended = await self.look()
        took_s, took_cpu_s, count = ended_s - began_s, ended_cpu_s - began_cpu_s, ended - began
        if not count:
            raise click.ClickException("the records didn't last: give more, or fewer turns")
        return Turn(count, count / took_s, took_cpu_s / count * 1e6, took_cpu_s / took_s, asked)


@click.command()
@click.option("--records", default=14_000_000, show_default=True, help="They have to last.")
@click.option("--rounds", default=8, show_default=True, help="A turn of each kind.")
@click.option("--seconds", default=3.0, show_default=True, help="How long a turn is.")
@click.option("--rate", default=500, show_default=True, help="Questions per second.")
@click.option("--many", default=0, show_default=True, help="Ask for so many keys at once with each question.")
def main(records: int, rounds: int, seconds: float, rate: int, many: int) -> None:
    """Measure the main job with and without questions."""
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        with start_cluster(folder) as cluster:
            asyncio.run(_load(cluster.bootstrap, records))
            turns = asyncio.run(_run(cluster.bootstrap, folder, rounds, seconds, (rate, many)))
            if sum(turn.records for three in turns for turn in three.values()) > records - WARM_UP - MARGIN:
                raise click.ClickException(f"the records hardly lasted: give more than {records}, or fewer turns")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report = {"records": records, "rate": rate, "many": many, "seconds": seconds, **_report(turns, rate)}
    click.echo(json.dumps(report))


async def _load(brokers: str, records: int) -> None:
    await make_topics(brokers, "bench-input", "bench-output", partitions=PARTITIONS)
    await load(brokers, "bench-input", PARTITIONS, _steady(records))


def _steady(count: int) -> Iterator[tuple[bytes, bytes]]:
    """Each command twice, the repeats soon after the first ones: the work of all turns is the same."""
    distinct = all_distinct(count // 2)
    while block := list(itertools.islice(distinct, BLOCK)):
        yield from block
        yield from block


def _report(turns: list[dict[str, Turn]], rate: int) -> dict[str, object]:
    costs_us = [
        (three["with"].cpu_s_per_million - three["without"].cpu_s_per_million)
        * three["with"].records
        / three["with"].questions
        for three in turns
    ]
    cost_us = statistics.fmean(costs_us)
    found: dict[str, object] = {}
    for name in KINDS:
        those = [three[name] for three in turns]
        found[f"records_per_s_{name}"] = [round(turn.records_per_s) for turn in those]
        found[f"cpu_s_per_million_{name}"] = [round(turn.cpu_s_per_million, 2) for turn in those]
        found[f"cpu_share_{name}"] = [round(turn.cpu_share, 2) for turn in those]
    ratios = {
        f"{name}_to_{base}": _ratio([(three[name].records_per_s, three[base].records_per_s) for three in turns])
        for name, base in (("with", "without"), ("stand_in", "without"), ("with", "stand_in"))
    }
    return {
        **found,
        **ratios,
        "asked": [three["with"].asked for three in turns],
        "cpu_us_per_question": [round(one) for one in costs_us],
        "mean_cpu_us_per_question": round(cost_us),
        "standard_error_us": _error(costs_us, 0),
        "percent_of_the_loop": round(cost_us * rate / 1e4, 1),
    }


def _ratio(pairs: list[tuple[float, float]]) -> dict[str, float | None]:
    ratios = [one / other for one, other in pairs]
    return {
        "median": round(statistics.median(ratios), 3),
        "mean": round(statistics.fmean(ratios), 3),
        "standard_error": _error(ratios, 3),
    }


def _error(found: list[float], digits: int) -> float | None:
    return round(statistics.stdev(found) / len(found) ** 0.5, digits) if len(found) > 1 else None


async def _run(
    brokers: str, folder: Path, rounds: int, seconds: float, asking: tuple[int, int]
) -> list[dict[str, Turn]]:
    port, other_port = free_port(), free_port()
    worker = _start_worker(brokers, folder, port)
    stand_in = await _started("benchmarks.queries_stand_in", other_port)
    askers = {
        "with": await _started("benchmarks.queries_asker", port, *asking),
        "stand_in": await _started("benchmarks.queries_asker", other_port, *asking),
    }
    consumer = AIOKafkaConsumer(bootstrap_servers=brokers, group_id="bench-actors", enable_auto_commit=False)
    try:
        await consumer.start()
        job = Job(worker, consumer)
        await job.begun()
        return [await _round(job, askers, seconds, number) for number in range(rounds)]
    finally:
        await consumer.stop()
        worker.send_signal(signal.SIGTERM)
        worker.wait(30)
        for process in (*askers.values(), stand_in):
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def _started(module: str, *arguments: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *map(str, arguments)),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )


def _start_worker(brokers: str, folder: Path, port: int) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "KAFKA_URL": f"kafka://{brokers}",
        "BENCH_APP": "bench",
        "BENCH_OUTPUT": "bench-output",
        "WEB_PORT": str(port),
    }
    command = [sys.executable, "-m", "faust", "-A", "benchmarks.dedupe_app", "-D", str(folder / "bench")]
    with (folder / "bench.log").open("wb") as log:
        return subprocess.Popen([*command, "worker", "--with-web"], cwd=ROOT, env=environment, stdout=log, stderr=log)


async def _round(
    job: Job, askers: dict[str, asyncio.subprocess.Process], seconds: float, number: int
) -> dict[str, Turn]:
    """Return a turn of each kind; the order changes from round to round."""
    found = {}
    for kind in ORDERS[number % len(ORDERS)]:
        found[kind] = await job.turn(seconds, askers.get(kind))
        click.echo(f"{kind}: {found[kind]}", err=True)
    return found


if __name__ == "__main__":
    main()
