"""Topics, records and workers for tests on a real broker."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.structs import TopicPartition

from actors._core.partitioner import partition_for
from actors._kafka.admin.control import ControlPlane
from actors._kafka.connection import Connection
from tests.kafka.forked import ROOT, Fork

DEADLINE_S = 60.0
MAX_POLL_S = 0.5


def unique(name: str) -> str:
    """A name that no other test uses."""
    return f"{name}-{uuid.uuid4().hex[:8]}"


async def make_topics(
    brokers: str, *names: str, partitions: int = 2, config: dict[str, str] | None = None, replicas: int = 1
) -> None:
    """Make topics, and wait until they can be written to."""
    admin = AIOKafkaAdminClient(bootstrap_servers=brokers)
    await admin.start()
    try:
        response = await admin.create_topics(
            [NewTopic(name, partitions, replicas, topic_configs=config or {}) for name in names]
        )
        assert all(error[1] == 0 for error in response.topic_errors), response
    finally:
        await admin.close()
    async with producing(brokers) as producer:
        for name in names:
            await eventually(lambda name=name: has_leaders(producer, name, partitions))


async def add_partitions(brokers: str, *names: str, total: int) -> None:
    """Give topics more partitions, and wait until they can be written to."""
    admin = AIOKafkaAdminClient(bootstrap_servers=brokers)
    await admin.start()
    try:
        await admin.create_partitions({name: NewPartitions(total_count=total) for name in names})
    finally:
        await admin.close()
    async with producing(brokers) as producer:
        for name in names:
            await eventually(lambda name=name: has_leaders(producer, name, total))


async def topic_id(brokers: str, topic: str) -> str | None:
    """The topic's id, None if it doesn't exist."""
    async with ControlPlane.connect(Connection(tuple(brokers.split(","))), "nobody") as control:
        found = await control.topics([topic])
    return str(found[topic].topic_id) if topic in found else None


async def delete(brokers: str, topic: str) -> str:
    """Delete a topic; give its id."""
    former = await topic_id(brokers, topic)
    assert former is not None
    admin = AIOKafkaAdminClient(bootstrap_servers=brokers)
    await admin.start()
    try:
        await admin.delete_topics([topic])
    finally:
        await admin.close()

    async def is_gone() -> bool:
        return await topic_id(brokers, topic) is None

    await eventually(is_gone)
    return former


async def has_leaders(producer: AIOKafkaProducer, topic: str, partitions: int) -> bool:
    """Whether all partitions of a topic can be written to."""
    await producer.client.force_metadata_update()
    return len(await producer.partitions_for(topic)) == partitions


@contextlib.asynccontextmanager
async def producing(brokers: str, **options: object) -> AsyncIterator[AIOKafkaProducer]:
    """A producer for the time of the block."""
    producer = AIOKafkaProducer(bootstrap_servers=brokers, **options)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def send(
    brokers: str, topic: str, records: Iterable[tuple[bytes | None, bytes | None]], *, partitions: int = 2
) -> None:
    """Send (key, value) records in order, each to the partition of its key; those without a key to partition 0."""
    async with producing(brokers) as producer:
        sent = [
            await producer.send(topic, value, key, partition=0 if key is None else partition_for(key, partitions))
            for key, value in records
        ]
        await asyncio.gather(*sent)


async def read_all(brokers: str, topic: str, *, isolation: str = "read_committed") -> list:
    """All records of a topic up to its end as it is now."""
    consumer = AIOKafkaConsumer(bootstrap_servers=brokers, isolation_level=isolation, auto_offset_reset="earliest")
    await consumer.start()
    try:
        count = len(await consumer._client._wait_on_metadata(topic))
        parts = [TopicPartition(topic, number) for number in range(count)]
        consumer.assign(parts)
        ends = await consumer.end_offsets(parts)
        found: list = []
        deadline_s = time.monotonic() + DEADLINE_S
        while any([(await consumer.position(part)) < end for part, end in ends.items()]):
            assert time.monotonic() < deadline_s, f"{topic} can't be read to {ends}"
            for records in (await consumer.getmany(timeout_ms=100)).values():
                found += records
        return sorted(found, key=lambda record: (record.partition, record.offset))
    finally:
        await consumer.stop()


async def eventually(condition: Callable, *, deadline_s: float = DEADLINE_S, what: object = "") -> object:
    """Wait for a condition, sync or async, to hold; give what it gave.

    A condition that takes long, because it reads a topic, is checked less often: other tests need the machine too.
    """
    end_s = time.monotonic() + deadline_s
    while True:
        began_s = time.monotonic()
        result = condition()
        if asyncio.iscoroutine(result):
            result = await result
        if result:
            return result
        assert time.monotonic() < end_s, f"not within {deadline_s} s: {what() if callable(what) else what or condition}"
        await asyncio.sleep(min(max(0.05, 2 * (time.monotonic() - began_s)), MAX_POLL_S))


class WorkerProcess:
    """A real `faust worker` of an app module, with its own data folder and log.

    It is forked off a process that has done the imports, unless the start itself is tested. `tree` has its code.
    """

    _started: ClassVar[list[WorkerProcess]] = []

    def __init__(self, module: str, brokers: str, folder: Path, *, tree: Path = ROOT, **environment: str) -> None:
        self.module = module
        self.tree = tree
        self.folder = folder
        self.log_file = folder.with_suffix(".log")
        self._environment = {
            **os.environ,
            "KAFKA_URL": ";".join(f"kafka://{b}" for b in brokers.split(",")),
            **environment,
        }
        self._process: Any = None
        self._sink: subprocess.Popen | None = None

    def start(
        self, *, web: bool = False, within: Sequence[str] = (), spawned: bool = False, **environment: str
    ) -> WorkerProcess:
        """Start it, with further variables for this one time; the log is appended to.

        With `spawned` it is a Python process of its own, as an operator starts it; with `within`, one that this command
        starts.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        # Through another process, so that what limits the worker's files doesn't silence it.
        with self.log_file.open("ab") as log:
            sink = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=log, start_new_session=True)
        assert sink.stdin is not None
        start = self._spawned if within or spawned or self.tree != ROOT else self._forked
        self._process = start(self.command(web=web), {**self._environment, **environment}, sink.stdin.fileno(), within)
        self._sink = sink
        self._started.append(self)
        sink.stdin.close()
        return self

    def _spawned(
        self, arguments: Sequence[str], environment: Mapping[str, str], log: int, within: Sequence[str]
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*within, sys.executable, "-m", "faust", *arguments],
            cwd=self.tree,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    @staticmethod
    def _forked(arguments: Sequence[str], environment: Mapping[str, str], log: int, _: Sequence[str]) -> Fork:
        with open(os.devnull) as nothing:
            return Fork(arguments, environment, (nothing.fileno(), log, log))

    def command(self, *, web: bool) -> list[str]:
        """Give the arguments of `faust`."""
        web_or_not = "--with-web" if web else "--without-web"
        return ["-A", self.module, "-D", str(self.folder), "worker", "-l", "info", web_or_not]

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    def log(self) -> str:
        """Everything it said."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    @classmethod
    def count_started(cls) -> int:
        """How many were started so far and not ended by `kill_since`."""
        return len(cls._started)

    @classmethod
    def kill_since(cls, count: int) -> None:
        """`kill -9` of those that were started after so many, as after a test that failed."""
        while len(cls._started) > count:
            cls._started.pop().kill()

    def kill(self) -> None:
        """`kill -9`."""
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        """SIGTERM; gives the exit code."""
        return self._end(signal.SIGTERM)

    def wait(self, timeout_s: float = 30.0) -> int:
        """Wait for it to end by itself; gives the exit code."""
        assert self._process is not None
        code = self._process.wait(timeout_s)
        if self._sink is not None:
            self._sink.wait(timeout_s)
        return code

    def is_running(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> int:
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self._process.send_signal(number)
        try:
            code = self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait(20)
        if self._sink is not None:
            self._sink.wait(20)
        return code
