"""Two worlds with the same ways to do something to them: a simulated cluster, and a real broker."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.errors import KafkaError
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.protocol.types import Array, Int16, Int32, Schema, String
from aiokafka.structs import OffsetAndMetadata
from aiokafka.structs import TopicPartition as KafkaPartition

from actors._kafka.admin.control import ControlPlane
from actors._kafka.connection import Connection
from actors._kafka.consume.assignor import ActorAssignor
from actors._kafka.consume.consumer import KafkaSource
from actors._kafka.consume.logs import KafkaLogs
from actors._kafka.consume.membership import GroupSettings
from actors._kafka.produce.writer import TransactionWriter
from actors.ports import (
    GroupView,
    Identity,
    Logs,
    SourceEvents,
    TaskLog,
    TopicLogs,
    TopicPartition,
)
from actors.runtime.committer import Committer, Membership
from actors.testing.fakes.errors import RefusedError
from actors.testing.fakes.ports import FakeGroupView, FakeLogs, FakeWriter
from actors.testing.fakes.views import FakeTopicLogs
from tests.kafka.helpers import eventually, make_topics, unique
from tests.sim.fakes.cluster import SimKafka
from tests.sim.fakes.network import Network
from tests.sim.fakes.source import FakeGroupSettings, FakeSource

SESSION_MS = 6000
NOBODY = Identity("", -1)
"""Who commits offsets without being a member."""
MAX_BYTES = 1_000_000


class OpenTransaction(Protocol):
    """Another program's transaction."""

    async def end(self, *, commit: bool) -> None: ...


class Member:
    """A worker's membership, and what its source told it."""

    def __init__(self) -> None:
        self.source: FakeSource | KafkaSource
        self.identity = Identity("", -1)
        self.partitions: list[TopicPartition] = []
        self.assignments = 0
        self.lost: list[TopicPartition] = []
        self.failures: list[str] = []
        self.told: list[str] = []

    def events(self) -> SourceEvents:
        async def revoked() -> None:
            self.told.append("revoked")
            self.partitions = []

        async def handed_over() -> None:
            self.told.append("handed over")

        return SourceEvents(
            joining=lambda: self.told.append("joining"),
            revoked=revoked,
            assigned=self._assigned,
            handed_over=handed_over,
            dropped=lambda: self.told.append("dropped"),
            room=lambda: None,
            lost=lambda source, _: self.lost.append(source),
            failed=lambda error: self.failures.append(type(error).__name__),
        )

    def _assigned(
        self, identity: Identity, partitions: list[TopicPartition], handed_over: frozenset[TopicPartition]
    ) -> None:
        self.identity, self.partitions, self.assignments = identity, partitions, self.assignments + 1
        self.told.append(f"{len(partitions)} and {len(handed_over)} to hand over")

    async def close(self) -> None:
        await self.source.close()


class World(Protocol):
    """A cluster, and the ports over it."""

    group: GroupView
    logs: Logs

    async def topic_logs(self) -> TopicLogs: ...
    def task_log(self, transactional_id: str, identity: Identity = NOBODY) -> TaskLog: ...
    def full_id(self, transactional_id: str) -> str: ...
    async def make_topic(self, name: str, **config: str) -> None: ...
    async def send(self, topic: str, key: bytes, value: bytes | None) -> None: ...
    async def delete_before(self, topic: str, offset: int) -> None: ...
    async def compact(self, topic: str) -> None: ...
    async def join(self, topic: str, instance_id: str | None = None, **options: Any) -> Member:
        """Join the group; `transactional_id` is the one that the member says it commits with."""

    async def open_transaction(
        self, transactional_id: str, topic: str, key: bytes = b"open", value: bytes = b"open"
    ) -> OpenTransaction: ...
    async def open_offset(self, transactional_id: str, topic: str, offset: int) -> OpenTransaction: ...
    async def set_offset(self, topic: str, offset: int) -> bool:
        """As an operator's tool does; tell whether it was taken."""

    async def delete_offset(self, topic: str) -> bool: ...


# --- simulated --------------------------------------------------------------------------------------------------------


class FakeWorld:
    """The simulated cluster on the test's own event loop."""

    def __init__(self) -> None:
        self.network = Network(Random(1))
        self.cluster = SimKafka("contract")
        self.group = FakeGroupView(self.cluster, self.network)
        self.logs = FakeLogs(self.cluster, self.network, chunk_records=2)
        self._members: list[Member] = []

    async def topic_logs(self) -> TopicLogs:
        return FakeTopicLogs(self.cluster, self.network, chunk_records=2)

    def task_log(self, transactional_id: str, identity: Identity = NOBODY) -> TaskLog:
        writer = FakeWriter(self.cluster, self.network, transactional_id=transactional_id)
        return Committer(writer, MAX_BYTES, Membership(identity)).new_log()

    def full_id(self, transactional_id: str) -> str:
        return transactional_id

    async def make_topic(self, name: str, **config: str) -> None:
        self.cluster.make_topic(name, 1, is_compacted="cleanup.policy" in config)
        if "max.message.bytes" in config:
            self.cluster.limit_records(name, int(config["max.message.bytes"]))

    async def send(self, topic: str, key: bytes, value: bytes | None) -> None:
        self.cluster.produce(TopicPartition(topic, 0), [(key, value, ())])

    async def delete_before(self, topic: str, offset: int) -> None:
        self.cluster.log(TopicPartition(topic, 0)).delete_before(offset)

    async def compact(self, topic: str) -> None:
        log = self.cluster.log(TopicPartition(topic, 0))
        log.compact(self.cluster.wall_ms(), log.end)

    async def join(
        self,
        topic: str,
        instance_id: str | None = None,
        *,
        transactional_id: str | None = None,
    ) -> Member:
        member = Member()
        settings = FakeGroupSettings(
            f"member{len(self._members)}",
            instance_id=instance_id,
            session_s=SESSION_MS / 1000,
            heartbeat_s=0.1,
            transactional_id=transactional_id,
        )
        member.source = FakeSource(self.cluster, self.network, settings, [topic], on_disk=dict, events=member.events())
        member.source.open()
        self._members.append(member)
        await eventually(lambda: member.assignments)
        return member

    async def open_transaction(
        self, transactional_id: str, topic: str, key: bytes = b"open", value: bytes = b"open"
    ) -> OpenTransaction:
        cluster, source = self.cluster, TopicPartition(topic, 0)
        epoch = cluster.transactions.init_producer_id(transactional_id, 30.0)
        cluster.produce_in_transaction(transactional_id, epoch, source, [(key, value, ())])
        return FakeTransaction(cluster, transactional_id, epoch)

    async def open_offset(self, transactional_id: str, topic: str, offset: int) -> OpenTransaction:
        transactions = self.cluster.transactions
        epoch = transactions.init_producer_id(transactional_id, 30.0)
        offsets = {TopicPartition(topic, 0): (offset, "")}
        transactions.commit_offsets(transactional_id, epoch, self.cluster.group.name, offsets)
        return FakeTransaction(self.cluster, transactional_id, epoch)

    async def set_offset(self, topic: str, offset: int) -> bool:
        return self._taken(lambda: self.cluster.group.set_offset(TopicPartition(topic, 0), offset))

    async def delete_offset(self, topic: str) -> bool:
        return self._taken(lambda: self.cluster.group.delete_offset(TopicPartition(topic, 0)))

    @staticmethod
    def _taken(request: Callable[[], None]) -> bool:
        try:
            request()
        except RefusedError:
            return False
        return True

    async def close(self) -> None:
        for member in self._members:
            await member.close()


class FakeTransaction:
    def __init__(self, cluster: SimKafka, transactional_id: str, epoch: int) -> None:
        self._end = lambda commit: cluster.transactions.end(transactional_id, epoch, commit=commit)

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

    async def topic_logs(self) -> TopicLogs:
        logs = await KafkaLogs.open(self.connection)
        self._opened.append(logs)
        return logs

    def task_log(self, transactional_id: str, identity: Identity = NOBODY) -> TaskLog:
        writer = TransactionWriter(
            connection=self.connection,
            group=self._name,
            transactional_id=self.full_id(transactional_id),
            transaction_timeout_ms=30_000,
            batch_bytes=lambda topic: 900_000,
            compression=None,
            commit_deadline_s=10.0,
        )
        committer = Committer(writer, MAX_BYTES, Membership(identity))
        self._opened.append(committer)
        return committer.new_log()

    def full_id(self, transactional_id: str) -> str:
        return f"{self._name}-{transactional_id}"

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

    async def join(
        self,
        topic: str,
        instance_id: str | None = None,
        *,
        transactional_id: str | None = None,
    ) -> Member:
        member = Member()
        settings = GroupSettings(
            group=self._name,
            instance_id=instance_id,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=100,
            rebalance_timeout_ms=10_000,
            fetch_bytes=100_000,
            max_poll_records=None,
        )
        assignor = ActorAssignor(instance_id="", address="", actors={}, on_disk=dict, transactional_id=transactional_id)
        member.source = await KafkaSource.open(self.connection, settings, [topic], assignor, member.events())
        self._opened.append(member)
        return member

    async def open_transaction(
        self, transactional_id: str, topic: str, key: bytes = b"open", value: bytes = b"open"
    ) -> OpenTransaction:
        producer = await self._producer(transactional_id=f"{self._name}-{transactional_id}")
        self._opened.append(producer)
        await producer.begin_transaction()
        await producer.send_and_wait(topic, value, key, partition=0)
        return RealTransaction(producer)

    async def open_offset(self, transactional_id: str, topic: str, offset: int) -> OpenTransaction:
        producer = await self._producer(transactional_id=f"{self._name}-{transactional_id}")
        self._opened.append(producer)
        await producer.begin_transaction()
        offsets = {KafkaPartition(topic, 0): OffsetAndMetadata(offset, "")}
        await producer.send_offsets_to_transaction(offsets, self._name)
        return RealTransaction(producer)

    async def set_offset(self, topic: str, offset: int) -> bool:
        request = OffsetCommitRequest(self._name, -1, "", -1, [(topic, [(0, offset, "")])])
        response = await self.group.ask_coordinator(request)
        [(_, [(_, code)])] = response.topics
        return code == 0

    async def delete_offset(self, topic: str) -> bool:
        response = await self.group.ask_coordinator(OffsetDeleteRequest(self._name, topic))
        return response.error_code == 0 and all(code == 0 for _, parts in response.topics for _, code in parts)

    async def _producer(self, **options: Any) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(bootstrap_servers=self.brokers, **options)
        await producer.start()
        return producer

    async def close(self) -> None:
        for opened in reversed(self._opened):
            with contextlib.suppress(KafkaError):
                await (opened.stop() if isinstance(opened, AIOKafkaProducer) else opened.close())
        await self.group.close()


class OffsetDeleteResponse_v0(Response):  # noqa: N801
    API_KEY = 47
    API_VERSION = 0
    SCHEMA = Schema(
        ("error_code", Int16),
        ("throttle_time_ms", Int32),
        ("topics", Array(("name", String("utf-8")), ("partitions", Array(("partition", Int32), ("code", Int16))))),
    )


class OffsetDeleteRequest_v0(RequestStruct):  # noqa: N801
    API_KEY = 47
    API_VERSION = 0
    RESPONSE_TYPE = OffsetDeleteResponse_v0
    SCHEMA = Schema(
        ("group", String("utf-8")),
        ("topics", Array(("name", String("utf-8")), ("partitions", Array(Int32)))),
    )


class OffsetDeleteRequest(Request[OffsetDeleteRequest_v0]):
    """What `kafka-consumer-groups --delete-offsets` sends (KIP-496)."""

    API_KEY = 47

    def __init__(self, group: str, topic: str) -> None:
        self._group = group
        self._topic = topic

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class(self._group, [(self._topic, [0])])


class RealTransaction:
    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer

    async def end(self, *, commit: bool) -> None:
        await (self._producer.commit_transaction() if commit else self._producer.abort_transaction())
