"""Fakes of `actors.ports` over a simulated cluster; each does what its twin in `actors._kafka` does with a real one.

`tests/contract/test_ports_contract.py` holds fakes and twins against each other.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from actors._core.partitioner import MURMUR2
from actors._core.task.takeover import LogBounds
from actors.errors import (
    BrokerUnavailableError,
    CommitRefusedError,
    OutcomeUnknownError,
    ReplacedLogError,
    RestoreError,
)
from actors.ports import (
    CommitBatch,
    CommitReceipt,
    Committed,
    Identity,
    LogRecord,
    Output,
    OwnerRecord,
    TopicIdentity,
    TopicPartition,
)
from actors.runtime.clock import SystemClock
from actors.testing.fakes.cluster import EPOCH_MS, SimKafka
from actors.testing.fakes.errors import (
    IllegalGenerationError,
    NoAnswerError,
    OffsetOutOfRangeError,
    ProducerFencedError,
    RebalanceInProgressError,
    RecordRefusedError,
    RefusedError,
    UnknownMemberError,
    UnknownTopicIdError,
)
from actors.testing.fakes.log import StoredRecord
from stores._core.record import METADATA_HEADER
from tests.sim.fakes.network import Network, retried

QUICK_BACKOFF_S = 0.002
SLOW_BACKOFF_S = 0.1
ANSWER_S = 10.0
RETRY_S = 0.05
POLL_S = 0.2
GIVE_UP_S = 60.0


class FakeClock:
    """`actors.ports.Clock` in the loop's time.

    Attributes:
        wall_offset_ms: what this machine's wall clock is wrong by.
        checked: the product's clock on that machine, None to believe the machine's whatever it says.
    """

    def __init__(self) -> None:
        self.wall_offset_ms = 0
        self.checked: SystemClock | None = None

    @staticmethod
    def monotonic() -> float:
        """Return the loop's time."""
        return asyncio.get_running_loop().time()

    def wall_ms(self) -> int:
        """Return Unix milliseconds as this machine has them, or as far as they are believed."""
        return self._machine_ms() if self.checked is None else self.checked.wall_ms()

    def begin_to_check(self, margin_ms: int) -> None:
        """Believe the machine's clock no further than a worker does that starts now."""
        self.checked = SystemClock(margin_ms, wall_ns=lambda: self._machine_ms() * 1_000_000, boot_ms=self._boot_ms)

    def _machine_ms(self) -> int:
        return EPOCH_MS + self._boot_ms() + self.wall_offset_ms

    @staticmethod
    def _boot_ms() -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    @staticmethod
    async def sleep(seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


class FakeTaskLog:
    """`actors.ports.TaskLog` with one transaction per commit, request for request as `TransactionLog` makes them."""

    def __init__(
        self,
        cluster: SimKafka,
        network: Network,
        *,
        transactional_id: str,
        transaction_timeout_s: float = 30.0,
        commit_deadline_s: float = 10.0,
    ) -> None:
        self._cluster = cluster
        self._network = network
        self._id = transactional_id
        self._transaction_timeout_s = transaction_timeout_s
        self._commit_deadline_s = commit_deadline_s
        self._epoch: int | None = None

    async def fence(self) -> None:
        """See `actors.ports.TaskLog.fence`."""
        await self.close()
        transactions = self._cluster.transactions
        try:
            self._epoch = await retried(
                lambda: self._network.ask(
                    "InitProducerId", transactions.init_producer_id, self._id, self._transaction_timeout_s
                ),
                retry_s=0.02,
                deadline_s=asyncio.get_running_loop().time() + ANSWER_S,
            )
        except (RefusedError, NoAnswerError) as error:
            raise BrokerUnavailableError(f"starting the producer {self._id}: {_said(error)}") from error

    async def commit(self, batch: CommitBatch) -> CommitReceipt:
        """See `actors.ports.TaskLog.commit`."""
        epoch = self._epoch
        if epoch is None:
            raise OutcomeUnknownError(f"{self._id} has no producer")
        try:
            async with asyncio.timeout(self._commit_deadline_s):
                return await self._transaction(epoch, batch)
        except RecordRefusedError as error:
            self._epoch = None
            raise CommitRefusedError(f"commit of {self._id} at {batch.next_offset}: {_said(error)}") from error
        except (RefusedError, NoAnswerError, TimeoutError) as error:
            self._epoch = None
            kind = "fenced" if isinstance(error, ProducerFencedError) else _said(error)
            raise OutcomeUnknownError(f"commit of {self._id} at {batch.next_offset}: {kind}") from error

    async def close(self) -> None:
        """See `actors.ports.TaskLog.close`."""
        self._epoch = None

    async def _transaction(self, epoch: int, batch: CommitBatch) -> CommitReceipt:
        transactions, group = self._cluster.transactions, self._cluster.group.name
        offset = (batch.next_offset, batch.metadata)
        await self._ask("AddOffsetsToTxn", transactions.add_offsets, self._id, epoch)
        await self._ask("TxnOffsetCommit", transactions.commit_offset, self._id, epoch, group, batch.source, offset)
        writes = _writes(self._cluster, batch)
        if writes:
            await self._ask("AddPartitionsToTxn", self._cluster.add_partitions, self._id, epoch, list(writes))
        bases = await asyncio.gather(*(self._produce(epoch, target, records) for target, records in writes.items()))
        await self._end(epoch)
        return _receipt(batch, dict(zip(writes, bases, strict=True)))

    async def _produce(self, epoch: int, target: TopicPartition, records: list[Any]) -> int:
        base: int = await self._network.ask(
            "Produce", self._cluster.produce_in_transaction, self._id, epoch, target, records
        )
        return base

    async def _end(self, epoch: int) -> None:
        transactions = self._cluster.transactions
        await self._ask("EndTxn", lambda: transactions.end(self._id, epoch, commit=True))

    async def _ask(self, request: str, function: Any, *args: Any) -> None:
        """Ask again when refused for now; the first time without an answer is the last (see `actors._kafka`)."""
        backoff_s = QUICK_BACKOFF_S
        while True:
            try:
                await self._network.ask(request, function, *args)
            except RefusedError as error:
                if not error.is_retriable:
                    raise
            else:
                return
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 1.5, SLOW_BACKOFF_S)


class FakeOrderedLog:
    """`actors.ports.TaskLog` for at-least-once: outputs, changelog, offset, each acknowledged before the next."""

    def __init__(
        self,
        cluster: SimKafka,
        network: Network,
        *,
        name: str,
        identity: Identity,
        commit_deadline_s: float = 10.0,
    ) -> None:
        self._cluster = cluster
        self._network = network
        self._name = name
        self._identity = identity
        self._commit_deadline_s = commit_deadline_s
        self._producer: int | None = None
        self._sequences: dict[TopicPartition, int] = {}

    async def fence(self) -> None:
        """Start a new idempotent producer; no producer is fenced."""
        await self.close()
        self._producer = await _answered(
            f"starting the producer {self._name}",
            lambda: self._network.ask("InitProducerId", self._cluster.new_producer_id),
        )

    async def commit(self, batch: CommitBatch) -> CommitReceipt:
        """See `actors.ports.TaskLog.commit`."""
        if self._producer is None:
            raise OutcomeUnknownError(f"{self._name} has no producer")
        what = f"commit of {self._name} at {batch.next_offset}"
        try:
            async with asyncio.timeout(self._commit_deadline_s):
                return await self._in_order(self._producer, batch)
        except RecordRefusedError as error:
            self._producer = None
            raise CommitRefusedError(f"{what}: {_said(error)}") from error
        except (RefusedError, NoAnswerError, TimeoutError) as error:
            self._producer = None
            raise OutcomeUnknownError(f"{what}: {_said(error)}") from error

    async def close(self) -> None:
        """See `actors.ports.TaskLog.close`."""
        self._producer = None
        self._sequences = {}

    async def _in_order(self, producer: int, batch: CommitBatch) -> CommitReceipt:
        await self._send(producer, replace(batch, changelogs={}))
        offsets: dict[str, int] = {}
        for step in batch.steps or [batch.changelogs]:
            written = replace(batch, changelogs=step, outputs=())
            offsets |= _receipt(written, await self._send(producer, written)).changelog_offsets
        identity, committed = self._identity, Committed(batch.next_offset, batch.metadata)
        group = self._cluster.group
        await self._network.ask(
            "OffsetCommit", group.commit, identity.member_id, identity.generation, batch.source, committed
        )
        return CommitReceipt(offsets)

    async def _send(self, producer: int, batch: CommitBatch) -> Mapping[TopicPartition, int]:
        writes = _writes(self._cluster, batch)
        sends = (self._produce(producer, target, records) for target, records in writes.items())
        bases = {}
        for target, sent in zip(writes, await asyncio.gather(*sends, return_exceptions=True), strict=True):
            if isinstance(sent, BaseException):
                raise sent
            bases[target] = sent
        return bases

    async def _produce(self, producer: int, target: TopicPartition, records: list[Any]) -> int:
        """Send one batch again until it is acknowledged: the broker knows a repeat by its sequence number."""
        sequence = self._sequences[target] = self._sequences.get(target, -1) + 1
        base: int = await retried(
            lambda: self._network.ask("Produce", self._cluster.produce_idempotent, producer, sequence, target, records),
            retry_s=SLOW_BACKOFF_S,
            deadline_s=math.inf,
        )
        return base


def _writes(cluster: SimKafka, batch: CommitBatch) -> Mapping[TopicPartition, list[Any]]:
    writes: dict[TopicPartition, list[Any]] = defaultdict(list)
    for topic, changelog in batch.changelogs.items():
        writes[TopicPartition(topic, batch.source.partition)] += [
            (key, value, [(METADATA_HEADER, metadata)], None) for key, (metadata, value) in changelog.items()
        ]
    for topic, partition, key, value, headers, timestamp_ms in batch.outputs:
        if not isinstance(partition, int):
            count, place = len(cluster.topic(topic).partitions), partition or MURMUR2
            try:
                partition = place.home(key, count) if key is not None else len(value or b"") % count
            except Exception as error:
                raise RecordRefusedError(f"a record can't be sent: {type(error).__name__}: {error}") from error
        writes[TopicPartition(topic, partition)].append((key, value, headers, timestamp_ms))
    return writes


def _receipt(batch: CommitBatch, bases: Mapping[TopicPartition, int]) -> CommitReceipt:
    return CommitReceipt(
        {
            topic: bases[TopicPartition(topic, batch.source.partition)] + len(changelog)
            for topic, changelog in batch.changelogs.items()
        }
    )


class FakeGroupView:
    """`actors.ports.GroupView`: every refusal is looked at, and only an answer counts."""

    def __init__(self, cluster: SimKafka, network: Network) -> None:
        self._cluster = cluster
        self._group = cluster.group
        self._network = network

    async def is_member(self, identity: Identity) -> bool:
        """See `actors.ports.GroupView.is_member`."""

        async def ask() -> bool:
            try:
                await self._network.ask("Heartbeat?", self._group.heartbeat, identity.member_id, identity.generation)
            except RebalanceInProgressError:
                return True
            except (UnknownMemberError, IllegalGenerationError):
                return False
            return True

        return bool(await _answered(f"is {identity.member_id} in the group", ask))

    async def committed(self, source: TopicPartition) -> Committed | None:
        """See `actors.ports.GroupView.committed`."""
        found: Committed | None = await _answered(
            f"committed offset of {source}", lambda: self._network.ask("OffsetFetch", self._group.committed, source)
        )
        return found

    async def topic_ids(self, names: Iterable[str]) -> dict[str, TopicIdentity]:
        """See `actors.ports.GroupView.topic_ids`."""
        wanted = set(names)

        def find() -> dict[str, TopicIdentity]:
            topics = [topic for topic in map(self._cluster.find_topic, wanted) if topic is not None]
            return {topic.name: TopicIdentity(topic.topic_id, len(topic.partitions)) for topic in topics}

        return dict(await _answered("topic ids", lambda: self._network.ask("Metadata", find)))

    async def require_agreement(self, names: Iterable[str]) -> None:
        """See `actors.ports.GroupView.require_agreement`: the cluster has one answer."""


async def _answered(what: str, ask: Any) -> Any:
    try:
        deadline_s = asyncio.get_running_loop().time() + ANSWER_S
        return await retried(ask, retry_s=RETRY_S, deadline_s=deadline_s)
    except (RefusedError, NoAnswerError) as error:
        raise BrokerUnavailableError(f"{what}: {_said(error)}") from error


class FakeLogs:
    """`actors.ports.Logs`; `chunk_records` bounds what one fetch gives."""

    def __init__(self, cluster: SimKafka, network: Network, *, chunk_records: int = 500) -> None:
        self._cluster = cluster
        self._network = network
        self._chunk_records = chunk_records

    async def bounds(self, partition: TopicPartition) -> LogBounds:
        """See `actors.ports.Logs.bounds`."""
        what = f"offsets of {partition}"
        start = await _answered(what, lambda: self._network.ask("ListOffsets", self._cluster.start_of, partition))
        end = await _answered(what, lambda: self._network.ask("ListOffsets", self._cluster.end_of, partition))
        return LogBounds(start, end)

    async def read(
        self, partition: TopicPartition, start: int, end: int, topic_id: str = ""
    ) -> AsyncIterator[tuple[Sequence[LogRecord], int]]:
        """See `actors.ports.Logs.read`.

        Raises:
            RestoreError: the log doesn't have `start` any more.
            ReplacedLogError: the topic has another id.
            BrokerUnavailableError: there was no progress for `GIVE_UP_S`.
        """
        loop = asyncio.get_running_loop()
        position, moved_s = start, loop.time()
        while position < end:
            records, reached = await self._fetch(partition, position, topic_id)
            if reached > position:
                position, moved_s = reached, loop.time()
                yield [record for record in records if record.offset < end], min(position, end)
                continue
            if loop.time() - moved_s > GIVE_UP_S:
                raise BrokerUnavailableError(f"reading {partition}: nothing came behind offset {position} of {end}")
            await asyncio.sleep(POLL_S)

    async def _fetch(self, partition: TopicPartition, position: int, topic_id: str) -> tuple[list[StoredRecord], int]:
        try:
            found: tuple[list[StoredRecord], int] = await self._network.ask(
                "Read", self._cluster.fetch, partition, position, self._chunk_records, topic_id
            )
        except UnknownTopicIdError as error:
            raise ReplacedLogError(partition, "it is another topic's now") from error
        except OffsetOutOfRangeError as error:
            raise RestoreError(f"{partition} doesn't have offset {position} any more: {error}") from error
        except NoAnswerError:
            return [], position
        return found


class FakeOwners:
    """`actors.ports.Owners`: reads the whole registry each time."""

    def __init__(self, topic: str, logs: FakeLogs) -> None:
        self.topic = topic
        self._logs = logs

    async def latest(self, actor: str, partition: int) -> OwnerRecord | None:
        """See `actors.ports.Owners.latest`."""
        source = TopicPartition(self.topic, 0)
        bounds = await self._logs.bounds(source)
        found = None
        wanted = _owner_key(actor, partition)
        async for records, _ in self._logs.read(source, bounds.start, bounds.end):
            for record in records:
                if record.key == wanted and record.value is not None:
                    found = OwnerRecord(**json.loads(record.value))
        return found


def encode_owner(topic: str, record: OwnerRecord) -> Output:
    """Return the registry's record as an output."""
    return Output(topic, 0, _owner_key(record.actor, record.partition), json.dumps(asdict(record)).encode(), [], None)


def _owner_key(actor: str, partition: int) -> bytes:
    return f"{actor}/{partition}".encode()


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
