"""The worker's one consumer over a simulated cluster: a fake of `actors.ports.Source`.

It keeps the order of `KafkaSource`: what is new is paused before the assigned callback, heartbeats begin after it and
go on while tasks are revoked, and a consumer that isn't a member any more learns it from a heartbeat or a join only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from actors._core.group.members import Member, TaskId
from actors._core.group.placement import Copies, PlacementRules, place
from actors.errors import BrokerUnavailableError
from actors.ports import Identity, SourceEvents, TopicPartition
from actors.testing.fakes.errors import (
    IllegalGenerationError,
    NoAnswerError,
    OffsetOutOfRangeError,
    RebalanceInProgressError,
    RefusedError,
    UnknownMemberError,
    UnknownTopicIdError,
)
from tests.sim.fakes.cluster import SimKafka
from tests.sim.fakes.group import FencedInstanceError, Joined, LostMembershipError
from tests.sim.fakes.loop import current_process
from tests.sim.fakes.network import POLL, Network

RETRY_S = 0.2
LEAVE_S = 5.0


@dataclass(frozen=True, slots=True)
class FakeGroupSettings:
    """How the worker joins. Times in seconds; `instance_id` None means dynamic membership.

    A worker that doesn't know how to keep its tasks during a join is of an earlier release: `keeps` is false.
    """

    client: str
    instance_id: str | None = None
    keeps: bool = True
    transactional_id: str | None = None
    session_s: float = 6.0
    heartbeat_s: float = 2.0
    max_poll_records: int = 50


class Assigned(list[TopicPartition]):
    """What the leader tells a member: its partitions, and the copies that it shall keep."""

    def __init__(self, partitions: Iterable[TopicPartition], copies: Copies) -> None:
        super().__init__(partitions)
        self.copies = copies


class FakeSource:
    """`actors.ports.Source`; joins the group in `open`, leaves it in `close`.

    `copies`, which takes what the member shall keep copies of, and `lags`, which gives what they lack, are for workers
    that keep some. `topics` are the inputs of one actor. Tasks are named by the first one here, not by their actors.

    Attributes:
        last_generation: the last one that this member knows.
        on_start: called with each partition of which delivery begins.
        on_delivery: called with what is delivered.
    """

    def __init__(
        self,
        cluster: SimKafka,
        network: Network,
        settings: FakeGroupSettings,
        topics: Iterable[str],
        *,
        on_disk: Callable[[], Mapping[TopicPartition, int]],
        events: SourceEvents,
        leaving: Callable[[], Iterable[TopicPartition]] = tuple,
        rules: PlacementRules | None = None,
        lags: Callable[[], Mapping[TaskId, int]] | None = None,
        copies: Callable[[Copies], None] | None = None,
    ) -> None:
        self._rules = rules or PlacementRules()
        self._lags = lags
        self._copies = copies
        self._cluster = cluster
        self._network = network
        self._settings = settings
        self._topics = list(topics)
        self._on_disk = on_disk
        self._events = events
        self._leaving = leaving
        self._told = Copies()
        self._kept = False
        self.last_generation = -1
        self.on_start: list[Callable[[TopicPartition], None]] = []
        self.on_delivery: list[Callable[[Mapping[TopicPartition, Sequence[Any]]], None]] = []
        self._handing_over: set[asyncio.Task[None]] = set()
        self._identity = Identity("", -1)
        self._last = Member("", settings.client)
        self._positions: dict[TopicPartition, int | None] = {}
        self._topic_ids: dict[TopicPartition, str] = {}
        self._must_join = asyncio.Event()
        self._membership: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Begin to join the group."""
        self._membership = asyncio.create_task(self._be_member(), name="membership")

    def identity(self) -> Identity:
        """Return the member id and generation of now."""
        return self._identity

    def ask_for_rebalance(self) -> None:
        """Rejoin, with this member's current metadata."""
        self._must_join.set()

    async def close(self) -> None:
        """Leave the group, as a static member without a word. May be called twice."""
        membership, self._membership = self._membership, None
        if membership is None:
            return
        for task in (membership, *self._handing_over):
            task.cancel()
        await asyncio.wait([membership, *self._handing_over])
        self._positions.clear()
        if self._identity.member_id and self._settings.instance_id is None:
            with contextlib.suppress(RefusedError, NoAnswerError, TimeoutError):
                async with asyncio.timeout(LEAVE_S):
                    await self._network.ask("LeaveGroup", self._cluster.group.leave, self._identity.member_id)

    # --- records ---------------------------------------------------------------------------------------------------

    async def poll(self, wanted: Iterable[TopicPartition], timeout_s: float) -> Mapping[TopicPartition, Sequence[Any]]:
        """See `actors.ports.Source.poll`."""
        self.check()
        asked = {}
        for source in wanted:
            position = self._positions.get(source)
            if position is not None:
                asked[source] = position
        if not asked:
            await asyncio.sleep(timeout_s)
            return {}
        try:
            settings = self._settings
            ids = {source: self._topic_ids.get(source, "") for source in asked}
            function = partial(self._cluster.poll, ids=ids)
            found = await self._network.ask(POLL, function, asked, settings.max_poll_records, timeout_s)
        except OffsetOutOfRangeError as error:
            self._events.lost(error.partition, f"the input doesn't have offset {error.offset} any more")
            return {}
        except UnknownTopicIdError as error:
            if self._topic_ids.get(error.partition, "") == ids[error.partition]:
                self._positions[error.partition] = None
                self._events.lost(error.partition, str(error))
            return {}
        except (RefusedError, NoAnswerError):
            await asyncio.sleep(RETRY_S)
            return {}
        return self._taken(asked, ids, found)

    def _taken(
        self,
        asked: Mapping[TopicPartition, int],
        ids: Mapping[TopicPartition, str],
        found: Mapping[TopicPartition, tuple[Sequence[Any], int]],
    ) -> dict[TopicPartition, Sequence[Any]]:
        """Drop what was fetched from a position, or of a topic, that isn't the partition's any more."""
        taken: dict[TopicPartition, Sequence[Any]] = {}
        for source, (records, reached) in found.items():
            if self._positions.get(source) == asked[source] and self._topic_ids.get(source, "") == ids[source]:
                self._positions[source] = reached
                if records:
                    taken[source] = records
        for observe in self.on_delivery:
            observe(taken)
        return taken

    def start_from(self, source: TopicPartition, offset: int, topic_id: str = "") -> None:
        """See `actors.ports.TaskSink.start_from`."""
        if source in self._positions:
            self._topic_ids[source] = topic_id
            self._positions[source] = offset
            for observe in self.on_start:
                observe(source)
            self._events.room()

    def stop_delivery(self, source: TopicPartition) -> None:
        """See `actors.ports.TaskSink.stop_delivery`."""
        if source in self._positions:
            self._positions[source] = None

    def has_room(self) -> None:
        """See `actors.ports.TaskSink.has_room`."""
        self._events.room()

    def position(self, source: TopicPartition) -> int | None:
        """See `actors.ports.TaskSink.position`."""
        return self._positions.get(source)

    def end_offset(self, source: TopicPartition) -> int | None:
        """See `actors.ports.Source.end_offset`."""
        return self._cluster.log(source).end if source in self._positions else None

    def stable_offset(self, source: TopicPartition) -> int | None:
        """See `actors.ports.TaskSink.stable_offset`."""
        return self._cluster.log(source).last_stable

    def check(self) -> None:
        """See `actors.ports.Source.check`."""
        membership = self._membership
        if membership is not None and membership.done() and not membership.cancelled():
            raise BrokerUnavailableError(f"the membership ended: {membership.exception()!r}")

    # --- membership ------------------------------------------------------------------------------------------------

    async def _be_member(self) -> None:
        while True:
            partitions = await self._joined()
            self._positions = {source: self._positions.get(source) for source in partitions}
            self._must_join.clear()
            self._assign_tasks(partitions)
            beating = asyncio.create_task(self._beat(), name="heartbeat")
            try:
                await self._must_join.wait()
                await self._prepare()
            finally:
                beating.cancel()

    def _assign_tasks(self, partitions: list[TopicPartition]) -> None:
        handed_over = frozenset(TopicPartition(task.actor, task.partition) for task in self._told.handed_over)
        try:
            self._note_generation()
            self._events.assigned(self._identity, partitions, handed_over)
        except Exception as error:
            self._events.failed(error)
        if handed_over:
            task = asyncio.create_task(self._hand_over(), name="hand over")
            self._handing_over.add(task)
            task.add_done_callback(self._handing_over.discard)

    async def _hand_over(self) -> None:
        await self._events.handed_over()
        self.ask_for_rebalance()

    async def _prepare(self) -> None:
        """Keep the tasks during the join that begins, or give them up."""
        self._kept = self._settings.keeps and self._told.may_keep and self.last_generation > 0
        if self._kept:
            self._events.joining()
            return
        try:
            await self._events.revoked()
        except Exception as error:
            self._events.failed(error)
        self._positions = {}

    def _note_generation(self) -> None:
        """Drop all tasks after a generation in which the leader didn't know that this worker has them."""
        before, self.last_generation = self.last_generation, self._identity.generation
        if self.last_generation > before + 1:
            self._drop()

    def _drop(self) -> None:
        self._kept = False
        self._positions = dict.fromkeys(self._positions)
        self._events.dropped()

    async def _beat(self) -> None:
        """Send heartbeats, also while a rebalance waits for this member's tasks."""
        while True:
            await asyncio.sleep(min(self._settings.heartbeat_s, 0.05 if self._told.is_moving else 10.0))
            try:
                await self._network.ask(
                    "Heartbeat", self._cluster.group.heartbeat, self._identity.member_id, self._identity.generation
                )
            except RebalanceInProgressError:
                self._must_join.set()
            except (UnknownMemberError, IllegalGenerationError):
                self._must_join.set()
                self._forgotten()
                return
            except (RefusedError, NoAnswerError):
                continue

    async def _joined(self) -> list[TopicPartition]:
        """Join and sync until there is an assignment."""
        group, settings = self._cluster.group, self._settings
        while True:
            self._note_generation()
            try:
                joined: Joined = await self._network.ask(
                    "JoinGroup",
                    group.join,
                    self._identity.member_id,
                    settings.client,
                    self._info(),
                    settings.session_s,
                    settings.instance_id,
                )
                self._identity = Identity(joined.member_id, joined.generation)
                assignment = self._assign(joined.members) if joined.is_leader else None
                partitions: list[TopicPartition] = await self._network.ask(
                    "SyncGroup", group.sync, joined.member_id, joined.generation, assignment
                )
            except (UnknownMemberError, IllegalGenerationError, FencedInstanceError):
                self._forgotten()
            except (RefusedError, NoAnswerError):
                await asyncio.sleep(RETRY_S)
            else:
                process = current_process()
                if process is not None:
                    await process.reach("assigned")
                owned = frozenset(map(self._task_of, partitions))
                self._last = Member("", settings.client, generation=joined.generation, owned=owned)
                self._told = partitions.copies if isinstance(partitions, Assigned) else Copies()
                if self._copies is not None:
                    self._copies(self._told)
                return sorted(partitions)

    def _task_of(self, source: TopicPartition) -> TaskId:
        return TaskId(self._topics[0], source.partition)

    def _forgotten(self) -> None:
        """Join as a new member; a static member that was in the group has to end, since another may have its place."""
        was_member, self.last_generation = self.last_generation > 0, -1
        self._identity = Identity("", -1)
        self._drop()
        if was_member and self._settings.instance_id is not None:
            self._events.failed(LostMembershipError(self._settings.instance_id))

    def _info(self) -> Member:
        on_disk = {TaskId(*source): position for source, position in self._on_disk().items()}
        last = self._last
        return Member(
            "",
            last.instance_id,
            generation=last.generation,
            owned=last.owned | set(map(self._task_of, self._leaving())),
            on_disk=on_disk,
            lags={} if self._lags is None else self._lags(),
            follows=self._lags is not None,
            kept=self._kept if self._settings.keeps else None,
            transactional_id=self._settings.transactional_id if self._settings.keeps else None,
        )

    def _assign(self, infos: Mapping[str, Member]) -> Mapping[str, list[TopicPartition]]:
        keeps = self._settings.keeps
        members = [
            replace(info, member_id=member_id, kept=info.kept if keeps else None) for member_id, info in infos.items()
        ]
        may_keep = all(member.kept is not None for member in members)
        tasks = [TaskId(*log.name) for log in self._cluster.topic(self._topics[0]).partitions]
        placement = place(members, tasks, self._rules)
        is_moving = any(copies.handed_over for copies in placement.copies.values())
        return {
            member_id: Assigned(
                [TopicPartition(topic, task.partition) for topic in self._topics for task in theirs],
                replace(placement.copies[member_id], may_keep=may_keep, is_moving=is_moving),
            )
            for member_id, theirs in placement.owners.items()
        }
