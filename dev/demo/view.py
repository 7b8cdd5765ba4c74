"""The job as a client of the broker sees it."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from dev.demo.names import APP, DEADLINE_S, INPUT, OUTPUT, OWNERS, PARTITIONS, POLL_S, DemoError
from dev.demo.processes import WorkerProcess


class TopicReader:
    """Reads a topic from its start, read committed, as far as it goes at each call."""

    def __init__(self, consumer: AIOKafkaConsumer, partitions: list[TopicPartition]) -> None:
        self._consumer = consumer
        self._partitions = partitions

    @classmethod
    async def open(cls, brokers: str, topic: str, partitions: int, stack: AsyncExitStack) -> TopicReader:
        """Make a reader that is closed with the stack."""
        consumer = AIOKafkaConsumer(
            bootstrap_servers=brokers, isolation_level="read_committed", auto_offset_reset="earliest"
        )
        await consumer.start()
        stack.push_async_callback(consumer.stop)
        parts = [TopicPartition(topic, number) for number in range(partitions)]
        consumer.assign(parts)
        return cls(consumer, parts)

    async def ends(self) -> dict[TopicPartition, int]:
        """Return each partition's last stable offset."""
        found: dict[TopicPartition, int] = await self._consumer.end_offsets(self._partitions)
        return found

    async def new_records(self) -> list[Any]:
        """Return what was committed since the last call."""
        ends = await self.ends()
        records: list[Any] = []
        while any([await self._consumer.position(part) < end for part, end in ends.items()]):
            for batch in (await self._consumer.getmany(timeout_ms=50)).values():
                records += batch
        return records


class View:
    """The job as a client of the broker sees it: the runs, who owns what, and how far the group is."""

    def __init__(
        self, admin: AIOKafkaAdminClient, commands: TopicReader, runs: TopicReader, owners: TopicReader
    ) -> None:
        self.runs: Counter[str] = Counter()
        self._admin = admin
        self._commands = commands
        self._runs = runs
        self._owners = owners
        self._addresses: dict[int, tuple[int, str]] = {}

    @classmethod
    async def open(cls, brokers: str, stack: AsyncExitStack) -> View:
        """Connect; everything is closed with the stack. The registry has to be there."""
        admin = AIOKafkaAdminClient(bootstrap_servers=brokers)
        await admin.start()
        stack.push_async_callback(admin.close)
        return cls(
            admin,
            await TopicReader.open(brokers, INPUT, PARTITIONS, stack),
            await TopicReader.open(brokers, OUTPUT, PARTITIONS, stack),
            await TopicReader.open(brokers, OWNERS, 1, stack),
        )

    async def count_runs(self) -> int:
        """Read on in the output, and give the number of runs so far."""
        self.runs.update(record.key.decode() for record in await self._runs.new_records())
        return self.runs.total()

    async def count_commands(self) -> int:
        """Return the number of commands that are on the broker."""
        return sum((await self._commands.ends()).values())

    async def owners(self) -> dict[int, str]:
        """Return the address of each partition's owner; the newest epoch counts."""
        for record in await self._owners.new_records():
            # Stores are registered in the same topic, and a record without a value asks the broker for its time.
            if record.value is None or record.key.startswith(b"store:"):
                continue
            owner = json.loads(record.value)
            known_epoch, _ = self._addresses.get(owner["partition"], (0, ""))
            if owner["epoch"] > known_epoch:
                self._addresses[owner["partition"]] = owner["epoch"], owner["address"]
        return {partition: address for partition, (_, address) in self._addresses.items()}

    async def lag(self) -> dict[int, int]:
        """Return how many commands of each partition aren't committed as handled."""
        ends = await self._commands.ends()
        try:
            committed = await self._admin.list_consumer_group_offsets(f"{APP}-actors", partitions=list(ends))
        except KafkaError:  # the coordinator moves: ask again
            committed = {}
        offsets = {part: max(0, found.offset) for part, found in committed.items()}
        return {part.partition: end - offsets.get(part, 0) for part, end in ends.items()}


async def until(condition: Callable[[], Awaitable[bool]], what: str, workers: Iterable[WorkerProcess]) -> None:
    """Wait for a condition while the workers run.

    Raises:
        DemoError: it didn't come true in time, or a worker ended.
    """
    end_s = time.monotonic() + DEADLINE_S
    while not await condition():
        for worker in workers:
            worker.check()
        if time.monotonic() > end_s:
            raise DemoError(f"{what}: not within {DEADLINE_S:g} s")
        await asyncio.sleep(POLL_S)
