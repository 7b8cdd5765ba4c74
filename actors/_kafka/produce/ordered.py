"""A task's writes at least once: outputs, changelog and offset, each acknowledged before the next."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import NoError, for_code
from aiokafka.protocol.commit import OffsetCommitRequest

from actors._kafka.permissions import UNAUTHORIZED
from actors._kafka.produce import sending
from actors._kafka.produce.transactions import TaskProducer
from actors.ports import CommitBatch, CommitReceipt, Identity


@dataclass(kw_only=True, eq=False)
class OrderedLog(TaskProducer):
    """`actors.ports.TaskLog` without transactions.

    A crash between the writes repeats outputs and changelog records, and loses none. Nobody is fenced: a task and its
    zombie both write.
    """

    name: str
    identity: Identity
    control: Any

    async def fence(self) -> None:
        """Start a new idempotent producer; this fences nobody."""
        await self.close()
        await self._start(self._make(enable_idempotence=True))

    async def _write(self, producer: AIOKafkaProducer, batch: CommitBatch) -> CommitReceipt:
        now_ms = self.wall_ms()
        await sending.send_all(producer, replace(batch, changelogs={}), self.batch_bytes, now_ms)
        offsets: dict[str, int] = {}
        for step in batch.steps or [batch.changelogs]:
            written = await sending.send_all(
                producer, replace(batch, changelogs=step, outputs=()), self.batch_bytes, now_ms
            )
            offsets |= written.changelog_offsets
        await self._commit_offset(batch)
        return CommitReceipt(offsets)

    async def _commit_offset(self, batch: CommitBatch) -> None:
        request = OffsetCommitRequest(
            self.group,
            self.identity.generation,
            self.identity.member_id,
            -1,
            [(batch.source.topic, [(batch.source.partition, batch.next_offset, batch.metadata)])],
        )
        response = await self.control.ask_coordinator(request)
        for _, partitions in response.topics:
            for _, code in partitions:
                error = for_code(code)
                if error is not NoError:
                    raise error() if error in UNAUTHORIZED else error(f"offset of {batch.source}")
