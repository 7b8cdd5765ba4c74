"""Batches of records as sinks get them, and what a sink writes to."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from typing_extensions import override

from actors.ports import TopicPartition
from actors.runtime.threads import finish_in_thread


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record of a topic, decoded as the topic declares it. `value` is None for a tombstone.

    `timestamp` is in Unix milliseconds.
    """

    topic: str
    partition: int
    offset: int
    key: Any
    value: Any
    timestamp: int
    headers: Sequence[tuple[str, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Records of one partition, in order.

    Attributes:
        first: the offset from which on nothing was written yet; not greater than that of the first record.
        next: the offset after the last record, from which the next batch begins.
        token: the fencing token: a later owner of the partition has a greater one.
        records: the records; empty where the only one is given up, and just the offset goes on.
    """

    topic: str
    partition: int
    first: int
    next: int
    token: int
    records: Sequence[Record]

    @property
    def source(self) -> TopicPartition:
        """Topic and partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def id(self) -> str:
        """A name that a repeat of the batch has too: topic, partition, first and last offset."""
        return f"{self.topic}-{self.partition}-{self.first}-{self.next - 1}"


class Target:
    """Where a sink writes; subclass it. Its sink makes a row of each record, or None where there is nothing to write.

    Whatever `claim` or `write` raise is tried again after a wait, as long as it takes, `actors.Rejected` excepted: the
    target refuses one of the rows, which another attempt wouldn't change.
    """

    @property
    def keeps_offsets(self) -> bool:
        """True if it has a `claim` of its own."""
        return type(self).claim is not Target.claim

    def prepare(self, sink: str) -> None:
        """Note the name of the sink, before the first `claim`."""

    async def claim(self, source: TopicPartition, topic_id: str) -> tuple[int | None, int | None]:
        """Become the only writer of a partition; called before its first batch, and again after each failure.

        Returns:
            The next offset to write and the fencing token, as the target has stored them in the same transaction as
            the rows. None leaves them to the consumer group: then a batch may come twice.
        """
        return None, None

    async def write(self, batch: Batch, rows: Sequence[Any]) -> None:
        """Write a batch, with a row for each record.

        Raises:
            Rejected: the target refuses a row; nothing of the batch was written.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Disconnect. May be called twice."""


class Function(Target):
    """A user's function of a batch as a target; a plain one runs in a thread."""

    def __init__(self, function: Callable[[Batch], Any]) -> None:
        self._function = function
        self._is_async = inspect.iscoroutinefunction(function)

    @override
    async def write(self, batch: Batch, rows: Sequence[Any]) -> None:
        if not batch.records:
            return
        if self._is_async:
            await self._function(batch)
        else:
            await finish_in_thread(self._function, batch)
