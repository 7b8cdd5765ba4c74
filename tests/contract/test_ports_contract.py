"""What `actors.ports` promises, on the simulated cluster and on a real broker: the simulation is worth what this is."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from random import Random
from typing import Any, Protocol

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition as KafkaPartition

from actors._core.takeover import LogBounds
from actors._kafka.connection import Connection
from actors._kafka.control import ControlPlane
from actors._kafka.logs import KafkaLogs
from actors._kafka.owners import KafkaOwners
from actors._kafka.owners import encode_owner as encode_kafka_owner
from actors._kafka.producer import TransactionLog
from actors.errors import OutcomeUnknownError, RestoreError
from actors.ports import (
    CommitBatch,
    Committed,
    GroupView,
    Identity,
    Logs,
    Output,
    OwnerRecord,
    Owners,
    TaskLog,
    TopicPartition,
)
from actors.testing import (
    FakeGroupSettings,
    FakeGroupView,
    FakeLogs,
    FakeOwners,
    FakeSource,
    FakeTaskLog,
    Network,
    SimKafka,
    encode_owner,
)
from stores._core.record import encode_stamp
from tests.kafka.helpers import eventually, make_topics, unique

STAMP = encode_stamp(1, 0)
COMPACTED_CONFIG = {
    "cleanup.policy": "compact",
    "segment.ms": "50",
    "min.cleanable.dirty.ratio": "0.001",
    "max.compaction.lag.ms": "100",
}


class OpenTransaction(Protocol):
    """Another program's transaction."""

    async def end(self, *, commit: bool) -> None: ...


class World(Protocol):
    """A cluster, and the ports over it."""

    group: GroupView
    logs: Logs

    def task_log(self, transactional_id: str) -> TaskLog: ...
    def owners(self, topic: str) -> Owners: ...
    def encode_owner(self, topic: str, record: OwnerRecord) -> Output: ...
    async def make_topic(self, name: str, **config: str) -> None: ...
    async def send(self, topic: str, key: bytes, value: bytes | None) -> None: ...
    async def delete_before(self, topic: str, offset: int) -> None: ...
    async def compact(self, topic: str) -> None: ...
    async def join(self, topic: str) -> Callable[[], Identity]: ...
    async def open_transaction(self, transactional_id: str, topic: str) -> OpenTransaction: ...


# --- simulated --------------------------------------------------------------------------------------------------------


class FakeWorld:
    """The simulated cluster on the test's own event loop."""

    def __init__(self) -> None:
        self.network = Network(Random(1))
        self.cluster = SimKafka("contract")
        self.group = FakeGroupView(self.cluster, self.network)
        self.logs = FakeLogs(self.cluster, self.network, chunk_records=2)
        self._sources: list[FakeSource] = []

    def task_log(self, transactional_id: str) -> TaskLog:
        return FakeTaskLog(self.cluster, self.network, transactional_id=transactional_id)

    def owners(self, topic: str) -> Owners:
        return FakeOwners(topic, self.logs)

    def encode_owner(self, topic: str, record: OwnerRecord) -> Output:
        return encode_owner(topic, record)

    async def make_topic(self, name: str, **config: str) -> None:
        self.cluster.make_topic(name, 1, is_compacted=bool(config))

    async def send(self, topic: str, key: bytes, value: bytes | None) -> None:
        self.cluster.produce(TopicPartition(topic, 0), [(key, value, ())])

    async def delete_before(self, topic: str, offset: int) -> None:
        self.cluster.log(TopicPartition(topic, 0)).delete_before(offset)

    async def compact(self, topic: str) -> None:
        log = self.cluster.log(TopicPartition(topic, 0))
        log.compact(self.cluster.wall_ms(), log.end)

    async def join(self, topic: str) -> Callable[[], Identity]:
        joined = asyncio.Event()

        async def revoked() -> None:
            joined.clear()

        source = FakeSource(
            self.cluster,
            self.network,
            FakeGroupSettings(f"member{len(self._sources)}", session_s=3.0, heartbeat_s=0.1),
            [topic],
            on_disk=dict,
            assigned=lambda *_: joined.set(),
            revoked=revoked,
            room=lambda: None,
            lost=lambda *_: None,
            failed=lambda error: None,
        )
        source.open()
        self._sources.append(source)
        await joined.wait()
        return source.identity

    async def open_transaction(self, transactional_id: str, topic: str) -> OpenTransaction:
        return await FakeTransaction.begin(self.cluster, transactional_id, topic)

    async def close(self) -> None:
        for source in self._sources:
            await source.close()


class FakeTransaction:
    def __init__(self, cluster: SimKafka, transactional_id: str, epoch: int) -> None:
        self._end = lambda commit: cluster.transactions.end(transactional_id, epoch, commit=commit)

    @classmethod
    async def begin(cls, cluster: SimKafka, transactional_id: str, topic: str) -> FakeTransaction:
        epoch = cluster.transactions.init_producer_id(transactional_id, 30.0)
        source = TopicPartition(topic, 0)
        cluster.add_partitions(transactional_id, epoch, [source])
        cluster.produce_in_transaction(transactional_id, epoch, source, [(b"open", b"open", ())])
        return cls(cluster, transactional_id, epoch)

    async def end(self, *, commit: bool) -> None:
        self._end(commit)


# --- real -------------------------------------------------------------------------------------------------------------


class RealWorld:
    """A real broker and the shells of `actors._kafka`."""

    def __init__(self, brokers: str, control: ControlPlane, name: str) -> None:
        self.brokers = brokers
        self.connection = Connection(tuple(brokers.split(",")))
        self.group = control
        self.logs = KafkaLogs(self.connection, control)
        self._name = name
        self._opened: list[Any] = []

    @classmethod
    async def open(cls, brokers: str) -> RealWorld:
        name = unique("contract")
        control = await ControlPlane.open(Connection(tuple(brokers.split(","))), name)
        return cls(brokers, control, name)

    def task_log(self, transactional_id: str) -> TaskLog:
        log = TransactionLog(
            self.connection,
            transactional_id=f"{self._name}-{transactional_id}",
            group=self._name,
            batch_bytes=lambda topic: 900_000,
            compression=None,
            transaction_timeout_ms=30_000,
            commit_deadline_s=10.0,
        )
        self._opened.append(log)
        return log

    def owners(self, topic: str) -> Owners:
        return KafkaOwners(topic, self.logs)

    def encode_owner(self, topic: str, record: OwnerRecord) -> Output:
        return encode_kafka_owner(topic, record)

    async def make_topic(self, name: str, **config: str) -> None:
        await make_topics(self.brokers, name, partitions=1, config=config)

    async def send(self, topic: str, key: bytes, value: bytes | None) -> None:
        producer = await self._producer()
        await producer.send_and_wait(topic, value, key, partition=0)
        await producer.stop()

    async def delete_before(self, topic: str, offset: int) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.brokers)
        await admin.start()
        try:
            await admin.delete_records({KafkaPartition(topic, 0): RecordsToDelete(before_offset=offset)})
        finally:
            await admin.close()

    async def compact(self, topic: str) -> None:
        """The broker's cleaner comes by itself."""

    async def join(self, topic: str) -> Callable[[], Identity]:
        consumer = AIOKafkaConsumer(
            topic, bootstrap_servers=self.brokers, group_id=self._name, heartbeat_interval_ms=100
        )
        await consumer.start()
        self._opened.append(consumer)
        coordinator = consumer._coordinator
        return lambda: Identity(coordinator.member_id, coordinator.generation)

    async def open_transaction(self, transactional_id: str, topic: str) -> OpenTransaction:
        producer = await self._producer(transactional_id=f"{self._name}-{transactional_id}")
        self._opened.append(producer)
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"open", b"open", partition=0)
        return RealTransaction(producer)

    async def _producer(self, **options: Any) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(bootstrap_servers=self.brokers, **options)
        await producer.start()
        return producer

    async def close(self) -> None:
        for opened in reversed(self._opened):
            with contextlib.suppress(KafkaError):
                await (opened.close() if isinstance(opened, TransactionLog) else opened.stop())
        await self.group.close()


class RealTransaction:
    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer

    async def end(self, *, commit: bool) -> None:
        await (self._producer.commit_transaction() if commit else self._producer.abort_transaction())


@pytest.fixture(params=["fake", "real"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    opened = FakeWorld() if request.param == "fake" else await RealWorld.open(request.getfixturevalue("brokers"))
    try:
        yield opened
    finally:
        await opened.close()


@pytest.fixture
async def topic(world: World) -> str:
    name = unique("log")
    await world.make_topic(name)
    return name


def batch(topic: str, offset: int = 7, **parts: Any) -> CommitBatch:
    return CommitBatch(TopicPartition(topic, 0), offset, f"1;{offset};{uuid.uuid4().hex[:6]}", **parts)


async def read(world: World, topic: str, start: int = 0, end: int | None = None) -> list[tuple[int, bytes | None]]:
    source = TopicPartition(topic, 0)
    end = (await world.logs.bounds(source)).end if end is None else end
    found, reached = [], start
    async for records, next_offset in world.logs.read(source, start, end):
        assert reached < next_offset <= end
        reached = next_offset
        found += [(record.offset, record.value) for record in records]
    assert reached == max(start, end)
    return found


# --- commits ----------------------------------------------------------------------------------------------------------


async def test_a_commit_is_there_as_a_whole(world: World, topic: str) -> None:
    log = world.task_log("a")
    await log.fence()
    first = batch(
        topic,
        changelogs={topic: {b"k": (STAMP, b"v"), b"gone": (STAMP, None)}},
        outputs=[Output(topic, 0, b"k", b"output", [("h", b"1")], None)],
    )
    receipt = await log.commit(first)
    await log.fence()
    assert await world.group.committed(first.source) == Committed(7, first.metadata)
    assert [value for _, value in await read(world, topic)] == [b"v", None, b"output"]
    assert receipt.changelog_offsets == {topic: 2}
    assert (await world.logs.bounds(first.source)) == LogBounds(0, 4)
    await log.close()
    await log.close()


async def test_a_changelog_record_has_its_stamp(world: World, topic: str) -> None:
    log = world.task_log("a")
    await log.fence()
    await log.commit(batch(topic, changelogs={topic: {b"k": (STAMP, b"v")}}))
    await log.fence()
    async for records, _ in world.logs.read(TopicPartition(topic, 0), 0, 1):
        assert [(record.key, record.stamp) for record in records] == [(b"k", STAMP)]


async def test_the_next_commit_begins_behind_the_marker(world: World, topic: str) -> None:
    log = world.task_log("a")
    await log.fence()
    receipts = [
        await log.commit(batch(topic, offset, changelogs={topic: {b"k": (STAMP, b"%d" % offset)}}))
        for offset in (1, 2, 3)
    ]
    assert [receipt.changelog_offsets[topic] for receipt in receipts] == [1, 3, 5]
    await log.fence()
    assert await read(world, topic) == [(0, b"1"), (2, b"2"), (4, b"3")]


async def test_a_commit_without_writes_moves_the_offset(world: World, topic: str) -> None:
    log = world.task_log("a")
    await log.fence()
    empty = batch(topic, 11)
    assert (await log.commit(empty)).changelog_offsets == {}
    await log.fence()
    assert await world.group.committed(empty.source) == Committed(11, empty.metadata)


# --- fences -----------------------------------------------------------------------------------------------------------


async def test_a_fence_settles_what_the_id_left_open(world: World, topic: str) -> None:
    left = await world.open_transaction("a", topic)
    log = world.task_log("a")
    await log.fence()
    assert await read(world, topic) == []
    with pytest.raises(Exception, match=r"(?i)fenced|invalid|epoch"):
        await left.end(commit=True)
    assert await read(world, topic) == []


async def test_a_fenced_producer_commits_nothing(world: World, topic: str) -> None:
    old, new = world.task_log("a"), world.task_log("a")
    await old.fence()
    await old.commit(batch(topic, 1, changelogs={topic: {b"k": (STAMP, b"old")}}))
    await new.fence()
    with pytest.raises(OutcomeUnknownError):
        await old.commit(batch(topic, 2, changelogs={topic: {b"k": (STAMP, b"fenced")}}))
    await new.commit(batch(topic, 3, changelogs={topic: {b"k": (STAMP, b"new")}}))
    await new.fence()
    assert [value for _, value in await read(world, topic)] == [b"old", b"new"]
    committed = await world.group.committed(TopicPartition(topic, 0))
    assert committed is not None
    assert committed.offset == 3


async def test_without_a_fence_nothing_is_committed(world: World, topic: str) -> None:
    log = world.task_log("a")
    with pytest.raises(OutcomeUnknownError):
        await log.commit(batch(topic))
    assert await world.group.committed(TopicPartition(topic, 0)) is None


# --- the group --------------------------------------------------------------------------------------------------------


async def test_no_committed_offset_is_none(world: World, topic: str) -> None:
    assert await world.group.committed(TopicPartition(topic, 0)) is None


async def test_a_member_is_known_in_its_generation_only(world: World, topic: str) -> None:
    identity = await world.join(topic)
    before = identity()
    assert await world.group.is_member(before)
    assert not await world.group.is_member(replace(before, generation=before.generation - 1))
    assert not await world.group.is_member(replace(before, member_id="nobody"))
    other = await world.join(topic)
    await eventually(lambda: identity().generation == other().generation > before.generation)
    assert not await world.group.is_member(before)
    assert await world.group.is_member(identity())
    assert await world.group.is_member(other())


# --- logs -------------------------------------------------------------------------------------------------------------


async def test_reading_skips_what_was_aborted(world: World, topic: str) -> None:
    await world.send(topic, b"k", b"0")
    transaction = await world.open_transaction("other", topic)
    await transaction.end(commit=False)
    await eventually(lambda: _ends_at(world, topic, 3))
    await world.send(topic, b"k", b"3")
    assert await read(world, topic) == [(0, b"0"), (3, b"3")]
    assert await read(world, topic, 1, 3) == []
    assert await read(world, topic, 0, 1) == [(0, b"0")]
    assert await read(world, topic, 4, 4) == []


async def _ends_at(world: World, topic: str, end: int) -> bool:
    return (await world.logs.bounds(TopicPartition(topic, 0))).end == end


async def test_an_open_transaction_of_another_holds_reading_back(world: World, topic: str) -> None:
    await world.send(topic, b"k", b"before")
    transaction = await world.open_transaction("other", topic)
    await world.send(topic, b"k", b"after")
    reading = asyncio.create_task(read(world, topic))
    await asyncio.sleep(0.5)
    assert not reading.done()
    await transaction.end(commit=True)
    assert await asyncio.wait_for(reading, 10.0) == [(0, b"before"), (1, b"open"), (2, b"after")]


async def test_a_start_that_is_gone_is_an_error(world: World, topic: str) -> None:
    for number in range(4):
        await world.send(topic, b"k", b"%d" % number)
    await world.delete_before(topic, 2)
    assert await world.logs.bounds(TopicPartition(topic, 0)) == LogBounds(2, 4)
    assert await read(world, topic, 2) == [(2, b"2"), (3, b"3")]
    with pytest.raises(RestoreError):
        await read(world, topic, 0, 4)


async def test_compaction_leaves_gaps_and_the_end(world: World) -> None:
    name = unique("compacted")
    await world.make_topic(name, **COMPACTED_CONFIG)
    for number in range(4):
        await world.send(name, b"k", b"%d" % number)
        await world.send(name, b"gone", None if number == 3 else b"%d" % number)
        await asyncio.sleep(0.1)
    await world.send(name, b"last", b"8")

    async def has_gaps() -> list[tuple[int, bytes | None]] | None:
        await world.compact(name)
        found = await read(world, name)
        return found if (0, b"0") not in found else None

    found = await eventually(has_gaps)
    assert found == [(6, b"3"), (7, None), (8, b"8")]
    assert await read(world, name, 1, 6) == []
    assert await world.logs.bounds(TopicPartition(name, 0)) == LogBounds(0, 9)


# --- the registry -----------------------------------------------------------------------------------------------------


async def test_the_newest_owner_is_found(world: World, topic: str) -> None:
    owners, log = world.owners(topic), world.task_log("a")
    assert await owners.latest("actor", 0) is None
    await log.fence()
    records = [OwnerRecord("actor", 0, epoch, f"worker{epoch}", "", 1) for epoch in (1, 2)]
    for record in records:
        await log.commit(batch(topic, outputs=[world.encode_owner(topic, record)]))
    await log.commit(batch(topic, outputs=[world.encode_owner(topic, replace(records[0], partition=1))]))
    await log.fence()
    assert await owners.latest("actor", 0) == records[1]
    assert await owners.latest("actor", 2) is None
