"""The worker's one consumer: fetches for all tasks, and tells the worker of rebalances.

Traps of aiokafka that shape this module:

- `getmany` gives records from stale positions while the assigned callback runs, so the callback's first statement
  pauses everything; tasks seek and resume when their takeover is done.
- A callback that raises is only logged, and consumption goes on: everything is caught here, and ends the worker.
- A `getmany` that is cancelled disables the poll interval's check for good: none is ever cancelled, and that check
  is off; it would give up partitions whose tasks are merely slow, which the group doesn't need to hear of.
- Heartbeats begin after the assigned callback returns; during the revoked one they go on. Both do no I/O of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    KafkaError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
)
from aiokafka.structs import TopicPartition as KafkaPartition

from actors._core.logs import escaping
from actors._core.task.topic_ids import show_id
from actors._kafka.connection import Connection, broker_errors, words_of
from actors._kafka.consume.assignor import ActorAssignor, readable, readable_assignment
from actors._kafka.consume.fetching import FetchesById
from actors._kafka.consume.records import RAW, fetched
from actors._kafka.consume.silence import Silence
from actors._kafka.permissions import READ, lacking
from actors.errors import ActorsError, BrokerUnavailableError, ConfigurationError
from actors.ports import Identity, TopicPartition

logger = escaping(logging.getLogger(__name__))

LEAVE_S = 1.0
"""How long leaving the group may take: a pending join would hold it for a rebalance timeout."""
RETRY_S = 0.2
DENIED_RETRY_S = 1.0
REMIND_S = 60.0
"""How often it is said that a permission is missing."""
POLL_RECORDS = 2_000
"""How many records a poll parses unless the app says otherwise. Parsed ones take three times the memory of raw ones."""
FETCH_BUDGET_BYTES = 64 * 1024 * 1024
LEAST_FETCH_BYTES = 64 * 1024
"""How much the buffers of all assigned partitions may take together, and the least for one."""
METADATA_AGE_MS = 10_000
"""How soon it is noticed that an input was given more partitions."""


class LostMembershipError(ActorsError):
    """The group doesn't know this worker's static identity any more."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Where and how the worker joins. Timeouts in milliseconds; `instance_id` None means dynamic membership."""

    group: str
    instance_id: str | None
    session_timeout_ms: int
    heartbeat_interval_ms: int
    rebalance_timeout_ms: int
    isolation_level: str
    fetch_bytes: int
    max_poll_records: int | None


class KafkaSource:
    """`actors.ports.Source` over a broker; made by `open`, closed by `close`."""

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        *,
        assigned: Callable[[Identity, list[TopicPartition]], None],
        revoked: Callable[[], Awaitable[None]],
        room: Callable[[], None],
        lost: Callable[[TopicPartition, str], None],
        failed: Callable[[BaseException], None],
        counted: Callable[[Mapping[str, int]], None] | None = None,
    ) -> None:
        self._consumer = consumer
        self._counted = counted
        self._assigned = assigned
        self._revoked = revoked
        self._room = room
        self._lost = lost
        self._failed = failed
        self._is_closed = False
        self._fetch_bytes = 0
        self._principal = ""
        self._said_s = self._retry_at_s = float("-inf")
        self._fetches = FetchesById(consumer._client, self._recreated)
        self.silence = Silence()

    @classmethod
    async def open(
        cls,
        connection: Connection,
        settings: GroupSettings,
        topics: Iterable[str],
        assignor: ActorAssignor,
        *,
        assigned: Callable[[Identity, list[TopicPartition]], None],
        revoked: Callable[[], Awaitable[None]],
        room: Callable[[], None],
        lost: Callable[[TopicPartition, str], None],
        failed: Callable[[BaseException], None],
        counted: Callable[[Mapping[str, int]], None] | None = None,
    ) -> KafkaSource:
        """Join the group; `counted` is told how many partitions the topics have, before each `assigned`.

        Raises:
            BrokerUnavailableError: no broker answers.
        """
        consumer = AIOKafkaConsumer(
            **connection.arguments("actors"),
            group_id=settings.group,
            group_instance_id=settings.instance_id,
            auto_offset_reset="none",
            enable_auto_commit=False,
            isolation_level=settings.isolation_level,
            session_timeout_ms=settings.session_timeout_ms,
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
            rebalance_timeout_ms=settings.rebalance_timeout_ms,
            max_poll_interval_ms=2**31 - 1,
            metadata_max_age_ms=METADATA_AGE_MS,
            max_partition_fetch_bytes=settings.fetch_bytes,
            max_poll_records=settings.max_poll_records or POLL_RECORDS,
            partition_assignment_strategy=(assignor,),
            key_deserializer=RAW,
        )
        connection.outages.watch(consumer._client)
        assignor.generation = lambda: _generation(consumer)
        assignor.joins = lambda: _prepare(consumer._coordinator)
        source = cls(consumer, assigned=assigned, revoked=revoked, room=room, lost=lost, failed=failed, counted=counted)
        source._fetch_bytes = settings.fetch_bytes
        source._principal = connection.principal
        try:
            consumer.subscribe(topics=sorted(topics), listener=_Listener(source))
            with broker_errors("joining the group", connection):
                await consumer.start()
        except BaseException:
            await source.close()
            raise
        source.silence.watch(consumer._client, consumer._coordinator)
        if settings.instance_id is not None:
            source._watch_static_membership(settings.instance_id, settings.session_timeout_ms / 1000)
        return source

    def identity(self) -> Identity:
        """Give the member id and generation of now."""
        coordinator = self._consumer._coordinator
        return Identity(coordinator.member_id, coordinator.generation)

    async def poll(self, wanted: Iterable[TopicPartition], timeout_s: float) -> Mapping[KafkaPartition, Sequence[Any]]:
        """Give records of the wanted partitions, after `timeout_s` at the latest, longer while a rebalance runs."""
        with self._membership_errors():
            try:
                if self._is_denied:
                    await asyncio.sleep(RETRY_S)
                    return {}
                partitions = (KafkaPartition(*source) for source in wanted)
                batches = await fetched(self._consumer, *partitions, timeout_s=timeout_s)
            except NoOffsetForPartitionError:
                # A partition whose task hasn't sought yet: its takeover will.
                return {}
            except OffsetOutOfRangeError as error:
                for partition, offset in error.args[0].items():
                    self._lost(TopicPartition(*partition), f"the input doesn't have offset {offset} any more")
                return {}
            except TopicAuthorizationFailedError as error:
                self._not_readable(error)
                return {}
            return batches
        await asyncio.sleep(RETRY_S)
        return {}

    def check(self) -> None:
        """Raise what went wrong in aiokafka's coordination, which otherwise waits for a `getmany` to say it.

        Raises:
            BrokerUnavailableError: it can't go on.
        """
        if self._is_denied:
            return
        with self._membership_errors():
            self._consumer._coordinator.check_errors()

    @property
    def _is_denied(self) -> bool:
        """Whether it is too early to try again what the user wasn't allowed to."""
        return time.monotonic() < self._retry_at_s

    @contextlib.contextmanager
    def _membership_errors(self) -> Iterator[None]:
        """Let pass what aiokafka tries again by itself, and a permission that is missing; name the rest."""
        try:
            yield
        except GroupAuthorizationFailedError as error:
            self._not_a_member(error)
        except KafkaError as error:
            if not error.retriable:
                raise BrokerUnavailableError(f"consuming: {words_of(error)}") from error

    def _not_readable(self, error: TopicAuthorizationFailedError) -> None:
        """Fetch no more of a topic until its tasks have taken over again, which they try until they may."""
        missing = lacking(error, self._principal, READ)
        for partition in self._consumer.assignment():
            if partition.topic == error.args[0]:
                self._consumer.pause(partition)
                self._lost(TopicPartition(*partition), missing)

    def _not_a_member(self, error: GroupAuthorizationFailedError) -> None:
        """Go on with heartbeats, which aiokafka gives up; the group may have forgotten this member when it may again.

        The coordination goes on by itself when it has been told that its error was seen.
        """
        coordinator, now_s = self._consumer._coordinator, time.monotonic()
        self._retry_at_s = now_s + DENIED_RETRY_S
        if now_s - self._said_s >= REMIND_S:
            self._said_s = now_s
            logger.warning("%s; it is tried again", lacking(error, self._principal, name=coordinator.group_id))
        if _has_ended(coordinator._heartbeat_task):
            coordinator._heartbeat_task = None
            coordinator._start_heartbeat_task()

    def _assignment(self) -> Any:
        """Give aiokafka's state of the assigned partitions, None before the first assignment."""
        return self._consumer._subscription.subscription.assignment

    def position(self, source: TopicPartition) -> int | None:
        """Give the offset that is fetched next."""
        assignment = self._assignment()
        partition = KafkaPartition(*source)
        if assignment is None or partition not in assignment.tps:
            return None
        state = assignment.state_value(partition)
        return int(state.position) if state.has_valid_position else None

    def end_offset(self, source: TopicPartition) -> int | None:
        """Give the high watermark that came with the last fetch of the partition."""
        assignment = self._assignment()
        partition = KafkaPartition(*source)
        if assignment is None or partition not in assignment.tps:
            return None
        end: int | None = assignment.state_value(partition).highwater
        return end

    def start_from(self, source: TopicPartition, offset: int, topic_id: str = "") -> None:
        """Deliver records from `offset` on, of the topic with this id."""
        partition = KafkaPartition(*source)
        if partition in self._consumer.assignment():
            if self._fetches.set_id(partition, topic_id):
                # What was fetched of another topic may have the very offset.
                self._consumer._fetcher._records.pop(partition, None)
            self._consumer.seek(partition, offset)
            self.silence.forget(source)
            self._consumer.resume(partition)
            self._room()

    def stop_delivery(self, source: TopicPartition) -> None:
        """Deliver nothing until `start_from`. New partitions, which may be why, are noticed soon."""
        self._consumer._client.force_metadata_update()
        partition = KafkaPartition(*source)
        if partition in self._consumer.assignment():
            self._consumer.pause(partition)
        self.silence.forget(source)

    def _recreated(self, partition: KafkaPartition, topic_id: uuid.UUID) -> None:
        """Fetch no more of a partition until its task has taken over again; that one asks for the topic's id of now."""
        if partition in self._consumer.assignment() and partition not in self._consumer.paused():
            self._consumer.pause(partition)
            reason = f"the broker knows no topic with the id {show_id(str(topic_id))} any more, or not yet"
            self._lost(TopicPartition(*partition), reason)

    def has_room(self) -> None:
        """Say that a queue which was full has room again."""
        self._room()

    def ask_for_rebalance(self) -> None:
        """Join anew, with what this member has to say now; the group rebalances if that is something else."""
        coordinator = self._consumer._coordinator
        if not self._is_closed and coordinator is not None:
            coordinator.request_rejoin()

    async def close(self) -> None:
        """Leave the group. May be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        with contextlib.suppress(KafkaError, TimeoutError, OSError):
            async with asyncio.timeout(LEAVE_S):
                await self._consumer.stop()
        self._consumer._closed = True
        await self._consumer._client.close()

    def _watch_static_membership(self, instance_id: str, session_s: float) -> None:
        """End the worker when the group forgets it, unless it wasn't allowed to send heartbeats.

        Two processes with one static id take the membership from each other every few seconds, and their heartbeats
        don't carry the id: an unknown member id after a successful join is the only sign.
        """
        coordinator = self._consumer._coordinator
        reset = coordinator.reset_generation

        def lost() -> None:
            joined = coordinator.generation > 0 and not self._is_closed
            reset()
            if joined and time.monotonic() - self._retry_at_s > session_s:
                self._failed(
                    LostMembershipError(
                        f"the group doesn't know consumer_group_instance_id={instance_id!r} any more: either "
                        "another process "
                        "uses the same id, or this one didn't answer for a session. Give each worker an id of its own, "
                        "and restart this one"
                    )
                )

        coordinator.reset_generation = lost

    # --- rebalances ------------------------------------------------------------------------------------------------

    async def _on_revoked(self) -> None:
        try:
            await self._revoked()
        except Exception as error:
            self._failed(error)

    def _on_assigned(self, partitions: Iterable[KafkaPartition]) -> None:
        partitions = list(partitions)
        self._consumer.pause(*partitions)
        # Asked for with each fetch; what one partition's buffer takes is multiplied by all of them.
        share = max(LEAST_FETCH_BYTES, FETCH_BUDGET_BYTES // max(1, len(partitions)))
        self._consumer._fetcher._max_partition_fetch_bytes = min(self._fetch_bytes, share)
        cluster = self._consumer._client.cluster
        try:
            if self._counted is not None:
                topics = self._consumer.subscription()
                self._counted({topic: len(cluster.partitions_for_topic(topic) or ()) for topic in topics})
            self._assigned(self.identity(), sorted(TopicPartition(*partition) for partition in partitions))
        except Exception as error:
            self._failed(error)


def _has_ended(task: asyncio.Task[None] | None) -> bool:
    """Tell whether a task of the coordination was there and has ended; its error is another's to tell."""
    if task is None or not task.done():
        return False
    if not task.cancelled():
        task.exception()
    return True


def _generation(consumer: AIOKafkaConsumer) -> int:
    coordinator = consumer._coordinator
    return -1 if coordinator is None else int(coordinator.generation)


def _prepare(coordinator: Any) -> None:
    """Keep what aiokafka does at a join from ending the worker.

    What each member says of itself, which the leader gets, and what the leader answers are looked at before they are
    decoded; see `readable`. Committed offsets aren't asked for: each task asks for its own, and an input that may not
    be described would end the coordination.
    """
    perform, complete = coordinator._perform_assignment, coordinator._on_join_complete
    if getattr(perform, "checks_members", False):
        return

    async def perform_checked(response: Any) -> Any:
        response.members = [(*member[:-1], readable(member[-1])) for member in response.members]
        return await perform(response)

    async def complete_checked(generation: int, member_id: str, protocol: str, assignment: bytes) -> Any:
        checked = readable_assignment(assignment, coordinator._subscription.topics)
        return await complete(generation, member_id, protocol, checked)

    async def no_offsets(_: Any) -> dict[KafkaPartition, Any]:
        return {}

    perform_checked.checks_members = True  # type: ignore[attr-defined]
    coordinator._perform_assignment, coordinator._on_join_complete = perform_checked, complete_checked
    coordinator._do_fetch_commit_offsets = no_offsets


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Carries aiokafka's callbacks to the source."""

    def __init__(self, source: KafkaSource) -> None:
        self._source = source

    async def on_partitions_revoked(self, revoked: Iterable[KafkaPartition]) -> None:
        await self._source._on_revoked()

    async def on_partitions_assigned(self, assigned: Iterable[KafkaPartition]) -> None:
        self._source._on_assigned(assigned)


def check_timeouts(settings: GroupSettings, revoke_s: float) -> None:
    """Refuse timeouts that contradict each other.

    Raises:
        ConfigurationError: naming both settings.
    """
    if settings.heartbeat_interval_ms * 3 > settings.session_timeout_ms:
        raise ConfigurationError(
            f"broker_heartbeat_interval={settings.heartbeat_interval_ms / 1000:g} s is more than a third of "
            f"broker_session_timeout={settings.session_timeout_ms / 1000:g} s: a late heartbeat would cost the "
            "partitions"
        )
    if revoke_s * 1000 >= settings.rebalance_timeout_ms:
        raise ConfigurationError(
            f"a rebalance waits {revoke_s:g} s for handlers, longer than the group's {settings.rebalance_timeout_ms} ms"
        )
