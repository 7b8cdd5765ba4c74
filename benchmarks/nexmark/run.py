"""One query of one system on a broker: how fast it is, what it costs, and which of its results are wrong."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec
from aiokafka.structs import TopicPartition

from benchmarks.peers.broker import Group, delete_all, ends, load, make_topics, read_committed, watching_ends
from benchmarks.peers.systems import EXACTLY_ONCE, KAFKA_STREAMS, OURS, Job
from benchmarks.peers.worker import Worker, cpu_s
from tests.nexmark.events import DISORDER_MS, END_MS, EVERY, STEP_MS, Events, generate
from tests.nexmark.oracle import Oracle

PARTITIONS = 4
INPUTS = {
    "q3": ("persons", "auctions"),
    "q4": ("auctions", "bids"),
    "q5": ("bids",),
    "q7": ("bids",),
    "q8": ("persons", "auctions"),
    "q11": ("bids",),
    "q18": ("bids",),
    "q20": ("auctions", "bids"),
}
"""The topics that each query reads."""
_KEYS = {"persons": "id", "auctions": "id", "bids": "bidder"}
_BETWEEN = {"q4": ("offers", "sold")}
"""The topics between a query's actors, which ours wants to be there."""
_REPLACING = {OURS: ("q4", "q18"), KAFKA_STREAMS: ("q4", "q5", "q18")}
"""Queries whose rows each replace the former one with the same first column."""
_FEW_MS = 1
"""Between persons and auctions where there are no bids between them."""
_POLL_S = 0.1
_QUIET_S = (2.0, 10.0)
"""After how long without progress a run is over: where the results are right, and where they aren't."""
_BOUND_S, _PATIENCE_S = 900.0, 120.0
_TRANSACTION_MS = 60_000
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """One run.

    Attributes:
        records_per_s: Records committed per second, from the first commit until the last result is committed.
        cpu_us_per_record: Microseconds of the worker's CPU, user and kernel, for each of those records.
        records: All that the query read.
        results: Rows that there are in the end.
        wrong: Rows that are missing or too many.
    """

    records_per_s: int
    cpu_us_per_record: float
    records: int
    results: int
    wrong: int


class Backlog:
    """Events in the order in which they are written, and what SQL says of them."""

    def __init__(self, count: int, folder: Path, *, bids: bool) -> None:
        """Make about `count` records: all events, or persons and auctions only."""
        step_ms = STEP_MS if bids else _FEW_MS
        events = generate(count if bids else count * EVERY // 4, step_ms=step_ms, bids=bids)
        folder.mkdir()
        self._oracle = Oracle(events, folder)
        self._expected: dict[str, Counter[Row]] = {}
        self._topics = {topic: _encoded(events, topic) for topic in _KEYS}

    def expected(self, query: str) -> Counter[Row]:
        """Return the rows of a query."""
        if query not in self._expected:
            self._expected[query] = Counter(map(_rounded, self._oracle.rows(query)))
        return self._expected[query]

    async def send(self, job: Job, query: str, *, last: bool) -> None:
        """Send a query's events but for the last ones, or those."""
        for topic in INPUTS[query]:
            events = [event for event in self._topics[topic] if (event[2] == END_MS) == last]
            records = ((key, value) for key, value, _ in events)
            times_ms = [at_ms for _, _, at_ms in events]
            name = f"{job.source}{topic}"
            await load(job.brokers, name, PARTITIONS, records, timestamp_ms=times_ms.__getitem__)


def span_s(records: int) -> float:
    """Return the seconds of event time from the first to the last record of a backlog, disorder included."""
    return max(records * STEP_MS, records * EVERY // 4 * _FEW_MS) / 1000 + DISORDER_MS / 1000


def _encoded(events: Events, topic: str) -> list[tuple[bytes, bytes, int]]:
    return [
        (b"%d" % getattr(event, _KEYS[topic]), msgspec.json.encode(event), event.at_ms)
        for event in getattr(events, topic)
    ]


@dataclass(frozen=True, slots=True)
class QueryJob(Job):
    """A query as a job of a system: its topics' names begin with `source`."""

    grace_s: float = 0.0

    @classmethod
    def of(cls, query: str, system: str, brokers: str, number: int, grace_s: float) -> Self:
        """Name a run's topics and its group."""
        prefix = f"{query}-{number}-"
        names = (f"{prefix}nexmark-{query}", prefix, f"{prefix}rows")
        return cls(system, query, EXACTLY_ONCE, brokers, *names, partitions=PARTITIONS, grace_s=grace_s)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The topics that are filled."""
        return tuple(f"{self.source}{topic}" for topic in INPUTS[self.work])

    def command(self, folder: Path) -> list[str]:
        """Return the worker's command line."""
        if self.system == OURS:
            worker = ["-A", "benchmarks.nexmark.app", "-D", str(folder), "worker", "-l", "info", "--without-web"]
            return [sys.executable, "-m", "faust", *worker]
        options = {
            "mode": "nexmark",
            "query": self.work,
            # With Kafka Streams 4.4.0's transactional stores all five averages of Q4 are wrong, caches or not.
            "transactional-stores": "off" if self.work == "q4" else "on",
            "prefix": self.source,
            "grace-ms": str(round(self.grace_s * 1000)),
            "transaction-timeout-ms": str(_TRANSACTION_MS),
        }
        command = super(QueryJob, self).command(folder)
        return [*command, *(part for name, value in options.items() for part in (f"--{name}", value))]

    def environment(self, folder: Path) -> dict[str, str]:
        """Return the worker's environment."""
        return {**super(QueryJob, self).environment(folder), "NEXMARK_GRACE_S": str(self.grace_s)}


async def measure(job: QueryJob, folder: Path, backlog: Backlog) -> Result:
    """Run a query over a backlog, then send the last events, which close what is open, and judge the results.

    Raises:
        TimeoutError: it isn't done after a quarter of an hour.
        RuntimeError: the worker ended by itself.
    """
    query, topics = job.work, [*job.inputs, job.target]
    topics += [f"{job.source}{topic}" for topic in (_BETWEEN.get(query, ()) if job.system == OURS else ())]
    # The broker would delete events of a former year.
    await make_topics(job.brokers, *topics, partitions=PARTITIONS, config={"retention.ms": "-1"})
    await backlog.send(job, query, last=False)
    worker, expected = Worker(job, folder), backlog.expected(query)
    try:
        async with _Watch.over(job, worker) as watch, asyncio.timeout(_BOUND_S):
            worker.start()
            already = await watch.begin()
            await watch.settle(_QUIET_S[0])
            spans = [watch.span]
            await backlog.send(job, query, last=True)
            watch.again()
            for quiet_s in _QUIET_S:
                await watch.settle(quiet_s)
                rows = await _rows(job)
                wrong = count_wrong(expected, rows)
                if not wrong:
                    break
            spans.append(watch.span)
    finally:
        worker.kill()
        shutil.rmtree(folder, ignore_errors=True)
        await delete_all(job.brokers, job.source)
    records = sum(offset for part, offset in watch.committed.items() if part.topic in job.inputs)
    seconds, cpu_seconds = map(sum, zip(*spans, strict=True))
    return Result(
        records_per_s=round((records - already) / seconds),
        cpu_us_per_record=round(cpu_seconds / (records - already) * 1e6, 2),
        records=records,
        results=rows.total(),
        wrong=wrong,
    )


def count_wrong(expected: Counter[Row], rows: Counter[Row]) -> int:
    """Return how many rows are missing, or how many are too many if those are more: one with another value is both."""
    return max((expected - rows).total(), (rows - expected).total())


@dataclass(slots=True)
class _Watch:
    """A worker's progress: offsets that its group has committed, and the ends of the rows."""

    job: Job
    worker: Worker
    group: Group
    row_ends: Callable[[], Awaitable[dict[int, int]]]
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    _ends: dict[int, int] = field(default_factory=dict)
    _begun: tuple[float, float] = (0.0, 0.0)
    _moved: tuple[float, float] = (0.0, 0.0)

    @classmethod
    @contextlib.asynccontextmanager
    async def over(cls, job: Job, worker: Worker) -> AsyncIterator[Self]:
        """Watch a worker for the time of the block."""
        async with (
            Group.watching(job.brokers, job.group, "") as group,
            watching_ends(job.brokers, job.target) as row_ends,
        ):
            yield cls(job, worker, group, row_ends)

    @property
    def span(self) -> tuple[float, float]:
        """Seconds, and the worker's CPU seconds, from the beginning to the last progress."""
        return (self._moved[0] - self._begun[0], self._moved[1] - self._begun[1])

    async def begin(self) -> int:
        """Wait until something is committed; return how many records were by then."""
        while not (already := sum(offset for part, offset in self.committed.items() if part.topic in self.job.inputs)):
            await self._look()
        self.again()
        return already

    def again(self) -> None:
        """Begin now."""
        self._begun = self._moved = self._now()

    async def settle(self, quiet_s: float) -> None:
        """Wait until everything is handled and nothing has moved for so long."""
        while time.monotonic() - self._moved[0] < quiet_s or await self._is_behind():
            await self._look()

    async def _look(self) -> None:
        await asyncio.sleep(_POLL_S)
        self.worker.check()
        before = (self.committed, self._ends)
        self.committed, self._ends = await self.group.committed_anywhere(), await self.row_ends()
        if (self.committed, self._ends) != before:
            self._moved = self._now()

    async def _is_behind(self) -> bool:
        for topic in {*self.job.inputs, *(part.topic for part in self.committed)}:
            # The end of the last transaction takes an offset that isn't always committed.
            marker = topic not in self.job.inputs
            for partition, end in (await ends(self.job.brokers, topic)).items():
                if self.committed.get(TopicPartition(topic, partition), 0) < end - marker:
                    return True
        return False

    def _now(self) -> tuple[float, float]:
        return (time.monotonic(), cpu_s(self.worker.pid))


async def _rows(job: Job) -> Counter[Row]:
    outputs = await read_committed(job.brokers, job.target, patience_s=_PATIENCE_S)
    if outputs is None:
        raise TimeoutError(f"the rows of {job.app} can't be read in {_PATIENCE_S:g} s")
    return final_rows(job, (msgspec.json.decode(output.value or b"[]") for output in outputs))


def final_rows(job: Job, rows: Iterable[Sequence[Any]]) -> Counter[Row]:
    """Return the rows that there are in the end, of those that were sent."""
    sent = map(_rounded, rows)
    return Counter({row[0]: row for row in sent}.values() if job.work in _REPLACING[job.system] else sent)


def _rounded(row: Sequence[Any]) -> Row:
    """Return a row without what the order of additions makes of floats."""
    return tuple(round(value, 3) if isinstance(value, float) else value for value in row)
