"""A broker, workers and a feeder: what the faults happen to."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from actors._core.partitioner import partition_for
from dev.kafka import Cluster
from tests.crash.checks import Record
from tests.inhand import rules
from tests.inhand.oracle import OUTPUTS, Mark
from tests.kafka.forked import faust
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, read_all, unique

logger = logging.getLogger("inhand")

MODULE = "tests.inhand.app"
PARTITIONS = 3
INPUTS = ("clicks", *rules.HALVES, "chores", "questions")
ASKED = "tellers"
TICK_AHEAD_MS = 10_000
LIVE_S = 3.0
"""The time within which the second half of each burst is sent; the first is sent at once."""
IN_HAND_S = 120.0
"""Within this time each partition hands out something of a new burst."""
TOO_SHORT = "didn't end in time"
"""Said by a worker on a machine too busy for its last commits, of what the next owner repeats."""
_READY = re.compile(r"process (\d+) \(pid (\d+)\) is ready")


class Supervised(WorkerProcess):
    """A worker of two processes, which SIGHUP replaces one after the other."""

    def command(self, *, web: bool) -> list[str]:
        """Give the arguments of `faust`."""
        return [*super().command(web=web), "--processes", "2"]

    def start(
        self, *, web: bool = False, within: Sequence[str] = (), spawned: bool = True, **environment: str
    ) -> WorkerProcess:
        """Start it as an operator does: it starts its processes with its own command line."""
        return super().start(web=web, within=within, spawned=spawned, **environment)

    @property
    def pids(self) -> dict[str, int]:
        """The newest process of each number that is ready; none before this supervisor has begun."""
        _, begun, lines = self.log().rpartition(f"supervisor {self.pid}: ")
        if not begun:
            return {}
        return {number: int(pid) for number, pid in _READY.findall(lines)}

    def ready_count(self) -> int:
        """Give how many processes were ready so far."""
        return len(_READY.findall(self.log()))


@dataclass(slots=True)
class World:
    """Everything a fault can reach.

    Attributes:
        workers: the workers that run from the beginning; `spare` joins and leaves.
        cluster: the broker, if the run may restart it.
        starts: the first number of each burst.
        marks: the faults so far, and what they excuse.
    """

    brokers: str
    folder: Path
    chance: random.Random
    inputs: int
    name: str = field(default_factory=lambda: unique("inhand"))
    workers: list[WorkerProcess] = field(default_factory=list)
    spare: WorkerProcess = field(init=False)
    begin_ms: int = field(init=False)
    sent: int = 0
    starts: list[int] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    cluster: Cluster | None = None

    @classmethod
    async def create(
        cls, brokers: str, folder: Path, *, seed: int, inputs: int, workers: int, supervised: bool
    ) -> World:
        """Make the topics and, not yet started, the workers; with `supervised`, the last one has two processes."""
        world = cls(brokers, folder, random.Random(seed), inputs)
        world.begin_ms = int(time.time() * 1000) - inputs * rules.STEP_MS - rules.FLUSH_MS
        # What is sent has the time of days that are over.
        topics = [f"{world.name}-{topic}" for topic in (*INPUTS, ASKED, *OUTPUTS)]
        await make_topics(brokers, *topics, partitions=PARTITIONS, config={"retention.ms": "-1"})
        kinds = [WorkerProcess] * (workers - supervised) + [Supervised] * supervised
        world.workers = [world._worker(kind, f"worker-{number}") for number, kind in enumerate(kinds)]
        world.broken_file.write_text("0")
        world.spare = world._worker(WorkerProcess, "spare")
        return world

    def _worker(self, kind: type[WorkerProcess], name: str) -> WorkerProcess:
        return kind(MODULE, self.brokers, self.folder / name / "data", **self._environment)

    @property
    def _environment(self) -> dict[str, str]:
        return {"APP_NAME": self.name, "CALLS_FILE": str(self.calls_file), "BROKEN_FILE": str(self.broken_file)}

    @property
    def calls_file(self) -> Path:
        """Where effects write to."""
        return self.folder / "calls.jsonl"

    @property
    def broken_file(self) -> Path:
        """The file with the first number of those that the app refuses."""
        return self.folder / "broken"

    @property
    def members(self) -> list[WorkerProcess]:
        """All workers, the spare one behind the others."""
        return [*self.workers, self.spare]

    def mark(self, fault: str) -> int:
        """Note that a fault begins now, and return the time."""
        at_ns = time.monotonic_ns()
        self.marks.append(Mark(at_ns, fault))
        return at_ns

    def excuse(self, at_ns: int, fault: str, *, until_ns: int, pids: Iterable[int] = ()) -> None:
        """Note that calls which ended until then may be made again because of a fault."""
        self.marks.append(Mark(at_ns, fault, until_ns, frozenset(pids)))

    def end(self) -> None:
        """Kill what is left."""
        for worker in self.members:
            worker.kill()

    async def joined(self, worker: WorkerProcess) -> None:
        """Wait until a worker has joined or joins the group: before that, it ignores signals."""
        if isinstance(worker, Supervised):
            await eventually(lambda: len(worker.pids) == 2, deadline_s=IN_HAND_S, what=worker.log)
            return
        line = f"[{worker.pid}] [INFO] (Re-)joining"
        await eventually(lambda: line in worker.log(), deadline_s=IN_HAND_S, what=worker.log)

    async def terminate(self, *workers: WorkerProcess) -> None:
        """End workers by SIGTERM. One that says that its time was too short for all it had is excused."""
        at_ns, sizes = time.monotonic_ns(), [len(worker.log()) for worker in workers]
        codes = await asyncio.gather(*(asyncio.to_thread(worker.terminate) for worker in workers))
        for worker, size, code in zip(workers, sizes, codes, strict=True):
            log = worker.log()
            assert code == 0, f"SIGTERM ended {worker.folder.parent.name} with {code}: {log[-5000:]}"
            if TOO_SHORT in log[size:]:
                pids = [] if isinstance(worker, Supervised) else [worker.pid]
                self.excuse(at_ns, self.marks[-1].fault, until_ns=time.monotonic_ns(), pids=pids)

    # --- inputs --------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def feeding(self, count: int) -> AsyncIterator[None]:
        """Send a half of a burst at once, and the other half while the block lasts."""
        self.starts.append(self.sent)
        async with self._producer() as producer:
            await self._post(producer, count // 2)
            live = asyncio.create_task(self._post_live(producer, count - count // 2))
            try:
                yield
            except BaseException:
                live.cancel()
                raise
            await live

    async def _post_live(self, producer: AIOKafkaProducer, count: int) -> None:
        began_s, first = time.monotonic(), self.sent
        while (left := count - (self.sent - first)) > 0:
            is_over = time.monotonic() - began_s > LIVE_S
            await self._post(producer, left if is_over else min(left, max(1, count // 50)))
            await asyncio.sleep(LIVE_S / 50)

    async def _post(self, producer: AIOKafkaProducer, count: int) -> None:
        waiting: list[Awaitable[object]] = []
        for number in range(self.sent, self.sent + count):
            waiting.append(await self._send(producer, "clicks", rules.click_key(number), self._click(number, 7919)))
            for topic, factor in rules.HALVES.items():
                half = self._click(number, factor)
                waiting.append(await self._send(producer, topic, rules.key(number, factor), half))
            waiting.append(await self._send(producer, "chores", rules.chore_key(number), rules.Job(number)))
            waiting.append(await self._send(producer, "questions", rules.key(number), rules.Question(number)))
        self.sent += count
        await asyncio.gather(*waiting)

    def _click(self, number: int, factor: int) -> rules.Click:
        return rules.click(number, self.begin_ms, factor=factor)

    async def flush(self) -> None:
        """Send what closes all windows in each partition."""
        at_ms = self.begin_ms + self.inputs * rules.STEP_MS + rules.FLUSH_MS
        async with self._producer() as producer:
            for partition, key in enumerate(_keys("flush")):
                click = rules.Click(self.inputs + partition, at_ms)
                for topic in ("clicks", *rules.HALVES):
                    await (await self._send(producer, topic, key, click))

    async def tick(self) -> None:
        """Let the stream time of timers go on, so far that all that were set before ring."""
        at_ms = int(time.time() * 1000) + TICK_AHEAD_MS
        async with self._producer() as producer:
            for key in _keys("tick"):
                await (await self._send(producer, "chores", key, rules.Tick(), at_ms=at_ms))

    async def _send(
        self, producer: AIOKafkaProducer, topic: str, key: bytes, message: msgspec.Struct, *, at_ms: int | None = None
    ) -> Awaitable[object]:
        sent: Awaitable[object] = await producer.send(
            f"{self.name}-{topic}",
            msgspec.json.encode(message),
            key,
            partition=partition_for(key, PARTITIONS),
            timestamp_ms=at_ms,
        )
        return sent

    @contextlib.asynccontextmanager
    async def _producer(self) -> AsyncIterator[AIOKafkaProducer]:
        producer = AIOKafkaProducer(bootstrap_servers=self.brokers, enable_idempotence=True, request_timeout_ms=120_000)
        await producer.start()
        try:
            yield producer
        finally:
            await producer.stop()

    async def retry_parked(self, *, refuse_from: int) -> None:
        """Have what is parked handled again; the app refuses numbers from one on.

        The command waits for what comes of it. It fails if a message is parked again, or if nobody answers.
        """
        self.broken_file.write_text(str(refuse_from))
        environment = {"KAFKA_URL": f"kafka://{self.brokers}", **self._environment}
        arguments = ("-A", MODULE, "-D", str(self.folder / "cli"), "parked", "retry", "Chores", "--all")
        done = await asyncio.to_thread(faust, *arguments, environment=environment)
        logger.debug("parked retry: %d, %s", done.returncode, done.stderr)

    # --- what is there -------------------------------------------------------------------------------------------

    async def read(self, topic: str) -> list[Record]:
        """Return all committed records of a topic."""
        records = await read_all(self.brokers, f"{self.name}-{topic}")
        return [Record(record.partition, record.offset, record.key, record.value) for record in records]

    async def finals_ends(self) -> dict[TopicPartition, int]:
        """Return the ends of the topic of closes."""
        consumer = AIOKafkaConsumer(bootstrap_servers=self.brokers, isolation_level="read_committed")
        await consumer.start()
        try:
            parts = [TopicPartition(f"{self.name}-finals", number) for number in range(PARTITIONS)]
            ends: dict[TopicPartition, int] = await consumer.end_offsets(parts)
            return ends
        finally:
            await consumer.stop()

    async def in_hand(self, before: dict[TopicPartition, int]) -> None:
        """Wait until windows of the newest burst close in each partition: many more are in hand then."""

        async def is_closing() -> bool:
            with contextlib.suppress(KafkaError, OSError, TimeoutError):
                ends = await self.finals_ends()
                return all(ends[part] > before[part] for part in ends)
            return False

        def logs() -> str:
            return "\n".join(f"--- {worker.folder.parent.name}\n{worker.log()[-3000:]}" for worker in self.members)

        await eventually(is_closing, deadline_s=IN_HAND_S, what=logs)


def _keys(name: str) -> list[bytes]:
    """Return a key of each partition."""
    keys: dict[int, bytes] = {}
    for number in itertools.count():
        key = b"%b-%d" % (name.encode(), number)
        keys.setdefault(partition_for(key, PARTITIONS), key)
        if len(keys) == PARTITIONS:
            return [keys[partition] for partition in range(PARTITIONS)]
    raise AssertionError
