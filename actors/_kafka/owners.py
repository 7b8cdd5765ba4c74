"""The leader registry: which worker owns which task, in which epoch.

A compacted topic with one partition, written by each takeover in the same transaction as the offset's mark. One reader
serves all tasks of the worker, and reads on from where it was.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import asdict

import msgspec

from actors._kafka.logs import KafkaLogs
from actors.errors import UnreadableLogError
from actors.ports import LogRecord, Output, OwnerRecord, TopicPartition

logger = logging.getLogger(__name__)


def encode_owner(topic: str, record: OwnerRecord) -> Output:
    """Give the registry's record as an output."""
    key = f"{record.actor}/{record.partition}".encode()
    return Output(topic, 0, key, msgspec.json.encode(asdict(record)), [], None)


class KafkaOwners:
    """`actors.ports.Owners` over a broker."""

    def __init__(self, topic: str, logs: KafkaLogs) -> None:
        self.topic = topic
        self._logs = logs
        self._source = TopicPartition(topic, 0)
        self._records: dict[bytes, OwnerRecord] = {}
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

    def _take(self, record: LogRecord) -> None:
        if record.key is None or record.value is None:
            return
        try:
            self._records[record.key] = msgspec.json.decode(record.value, type=OwnerRecord)
        except msgspec.DecodeError as error:
            logger.warning("%s offset %d isn't an owner's record: %s", self._source, record.offset, error)

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
