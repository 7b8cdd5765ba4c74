"""One partition of a sink: reads it, writes it in batches, and notes how far it is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from actors._core.logs import Reminders, error_text, escaping
from actors._core.outside import caused
from actors._core.task.policy import OnError
from actors._kafka.consume.group import GroupReader
from actors.declare.values.codecs import Codec
from actors.errors import Rejected, UnresolvedSchemaError
from actors.ports import LogRecord, RefusedRecord, TopicPartition
from actors.sinks.batch import Batch, Record, Target

logger = escaping(logging.getLogger(__name__))

IDLE_S = 1.0
MOST_BYTES = 16 << 20
"""A batch ends with the record by which it has so many bytes."""
REMIND_S = 30.0


class Row(NamedTuple):
    """A record with what is written of it; `error` says why it can't be."""

    raw: LogRecord
    record: Record | None
    row: Any
    error: Rejected | None = None


class Rows:
    """Makes rows of raw records.

    Args:
        key: decodes keys.
        value: decodes values.
        row: the user's function of a record; None writes the records themselves.
        tombstones: whether the function gets records without a value too.
    """

    def __init__(self, *, key: Codec, value: Codec, row: Callable[[Record], Any] | None, tombstones: bool) -> None:
        self._key = key.decode
        self._value = value.decode
        self._row = row
        self._tombstones = tombstones

    async def add(self, rows: list[Row], source: TopicPartition, records: Sequence[LogRecord]) -> None:
        """Append a row for each record; wait for schemas that decoding needs."""
        begin = len(rows)
        while len(rows) < begin + len(records):
            try:
                self._add(rows, source, records[len(rows) - begin :])
            except UnresolvedSchemaError as error:
                await error.fetch()

    def _add(self, rows: list[Row], source: TopicPartition, records: Sequence[LogRecord]) -> None:
        topic, partition = source
        decode_key, decode_value, function, tombstones = self._key, self._value, self._row, self._tombstones
        for raw in records:
            if isinstance(raw, RefusedRecord):
                rows.append(Row(raw, None, None, Rejected(raw.error.reason)))
                continue
            try:
                key = None if raw.key is None else decode_key(raw.key)
                value = None if raw.value is None else decode_value(raw.value)
                record = Record(topic, partition, raw.offset, key, value, raw.timestamp, raw.headers)
                is_row = function is not None and (value is not None or tombstones)
                row = function(record) if function is not None and is_row else None
            except UnresolvedSchemaError:
                raise
            except Exception as error:
                # The same record would lead to the same error again.
                rows.append(Row(raw, None, None, caused(Rejected(error_text(error)), error)))
            else:
                rows.append(Row(raw, record, row))


class StoppedError(Exception):
    """A record is refused, and the sink's policy is to wait in front of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """A sink as it was declared.

    Attributes:
        group: its consumer group.
        row: the user's function of a record; None if the target takes the records themselves.
        size: the most records of a batch.
        within_s: how long the first record of a batch waits for others.
        policy: what becomes of a record that the target refuses.
        tombstones: whether `row` gets records without a value too.
    """

    name: str
    group: str
    topic: Any
    target: Target
    row: Callable[[Record], Any] | None
    size: int
    within_s: float
    policy: OnError
    tombstones: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkServices:
    """The parts that the partitions of a sink share.

    Attributes:
        identify: gives the topic's id.
        start: gives the offset from which a partition is read that has none.
        bury: sends a refused record to the dead letters, with the reason.
    """

    reader: GroupReader
    rows: Rows
    identify: Callable[[], Awaitable[str]]
    start: Callable[[TopicPartition], Awaitable[int]]
    bury: Callable[[TopicPartition, LogRecord, str], Awaitable[None]]


class PartitionSink:
    """Writes one partition, in a task of its own that runs until it is cancelled.

    Attributes:
        failure: why the last attempt failed; None if it didn't.
    """

    def __init__(self, source: TopicPartition, sink: Sink, services: SinkServices, *, generation: int) -> None:
        self.source = source
        self.failure: Exception | None = None
        self._sink = sink
        self._services = services
        self._policy = sink.policy
        self._refusals: tuple[type[Exception], ...] = (Rejected, *sink.policy.skip, *sink.policy.reject)
        self._generation = self._token = generation
        self._topic_id: str | None = None
        self._next: int | None = None
        self._pending: list[Row] = []
        self._is_stopping = self._is_writing = False
        self._reminders = Reminders(REMIND_S)
        self._title = f"sink {sink.name} of {source}"

    @property
    def offset(self) -> int | None:
        """The next offset that is written; None before the target was asked."""
        return self._next

    def stop(self) -> bool:
        """End after the batch that is being written; return whether there is one."""
        self._is_stopping = True
        return self._is_writing

    async def run(self) -> None:
        """Write what comes; after a failure wait, and write the same batch again."""
        failures = 0
        while not self._is_stopping:
            try:
                await self._claim()
                while not self._is_stopping:
                    await self._gather()
                    if self._pending and not self._is_stopping:
                        self._is_writing = True
                        await self._write(self._pending)
                        self._is_writing = False
                    if failures:
                        logger.info("%s goes on at offset %s", self._title, self._next)
                    failures, self.failure = 0, None
            except Exception as error:
                self._is_writing = False
                failures += 1
                self._note(error)
            if failures and not self._is_stopping:
                await asyncio.sleep(self._policy.wait_s(failures))

    def _note(self, error: Exception) -> None:
        self.failure = error
        reason = str(error) if isinstance(error, StoppedError) else error_text(error)
        if self._reminders.is_due(asyncio.get_running_loop().time(), type(error).__name__):
            how = logger.error if isinstance(error, StoppedError) else logger.warning
            how("%s at offset %s: %s; it is tried again", self._title, self._next, reason)

    async def _claim(self) -> None:
        """Claim the partition, and read from where the target is, if that is another place."""
        if self._topic_id is None:
            self._topic_id = await self._services.identify()
        offset, token = await self._sink.target.claim(self.source, self._topic_id)
        self._token = self._generation if token is None else token
        if offset is None:
            offset = await self._services.start(self.source) if self._next is None else self._next
        if offset != self._next or not self._pending:
            self._pending = []
            self._next = offset
            self._services.reader.start_from(self.source, offset, self._topic_id)

    async def _gather(self) -> None:
        """Read until there is a batch."""
        loop, rows = asyncio.get_running_loop(), self._pending
        until_s = loop.time() + self._sink.within_s
        size_bytes = sum(_size(row.raw) for row in rows)
        while len(rows) < self._sink.size and size_bytes < MOST_BYTES and not self._is_stopping:
            wait_s = until_s - loop.time() if rows else IDLE_S
            if wait_s <= 0:
                break
            records = await self._services.reader.fetch(self.source, most=self._sink.size - len(rows), timeout_s=wait_s)
            if records and not rows:
                until_s = loop.time() + self._sink.within_s
            await self._services.rows.add(rows, self.source, records)
            size_bytes += sum(map(_size, records))

    async def _write(self, rows: Sequence[Row]) -> None:
        """Write rows; halve a batch that is refused, until the refused record is alone."""
        first, following = self._next or 0, rows[-1].raw.offset + 1
        try:
            await self._put(first, following, rows)
        except self._refusals as error:
            if len(rows) > 1:
                middle = len(rows) // 2
                await self._write(rows[:middle])
                await self._write(rows[middle:])
                return
            await self._give_up(rows[0].raw, error)
            await self._put(first, following, ())
        self._next = following
        self._pending = self._pending[len(rows) :]
        await self._services.reader.commit(self.source, following)

    async def _put(self, first: int, following: int, rows: Sequence[Row]) -> None:
        for row in rows:
            if row.error is not None:
                raise row.error
        records = [row.record for row in rows if row.record is not None]
        topic, partition = self.source
        batch = Batch(topic=topic, partition=partition, first=first, next=following, token=self._token, records=records)
        await self._sink.target.write(batch, [row.row for row in rows])

    async def _give_up(self, raw: LogRecord, error: Exception) -> None:
        """Do with a refused record as the policy says.

        Raises:
            StoppedError: it is to wait in front of the record.
        """
        reason = error_text(error)
        if self._policy.then_for(error, is_asked=False) == "stop":
            raise StoppedError(
                f"offset {raw.offset} is refused: {reason}. Nothing behind it is written: mend the target or the "
                'function, or skip such records with on_error=OnError(then="skip", dead_letters=True)'
            )
        if self._policy.dead_letters:
            await self._services.bury(self.source, raw, reason)
        logger.error("%s: offset %d is skipped: %s", self._title, raw.offset, reason)


def _size(raw: LogRecord) -> int:
    return len(raw.key or b"") + len(raw.value or b"")
