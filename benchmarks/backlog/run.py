"""One row of one system on a broker: what came out, what was late, and how long it took."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import time
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aiokafka import AIOKafkaProducer

from actors._core.partitioner import partition_for
from benchmarks.backlog.rows import EXAMPLE, LIVE, ROWS, Record, Row, encode, last, wrong
from benchmarks.peers.broker import Group, Outputs, ends, make_topics, producing
from benchmarks.peers.java_build import java_command
from benchmarks.peers.systems import KAFKA_STREAMS, OURS, Job
from benchmarks.peers.worker import Worker
from dev.kafka import free_port

PARTITIONS = 4
LAST_AFTER_MS = 3_600_000
"""How far the last records are behind all others."""
_BEFORE_MS = 2 * LAST_AFTER_MS
_IDLE_MS = 5_000
_AWAY_S, _LIVE_KILL = 15.0, 0.25
_KILLS = (0.2, 0.6)
"""At which shares of the input the worker is killed."""
_QUIET_S, _RIGHT_QUIET_S, _BOUND_S = 7.0, 2.0, 300.0
"""After how long without progress a run is over, where results are missing and where they are right; and when it fails
because it isn't."""
KAFKA_STREAMS_IDLE = "kafka_streams_idle"
SYSTEMS = (OURS, KAFKA_STREAMS, KAFKA_STREAMS_IDLE)
_LATE = re.compile(r"^faust_actors_late_records_total\{.*\} ([0-9.e+]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Result:
    """One run.

    Attributes:
        late: Records that the system counted as late; of a killed process those of its last sample.
        wrong: Results that are missing, come too often, or aren't those of the oracle.
        seconds: From the worker's start to the last progress before the last records were sent.
        kills: How often the worker was killed.
    """

    late: int
    wrong: int
    seconds: float
    kills: int = 0


@dataclass(frozen=True, slots=True)
class BacklogJob(Job):
    """A row as a job of one system; `web_port` is where ours shows its metrics."""

    web_port: int = 0

    @property
    def row(self) -> Row:
        """The row."""
        return ROWS[self.work]

    @property
    def results(self) -> Mapping[str, str]:
        """The topics of the results, with the value that all records of one stand for; empty: their own."""
        if self._is_example:
            return {"paid-orders": "paid", "unpaid-orders": "unpaid"}
        return {self.target: ""}

    @property
    def _is_example(self) -> bool:
        return self.work == EXAMPLE

    def command(self, folder: Path) -> list[str]:
        """Return the worker's command line."""
        if self.system == OURS:
            module = "examples.unpaid_orders" if self._is_example else "benchmarks.backlog.app"
            worker = ["-A", module, "-D", str(folder), "worker", "-l", "info", "--web-port", str(self.web_port)]
            return [sys.executable, "-m", "faust", *worker]
        options = {
            "mode": "backlog",
            "result": self.row.result,
            "by": "" if self.row.by is None else str(self.row.by),
            "size-ms": str(self.row.size_ms),
            "grace-ms": str(self.row.grace_ms),
            "max-task-idle-ms": str(_IDLE_MS if self.system == KAFKA_STREAMS_IDLE else 0),
            "bootstrap": self.brokers,
            "application-id": self.app,
            "input": self.source,
            "other": self.other,
            "output": self.target,
            "state-dir": str(folder),
            "group-instance-id": self.instance,
            "dropped-file": str(folder.with_suffix(".dropped")),
        }
        return java_command(*(part for name, value in options.items() for part in (f"--{name}", value)))

    def environment(self, folder: Path) -> dict[str, str]:
        """Return the worker's environment."""
        return {**super(BacklogJob, self).environment(folder), "KAFKA_URL": f"kafka://{self.brokers}"}

    def late(self, folder: Path) -> int | None:
        """Return how many late records the process has counted; None if it can't be asked."""
        try:
            if self.system != OURS:
                return int(folder.with_suffix(".dropped").read_text())
            with urllib.request.urlopen(f"http://127.0.0.1:{self.web_port}/metrics", timeout=1) as answer:
                return int(sum(float(count) for count in _LATE.findall(answer.read().decode())))
        except (OSError, ValueError):
            return None


def job(name: str, system: str, brokers: str, app: str) -> BacklogJob:
    """Return the job of a row."""
    source, other, group = f"{app}-in", f"{app}-other" if ROWS[name].inputs > 1 else "", app
    if name == EXAMPLE:
        source, other, group = "placed-orders", "order-payments", "unpaid-orders"
    return BacklogJob(
        system,
        name,
        "exactly_once",
        brokers,
        group,
        source,
        f"{app}-out",
        instance=f"{app}-1",
        partitions=PARTITIONS,
        other=other,
        web_port=free_port(),
    )


async def measure(job: BacklogJob, folder: Path, count: int, *, killed: bool) -> Result:
    """Run a worker over a backlog, or over live records, then send the last records and judge the results."""
    await make_topics(job.brokers, *job.inputs, *job.results, partitions=PARTITIONS)
    async with contextlib.AsyncExitStack() as stack:
        producer = await stack.enter_async_context(producing(job.brokers, linger_ms=5, max_batch_size=200_000))
        run = _Run(job, Worker(job, folder), producer)
        stack.callback(run.worker.kill)
        await run.open(stack)
        records = list(job.row.records(count, 0))
        span_ms = max(record.at_ms for record in records)
        began_s = time.monotonic()
        if job.work == LIVE:
            run.worker.start()
            records = await run.live(records)
        else:
            # At a full minute, so that each run has the same windows.
            begin_ms = (int(time.time() * 1000) - span_ms - _BEFORE_MS) // 60_000 * 60_000
            records = [record._replace(at_ms=record.at_ms + begin_ms) for record in records]
            await run.send(records)
            began_s = time.monotonic()
            run.worker.start()
        run.expected = job.row.expected(records)
        run.kill_at = [share * len(records) for share in _KILLS] if killed else []
        await run.settle()
        seconds = run.changed_s - began_s
        keys = [next(key for key in map(str, range(1_000)) if _home(key) == place) for place in range(PARTITIONS)]
        await run.send(last(job.row, max(record.at_ms for record in records) + LAST_AFTER_MS, keys))
        run.kill_at.clear()
        await run.settle()
        run.worker.stop()
        await run.look()
        return Result(run.late, wrong(run.expected, run.results), round(seconds, 1), run.kills)


def _home(key: str) -> int:
    return partition_for(f"end-{key}".encode(), PARTITIONS)


@dataclass(slots=True)
class _Run:
    job: BacklogJob
    worker: Worker
    producer: AIOKafkaProducer
    expected: dict[str, list[str]] = field(default_factory=dict)
    results: list[tuple[str, str]] = field(default_factory=list)
    kill_at: list[float] = field(default_factory=list)
    kills: int = 0
    killed_s: float = 0.0
    changed_s: float = 0.0
    _committed: int = 0
    _late: int = 0
    _late_before: int = 0
    _groups: Sequence[Group] = ()
    _outputs: Sequence[tuple[str, Outputs]] = ()

    @property
    def late(self) -> int:
        """Late records of all processes so far."""
        return self._late_before + self._late

    async def open(self, stack: contextlib.AsyncExitStack) -> None:
        """Watch the group's offsets and the results."""
        brokers = self.job.brokers
        self._groups = [
            await stack.enter_async_context(Group.watching(brokers, self.job.group, topic)) for topic in self.job.inputs
        ]
        self._outputs = [(value, await Outputs.open(brokers, topic)) for topic, value in self.job.results.items()]
        for _, outputs in self._outputs:
            stack.push_async_callback(outputs.close)

    async def send(self, records: Iterable[Record]) -> None:
        """Send records, each to the partition of its key."""
        sent = [await self._send(record) for record in records]
        await asyncio.gather(*sent)

    async def live(self, records: Sequence[Record]) -> list[Record]:
        """Send records at their times from now on, and kill the worker meanwhile for 15 s; return what was sent."""
        begin_ms = int(time.time() * 1000)
        away = asyncio.create_task(self._stay_away(records[-1].at_ms / 1000 * _LIVE_KILL))
        records = [record._replace(at_ms=record.at_ms + begin_ms) for record in records]
        for record in records:
            await asyncio.sleep(max(0.0, record.at_ms / 1000 - time.time()))
            await self._send(record)
        await away
        return records

    async def _stay_away(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        self._kill()
        await asyncio.sleep(_AWAY_S)
        self.worker.start()

    async def _send(self, record: Record) -> asyncio.Future[object]:
        place, value = partition_for(record.key.encode(), PARTITIONS), encode(self.job.work, record)
        topic, key = self.job.inputs[record.input], record.key.encode()
        sent: asyncio.Future[object] = await self.producer.send(
            topic, key=key, value=value, partition=place, timestamp_ms=record.at_ms
        )
        return sent

    async def settle(self) -> None:
        """Wait until all input is committed and nothing comes any more.

        Raises:
            TimeoutError: it takes too long; what is missing then may still come.
        """
        total = 0
        for topic in self.job.inputs:
            total += sum((await ends(self.job.brokers, topic)).values())
        bound_s = time.monotonic() + _BOUND_S
        self.changed_s = time.monotonic()
        while time.monotonic() < bound_s:
            self.worker.check()
            await self.look()
            quiet_s = time.monotonic() - self.changed_s
            if self.kill_at and self._committed >= self.kill_at[0] and self.changed_s > self.killed_s:
                self.kill_at.pop(0)
                self._kill()
                self.worker.start()
            elif self._committed >= total and (
                quiet_s > _QUIET_S or (quiet_s > _RIGHT_QUIET_S and not wrong(self.expected, self.results))
            ):
                return
            await asyncio.sleep(0.02)
        raise TimeoutError(f"{self.job.app} isn't done after {_BOUND_S:g} s: {self._committed} of {total} committed")

    def _kill(self) -> None:
        self.worker.kill()
        self.kills += 1
        self.killed_s = time.monotonic()
        self._late_before, self._late = self.late, 0
        self.worker.folder.with_suffix(".dropped").unlink(missing_ok=True)

    async def look(self) -> None:
        """Take what has come since the last time."""
        committed = sum([sum((await group.committed()).values()) for group in self._groups])
        before = len(self.results)
        for value, outputs in self._outputs:
            for output in await outputs.more():
                self.results.append((output.key.decode(), value or (output.value or b"").decode()))
        if committed != self._committed or len(self.results) != before:
            self._committed, self.changed_s = committed, time.monotonic()
        late = await asyncio.to_thread(self.job.late, self.worker.folder)
        self._late = self._late if late is None else max(self._late, late)
