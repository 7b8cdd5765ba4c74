"""The worker's one consumer: fetches for all tasks, and reports rebalances to the worker.

What aiokafka does, and what follows here (for joins see `actors._kafka.consume.membership`):

- `getmany` returns records from stale positions while the assigned callback runs. So new partitions are paused from the
  start; tasks seek and resume them when their takeover is done.
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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from aiokafka import ConsumerRebalanceListener
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    KafkaError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
)
from aiokafka.structs import TopicPartition as KafkaPartition

from actors._core.logs import Reminders, escaping
from actors._core.task.topic_ids import show_id
from actors._kafka.client import Consumer
from actors._kafka.connection import Connection, broker_errors, words_of
from actors._kafka.consume.assignor import ActorAssignor, readable, readable_assignment
from actors._kafka.consume.fetching import FetchesById
from actors._kafka.consume.membership import Fencing, GroupSettings, forgotten_static
from actors._kafka.consume.silence import Silence
from actors._kafka.permissions import READ, lacking
from actors.errors import BrokerUnavailableError
from actors.ports import Identity, SourceEvents, TopicPartition

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
HEARTBEAT_MS = 50
"""How often a heartbeat asks for a rebalance that follows at once: partitions that move stand still until then."""


class KafkaSource(ConsumerRebalanceListener):  # type: ignore[misc]
    """`actors.ports.Source` over a broker; made by `open`, closed by `close`."""

    def __init__(
        self,
        consumer: Consumer,
        settings: GroupSettings,
        assignor: ActorAssignor,
        events: SourceEvents,
    ) -> None:
        self._consumer = consumer
        self._settings = settings
        self._assignor = assignor
        self._events = events
        self._generation = -1
        self._handing_over: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._principal = ""
        self._reminders = Reminders(REMIND_S)
        self._retry_at_s = float("-inf")
        self._has_joined = False
        self._fetches = FetchesById(self._recreated)
        self.silence = Silence()
        consumer.client.hooks = (self.silence, Fencing(), self._fetches)

    @classmethod
    async def open(
        cls,
        connection: Connection,
        settings: GroupSettings,
        topics: Iterable[str],
        assignor: ActorAssignor,
        events: SourceEvents,
    ) -> KafkaSource:
        """Join the group.

        Raises:
            BrokerUnavailableError: no broker answers.
        """
        consumer = Consumer(
            connection,
            "actors",
            group_instance_id=settings.instance_id,
            **settings.options(),
            max_poll_records=settings.max_poll_records or POLL_RECORDS,
            partition_assignment_strategy=(assignor,),
        )
        source = cls(consumer, settings, assignor, events)
        assignor.generation = lambda: source.identity().generation
        assignor.joins = source._joins
        source._principal = connection.principal
        try:
            consumer.subscribe(topics=sorted(topics), listener=source)
            with broker_errors("joining the group", connection):
                await consumer.start()
        except BaseException:
            await source.close()
            raise
        return source

    def identity(self) -> Identity:
        """Return the current member id and generation, -1 before the first join."""
        coordinator = self._consumer.coordinator
        return Identity("", -1) if coordinator is None else Identity(coordinator.member_id, coordinator.generation)

    async def poll(self, wanted: Iterable[TopicPartition], timeout_s: float) -> Mapping[KafkaPartition, Sequence[Any]]:
        """Return records of the wanted partitions, after `timeout_s` at the latest, or later while a rebalance runs."""
        with self._membership_errors():
            try:
                # Without a permission for the group: it is asked again once in `DENIED_RETRY_S`, not with each poll.
                if not self._is_denied:
                    partitions = (KafkaPartition(*source) for source in wanted)
                    return await self._consumer.fetched(*partitions, timeout_s=timeout_s)
            except OffsetOutOfRangeError as error:
                for partition, offset in error.args[0].items():
                    self._events.lost(TopicPartition(*partition), f"the input doesn't have offset {offset} any more")
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
            self._consumer.coordinator.check_errors()

    @property
    def _is_denied(self) -> bool:
        """Return whether it is too early to try again where the user lacked a permission."""
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
                self._events.lost(TopicPartition(*partition), missing)

    def _not_a_member(self, error: GroupAuthorizationFailedError) -> None:
        """Resume heartbeats, which aiokafka gives up, so that the group doesn't forget this member.

        The coordination resumes by itself once its error was taken out.
        """
        now_s = time.monotonic()
        self._retry_at_s = now_s + DENIED_RETRY_S
        if self._reminders.is_due(now_s):
            logger.warning("%s; it is tried again", lacking(error, self._principal, name=self._settings.group))
        self._consumer.resume_heartbeats()

    def position(self, source: TopicPartition) -> int | None:
        """Return the offset that is fetched next, None if it is unknown; of a partition that leaves, the last one."""
        return self._consumer.next_offset(KafkaPartition(*source))

    def end_offset(self, source: TopicPartition) -> int | None:
        """Return the high watermark that came with the last fetch of the partition, None if none came."""
        partition = KafkaPartition(*source)
        if partition not in self._consumer.assignment():
            return None
        end: int | None = self._consumer.highwater(partition)
        return end

    def stable_offset(self, source: TopicPartition) -> int | None:
        """Return the end of the records that can be fetched, None if no fetch since `start_from` told."""
        partition = KafkaPartition(*source)
        if partition not in self._consumer.assignment():
            return None
        stable: int | None = self._consumer.last_stable_offset(partition)
        return stable

    def start_from(self, source: TopicPartition, offset: int, topic_id: str = "") -> None:
        """Deliver records from `offset` on, of the topic with this id."""
        partition = KafkaPartition(*source)
        if partition in self._consumer.assignment():
            is_other_topic = self._fetches.set_id(partition, topic_id)
            self.silence.forget(source)
            self._consumer.start_from(partition, offset, is_other_topic=is_other_topic)
            self._events.room()

    def stop_delivery(self, source: TopicPartition) -> None:
        """Deliver nothing until `start_from`. Updates metadata: new partitions may be the reason for the call."""
        self._consumer.client.force_metadata_update()
        partition = KafkaPartition(*source)
        if partition in self._consumer.assignment():
            self._consumer.pause(partition)
        self.silence.forget(source)

    def _recreated(self, partition: KafkaPartition, topic_id: uuid.UUID) -> None:
        """Fetch no more of a partition until its task has taken over again, with the topic's current id."""
        if partition in self._consumer.assignment() and partition not in self._consumer.paused():
            self._consumer.pause(partition)
            reason = f"the broker knows no topic with the id {show_id(str(topic_id))} any more, or not yet"
            self._events.lost(TopicPartition(*partition), reason)

    def has_room(self) -> None:
        """Report that a full queue has room again."""
        self._events.room()

    def ask_for_rebalance(self) -> None:
        """Join again with this member's current metadata; the group rebalances if the metadata changed."""
        coordinator = self._consumer.coordinator
        if not self._is_closed and coordinator is not None:
            coordinator.request_rejoin()

    async def close(self) -> None:
        """Leave the group. May be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        for handing_over in self._handing_over:
            handing_over.cancel()
        with contextlib.suppress(KafkaError, TimeoutError, OSError):
            async with asyncio.timeout(LEAVE_S):
                await self._consumer.stop()
        await self._consumer.client.close()

    def _joins(self) -> None:
        """Prepare aiokafka's coordinator, which doesn't exist before the first join; called before each."""
        if not self._has_joined:
            self._has_joined = True
            self._consumer.check_joins(readable, readable_assignment)
            self._consumer.keep_assignment(self._keeps, self._forgotten)
        self._note_generation()

    def _keeps(self) -> bool:
        """Return whether the worker keeps its tasks during the join that begins."""
        keeps = self._assignor.kept = self._assignor.copies.may_keep and self._generation > 0
        if keeps:
            self._events.joining()
        return keeps

    def _note_generation(self) -> None:
        """Drop all tasks after a generation in which the leader didn't know that this worker has them."""
        before, self._generation = self._generation, self.identity().generation
        if self._generation > before + 1:
            self._drop()

    def _drop(self) -> None:
        self._assignor.kept = False
        self._events.dropped()

    def _forgotten(self) -> None:
        """Drop all tasks; end a static member, unless it wasn't allowed to send heartbeats for a session."""
        was_member, self._generation = self._generation > 0, -1
        if self._is_closed:
            return
        self._drop()
        instance_id, session_s = self._settings.instance_id, self._settings.session_timeout_ms / 1000
        if was_member and instance_id is not None and time.monotonic() - self._retry_at_s > session_s:
            # A join while the worker stops would take the id from the process that has it now.
            self._consumer.stop_joining()
            self._events.failed(forgotten_static(instance_id))

    async def on_partitions_revoked(self, revoked: Iterable[KafkaPartition]) -> None:
        """Have the worker stop its tasks; aiokafka calls it before the group rebalances, unless they are kept."""
        try:
            await self._events.revoked()
        except Exception as error:
            self._events.failed(error)

    async def on_partitions_assigned(self, assigned: Iterable[KafkaPartition]) -> None:
        """Have the worker take over the assignment; aiokafka calls it after the group has rebalanced."""
        partitions = sorted(TopicPartition(*partition) for partition in assigned)
        # A fetch asks so much of each partition: the buffers of all partitions add up.
        share = max(LEAST_FETCH_BYTES, FETCH_BUDGET_BYTES // max(1, len(partitions)))
        # aiokafka begins to send heartbeats after this call.
        heartbeat_ms = HEARTBEAT_MS if self._assignor.copies.is_moving else self._settings.heartbeat_interval_ms
        self._consumer.adjust(
            fetch_bytes=min(self._settings.fetch_bytes, share),
            heartbeat_ms=min(heartbeat_ms, self._settings.heartbeat_interval_ms),
        )
        cluster, handed_over = self._consumer.client.cluster, self._assignor.handed_over
        try:
            self._note_generation()
            topics = self._consumer.subscription()
            self._events.counted({topic: len(cluster.partitions_for_topic(topic) or ()) for topic in topics})
            self._events.assigned(self.identity(), partitions, handed_over)
        except Exception as error:
            self._events.failed(error)
        if handed_over:
            task = asyncio.create_task(self._hand_over(), name="hand over")
            self._handing_over.add(task)
            task.add_done_callback(self._handing_over.discard)

    async def _hand_over(self) -> None:
        """Join again without what the leader wants for others, as soon as it is committed."""
        try:
            await self._events.handed_over()
        except Exception as error:
            self._events.failed(error)
        self.ask_for_rebalance()
