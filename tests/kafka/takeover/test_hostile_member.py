"""A member of the group that isn't one of ours, or runs another program: the leader goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata

from actors._core.group.members import Declared
from actors._kafka.admin.control import ControlPlane
from actors._kafka.connection import Connection
from actors._kafka.consume.assignor import ActorAssignor
from actors._kafka.consume.consumer import KafkaSource
from actors._kafka.consume.membership import GroupSettings
from actors._kafka.consume.standby_owners import KafkaCopies
from actors.ports import SourceEvents, TopicPartition
from tests.kafka.helpers import eventually, make_topics, unique

NOT_UTF8 = ConsumerProtocolMemberMetadata(0, ["in"], b"").encode().replace(b"in", b"\xff\xfe")
DEEP = ConsumerProtocolMemberMetadata(0, ["in"], b"\x91" * 3_000 + b"\x01").encode()


def settings_of(group: str) -> GroupSettings:
    return GroupSettings(
        group=group,
        instance_id=None,
        session_timeout_ms=6000,
        heartbeat_interval_ms=300,
        rebalance_timeout_ms=10_000,
        fetch_bytes=1_000_000,
        max_poll_records=None,
    )


class Hostile(AbstractPartitionAssignor):
    """Says what it likes under our protocol's name."""

    name = "faust-actors"

    def __init__(self, said: bytes) -> None:
        self.said, self.answers = said, 0

    def metadata(self, topics: Any) -> bytes:
        return self.said

    def assign(self, cluster: Any, members: Any) -> Any:
        raise AssertionError("it isn't the leader")

    def on_assignment(self, assignment: Any) -> None:
        assert assignment.partitions() == []
        self.answers += 1


async def nothing() -> None: ...


def events(rounds: list[list[TopicPartition]], failed: Callable[[BaseException], None]) -> SourceEvents:
    return SourceEvents(
        joining=lambda: None,
        revoked=nothing,
        assigned=lambda _, partitions, __: rounds.append(partitions),
        handed_over=nothing,
        dropped=lambda: None,
        room=lambda: None,
        lost=lambda *_: None,
        failed=failed,
    )


async def join(brokers: str, group: str, declared: Declared, rounds: list[list[TopicPartition]]) -> KafkaSource:
    """Join as a worker whose program has one actor."""
    return await KafkaSource.open(
        Connection.to(brokers, client_id=declared.actor),
        settings_of(group),
        [declared.topic],
        ActorAssignor(
            instance_id="",
            address="http://leader:6066",
            actors={declared.topic: declared.actor},
            on_disk=dict,
            declared=[declared],
        ),
        events(rounds, lambda error: rounds.append([])),
    )


async def test_two_programs_that_run_at_once_share_no_partition(brokers: str) -> None:
    topic, group = unique("programs"), unique("programs-group")
    await make_topics(brokers, topic, partitions=3)
    ours: list[list[TopicPartition]] = []
    foreign: list[list[TopicPartition]] = []
    first = await join(brokers, group, Declared("ours", topic, "murmur2", ()), ours)
    second = await join(brokers, group, Declared("foreign", topic, "murmur2", ()), foreign)
    try:
        await eventually(lambda: len(ours) == 2)
        assert [len(partitions) for partitions in ours] == [3, 3]
        assert foreign == [[]]
        async with ControlPlane.connect(Connection.to(brokers, client_id="test"), group) as control:
            found = await KafkaCopies(control, group).members()
        assert len(found.troubles) == 1
        assert f"topic {topic} is the input of actor foreign in the program that is refused" in found.troubles[0]
        await first.close()
        await eventually(lambda: foreign[-1:] == [[TopicPartition(topic, number) for number in range(3)]])
    finally:
        await second.close()
        await first.close()


async def test_members_that_send_anything_get_nothing_and_the_leader_goes_on(brokers: str) -> None:
    topic, group = unique("hostile"), unique("hostile-group")
    await make_topics(brokers, topic, partitions=3)
    rounds: list[list[TopicPartition]] = []
    failures: list[BaseException] = []

    source = await KafkaSource.open(
        Connection.to(brokers, client_id="leader"),
        settings_of(group),
        [topic],
        ActorAssignor(instance_id="", address="http://leader:6066", actors={topic: "a"}, on_disk=dict),
        events(rounds, failures.append),
    )
    everything = [TopicPartition(topic, number) for number in range(3)]
    assert rounds == [everything]
    strangers = []
    try:
        for said in (NOT_UTF8, DEEP):
            assignor = Hostile(said)
            stranger = AIOKafkaConsumer(
                bootstrap_servers=brokers,
                group_id=group,
                client_id="evil\x1b",
                session_timeout_ms=6000,
                heartbeat_interval_ms=300,
                partition_assignment_strategy=(assignor,),
            )
            stranger.subscribe([topic])
            joining = asyncio.create_task(stranger.start())
            strangers.append((stranger, joining))
            await eventually(lambda assignor=assignor: assignor.answers)
            source.check()
        await eventually(lambda: len(rounds) == 3)
        assert rounds == [everything] * 3
        assert failures == []
        async with ControlPlane.connect(Connection.to(brokers, client_id="test"), group) as control:
            found = await KafkaCopies(control, group).members()
        assert found.addresses == ["http://leader:6066"]
        assert len(found.troubles) == 2
        assert all("gets no partitions" in text and text.isprintable() for text in found.troubles)
    finally:
        for stranger, joining in strangers:
            await asyncio.wait([joining])
            await stranger.stop()
        await source.close()
