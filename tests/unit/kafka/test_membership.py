"""How aiokafka's coordinator is had to keep an assignment while it joins, and what the source tells the worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.structs import TopicPartition as KafkaPartition

from actors._core.group.members import TaskId
from actors._core.group.placement import Copies, encode_copies
from actors._kafka.client import Consumer
from actors._kafka.connection import Connection
from actors._kafka.consume.assignor import ActorAssignor
from actors._kafka.consume.consumer import HEARTBEAT_MS, KafkaSource
from actors._kafka.consume.membership import Fencing, GroupSettings
from actors.ports import Identity, SourceEvents, TopicPartition
from tests.kafka.helpers import eventually

FIRST, SECOND, THIRD = (KafkaPartition("in", number) for number in range(3))


class Coordinator:
    """The parts of aiokafka's coordinator that a join goes through; `join` is the group's answer to one."""

    def __init__(self, subscription: SubscriptionState, listener: Callable[[], Any], assignor: ActorAssignor) -> None:
        self.member_id, self.generation = "m", -1
        self._subscription = subscription
        self._heartbeat_interval_ms = 0
        self._group_subscription: Any = None
        self._listener, self._assignor = listener, assignor
        self._closing = asyncio.get_running_loop().create_future()
        self.rejoins, self.joins = 0, 0

    async def ensure_active_group(self, *_: Any) -> bool:
        self.joins += 1
        return True

    async def _on_join_prepare(self, assignment: Any) -> None:
        self._subscription.begin_reassignment()
        await self._listener().on_partitions_revoked(self._subscription.assigned_partitions())

    def reset_generation(self) -> None:
        self.member_id, self.generation = "", -1

    async def _perform_assignment(self, response: Any) -> None:
        """It never leads."""

    async def _on_join_complete(self, *_: Any) -> None:
        """See `join`."""

    def request_rejoin(self) -> None:
        self.rejoins += 1

    async def join(self, generation: int, *partitions: KafkaPartition, **told: Any) -> Any:
        """Join, and return what the member said of itself."""
        await self._on_join_prepare(self._subscription.subscription.assignment)
        return await self.synced(generation, *partitions, **told)

    async def synced(self, generation: int, *partitions: KafkaPartition, **told: Any) -> Any:
        """Do the rest of a join."""
        said = self._assignor.metadata(["in"])
        self.member_id, self.generation = "m", generation
        copies = encode_copies(Copies(may_keep=told.pop("may_keep", True), **told))
        theirs = [("in", [partition.partition for partition in partitions])]
        self._subscription.assign_from_subscribed(set(partitions))
        self._assignor.on_assignment(ConsumerProtocolMemberAssignment(0, theirs, copies))
        await self._listener().on_partitions_assigned(self._subscription.assigned_partitions())
        return said


class World:
    """A source with its events as words."""

    def __init__(self, *, instance_id: str | None = None) -> None:
        self.told: list[Any] = []
        self.handed_over = asyncio.Event()
        self.leaving: list[TopicPartition] = []
        self.assignor = ActorAssignor(
            instance_id="", address="", actors={"in": "a"}, on_disk=dict, leaving=lambda: self.leaving
        )
        self.subscription = SubscriptionState()
        self.subscription.subscribe({"in"})
        self.coordinator = Coordinator(self.subscription, lambda: self.source, self.assignor)
        fetcher = SimpleNamespace(_notify=lambda _: None, _wait_consume_future=None)
        consumer = Consumer(Connection(()), "test")
        consumer._closed = True
        consumer._coordinator, consumer._subscription, consumer._fetcher = self.coordinator, self.subscription, fetcher
        consumer.client.cluster.partitions_for_topic = lambda _: {0, 1, 2}
        settings = GroupSettings("g", instance_id, 6000, 2000, 10_000, 1000, None)
        self.source = KafkaSource(consumer, settings, self.assignor, self._events())
        self.assignor.joins = self.source._joins
        self.assignor.generation = lambda: self.coordinator.generation

    def _events(self) -> SourceEvents:
        async def revoked() -> None:
            self.told.append("revoked")

        async def handed_over() -> None:
            await self.handed_over.wait()

        def assigned(
            identity: Identity, partitions: list[TopicPartition], handed_over: frozenset[TopicPartition]
        ) -> None:
            numbers = [partition.partition for partition in partitions]
            self.told.append((identity.generation, numbers, [partition.partition for partition in handed_over]))

        return SourceEvents(
            joining=lambda: self.told.append("joining"),
            revoked=revoked,
            assigned=assigned,
            handed_over=handed_over,
            dropped=lambda: self.told.append("dropped"),
            room=lambda: None,
            lost=lambda *_: None,
            failed=lambda error: self.told.append(type(error).__name__),
        )

    def news(self) -> list[Any]:
        told, self.told = self.told, []
        return told

    def state(self, partition: KafkaPartition) -> Any:
        return self.subscription.subscription.assignment.state_value(partition)


async def test_what_stays_keeps_its_position_and_what_is_new_is_paused() -> None:
    world = World()
    await world.coordinator.join(1, FIRST, SECOND)
    for partition in (FIRST, SECOND):
        world.subscription.resume(partition)
        world.subscription.seek(partition, 42)
    assignment = world.subscription.subscription.assignment
    assert not assignment.requesting_committed()
    await world.coordinator._on_join_prepare(assignment)
    assert not world.subscription.reassignment_in_progress
    await world.coordinator.synced(2, SECOND, THIRD)
    assert world.subscription.subscription.assignment is assignment
    assert assignment.active
    assert assignment.tps == {SECOND, THIRD}
    assert (world.state(SECOND).position, world.state(SECOND).paused) == (42, False)
    assert world.state(THIRD).paused
    assert world.state(FIRST).paused
    assert world.source.position(TopicPartition("in", 0)) == 42
    world.subscription.seek(SECOND, 50)
    await world.coordinator.join(3, FIRST, SECOND)
    assert (world.state(FIRST).position, world.state(SECOND).position) == (0, 50)


async def test_tasks_are_kept_only_if_the_last_leader_said_so() -> None:
    world = World()
    said = await world.coordinator.join(1, FIRST, may_keep=False)
    assert (world.assignor.kept, world.news()) == (False, ["revoked", "dropped", (1, [0], [])])
    await world.coordinator.join(2, FIRST)
    assert (world.assignor.kept, world.news()) == (False, ["revoked", (2, [0], [])])
    await world.coordinator.join(3, FIRST)
    assert (world.assignor.kept, world.news()) == (True, ["joining", (3, [0], [])])
    assert said.subscription == ["in"]


async def test_what_is_to_be_handed_over_is_claimed_until_it_is_and_then_the_worker_joins_again() -> None:
    world = World()
    await world.coordinator.join(1, FIRST, SECOND)
    world.leaving = [TopicPartition("in", 1)]
    await world.coordinator.join(2, FIRST, handed_over=frozenset({TaskId("a", 1)}), is_moving=True)
    assert world.news()[-1] == (2, [0], [1])
    assert world.coordinator._heartbeat_interval_ms == HEARTBEAT_MS
    assert not world.coordinator.rejoins
    assert world.assignor._owned | {TaskId("a", 1)} == {TaskId("a", 0), TaskId("a", 1)}
    said = await world.coordinator.join(3, FIRST)
    assert b"\x92\x00\x01" in said.user_data, "both partitions are owned"
    assert world.coordinator._heartbeat_interval_ms == 2000
    world.handed_over.set()
    await eventually(lambda: world.coordinator.rejoins == 1)


async def test_all_is_dropped_when_the_group_has_forgotten_the_member() -> None:
    world = World()
    await world.coordinator.join(1, FIRST)
    await world.coordinator._on_join_prepare(None)
    world.news()
    world.coordinator.reset_generation()
    assert (world.assignor.kept, world.news()) == (False, ["dropped"])
    await world.coordinator.synced(2, FIRST)
    assert world.news()[-1] == (2, [0], [])


@pytest.mark.parametrize("is_seen_early", [False, True])
async def test_all_is_dropped_after_a_generation_that_was_missed(is_seen_early: bool) -> None:
    """The leader may have given the partitions to others, and these back."""
    world = World()
    await world.coordinator.join(1, FIRST)
    await world.coordinator._on_join_prepare(None)
    world.news()
    world.coordinator.generation = 3 if is_seen_early else 1
    await world.coordinator.synced(4 if is_seen_early else 3, FIRST)
    assert world.news()[0] == "dropped"


async def test_an_assignment_that_was_missed_in_a_generation_that_was_joined_drops_nothing() -> None:
    """The leader knew what the worker has."""
    world = World()
    await world.coordinator.join(1, FIRST)
    await world.coordinator._on_join_prepare(None)
    world.coordinator.generation = 2
    world.news()
    await world.coordinator.synced(3, FIRST)
    assert world.news() == [(3, [0], [])]


@pytest.mark.parametrize("has_joined", [False, True])
async def test_a_static_member_that_was_in_the_group_ends(has_joined: bool) -> None:
    world = World(instance_id="a")
    if has_joined:
        await world.coordinator.join(1, FIRST)
    world.assignor.metadata(["in"])
    world.coordinator.reset_generation()
    assert ("LostMembershipError" in world.told) is has_joined
    # A join during its stop would take the membership from the process that has it now.
    joining = asyncio.create_task(world.coordinator.ensure_active_group(None, None))
    await asyncio.wait([joining], timeout=0)
    await asyncio.sleep(0)
    assert (joining.done(), world.coordinator.joins) == ((False, 0) if has_joined else (True, 1))
    world.coordinator._closing.set_result(None)
    await joining


@pytest.mark.parametrize(("code", "seen_code"), [(82, 25), (25, 25), (27, 27), (0, 0)])
async def test_a_fenced_instance_id_is_an_unknown_member(code: int, seen_code: int) -> None:
    """aiokafka doesn't know the error, and a worker would end without a reason."""
    answer = SimpleNamespace(error_code=code)
    assert Fencing().after(1, "JoinGroup", answer).error_code == seen_code
    assert any(isinstance(hook, Fencing) for hook in World().source._consumer.client.hooks)
