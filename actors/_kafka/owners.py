"""The leader registry: which worker owns which task, in which epoch, and which stores the app has.

A compacted topic with one partition. The record of a task is written by each takeover in the same transaction as the
offset's mark, the record of a store by a worker that starts. One reader serves all tasks of the worker, and reads on
from where it was.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import msgspec
from aiokafka import AIOKafkaProducer

from actors._core.logs import escaping
from actors._core.outside import MALFORMED
from actors._kafka.connection import Connection, broker_errors, let_go
from actors.errors import UnreadableLogError
from actors.ports import LogRecord, Logs, Output, OwnerRecord, TopicPartition

logger = escaping(logging.getLogger(__name__))


_STORE = b"store:"
"""Begins the key of a store's record. A task's key can't: names have no colon."""


class StoreRecord(msgspec.Struct, kw_only=True):
    """What the registry says of a store.

    `topic_id` is the changelog's; empty from the moment when an app claims the changelog until it has checked that no
    other app does. `shapes` are those that the values of `version` have had, the newest last; none where the type says
    nothing of its JSON. `former` has those of earlier versions. `last_id` is the topic's id before the claim: a topic
    that isn't seen for a moment is still the same. `at_ms` is when the record was written, Unix milliseconds.
    """

    store: str
    changelog: str
    at_ms: int
    topic_id: str = ""
    last_id: str = ""
    version: int = 1
    shapes: list[Any] = []
    former: dict[int, list[Any]] = {}


def encode_owner(topic: str, record: OwnerRecord) -> Output:
    """Give the registry's record as an output."""
    key = f"{record.actor}/{record.partition}".encode()
    return Output(topic, 0, key, msgspec.json.encode(asdict(record)), [], None)


class KafkaOwners:
    """`actors.ports.Owners` over a broker."""

    def __init__(self, topic: str, logs: Logs) -> None:
        self.topic = topic
        self._logs = logs
        self._source = TopicPartition(topic, 0)
        self._records: dict[bytes, OwnerRecord] = {}
        self._stores: dict[bytes, StoreRecord] = {}
        self._next_offset = 0
        self._lock = asyncio.Lock()
        self._asked = 0
        self._covered = 0

    async def latest(self, actor: str, partition: int) -> OwnerRecord | None:
        """Give the newest committed record of a task."""
        await self.refresh()
        return self._records.get(f"{actor}/{partition}".encode())

    async def all(self) -> list[OwnerRecord]:
        """Give the newest committed record of every task."""
        await self.refresh()
        return sorted(self._records.values(), key=lambda record: (record.actor, record.partition))

    async def stores(self) -> dict[str, StoreRecord]:
        """Give the stores that the app has recorded, by name."""
        await self.refresh()
        return {record.store: record for record in self._stores.values()}

    def _take(self, record: LogRecord) -> None:
        if record.key is None:
            return
        if record.value is None:
            self._stores.pop(record.key, None)
            return
        try:
            if record.key.startswith(_STORE):
                self._stores[record.key] = msgspec.json.decode(record.value, type=StoreRecord)
                return
            self._records[record.key] = msgspec.json.decode(record.value, type=OwnerRecord)
        except MALFORMED as error:
            logger.warning("%s offset %d isn't a record of the registry: %s", self._source, record.offset, error)

    async def refresh(self) -> None:
        """Read to the end as it is now. Tasks that ask at the same time share one read."""
        self._asked += 1
        ticket = self._asked
        async with self._lock:
            if ticket <= self._covered:
                return
            covered = self._asked
            bounds = await self._logs.bounds(self._source)
            self._next_offset = max(self._next_offset, bounds.start)
            while self._next_offset < bounds.end:
                await self._read(self._next_offset, bounds.end)
            self._covered = covered

    async def _read(self, start: int, end: int) -> None:
        """Read to `end`, or past records that can't be read: the epochs are in the changelogs and the offsets too."""
        try:
            async for records, next_offset in self._logs.read(self._source, start, end):
                for record in records:
                    self._take(record)
                self._next_offset = next_offset
        except UnreadableLogError as error:
            logger.warning("the registry of owners, which goes on behind them: %s", error)
            self._next_offset = error.next_offset


async def write_stores(connection: Connection, topic: str, records: Mapping[str, StoreRecord]) -> None:
    """Write the records of stores into the registry, by name. Returns when the brokers have them.

    Raises:
        BrokerUnavailableError: they may not have.
    """
    producer = AIOKafkaProducer(**connection.arguments("registry"), acks="all")
    try:
        with broker_errors(f"writing stores into {topic}"):
            await producer.start()
            for store, record in records.items():
                await producer.send_and_wait(topic, msgspec.json.encode(record), _STORE + store.encode(), partition=0)
    finally:
        await let_go(producer)
