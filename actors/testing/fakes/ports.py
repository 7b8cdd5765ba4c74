"""Fakes of `actors.ports` over a simulated cluster; each does what its twin in `actors._kafka` does with a real one.

`tests/contract/test_ports_contract.py` holds fakes and twins against each other.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from typing import Any

from actors._core.group.members import left_open
from actors._core.logs import error_text
from actors._core.outside import EXITS
from actors._core.partitioner import MURMUR2
from actors._core.task.takeover import LogBounds
from actors.errors import (
    BatchesRefusedError,
    BrokerUnavailableError,
    CommitRefusedError,
    FencedError,
    OutcomeUnknownError,
    ReplacedLogError,
    RestoreError,
    StaleGenerationError,
    TaskError,
    UnstableOffsetError,
)
from actors.ports import (
    CommitBatch,
    CommitReceipt,
    Committed,
    Identity,
    LogRecord,
    LookAnswer,
    TopicIdentity,
    TopicPartition,
)
from actors.testing.fakes.cluster import EPOCH_MS, MemoryKafka
from actors.testing.fakes.direct import DirectNetwork, retried
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
    UnstableOffsetsError,
)
from actors.testing.fakes.log import StoredRecord
from stores._core.record import METADATA_HEADER

QUICK_BACKOFF_S = 0.002
SLOW_BACKOFF_S = 0.1
ANSWER_S = 10.0
RETRY_S = 0.05
POLL_S = 0.2
GIVE_UP_S = 60.0


class FakeClock:
    """`actors.ports.Clock` in the time of `loop`, or of the running one, whose 0 is `epoch_ms` in Unix milliseconds.

    Attributes:
        wall_offset_ms: what this machine's wall clock is wrong by.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None, epoch_ms: int = EPOCH_MS) -> None:
        self.wall_offset_ms = 0
        self._epoch_ms = epoch_ms
        self._loop = loop

    def monotonic(self) -> float:
        return (self._loop or asyncio.get_running_loop()).time()

    def wall_ms(self) -> int:
        """Return Unix milliseconds as this machine has them."""
        return self._epoch_ms + int(self.monotonic() * 1000) + self.wall_offset_ms

    @staticmethod
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds)


class FakeWriter:
    """`actors.ports.Writer`, request for request as `TransactionWriter` makes them.

    After a failure it can't write until it is fenced.
    """

    def __init__(
        self,
        cluster: MemoryKafka,
        network: DirectNetwork,
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
        self._epoch = None
        self._epoch = await self._init(self._id, self._transaction_timeout_s)

    async def end_transaction_of(self, transactional_id: str) -> None:
        await self._init(transactional_id, 30.0)

    async def _init(self, transactional_id: str, timeout_s: float) -> int:
        init = self._cluster.transactions.init_producer_id
        epoch: int = await _answered(
            f"InitProducerId of {transactional_id}",
            lambda: self._network.ask("InitProducerId", init, transactional_id, timeout_s),
        )
        return epoch

    async def write(self, identity: Identity, batches: Sequence[CommitBatch]) -> Sequence[CommitReceipt]:
        epoch, self._epoch = self._epoch, None
        if epoch is None:
            raise OutcomeUnknownError(f"{self._id} has a transaction of unknown outcome")
        try:
            async with asyncio.timeout(self._commit_deadline_s):
                return await self._write(epoch, identity, batches)
        except IllegalGenerationError as error:
            raise StaleGenerationError(f"commit of {self._id}: {_said(error)}") from error
        except (RefusedError, NoAnswerError, TimeoutError) as error:
            kind = FencedError if isinstance(error, ProducerFencedError) else OutcomeUnknownError
            raise kind(f"commit of {self._id}: {_said(error)}") from error

    async def close(self) -> None:
        self._epoch = None

    async def _write(self, epoch: int, identity: Identity, batches: Sequence[CommitBatch]) -> Sequence[CommitReceipt]:
        refused = _misplaced(self._cluster, batches)
        if refused:
            self._epoch = epoch
            raise BatchesRefusedError(refused)
        offsets = {
            source: (committed.offset, committed.metadata)
            for batch in batches
            for source, committed in batch.offsets.items()
        }
        if offsets:
            member = identity.member_id, identity.generation
            commit = self._cluster.commit_offsets_in_transaction
            await self._ask("TxnOffsetCommit", commit, self._id, epoch, member, offsets)
        writes = _writes(self._cluster, batches)
        sent = await asyncio.gather(
            *(self._produce(epoch, target, records) for target, records in writes.items()), return_exceptions=True
        )
        ends: dict[TopicPartition, Any] = dict(zip(writes, sent, strict=True))
        refusals = {target: error for target, error in ends.items() if isinstance(error, RecordRefusedError)}
        for error in sent:
            if isinstance(error, BaseException) and not isinstance(error, RecordRefusedError):
                raise error
        end = self._cluster.transactions.end
        self._epoch = await self._ask("EndTxn", lambda: end(self._id, epoch, commit=not refusals))
        if refusals:
            raise BatchesRefusedError(_concerned(self._cluster, batches, refusals))
        return [_receipt(batch, ends) for batch in batches]

    async def _produce(self, epoch: int, target: TopicPartition, records: list[Any]) -> int:
        """Write in the transaction, and return the offset behind the records.

        While the markers of the transaction before are written, the leader refuses.
        """
        base: int = await self._ask("Produce", self._cluster.produce_in_transaction, self._id, epoch, target, records)
        return base + len(records)

    async def _ask(self, request: str, function: Any, *args: Any) -> Any:
        """Ask again when refused for now; the first time without an answer is the last (see `actors._kafka`)."""
        backoff_s = QUICK_BACKOFF_S
        while True:
            try:
                return await self._network.ask(request, function, *args)
            except RefusedError as error:
                if not error.is_retriable:
                    raise
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 1.5, SLOW_BACKOFF_S)


def _misplaced(cluster: MemoryKafka, batches: Sequence[CommitBatch]) -> dict[int, TaskError]:
    """Return the refusals of batches with a record that has no partition."""
    found: dict[int, TaskError] = {}
    for place, batch in enumerate(batches):
        try:
            _writes(cluster, [batch])
        except RecordRefusedError as error:
            found[place] = CommitRefusedError(f"{batch}: {_said(error)}")
    return found


def _concerned(
    cluster: MemoryKafka, batches: Sequence[CommitBatch], refusals: Mapping[TopicPartition, Exception]
) -> dict[int, TaskError]:
    """Return the refusals of the batches that write to one of the partitions."""
    found: dict[int, TaskError] = {}
    for place, batch in enumerate(batches):
        for target in _writes(cluster, [batch]):
            if target in refusals:
                found[place] = CommitRefusedError(f"{batch}: {_said(refusals[target])}")
    return found


def _writes(cluster: MemoryKafka, batches: Iterable[CommitBatch]) -> Mapping[TopicPartition, list[Any]]:
    writes: dict[TopicPartition, list[Any]] = defaultdict(list)
    for batch in batches:
        for topic, changelog in batch.changelogs.items():
            writes[TopicPartition(topic, batch.partition)] += [
                (key, value, [(METADATA_HEADER, metadata)], None) for key, (metadata, value) in changelog.items()
            ]
        for topic, partition, key, value, headers, timestamp_ms in batch.outputs:
            if not isinstance(partition, int):
                count, place = len(cluster.topic(topic).partitions), partition or MURMUR2
                try:
                    partition = place.home(key, count) if key is not None else len(value or b"") % count
                except EXITS:
                    raise
                except BaseException as error:
                    raise RecordRefusedError(f"a record can't be sent: {error_text(error)}") from error
            writes[TopicPartition(topic, partition)].append((key, value, headers, timestamp_ms))
    return writes


def _receipt(batch: CommitBatch, ends: Mapping[TopicPartition, int]) -> CommitReceipt:
    return CommitReceipt({topic: ends[TopicPartition(topic, batch.partition)] for topic in batch.changelogs})


class FakeGroupView:
    """`actors.ports.GroupView`: every refusal is looked at, and only an answer counts."""

    def __init__(self, cluster: MemoryKafka, network: DirectNetwork) -> None:
        self._cluster = cluster
        self._group = cluster.group
        self._network = network

    async def is_member(self, identity: Identity) -> bool:
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
        found: Committed | None = await _answered(
            f"committed offset of {source}", lambda: self._network.ask("OffsetFetch", self._group.committed, source)
        )
        return found

    async def stable_offset(self, source: TopicPartition) -> Committed | None:
        ask = self._cluster.stable_offset
        try:
            found: Committed | None = await _answered(
                f"committed offset of {source}", lambda: self._network.ask("OffsetFetch", ask, source)
            )
        except BrokerUnavailableError as error:
            if isinstance(error.__cause__, UnstableOffsetsError):
                raise UnstableOffsetError(f"{source}: an open transaction may change the committed offset") from error
            raise
        return found

    async def knows(self, member_id: str) -> bool:
        ask = self._group.knows
        return bool(
            await _answered(f"is {member_id} in the group", lambda: self._network.ask("Knows?", ask, member_id))
        )

    async def left_open(self, own_id: str) -> set[str]:
        def look() -> set[str]:
            opened = {one.transactional_id for one in self._cluster.transactions.open_transactions()}
            return left_open(opened, self._group.transactional_ids(), own_id)

        return set(await _answered("open transactions", lambda: self._network.ask("ListTransactions", look)))

    async def topic_ids(self, names: Iterable[str]) -> dict[str, TopicIdentity]:
        wanted = set(names)

        def find() -> dict[str, TopicIdentity]:
            topics = [topic for topic in map(self._cluster.find_topic, wanted) if topic is not None]
            return {topic.name: TopicIdentity(topic.topic_id, len(topic.partitions)) for topic in topics}

        return dict(await _answered("topic ids", lambda: self._network.ask("Metadata", find)))

    async def look(
        self, commits: Collection[TopicPartition], ends: Collection[TopicPartition], topics: Collection[str]
    ) -> LookAnswer:
        def committed() -> dict[TopicPartition, Committed]:
            found = {source: self._group.committed(source) for source in commits}
            return {source: one for source, one in found.items() if one is not None}

        def bounds() -> tuple[dict[TopicPartition, tuple[int, int]], dict[str, TopicIdentity]]:
            logs = {source: (self._cluster.end_of(source), 0) for source in ends}
            found = [topic for topic in map(self._cluster.find_topic, topics) if topic is not None]
            return logs, {topic.name: TopicIdentity(topic.topic_id, len(topic.partitions)) for topic in found}

        try:
            answer = await self._network.ask("OffsetFetch", committed)
            return LookAnswer(answer, *await self._network.ask("ListOffsets", bounds))
        except (RefusedError, NoAnswerError, KeyError) as error:
            raise BrokerUnavailableError(f"a look at the inputs: {_said(error)}") from error

    async def require_agreement(self, names: Iterable[str]) -> None:
        """Do nothing: the cluster has one answer."""


async def _answered(what: str, ask: Any) -> Any:
    try:
        deadline_s = asyncio.get_running_loop().time() + ANSWER_S
        return await retried(ask, retry_s=RETRY_S, deadline_s=deadline_s)
    except (RefusedError, NoAnswerError) as error:
        raise BrokerUnavailableError(f"{what}: {_said(error)}") from error


class FakeLogs:
    """`actors.ports.Logs`; `chunk_records` bounds what one fetch gives."""

    def __init__(self, cluster: MemoryKafka, network: DirectNetwork, *, chunk_records: int = 500) -> None:
        self._cluster = cluster
        self._network = network
        self._chunk_records = chunk_records

    async def bounds(self, partition: TopicPartition) -> LogBounds:
        what = f"offsets of {partition}"
        start = await _answered(what, lambda: self._network.ask("ListOffsets", self._cluster.start_of, partition))
        end = await _answered(what, lambda: self._network.ask("ListOffsets", self._cluster.end_of, partition))
        return LogBounds(start, end)

    async def read(
        self, partition: TopicPartition, start: int, end: int, topic_id: str = ""
    ) -> AsyncIterator[tuple[Sequence[LogRecord], int]]:
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

    async def open_records(self, partition: TopicPartition) -> Sequence[LogRecord] | None:
        ask = self._cluster.open_records
        found: Sequence[LogRecord] | None
        found = await _answered(f"open transactions of {partition}", lambda: self._network.ask("Read", ask, partition))
        return found

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


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
