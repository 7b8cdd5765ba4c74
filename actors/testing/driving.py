"""The test driver's stand-ins for the worker and the set-up, beside the fakes of the ports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, Self
from uuid import UUID

from faust.types.tuples import TP, RecordMetadata

from actors._faust.inputs import check_parked
from actors._faust.setup import Setup
from actors._faust.startup.registry import StoreRegistry
from actors._kafka.admin.control import TopicInfo
from actors._kafka.admin.owners import KafkaOwners, StoreRecord, encode_stores
from actors.declare.publishing import published_stores
from actors.errors import UnknownTopicError
from actors.ports import ActorReply, ActorRequest, Headers, TopicPartition
from actors.runtime.requests.requests import DEADLINE, NOBODY, REPLY_PARTITIONS, deadline_header, question_headers
from actors.runtime.state.stores import StoreCache
from actors.testing.fakes.cluster import MemoryKafka
from actors.testing.fakes.direct import DirectNetwork
from actors.testing.fakes.errors import OffsetOutOfRangeError
from actors.testing.fakes.ports import FakeClock, FakeLogs
from actors.testing.fakes.requests import FakeRequests
from stores.memory import MemoryStore

_POLLED_RECORDS, BACKLOG_RECORDS = 50, 500
_TOPIC_CONFIG = {"max.message.bytes": "1048588", "delete.retention.ms": "86400000", "cleanup.policy": "delete"}


class DiskStore(MemoryStore):
    """A partition of a store, whose content outlives its process."""

    def __init__(self, store: str, partition: int) -> None:
        super().__init__()
        self.store = store
        self.partition = partition

    @property
    def path(self) -> Path:
        """A name as that of a folder; there is no such folder."""
        return Path(f"{self.store}-{self.partition}")

    @property
    def data(self) -> dict[bytes, bytes]:
        """The content, also while the store is closed."""
        return self._data

    def open(self) -> Self:
        """Open it. What was written without a position counts for nothing."""
        self._closed = False
        if self.position() is None:
            self.wipe()
        return self


class Disk:
    """The stores of the worker's machine."""

    def __init__(self) -> None:
        self._files: dict[tuple[str, int], DiskStore] = {}

    def files(self) -> list[DiskStore]:
        """Return all that is on the disk."""
        return list(self._files.values())

    def cache(self) -> StoreCache:
        """Return the stores of a process; that of an earlier one is dead."""
        return StoreCache(self._open, self._delete)

    def erase(self) -> None:
        """Lose everything."""
        self._files.clear()

    def _delete(self, store: str, partition: int) -> None:
        self._files.pop((store, partition), None)

    def _open(self, store: str, partition: int) -> DiskStore:
        return self._files.setdefault((store, partition), DiskStore(store, partition)).open()


class LoneSource:
    """`actors.ports.Source` of a group's only member, which has all partitions.

    `order` returns what chooses the partition and the length of each answer while a backlog is handed out.
    """

    def __init__(
        self,
        cluster: MemoryKafka,
        topics: Iterable[str],
        *,
        network: DirectNetwork,
        room: Callable[[], None],
        lost: Callable[[TopicPartition, str], None],
        order: Callable[[], Random | None] = lambda: None,
    ) -> None:
        self._order = order
        self.partitions = sorted(log.name for topic in topics for log in cluster.topic(topic).partitions)
        self._cluster = cluster
        self._network = network
        self._room = room
        self._lost = lost
        self._positions: dict[TopicPartition, int] = {}

    async def poll(self, wanted: Iterable[TopicPartition], timeout_s: float) -> Mapping[TopicPartition, Sequence[Any]]:
        """Return records of the wanted partitions, after `timeout_s` at the latest."""
        asked = {source: self._positions[source] for source in wanted if source in self._positions}
        if not asked:
            await asyncio.sleep(timeout_s)
            return {}
        most = _POLLED_RECORDS if self._order() is None else BACKLOG_RECORDS
        try:
            found = await self._network.ask("Fetch", self._cluster.poll, asked, most, timeout_s)
        except OffsetOutOfRangeError as error:
            self._lost(error.partition, f"the input doesn't have offset {error.offset} any more")
            return {}
        order = self._order()
        if order is not None:
            found = _chunk(found, order)
        taken = {source: one for source, one in found.items() if self._positions.get(source) == asked[source]}
        self._positions |= {source: reached for source, (_, reached) in taken.items()}
        return {source: records for source, (records, _) in taken.items() if records}

    def start_from(self, source: TopicPartition, offset: int, topic_id: str = "") -> None:
        """Deliver records from `offset` on."""
        self._positions[source] = offset
        self._room()

    def stop_delivery(self, source: TopicPartition) -> None:
        """Deliver nothing until `start_from`."""
        self._positions.pop(source, None)

    def has_room(self) -> None:
        """Report that a full queue has room again."""
        self._room()

    def position(self, source: TopicPartition) -> int | None:
        """Return the next offset to fetch, None if unknown."""
        return self._positions.get(source)

    def end_offset(self, source: TopicPartition) -> int | None:
        """Return the end of the partition."""
        return self._cluster.log(source).end

    def stable_offset(self, source: TopicPartition) -> int | None:
        """Return the partition's last stable offset."""
        return self._cluster.log(source).last_stable

    def check(self) -> None:
        """Do nothing: it can always go on."""


def _chunk(found: dict[TopicPartition, Any], order: Random) -> dict[TopicPartition, Any]:
    """Return the first records of one partition."""
    if not found:
        return found
    source = order.choice(sorted(found))
    records, reached = found[source]
    count = order.choice((1, 10, 100, BACKLOG_RECORDS))
    return {source: (records, reached) if count >= len(records) else (records[:count], records[count].offset)}


class SimTopics:
    """The part of `actors._kafka.admin.topics.Topics` that `Setup` uses, on the simulated cluster."""

    def __init__(self, cluster: MemoryKafka) -> None:
        self._cluster = cluster

    async def existing(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """Return those of the topics that exist."""
        found = {}
        for name in names:
            with contextlib.suppress(KeyError):
                topic = self._cluster.topic(name)
                found[name] = TopicInfo(name, UUID(topic.topic_id), len(topic.partitions))
        return found

    async def configs(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return the configuration of each."""
        return {name: dict(_TOPIC_CONFIG) for name in names}


class _Registry(StoreRegistry):
    """The product's checks of a start, over the simulated cluster."""

    def __init__(self, setup: Setup, cluster: MemoryKafka, network: DirectNetwork, clock: FakeClock) -> None:
        logs, topics = FakeLogs(cluster, network), SimTopics(cluster)
        any_topics: Any = topics
        super().__init__(setup, any_topics, logs, KafkaOwners(setup.owners_topic, logs), clock)
        self._cluster = cluster

    async def _write(self, records: Mapping[str, StoreRecord]) -> None:
        written = [(key, value, ()) for key, value in encode_stores(records).items()]
        self._cluster.produce(TopicPartition(self._setup.owners_topic, 0), written)


async def record_stores(
    setup: Setup, inputs: Mapping[str, TopicInfo], cluster: MemoryKafka, network: DirectNetwork, clock: FakeClock
) -> None:
    """Check a program's stores as a worker does before it touches them, and make the changelogs that are missing.

    Raises:
        ConfigurationError, LostChangelogError: see `StoreRegistry.check`.
    """
    registry, topics = _Registry(setup, cluster, network, clock), SimTopics(cluster)
    any_topics: Any = topics
    await registry.check()
    await check_parked(setup.app, any_topics, inputs)
    changelogs = setup.compacted(inputs)
    for name, count in changelogs.items():
        if cluster.find_topic(name) is None:
            cluster.make_topic(name, count, is_compacted=True)
    await registry.confirm(await topics.existing(changelogs))


class ProgramClient:
    """Carries `App.ask`, `App.tell` and `topic.send` of the program under test to the simulated cluster.

    It takes the places of `actors._kafka.requests.KafkaRequests` and of Faust's producer, until `withdraw`. The program
    may call it on any event loop and thread.

    Args:
        setup: the program's.
        on_loop: runs a coroutine on the driver's loop.
        unless_failed: awaits a coroutine, and raises what stops the worker meanwhile.
    """

    def __init__(
        self,
        setup: Setup,
        cluster: MemoryKafka,
        network: DirectNetwork,
        clock: FakeClock,
        *,
        on_loop: Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]],
        unless_failed: Callable[[Coroutine[Any, Any, Any]], Coroutine[Any, Any, Any]],
    ) -> None:
        self._setup = setup
        self._app: Any = setup.app
        self._cluster = cluster
        self._network = network
        self._clock = clock
        self._on_loop = on_loop
        self._unless_failed = unless_failed
        self._requests: FakeRequests | None = None
        app: Any = setup.app
        app._asks = app.producer = self

    def withdraw(self) -> None:
        """Let the program reach brokers again."""
        if self._app._asks is self:
            self._app._asks = None
        if self._app._producer is self:
            self._app.producer = None

    def forget(self) -> None:
        """Drop the client of questions, which has ended with the worker if that made it."""
        self._requests = None

    async def ask(self, question: ActorRequest, timeout_s: float) -> ActorReply:
        """Send a question and wait for its answer. The time-out is virtual time."""
        if self._requests is None:
            self._requests = FakeRequests(self._cluster, self._network, topic=self._setup.reply_topic)
        # The program's own clock made the deadline, and the actors compare it with the driver's.
        headers = [header for header in question.headers if header[0] != DEADLINE]
        headers.append(deadline_header(self._clock, timedelta(seconds=timeout_s)))
        asked = self._requests.ask(replace(question, headers=headers), timeout_s)
        reply: ActorReply = await self._on_loop(self._unless_failed(asked))
        return reply

    async def tell(self, question: ActorRequest, _: float) -> int:
        """Send a question whose answer its actor only keeps, and return the question's offset."""
        headers = question_headers(question, NOBODY)
        sent = self.produce(question.topic, question.key, question.value, headers, question.partition, None)
        _, offset = await self._on_loop(sent)
        return int(offset)

    async def close(self) -> None:
        """Stay: the next question would connect again."""
        self._app._asks = self

    async def maybe_start(self) -> None:
        """Do nothing: this and the methods below are of `faust.types.transports.ProducerT`."""

    async def flush(self) -> None:
        """Do nothing: what is sent is there."""

    async def stop(self) -> None:
        """Stay: the next `send` would start it again."""

    async def send(self, topic: str, key: bytes | None, value: bytes | None, **options: Any) -> Any:
        """Send a record, and return a future that is done."""
        sent = asyncio.get_running_loop().create_future()
        sent.set_result(await self.send_and_wait(topic, key, value, **options))
        return sent

    async def send_and_wait(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        *,
        partition: int | None = None,
        timestamp: float | None = None,
        headers: Any = None,
    ) -> RecordMetadata:
        """Send a record; `timestamp` in Unix seconds."""
        sent_ms = None if timestamp is None else int(timestamp * 1000)
        pairs = list(headers.items() if isinstance(headers, Mapping) else headers or ())
        target, offset = await self._on_loop(self.produce(topic, key, value, pairs, partition, sent_ms))
        return RecordMetadata(*target, TP(*target), offset, timestamp, 0)

    async def produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> tuple[TopicPartition, int]:
        """Append a record, on the driver's loop; return where it is."""
        count = await self.partitions_of(topic)
        if partition is None:
            partition = 0 if key is None else self._app.partitioner_for(topic).home(key, count)
        target = TopicPartition(topic, partition)
        return target, self._cluster.produce(target, [(key, value, headers, timestamp_ms)])

    async def partitions_of(self, topic: str) -> int:
        """Return the partition count of a topic."""
        log = self._cluster.find_topic(topic)
        if log is None:
            raise UnknownTopicError(f"topic {topic} isn't declared by the app of the test driver")
        return len(log.partitions)


def make_topics(cluster: MemoryKafka, setup: Setup, partitions: int) -> None:
    """Make the missing topics of an app, except changelogs, each with so many partitions."""

    def make(name: str, count: int = partitions, *, is_compacted: bool = False) -> None:
        if cluster.find_topic(name) is None:
            cluster.make_topic(name, count, is_compacted=is_compacted)

    app = setup.app
    inputs = {name for definition in app.actors.values() for name in definition.topic_names}
    names = {str(topic.get_topic_name()) for topic in app.declared_topics if topic.topics}
    compacted = {view.topic for view in app.views} | published_stores(app).keys()
    for name in sorted(names | inputs):
        make(name, is_compacted=name in compacted)
    for name, count in setup.plain().items():
        make(name, count)
    if setup.answers:
        make(setup.reply_topic, REPLY_PARTITIONS)
    make(setup.owners_topic, 1, is_compacted=True)
