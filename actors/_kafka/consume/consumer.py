"""The worker's one consumer: fetches for all tasks, and reports rebalances to the worker.

What aiokafka does, and what follows here:

- `getmany` returns records from stale positions while the assigned callback runs. So the callback first pauses all
  partitions; tasks seek and resume them when their takeover is done.
- It only logs an error of a callback, and goes on consuming. So every error is caught here, and ends the worker.
- A cancelled `getmany` disables the check of the poll interval for good. So no `getmany` is ever cancelled, and the
  check is off: it would give up partitions whose tasks are merely slow.
- Heartbeats begin after the assigned callback returns, and go on during the revoked one. Both callbacks do no I/O.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
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

from actors._core.logs import Reminders, escaping
from actors._core.task.topic_ids import show_id
from actors._kafka.connection import Connection, broker_errors, words_of
from actors._kafka.consume.assignor import ActorAssignor
from actors._kafka.consume.fetching import FetchesById
from actors._kafka.consume.membership import (
    GroupSettings,
    LostMembershipError,
    has_ended,
    prepare_join,
    watch_static_membership,
)
from actors._kafka.consume.records import RAW, fetched
from actors._kafka.consume.silence import Silence
from actors._kafka.permissions import READ, lacking
from actors.errors import BrokerUnavailableError
from actors.ports import Identity, TopicPartition

logger = escaping(logging.getLogger(__name__))

LEAVE_S = 1.0
"""How long leaving the group may take: a pending join would hold it for a rebalance timeout."""
RETRY_S = 0.2
DENIED_RETRY_S = 1.0
REMIND_S = 60.0
"""How often a missing permission is logged."""
POLL_RECORDS = 2_000
"""How many records a poll parses unless the app says otherwise. Parsed ones take three times the memory of raw ones."""
FETCH_BUDGET_BYTES = 64 * 1024 * 1024
LEAST_FETCH_BYTES = 64 * 1024
"""How much is fetched ahead of all assigned partitions together, and the least for one."""
METADATA_AGE_MS = 10_000
"""How soon new partitions of an input are noticed."""


class KafkaSource(ConsumerRebalanceListener):  # type: ignore[misc]
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
        self._reminders = Reminders(REMIND_S)
        self._retry_at_s = float("-inf")
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
        """Join the group; `counted` gets the topics' numbers of partitions before each call of `assigned`.

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
        assignor.joins = lambda: prepare_join(consumer._coordinator)
        source = cls(consumer, assigned=assigned, revoked=revoked, room=room, lost=lost, failed=failed, counted=counted)
        source._fetch_bytes = settings.fetch_bytes
        source._principal = connection.principal
        try:
            consumer.subscribe(topics=sorted(topics), listener=source)
            with broker_errors("joining the group", connection):
                await consumer.start()
        except BaseException:
            await source.close()
            raise
        source.silence.watch(consumer._client, consumer._coordinator)
        if settings.instance_id is not None:
            forgotten = partial(source._forgotten, settings.session_timeout_ms / 1000)
            watch_static_membership(consumer._coordinator, settings.instance_id, forgotten)
        return source

    def identity(self) -> Identity:
        """Return the current member id and generation."""
        coordinator = self._consumer._coordinator
        return Identity(coordinator.member_id, coordinator.generation)

    async def poll(self, wanted: Iterable[TopicPartition], timeout_s: float) -> Mapping[KafkaPartition, Sequence[Any]]:
        """Return records of the wanted partitions, after `timeout_s` at the latest, or later while a rebalance runs."""
        with self._membership_errors():
            try:
                if not self._is_denied:
                    partitions = (KafkaPartition(*source) for source in wanted)
                    return await fetched(self._consumer, *partitions, timeout_s=timeout_s)
            except NoOffsetForPartitionError:
                # The task of a partition hasn't sought yet: its takeover will.
                return {}
            except OffsetOutOfRangeError as error:
                for partition, offset in error.args[0].items():
                    self._lost(TopicPartition(*partition), f"the input doesn't have offset {offset} any more")
                return {}
            except TopicAuthorizationFailedError as error:
                self._not_readable(error)
                return {}
        await asyncio.sleep(RETRY_S)
        return {}

    def check(self) -> None:
        """Raise the error that ended aiokafka's coordination, which otherwise only a `getmany` would raise.

        Raises:
            BrokerUnavailableError: it can't go on.
        """
        if self._is_denied:
            return
        with self._membership_errors():
            self._consumer._coordinator.check_errors()

    @property
    def _is_denied(self) -> bool:
        """Whether it is too early to try again what the user lacked a permission for."""
        return time.monotonic() < self._retry_at_s

    @contextlib.contextmanager
    def _membership_errors(self) -> Iterator[None]:
        """Ignore errors that aiokafka handles by trying again; act on a missing permission; name and raise the rest."""
        try:
            yield
        except GroupAuthorizationFailedError as error:
            self._not_a_member(error)
        except KafkaError as error:
            if not error.retriable:
                raise BrokerUnavailableError(f"consuming: {words_of(error)}") from error

    def _not_readable(self, error: TopicAuthorizationFailedError) -> None:
        """Fetch no more of a topic until its tasks, which try again and again, have taken over again."""
        missing = lacking(error, self._principal, READ)
        for partition in self._consumer.assignment():
            if partition.topic == error.args[0]:
                self._consumer.pause(partition)
                self._lost(TopicPartition(*partition), missing)

    def _not_a_member(self, error: GroupAuthorizationFailedError) -> None:
        """Resume heartbeats, which aiokafka gives up, so that the group doesn't forget this member.

        The coordination resumes by itself once its error was taken out.
        """
        coordinator, now_s = self._consumer._coordinator, time.monotonic()
        self._retry_at_s = now_s + DENIED_RETRY_S
        if self._reminders.is_due(now_s):
            logger.warning("%s; it is tried again", lacking(error, self._principal, name=coordinator.group_id))
        if has_ended(coordinator._heartbeat_task):
            coordinator._heartbeat_task = None
            coordinator._start_heartbeat_task()

    def position(self, source: TopicPartition) -> int | None:
        """Return the offset that is fetched next, None if it isn't known."""
        partition = KafkaPartition(*source)
        if partition not in self._consumer.assignment():
            return None
        state = self._consumer._subscription.subscription.assignment.state_value(partition)
        return int(state.position) if state.has_valid_position else None

    def end_offset(self, source: TopicPartition) -> int | None:
        """Return the high watermark that came with the last fetch of the partition, None if none came."""
        partition = KafkaPartition(*source)
        if partition not in self._consumer.assignment():
            return None
        end: int | None = self._consumer.highwater(partition)
        return end

    def start_from(self, source: TopicPartition, offset: int, topic_id: str = "") -> None:
        """Deliver records from `offset` on, of the topic with this id."""
        partition = KafkaPartition(*source)
        if partition in self._consumer.assignment():
            if self._fetches.set_id(partition, topic_id):
                # Records that were fetched of another topic may have the same offset.
                self._consumer._fetcher._records.pop(partition, None)
            self._consumer.seek(partition, offset)
            self.silence.forget(source)
            self._consumer.resume(partition)
            self._room()

    def stop_delivery(self, source: TopicPartition) -> None:
        """Deliver nothing until `start_from`. Updates metadata: new partitions may be the reason for the call."""
        self._consumer._client.force_metadata_update()
        partition = KafkaPartition(*source)
        if partition in self._consumer.assignment():
            self._consumer.pause(partition)
        self.silence.forget(source)

    def _recreated(self, partition: KafkaPartition, topic_id: uuid.UUID) -> None:
        """Fetch no more of a partition until its task has taken over again, with the topic's current id."""
        if partition in self._consumer.assignment() and partition not in self._consumer.paused():
            self._consumer.pause(partition)
            reason = f"the broker knows no topic with the id {show_id(str(topic_id))} any more, or not yet"
            self._lost(TopicPartition(*partition), reason)

    def has_room(self) -> None:
        """Report that a full queue has room again."""
        self._room()

    def ask_for_rebalance(self) -> None:
        """Join again with this member's current metadata; the group rebalances if the metadata changed."""
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

    def _forgotten(self, session_s: float, error: LostMembershipError) -> None:
        """End the worker, unless it is closed or wasn't allowed to send heartbeats for a session."""
        if not self._is_closed and time.monotonic() - self._retry_at_s > session_s:
            self._failed(error)

    async def on_partitions_revoked(self, revoked: Iterable[KafkaPartition]) -> None:
        """Have the worker stop its tasks; aiokafka calls it before the group rebalances."""
        try:
            await self._revoked()
        except Exception as error:
            self._failed(error)

    async def on_partitions_assigned(self, assigned: Iterable[KafkaPartition]) -> None:
        """Have the worker start its tasks; aiokafka calls it after the group has rebalanced."""
        partitions = list(assigned)
        self._consumer.pause(*partitions)
        # A fetch asks so much of each partition: the buffers of all partitions add up.
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


def _generation(consumer: AIOKafkaConsumer) -> int:
    coordinator = consumer._coordinator
    return -1 if coordinator is None else int(coordinator.generation)
