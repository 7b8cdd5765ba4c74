"""aiokafka's clients as this process owns them: the one module that touches aiokafka's private names.

Every request of a consumer, producer or writer passes `Client.send`, where parts of the worker take part as `Hook`s.
What they need beyond aiokafka's public interface has a public name here. `check_installed` compares `PRIVATE` with the
aiokafka that is installed, before a private name is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import logging
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.consumer import fetcher
from aiokafka.consumer.subscription_state import Assignment, TopicPartitionState
from aiokafka.errors import KafkaConnectionError, KafkaError
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.structs import TopicPartition as KafkaPartition

from actors._core.backoff import Backoff
from actors._core.logs import escaping
from actors._kafka.connection import Connection, broker_errors
from actors._kafka.outage import Outages, why_away
from actors._kafka.permissions import WRITE
from actors.errors import ConfigurationError
from actors.runtime.cancellation import is_cancelled

logger = escaping(logging.getLogger(__name__))

CLOSE_S = 2.0
CONNECT_S = 5.0
"""How long a broker may take to answer on a new connection, where others may answer in its place."""
METADATA_S = 4.0
"""How long a look at the cluster's leaders may take, with all brokers that are asked; more after it was too short."""
PRIVATE: Mapping[str, str] = {
    "aiokafka.client:AIOKafkaClient": (
        "_bootstrap_servers _conns _get_conn _get_conn_lock _metadata_update _request_timeout_ms _sasl_mechanism "
        "_wait_on_metadata"
    ),
    "aiokafka:AIOKafkaConsumer": "_client _coordinator _fetcher _subscription",
    "aiokafka:AIOKafkaProducer": "_sender",
    "aiokafka.admin:AIOKafkaAdminClient": "_client",
    "aiokafka.consumer.fetcher:Fetcher": "_max_partition_fetch_bytes _notify _records _wait_consume_future",
    "aiokafka.consumer.fetcher:FetchResult": "_assignment _partition_records _topic_partition _update_position",
    "aiokafka.consumer.fetcher:PartitionRecords": "_consumer_record",
    "aiokafka.consumer.group_coordinator:GroupCoordinator": (
        "_closing _group_subscription _heartbeat_interval_ms _heartbeat_task _on_join_complete _on_join_prepare "
        "_perform_assignment _start_heartbeat_task ensure_active_group reset_generation"
    ),
    "aiokafka.consumer.subscription_state:SubscriptionState": "_notify_assignment_waiters assign_from_subscribed",
    "aiokafka.consumer.subscription_state:Subscription": "_assignment _reassignment_in_progress",
    "aiokafka.consumer.subscription_state:Assignment": "_topic_partitions _tp_state",
    "aiokafka.protocol.fetch:FetchRequest": "_isolation_level _max_bytes _max_wait_ms _min_bytes _rack_id",
    "aiokafka.consumer:fetcher": "FetchResult MemoryRecords PartitionRecords",
    "aiokafka.record:default_records": "gzip_decode",
}
"""By module and class, the names that are used or replaced here and in `actors._kafka.consume.records`."""
Owned = TypeVar("Owned", "Producer", "Consumer")


@functools.cache
def check_installed() -> None:
    """Check that the installed aiokafka has what is used of it beyond its public interface.

    Raises:
        ConfigurationError: it lacks names; with the versions that have them.
    """
    missing = [name for place, names in PRIVATE.items() for name in _missing(place, names)]
    if missing:
        fits = next(line for line in metadata.requires("faust-actors") or () if line.startswith("aiokafka"))
        raise ConfigurationError(
            f"aiokafka {metadata.version('aiokafka')} is installed, which lacks {', '.join(missing)}: this release of "
            f"faust-actors works with {fits}. Install that: pip install '{fits}'"
        )


def _missing(place: str, names: str) -> Iterator[str]:
    """Yield the names that a class or module of aiokafka lacks; attributes are set in the class's `__init__`."""
    module, _, owner_name = place.partition(":")
    owner = getattr(importlib.import_module(module), owner_name, None)
    code = getattr(getattr(owner, "__init__", None), "__code__", None)
    attributes = {*dir(owner), *(() if code is None else code.co_names)}
    yield from (f"{owner_name}.{name}" for name in names.split() if name not in attributes)


class Hook:
    """A part of the worker that stands around a client's requests. A subclass overrides what it needs."""

    async def before(self, node: Any, request: Any) -> Any:
        """Return the request to send to the broker: this one, or another in its place."""
        return request

    def after(self, node: Any, request: Any, response: Any) -> Any:
        """Return the response to hand out; `request` is the one that `before` returned."""
        return response

    def failed(self, request: Any, error: BaseException) -> None:
        """Note that a request that `before` returned got no response."""


class Client(AIOKafkaClient):  # type: ignore[misc]
    """A client that shares with others what is known about brokers that are away; made by `own` or `of`.

    Its own lock of all connections is left out: a broker that hangs would block connections to the others.
    """

    _bootstrap_servers: list[str]
    _request_timeout_ms: int
    outages: Outages
    hooks: Sequence[Hook]
    """The first one gets a request first, and its response last."""
    locks: defaultdict[Any, asyncio.Lock]
    throttle_s: float
    throttled_at_s: float
    timeouts: int

    @classmethod
    def of(cls, connection: Connection, role: str) -> Client:
        return own(AIOKafkaClient(**connection.arguments(role)), connection.outages)

    @classmethod
    async def connected(cls, connection: Connection, role: str) -> Client:
        client = cls.of(connection, role)
        try:
            await client.bootstrap()
        except BaseException:
            await client.close()
            raise
        return client

    @property
    def request_timeout_ms(self) -> int:
        return self._request_timeout_ms

    async def send(self, node_id: Any, request: Any, *, group: Any = ConnectionGroup.DEFAULT) -> Any:
        """Send a request and return the response, both as the hooks want them."""
        sent: list[tuple[Hook, Any]] = []
        try:
            for hook in self.hooks:
                request = await hook.before(node_id, request)
                sent.append((hook, request))
            response = await super().send(node_id, request, group=group)
        except BaseException as error:
            for hook, request in sent:
                hook.failed(request, error)
            raise
        if throttle_ms := getattr(response, "throttle_time_ms", 0):
            # The broker reads nothing from the connection for so long after its answer.
            self.throttle_s, self.throttled_at_s = throttle_ms / 1000, time.monotonic()
            self.outages.throttled_s += self.throttle_s
        for hook, request in reversed(sent):
            response = hook.after(node_id, request, response)
        return response

    def throttled_s(self, within_s: float) -> float:
        """Return how long a quota last held this client up, 0 if that ended more than `within_s` ago."""
        return self.throttle_s if time.monotonic() - self.throttled_at_s <= within_s + self.throttle_s else 0.0

    async def partitions_of(self, topic: str) -> Collection[int]:
        """Return a topic's partitions, from the brokers if they are unknown.

        Raises:
            KafkaError: the topic is unknown, or this user may not describe it.
        """
        partitions: Collection[int] = await self._wait_on_metadata(topic)
        return partitions

    async def bootstrap(self) -> None:
        """Connect; ask brokers last that didn't answer another client, and wait for each at most `CONNECT_S`.

        aiokafka asks the brokers in any order.

        Raises:
            KafkaConnectionError: why the brokers don't answer, as far as that is known.
        """
        servers, usual_ms = self._bootstrap_servers, self._request_timeout_ms
        if len(servers) == 1:
            await self._bootstrap()
            return
        self._request_timeout_ms = min(usual_ms, int(CONNECT_S * 1000))
        last, failed = self.outages.unanswered, dict[str, str]()
        try:
            for address in sorted(random.sample(servers, len(servers)), key=last.__contains__):
                self._bootstrap_servers = [address]
                try:
                    await self._bootstrap()
                except KafkaConnectionError as error:
                    failed[address] = why_away(error)
                    self.outages.passed_over(address, failed[address])
                else:
                    self.outages.answered(address)
                    return
            raise KafkaConnectionError("; ".join(f"{server}: {failed[server] or 'no answer'}" for server in servers))
        finally:
            self._bootstrap_servers, self._request_timeout_ms = servers, usual_ms

    async def _bootstrap(self) -> None:
        with self.outages.first_contact():
            await super().bootstrap()
        if not self.cluster.brokers():
            # The controller fenced the broker, or the broker refused a token, which aiokafka takes for success.
            # Without this check aiokafka fails later, with an AssertionError.
            await self.close()
            why = "it knows no broker that is up"
            if self._sasl_mechanism == "OAUTHBEARER":
                why += ", or doesn't take this token: see broker_credentials"
            raise KafkaConnectionError(why)

    @property
    def _get_conn_lock(self) -> Any:
        return contextlib.nullcontext()

    async def _get_conn(self, node_id: Any, *, group: Any = ConnectionGroup.DEFAULT, no_hint: bool = False) -> Any:
        """Return a connection to a broker, None if it doesn't answer, or didn't answer any client a moment ago."""
        outages, place = self.outages, (node_id, group)
        connection = self._conns.get(place)
        # An open connection is used, even if other clients failed to connect.
        if connection is not None and connection.connected() and not outages.is_due(node_id):
            return connection
        async with self.locks[place]:
            if outages.is_waiting(node_id):
                self.force_metadata_update()
                return None
            began_s = outages.now_s()
            connection = await self._connected(super()._get_conn(node_id, group=group))
        broker = self.cluster.broker_metadata(node_id)
        if connection is not None:
            outages.reached(node_id, broker)
        elif broker is not None:
            outages.failed(node_id, broker, began_s)
        return connection

    async def _connected(self, connecting: Awaitable[Any]) -> Any:
        """Return the connection, None if the broker doesn't answer on it and there are other brokers."""
        try:
            async with asyncio.timeout(CONNECT_S if max(len(self.cluster.brokers()), len(self.hosts)) > 1 else None):
                return await connecting
        except TimeoutError:
            self.force_metadata_update()
            return None

    async def _metadata_update(self, cluster_metadata: Any, topics: Any) -> bool:
        """Update what is known of the cluster, and don't wait for a broker that doesn't answer.

        All produces that a former leader refused wait for the update. A caller that still needs it asks another broker.
        """
        try:
            # All brokers may be slow.
            async with asyncio.timeout(Backoff(METADATA_S, 4 * METADATA_S).delay_s(self.timeouts + 1)):
                is_updated = bool(await super()._metadata_update(cluster_metadata, topics))
        except TimeoutError:
            self.timeouts += 1
            return False
        self.timeouts = 0
        return is_updated


def own(client: Any, outages: Outages) -> Client:
    """Make a client of aiokafka's a `Client`, before it connects; return it."""
    if not isinstance(client, Client):
        # Consumers and producers make their clients themselves, and hand them on.
        client.__class__ = Client
    owned: Client = client
    owned.outages, owned.hooks, owned.locks = outages, (), defaultdict(asyncio.Lock)
    owned.throttle_s, owned.throttled_at_s, owned.timeouts = 0.0, float("-inf"), 0
    return owned


class Admin(AIOKafkaAdminClient):  # type: ignore[misc]
    """aiokafka's admin client."""

    def __init__(self, connection: Connection, role: str, **options: Any) -> None:
        super().__init__(**{**connection.arguments(role), **options})
        self.client = own(self._client, connection.outages)


class Producer(AIOKafkaProducer):  # type: ignore[misc]
    """aiokafka's producer."""

    was_refused = False
    """Set by the caller after a broker refused a batch."""

    def __init__(self, connection: Connection, role: str, **options: Any) -> None:
        super().__init__(**connection.arguments(role), **options)
        own(self.client, connection.outages)

    @property
    def is_spent(self) -> bool:
        """Return whether it takes no more records: its sender ended, or a broker refused a batch.

        The client gave the batch sequence numbers that the broker hasn't seen, so the broker refuses all later batches
        of the partition as well.
        """
        return bool(self.was_refused or self._sender.sender_task.done())


def RAW(_: Any) -> Any:  # noqa: N802  a marker; it has to be callable to pass for a deserializer
    """Mark a consumer; never called."""
    raise AssertionError("records are handed out as they are")


class Consumer(AIOKafkaConsumer):  # type: ignore[misc]
    """aiokafka's consumer. It returns the parser's own records: see `actors._kafka.consume.records`."""

    def __init__(self, connection: Connection, role: str, **options: Any) -> None:
        super().__init__(**connection.arguments(role), enable_auto_commit=False, key_deserializer=RAW, **options)
        own(self._client, connection.outages)

    @property
    def client(self) -> Client:
        owned: Client = self._client
        return owned

    @property
    def coordinator(self) -> Any:
        """Aiokafka's coordinator of the group, None before `start`."""
        return self._coordinator

    async def fetched(
        self, *partitions: KafkaPartition, timeout_s: float, max_records: int | None = None
    ) -> Mapping[KafkaPartition, Sequence[Any]]:
        """Return the records of `getmany`; raise the error that ended the consumer's fetches, which `getmany` doesn't.

        Raises:
            KafkaError: a fetch failed, or a broker's answer made no sense: it named a partition that wasn't asked for.
        """
        records: Mapping[KafkaPartition, Sequence[Any]] = await self.getmany(
            *partitions, timeout_ms=int(timeout_s * 1000), max_records=max_records
        )
        if not records and (ended := self._fetcher.error_future).done() and not ended.cancelled():
            ended.result()
        return records

    def next_offset(self, partition: KafkaPartition) -> int | None:
        """Return the offset that is fetched next, None if it is unknown; of a partition that leaves, the last one."""
        assignment = self._subscription.subscription.assignment
        state = None if assignment is None else assignment.state_value(partition)
        return None if state is None else int(state.position)

    def start_from(self, partition: KafkaPartition, offset: int, *, is_other_topic: bool) -> None:
        """Fetch an assigned partition from `offset` on; `is_other_topic`: the topic was deleted and created again."""
        self._subscription.subscription.assignment.state_value(partition).lso = None
        if is_other_topic:
            # Records that were fetched of another topic may have the same offset.
            self._fetcher._records.pop(partition, None)
        self.seek(partition, offset)
        self.resume(partition)

    def resume_heartbeats(self) -> None:
        """Send heartbeats again, if an error ended that. The error counts as seen, as others report it."""
        coordinator = self._coordinator
        task = coordinator._heartbeat_task
        if task is not None and task.done():
            if not task.cancelled():
                task.exception()
            coordinator._heartbeat_task = None
            coordinator._start_heartbeat_task()

    def adjust(self, *, fetch_bytes: int, heartbeat_ms: int) -> None:
        """Set how much a fetch asks of each partition, and how often heartbeats are sent, for a new assignment."""
        self._fetcher._max_partition_fetch_bytes = fetch_bytes
        self._coordinator._heartbeat_interval_ms = heartbeat_ms
        # It has to wait for the resumption of new partitions as well.
        self._fetcher._notify(self._fetcher._wait_consume_future)

    def check_joins(
        self, readable: Callable[[Any], Any], readable_assignment: Callable[[bytes, Collection[str]], bytes]
    ) -> None:
        """Replace what a join brings where aiokafka, which would end with an error, can't decode it.

        `readable` gets the members' metadata, which the leader gets, and `readable_assignment` the leader's assignment.
        """
        coordinator = self._coordinator
        perform, complete = coordinator._perform_assignment, coordinator._on_join_complete

        async def perform_checked(response: Any) -> Any:
            response.members = [(*member[:-1], readable(member[-1])) for member in response.members]
            return await perform(response)

        async def complete_checked(generation: int, member_id: str, protocol: str, assignment: bytes) -> Any:
            checked = readable_assignment(assignment, self._subscription.topics)
            return await complete(generation, member_id, protocol, checked)

        coordinator._perform_assignment, coordinator._on_join_complete = perform_checked, complete_checked

    def keep_assignment(self, keeps: Callable[[], bool], forgotten: Callable[[], None]) -> None:
        """Keep the assignment during a join if `keeps` says so, and change it in place at the end.

        `forgotten` is called when the group doesn't know the member any more after a successful join.
        """
        coordinator, subscriptions = self._coordinator, self._subscription
        prepare, reset = coordinator._on_join_prepare, coordinator.reset_generation

        async def prepare_kept(assignment: Any) -> None:
            if keeps():
                # As the original does, so that nothing of the former leader's topics is watched.
                coordinator._group_subscription = None
            else:
                await prepare(assignment)

        def reset_noted() -> None:
            has_joined = coordinator.generation > 0
            reset()
            if has_joined:
                forgotten()

        def assign_in_place(partitions: Collection[KafkaPartition]) -> None:
            subscription = subscriptions.subscription
            assignment = subscription._assignment = subscription.assignment or Assignment(())
            for partition in assignment.tps.difference(partitions):
                # What was fetched of it still looks for its state.
                assignment.state_value(partition).pause()
            for partition in set(partitions) - assignment.tps:
                state = assignment._tp_state[partition] = TopicPartitionState(assignment)
                # With a position, which its task sets, aiokafka doesn't look for the committed offset.
                state.seek(0)
                state.pause()
            assignment._topic_partitions = frozenset(partitions)
            subscription._reassignment_in_progress = False
            subscriptions._notify_assignment_waiters()

        coordinator._on_join_prepare, coordinator.reset_generation = prepare_kept, reset_noted
        subscriptions.assign_from_subscribed = assign_in_place

    def stop_joining(self) -> None:
        """Never join again: the coordinator waits until it is closed."""
        coordinator = self._coordinator

        async def closing(*_: Any) -> None:
            await asyncio.wait([coordinator._closing])

        coordinator.ensure_active_group = closing


class PartitionRecords(fetcher.PartitionRecords):  # type: ignore[misc]
    """aiokafka's view of a fetch. A subclass chooses what it yields for a record."""

    def _consumer_record(self, tp: Any, record: Any) -> Any:
        return self.shown(tp, record)

    def shown(self, partition: Any, record: Any) -> Any:
        return super()._consumer_record(partition, record)


class FetchResult(fetcher.FetchResult):  # type: ignore[misc]
    """aiokafka's fetch of a partition, with public names."""

    @property
    def records(self) -> Any:
        """The `PartitionRecords`, None after the last one was taken."""
        return self._partition_records

    @property
    def state(self) -> Any:
        return self._assignment.state_value(self._topic_partition)

    def is_wanted(self) -> bool:
        return bool(self.check_assignment(self._topic_partition))

    def moved(self, *, has_more: bool) -> None:
        """Set the partition's position behind what was taken of the records."""
        self._update_position()
        if not has_more:
            self._partition_records = None


def limits_of(request: FetchRequest) -> tuple[int, int, int, int, str]:
    """Return how long, for how many bytes, of at most how many and in which isolation to fetch, and the rack."""
    return request._max_wait_ms, request._min_bytes, request._max_bytes, request._isolation_level, request._rack_id


async def started(client: Owned) -> Owned:
    """Start a client and return it. One that can't start is closed.

    Raises:
        KafkaError: it can't start; see `broker_errors`.
    """
    try:
        await client.start()
    except BaseException:
        await release(client)
        raise
    return client


@contextlib.asynccontextmanager
async def producing(what: str, connection: Connection, role: str, **options: Any) -> AsyncIterator[Producer]:
    """Yield a producer for some records beside the commits; `what` begins its errors, `options` are aiokafka's.

    Raises:
        BrokerUnavailableError: a record may not have been written.
    """
    with broker_errors(what, connection, WRITE):
        producer = await started(Producer(connection, role, **options))
        try:
            yield producer
        finally:
            await release(producer)


async def release(client: Producer | Consumer) -> None:
    """Stop a client, though its brokers may be away."""
    if not await _is_done_in_time(client.stop) and isinstance(client, Consumer):
        # A failed fetch makes `stop` leave the connections open.
        await _is_done_in_time(client.client.close)


async def _is_done_in_time(stop: Callable[[], Awaitable[None]]) -> bool:
    try:
        async with asyncio.timeout(CLOSE_S):
            # A task of a consumer that was just started may not have begun: `stop` would end with its cancellation.
            await asyncio.sleep(0)
            await stop()
    except (KafkaError, OSError, TimeoutError) as error:
        logger.info("stopping a client failed: %r", error)
        return False
    except asyncio.CancelledError:
        # The client awaits fetches and connections that it has cancelled itself.
        if is_cancelled():
            raise
        return False
    return True
