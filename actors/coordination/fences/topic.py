"""A Kafka topic as a guarded resource, though a broker compares no tokens: the log does.

    append ──▶ record with its token ──▶ the log ──▶ every reader, in the log's order ──▶ counts, or doesn't
       ▲                                                                                        │
       └────────────── the writer reads its own record back, and is told the same ◀─────────────┘

A stale holder can't be kept from writing into the log; what it writes counts for nobody. Each reader keeps the greatest
token of each resource and skips records with smaller ones (`actors.coordination.fences.log`). As the order of a
partition never changes, all readers agree on each record, for ever; also the writer, who isn't told that its write
succeeded before it has read it back in its place. A resource is a key, and has one partition.

What must hold for that, and is checked when a topic is opened:

- **A reader knows all that came before.** It begins at offset 0, or where another reader stood, with that one's
  `FenceState`: kept with what was made of the records, in one step. One that begins at the log's end, or after records
  that are deleted, doesn't know the greatest token; what the others refused would count for it. It is refused.
- **The topic isn't compacted.** Compaction keeps the last record of a key: a stale record would erase the one that it
  came too late for. The topic is made with cleanup.policy=delete and without a limit of time or size. With a limit, new
  readers need a state that isn't older than the log's start.
- **It keeps its number of partitions**, or a resource's records would be in two of them. All name the same number.
- All who write use this. Others' records have no such headers, and never count.

A topic that is re-created under the same name is noticed when it is opened the next time.

Why not Kafka's own fencing, one `transactional.id` for each resource? It is the last one to call InitProducerId who
fences the others there, and a holder that wakes up with a closed connection, or is started again, calls it: it would
fence the new owner. The broker knows who came last to itself, and not who was granted the lock last.

What a new holder reads before its first write may still change: a stale holder's record counts as long as no greater
token is in the log. `claim` puts one there; what was read up to the claim's offset is final.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Self
from uuid import uuid4

from actors._core.logs import escaping
from actors._core.partitioner import partition_for
from actors._kafka.connection import Connection
from actors._kafka.consume.views import KafkaTopicLogs
from actors._kafka.produce.appends import KafkaAppends, make_topic
from actors.coordination.client.locking import Seconds, seconds
from actors.coordination.errors import CoordinationError, CoordinationTimeoutError, FenceLostError
from actors.coordination.fences.log import FencedRecord, FenceLog, FenceState, Verdict, headers_of
from actors.errors import (
    BrokerUnavailableError,
    ConfigurationError,
    RestoreError,
    UnknownTopicError,
    UnreadableLogError,
)
from actors.ports import Following, LogRecord, TopicFacts, TopicLogs, TopicPartition

logger = escaping(logging.getLogger(__name__))

PARTITIONS = 8
APPEND_S = 30.0
POLL_S = 0.5
RETRY_S = 0.2
TOPIC_CONFIG = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}


class FencedReader:
    """Gives the records of a fenced topic that count, in the order of each partition. Use it in `async with`.

        async with FencedReader("127.0.0.1:9092", "ledger-lines", state=kept) as reader:
            async for record in reader:
                book(record.value, reader.state.encode())

    It reads what is committed, and belongs to no consumer group. While brokers are away it waits for them.

    Args:
        brokers: `host:port`, several with commas, or a list of them.
        topic: its name.
        partitions: how many the topic has.
        resource: give records of this one only, and read its partition only.
        state: of a reader that stood where this one is to begin; the start of the log when left out.
        security: arguments of aiokafka's clients, for brokers that want to know who connects.

    Attributes:
        max_record_bytes: the topic's `max.message.bytes`, 0 before it was opened.
    """

    def __init__(
        self,
        brokers: str | Sequence[str],
        topic: str,
        *,
        partitions: int = PARTITIONS,
        resource: str | None = None,
        state: FenceState | None = None,
        security: Mapping[str, Any] | None = None,
    ) -> None:
        self.topic = topic
        self._partitions = partitions
        self._resource = resource
        self._connection = Connection.to(brokers, client_id="fenced-reader", security=security)
        self._topic_id = "" if state is None else state.topic_id
        numbers = range(partitions) if resource is None else [partition_for(resource.encode(), partitions)]
        positions = {number: 0 if state is None else state.positions.get(number, 0) for number in numbers}
        self._log = FenceLog(topic, partitions, positions, {} if state is None else state.greatest)
        if state is not None and (state.topic, state.partitions) != (topic, partitions):
            raise FenceLostError(
                f"the state is of {state.topic} with {state.partitions} partitions, the reader is to read {topic} with "
                f"{partitions}: use the state with its own topic"
            )
        self._logs: TopicLogs | None = None
        self._following: Following | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._pending: deque[tuple[int, LogRecord | None, int]] = deque()
        self._failure: FenceLostError | None = None
        self.max_record_bytes = 0

    @property
    def state(self) -> FenceState:
        """Where it stands: behind the record that it gave last. A copy, whose size is that of all resources' names."""
        greatest, positions = self._log.fence.greatest, dict(self._log.positions)
        return FenceState(self.topic, self._topic_id, self._partitions, positions, greatest)

    async def __aenter__(self) -> Self:
        """Connect, and look at the topic.

        Raises:
            FenceLostError: the log doesn't tell the greatest token from where this reader stands.
            ConfigurationError: the topic is compacted, or has another number of partitions.
            UnknownTopicError: there is none of that name.
            BrokerUnavailableError: no broker answers.
        """
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect; `state` stays as it is. May be called twice."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.gather(self._fetching, return_exceptions=True)
            self._fetching = None
        self._pending.clear()
        await self._disconnect()

    async def __aiter__(self) -> AsyncIterator[FencedRecord]:
        """Yield the accepted records as they arrive, without an end.

        Raises:
            FenceLostError: the log can't be judged from here on: records were deleted before they were read.
        """
        while True:
            record = self._counted(await self.step())
            if record is not None:
                yield record

    async def until_end(self) -> AsyncIterator[FencedRecord]:
        """Yield the accepted records up to the log's end at the moment of the call; else as iterating."""
        logs = await self._open()
        ends = {number: (await logs.bounds(self._source(number))).end for number in self._log.positions}
        while any(self._log.positions[number] < end for number, end in ends.items()):
            record = self._counted(await self.step())
            if record is not None:
                yield record

    async def step(self) -> Verdict | None:
        """Judge the next record, and give the verdict: None if it isn't one of ours, or if none came for a while.

        May be cancelled.

        Raises:
            FenceLostError: the log can't be judged from here on.
        """
        if self._failure is not None:
            raise self._failure
        try:
            if not self._pending:
                await self._fetched()
            if not self._pending:
                return None
            number, record, reached = self._pending[0]
            verdict = None if record is None else self._log.judge(number, record)
        except FenceLostError as error:
            self._failure = error
            raise
        self._pending.popleft()
        self._log.positions[number] = reached
        return verdict

    def check(self, resource: str, token: int) -> None:
        """Do nothing if nothing was read that refuses `token`.

        Raises:
            StaleTokenError: something was.
        """
        self._log.fence.check(resource, token)

    def _counted(self, verdict: Verdict | None) -> FencedRecord | None:
        if verdict is None or verdict.is_claim or verdict.refusal is not None:
            return None
        record = verdict.record
        return record if self._resource in (None, record.resource) else None

    def _source(self, number: int) -> TopicPartition:
        return TopicPartition(self.topic, number)

    # --- reading ---------------------------------------------------------------------------------------------------

    async def _fetched(self) -> None:
        """Wait for records, in a task: a fetch that is cancelled would have skipped them."""
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._fetch(), name=f"reading {self.topic}")
        fetching = self._fetching
        await asyncio.wait([fetching])
        if self._fetching is fetching:
            self._fetching = None
            fetching.result()

    async def _fetch(self) -> None:
        try:
            await self._open()
            if self._following is None:
                return
            found = await self._following.poll(POLL_S)
        except RestoreError as error:
            raise FenceLostError(
                f"{self.topic}: records were deleted before they were read, so the greatest tokens aren't known "
                f"({error}): begin with the state of a reader that has read them, and raise the topic's retention"
            ) from error
        except UnreadableLogError as error:
            raise FenceLostError(
                f"records can't be read, so the greatest tokens aren't known: {error}. When that is repaired, begin "
                "with the state that this reader has"
            ) from error
        except BrokerUnavailableError as error:
            logger.warning("reading %s: %s; it is tried again", self.topic, error)
            await self._disconnect()
            await asyncio.sleep(RETRY_S)
            return
        for source, (records, reached) in found.items():
            self._pending.extend((source.partition, record, record.offset + 1) for record in records)
            self._pending.append((source.partition, None, reached))

    async def _open(self) -> TopicLogs:
        """Connect if need be, and look whether the log can be judged from where this stands."""
        if self._logs is None:
            self._logs = await KafkaTopicLogs.open(self._connection)
        if self._following is None:
            self._check_facts(await self._logs.facts(self.topic))
            for number, position in self._log.positions.items():
                bounds = await self._logs.bounds(self._source(number))
                self._check_bounds(number, position, bounds.start, bounds.end)
            positions = {self._source(number): position for number, position in self._log.positions.items()}
            self._following = await self._logs.follow(positions, {self.topic: self._topic_id})
        return self._logs

    async def _disconnect(self) -> None:
        following, self._following = self._following, None
        logs, self._logs = self._logs, None
        if following is not None:
            await following.close()
        if logs is not None:
            await logs.close()

    def _check_facts(self, facts: TopicFacts | None) -> None:
        if facts is None:
            raise UnknownTopicError(
                f"topic {self.topic} isn't on the broker: a FencedTopic makes it, or kafka-topics.sh "
                f"--bootstrap-server BROKER --create --topic {self.topic} --partitions {self._partitions} "
                + " ".join(f"--config {name}={value}" for name, value in TOPIC_CONFIG.items())
            )
        if "compact" in facts.cleanup_policy:
            raise ConfigurationError(
                f"topic {self.topic} has cleanup.policy={facts.cleanup_policy}: a stale record would erase the one "
                "that it came too late for, and what was erased already can't be told. Re-create the topic with "
                "cleanup.policy=delete"
            )
        if facts.partitions != self._partitions:
            raise ConfigurationError(
                f"topic {self.topic} has {facts.partitions} partitions, {self._partitions} are expected: a resource's "
                "records have to be in one partition for ever. Name the number that the topic was made with; if it got "
                "partitions since, re-create it"
            )
        if self._topic_id and facts.topic_id != self._topic_id:
            raise FenceLostError(
                f"topic {self.topic} was re-created since it was read: begin without a state, from the start of the log"
            )
        self._topic_id, self.max_record_bytes = facts.topic_id, facts.max_record_bytes

    def _check_bounds(self, number: int, position: int, start: int, end: int) -> None:
        if position < start:
            raise FenceLostError(
                f"{self._source(number)} starts at offset {start}, and would be read from {position}: the greatest "
                "tokens of what is deleted aren't known, so records that others refused would count. Begin with the "
                f"state of a reader that stands at {start} or behind it"
            )
        if position > end:
            raise FenceLostError(
                f"{self._source(number)} ends at offset {end}, and was read up to {position}: the log lost records. "
                "Begin without a state, from its start, and rebuild what was derived from the records"
            )


class FencedTopic:
    """A resource whose writes are records of a topic, that refuses those who lost its lock. Use it in `async with`.

        async with FencedTopic("127.0.0.1:9092", "ledger-lines", "ledger") as ledger:
            await ledger.append(lease.token, b"a line")

    Opening it makes the topic if it is missing. What counts is read with a `FencedReader`. The first append reads the
    resource's partition from its start, or from `state`.

    Args:
        brokers: `host:port`, several with commas, or a list of them.
        topic: its name; other resources may be in it.
        resource: what the lock calls it.
        partitions: how many the topic has; the same number everywhere and for ever.
        replication_factor: of the topic, if it is made; -1 is the broker's default.
        state: of a reader of the topic, so that less is read.
        security: arguments of aiokafka's clients.
    """

    def __init__(
        self,
        brokers: str | Sequence[str],
        topic: str,
        resource: str,
        *,
        partitions: int = PARTITIONS,
        replication_factor: int = -1,
        state: FenceState | None = None,
        security: Mapping[str, Any] | None = None,
    ) -> None:
        self.topic = topic
        self.resource = resource
        self._key = resource.encode()
        self._partitions = partitions
        self._replication_factor = replication_factor
        self._connection = Connection.to(brokers, client_id="fenced-topic", security=security)
        self._appends: KafkaAppends | None = None
        self._reader = FencedReader(
            brokers, topic, partitions=partitions, resource=resource, state=state, security=security
        )
        self._reading = asyncio.Lock()
        self._waiting: dict[bytes, asyncio.Future[Verdict]] = {}

    @property
    def state(self) -> FenceState:
        """Where this writer's reader stands."""
        return self._reader.state

    async def __aenter__(self) -> Self:
        """Make the topic if it is missing, and look at it; raises what a `FencedReader` does."""
        await make_topic(
            self._connection,
            self.topic,
            partitions=self._partitions,
            replication_factor=self._replication_factor,
            config=TOPIC_CONFIG,
        )
        await self._reader.__aenter__()
        self._appends = KafkaAppends(self._connection, self._reader.max_record_bytes)
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect. May be called twice."""
        appends, self._appends = self._appends, None
        if appends is not None:
            await appends.close()
        await self._reader.close()

    async def append(self, token: int, value: bytes, *, timeout: Seconds = APPEND_S) -> FencedRecord:
        """Append a record, and give it when it is known to count. Several may be on their way at once, in any order.

        Args:
            token: of the lease.
            value: what is written.
            timeout: how long all of it may take.

        Raises:
            StaleTokenError: a greater token came before it: it doesn't count, and never will.
            CoordinationTimeoutError: it took longer; whether the record counts, or will, isn't known.
            BrokerUnavailableError: it couldn't be sent, or that isn't known.
            FenceLostError: the log can't be judged.
            RecordTooLargeError: the topic doesn't take a record of its size.
            CoordinationError: `token` isn't one, or this isn't open.
        """
        return await self._write(token, value, timeout)

    async def claim(self, token: int, *, timeout: Seconds = APPEND_S) -> int:
        """Refuse all smaller tokens from now on, and give the offset in the resource's partition where that begins.

        What counts before it is final: read that far before deciding what to append. Raises what `append` does.
        """
        return (await self._write(token, None, timeout)).offset

    async def _write(self, token: int, value: bytes | None, timeout: Seconds) -> FencedRecord:
        timeout_s = seconds("timeout", timeout)
        appends = self._appends
        if appends is None:
            raise CoordinationError(
                f"{self.resource!r}: the fenced topic {self.topic} isn't open: use it inside `async with`", "argument"
            )
        # What is known to be stale needn't burden the log.
        self._reader.check(self.resource, token)
        id = uuid4().hex.encode()
        waiting = self._waiting[id] = asyncio.get_running_loop().create_future()
        source = TopicPartition(self.topic, partition_for(self._key, self._partitions))
        try:
            async with asyncio.timeout(timeout_s):
                await appends.append(source, self._key, value, headers_of(self.resource, token, id))
                verdict = await self._verdict(waiting)
        except TimeoutError as error:
            raise CoordinationTimeoutError(
                f"{self.resource!r}: the record with token {token} wasn't read back from {source} within "
                f"{timeout_s:g} s: whether it counts isn't known. Read the topic to see, and write it again with the "
                "same token if the lease is still held",
                "timeout",
            ) from error
        finally:
            del self._waiting[id]
        if verdict.refusal is not None:
            raise verdict.refusal
        return verdict.record

    async def _verdict(self, waiting: asyncio.Future[Verdict]) -> Verdict:
        """Read on until the record's verdict is there; the reading task sets the verdicts of the others."""
        async with self._reading:
            while not waiting.done():
                verdict = await self._reader.step()
                found = None if verdict is None else self._waiting.get(verdict.id)
                if verdict is not None and found is not None and not found.done():
                    found.set_result(verdict)
        return waiting.result()
