"""What `actors.ports` promises, on the simulated cluster and on a real broker: the simulation is worth what this is."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace

import pytest

from actors._core.task.takeover import LogBounds
from actors._kafka.admin.owners import KafkaOwners, encode_owner
from actors.errors import (
    ReplacedLogError,
    RestoreError,
)
from actors.ports import Committed, OwnerRecord, TopicPartition
from tests.contract.helpers import batch, read
from tests.contract.worlds import World
from tests.kafka.helpers import eventually, unique

COMPACTED_CONFIG = {
    "cleanup.policy": "compact",
    "segment.ms": "50",
    "min.cleanable.dirty.ratio": "0.001",
    "max.compaction.lag.ms": "100",
}


async def test_a_log_is_read_by_its_topics_id(world: World, topic: str) -> None:
    source = TopicPartition(topic, 0)
    for value in (b"one", b"two"):
        await world.send(topic, b"k", value)
    ids = await world.group.topic_ids([topic])

    async def values(topic_id: str) -> list[bytes | None]:
        chunks = [records async for records, _ in world.logs.read(source, 0, 2, topic_id)]
        return [record.value for records in chunks for record in records]

    assert await values(ids[topic].topic_id) == await values("") == [b"one", b"two"]
    with pytest.raises(ReplacedLogError) as raised:
        await values(str(uuid.uuid4()))
    assert raised.value.source == source


# --- the group --------------------------------------------------------------------------------------------------------


async def test_no_committed_offset_is_none(world: World, topic: str) -> None:
    assert await world.group.committed(TopicPartition(topic, 0)) is None


async def test_a_member_is_known_in_its_generation_only(world: World, topic: str) -> None:
    member = await world.join(topic)
    before = member.identity
    assert await world.group.is_member(before)
    assert not await world.group.is_member(replace(before, generation=before.generation - 1))
    assert not await world.group.is_member(replace(before, member_id="nobody"))
    other = await world.join(topic)
    await eventually(lambda: member.identity.generation == other.identity.generation > before.generation)
    assert not await world.group.is_member(before)
    assert await world.group.is_member(member.identity)
    assert await world.group.is_member(other.identity)


async def test_a_member_keeps_what_it_has_while_another_joins(world: World, topic: str) -> None:
    source, read = TopicPartition(topic, 0), list[int]()
    member = await world.join(topic)

    async def is_read(count: int) -> bool:
        for records in (await member.source.poll([source], 0.1)).values():
            read.extend(record.offset for record in records)
        return len(read) == count

    await world.send(topic, b"k", b"0")
    member.source.start_from(source, 0)
    await eventually(lambda: is_read(1))
    before, told = member.identity, len(member.told)
    other = await world.join(topic)
    await eventually(lambda: member.identity.generation == other.identity.generation > before.generation)
    assert member.told[told : told + 2] == ["joining", "1 and 0 to hand over"]
    assert (member.partitions, other.partitions) == ([source], [])
    assert member.source.position(source) == 1
    await world.send(topic, b"k", b"1")
    await eventually(lambda: is_read(2))
    assert read == [0, 1]
    assert "revoked" not in member.told[told:]
    assert "dropped" not in member.told[told:]


async def test_an_operator_moves_the_offset_of_an_empty_group_only(world: World, topic: str) -> None:
    source = TopicPartition(topic, 0)
    assert await world.set_offset(topic, 5)
    assert await world.group.committed(source) == Committed(5, "")
    member = await world.join(topic)
    assert not await world.set_offset(topic, 3)
    assert not await world.delete_offset(topic)
    assert await world.group.committed(source) == Committed(5, "")
    transaction = await world.open_offset("no member", topic, 8)
    await transaction.end(commit=True)
    await eventually(lambda: _is_committed(world, source, 8))
    await member.close()
    await eventually(lambda: world.set_offset(topic, 3))
    assert await world.group.committed(source) == Committed(3, "")
    assert await world.delete_offset(topic)
    assert await world.group.committed(source) is None


async def test_of_two_offsets_the_one_that_was_written_last_counts(world: World, topic: str) -> None:
    """A transactional one was written when it was sent, not when its transaction ended."""
    source = TopicPartition(topic, 0)
    first, second = await world.open_offset("a", topic, 10), await world.open_offset("b", topic, 20)
    assert await world.group.committed(source) is None
    await second.end(commit=True)
    await eventually(lambda: _is_committed(world, source, 20))
    await first.end(commit=True)
    third = await world.open_offset("c", topic, 30)
    assert await world.set_offset(topic, 3)
    await third.end(commit=True)
    fourth = await world.open_offset("d", topic, 40)
    await fourth.end(commit=False)
    await asyncio.sleep(0.3)
    assert await world.group.committed(source) == Committed(3, "")


async def test_an_operator_who_deletes_an_offset_deletes_what_is_pending(world: World, topic: str) -> None:
    source = TopicPartition(topic, 0)
    assert await world.set_offset(topic, 3)
    pending = await world.open_offset("a", topic, 10)
    assert await world.delete_offset(topic)
    await pending.end(commit=True)
    await asyncio.sleep(0.3)
    assert await world.group.committed(source) is None


async def _is_committed(world: World, source: TopicPartition, offset: int) -> bool:
    committed = await world.group.committed(source)
    return committed is not None and committed.offset == offset


async def test_a_static_member_comes_back_to_what_it_had(world: World, topic: str) -> None:
    """Also the group's leader, whose restart would make a dynamic group rebalance."""
    members = {name: await world.join(topic, name) for name in ("a", "b")}
    await eventually(lambda: len({member.identity.generation for member in members.values()}) == 1)
    for name, member in members.items():
        other = next(held for held in members.values() if held is not member)
        before, assignments = other.identity, other.assignments
        await member.close()
        assert await world.group.is_member(member.identity)
        back = await world.join(topic, name)
        assert back.identity.generation == member.identity.generation == other.identity.generation
        assert back.identity.member_id != member.identity.member_id
        assert (back.partitions, back.assignments) == (member.partitions or back.partitions, 1)
        assert len(back.partitions) + len(other.partitions) == 1
        assert await world.group.is_member(back.identity)
        assert not await world.group.is_member(member.identity)
        assert (other.identity, other.assignments) == (before, assignments)
        members[name] = back


async def test_a_static_member_whose_place_was_taken_has_to_end(world: World, topic: str) -> None:
    first = await world.join(topic, "a")
    before = first.identity
    second = await world.join(topic, "a")
    assert second.identity.generation == before.generation
    assert not await world.group.is_member(before)
    await eventually(lambda: first.failures)
    assert first.failures[0] == "LostMembershipError"


async def test_a_source_gives_what_is_committed(world: World, topic: str) -> None:
    source = TopicPartition(topic, 0)
    aborted = await world.open_transaction("other", topic)
    await aborted.end(commit=False)
    await eventually(lambda: _ends_at(world, topic, 2))
    await world.send(topic, b"k", b"2")
    member = await world.join(topic)
    member.source.start_from(source, 0)
    found: list[int] = []

    async def is_read() -> bool:
        for records in (await member.source.poll([source], 0.1)).values():
            found.extend(record.offset for record in records)
        return 2 in found

    await eventually(is_read)
    assert found == [2]


async def test_records_can_be_fetched_up_to_the_first_open_transaction(world: World, topic: str) -> None:
    source = TopicPartition(topic, 0)
    await world.send(topic, b"k", b"0")
    opened = await world.open_transaction("other", topic)
    await world.send(topic, b"k", b"2")
    member = await world.join(topic)
    member.source.start_from(source, 0)

    async def is_there(stable: int) -> bool:
        await member.source.poll([source], 0.1)
        return (member.source.stable_offset(source), member.source.position(source)) == (stable, stable)

    await eventually(lambda: is_there(1))
    await opened.end(commit=True)
    await eventually(lambda: is_there(4))


async def test_a_position_that_retention_passed_is_lost(world: World, topic: str) -> None:
    source = TopicPartition(topic, 0)
    for number in range(4):
        await world.send(topic, b"k", b"%d" % number)
    member = await world.join(topic)
    await world.delete_before(topic, 2)
    member.source.start_from(source, 1)

    async def is_lost() -> bool:
        assert await member.source.poll([source], 0.1) == {}
        return bool(member.lost)

    await eventually(is_lost)
    assert member.lost[0] == source
    assert member.source.position(source) in (None, 1)
    member.source.start_from(source, 2)
    found = {}

    async def is_read() -> bool:
        found.update(await member.source.poll([source], 0.1))
        return bool(found)

    await eventually(is_read)
    [records] = found.values()
    assert [record.offset for record in records] == [2, 3]


async def test_records_of_a_topic_with_another_id_are_never_given(world: World, topic: str) -> None:
    source = TopicPartition(topic, 0)
    await world.send(topic, b"k", b"0")
    member = await world.join(topic)
    member.source.start_from(source, 0, str(uuid.uuid4()))

    async def is_lost() -> bool:
        assert await member.source.poll([source], 0.1) == {}
        return bool(member.lost)

    await eventually(is_lost)
    for _ in range(3):
        assert await member.source.poll([source], 0.2) == {}
    assert member.lost == [source]
    found = {}

    async def is_read() -> bool:
        found.update(await member.source.poll([source], 0.1))
        return bool(found)

    member.source.start_from(source, 0, (await world.group.topic_ids([topic]))[topic].topic_id)
    await eventually(is_read)
    [records] = found.values()
    assert [record.offset for record in records] == [0]
    assert member.source.end_offset(source) == 1


async def test_only_topics_that_exist_have_ids(world: World, topic: str) -> None:
    other = unique("other")
    await world.make_topic(other)
    one, two = await asyncio.gather(
        world.group.topic_ids([topic]), world.group.topic_ids([topic, other, unique("missing"), topic])
    )
    assert one == {topic: two[topic]}
    assert two.keys() == {topic, other}
    assert two[topic].topic_id != two[other].topic_id
    assert all(str(uuid.UUID(found.topic_id)) == found.topic_id and found.partitions == 1 for found in two.values())


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
        # the cleaner may come a first time while the records are written
        return found if found[0][0] >= 6 else None

    found = await eventually(has_gaps)
    assert found == [(6, b"3"), (7, None), (8, b"8")]
    assert await read(world, name, 1, 6) == []
    assert await world.logs.bounds(TopicPartition(name, 0)) == LogBounds(0, 9)


# --- the registry -----------------------------------------------------------------------------------------------------


async def test_the_newest_owner_is_found(world: World, topic: str) -> None:
    owners, log = KafkaOwners(topic, world.logs), world.task_log("a")
    assert await owners.latest("actor", 0) is None
    await log.fence()
    records = [OwnerRecord("actor", 0, epoch, f"worker{epoch}", "", 1) for epoch in (1, 2)]
    for record in records:
        await log.commit(batch(topic, outputs=[encode_owner(topic, record)]))
    await log.commit(batch(topic, outputs=[encode_owner(topic, replace(records[0], partition=1))]))
    await log.fence()
    assert await owners.latest("actor", 0) == records[1]
    assert await owners.latest("actor", 2) is None


async def test_a_claim_is_seen_while_its_transaction_is_open(world: World, topic: str) -> None:
    owners, claim = KafkaOwners(topic, world.logs), OwnerRecord("actor", 0, 1, "worker", "", 1, transactional_id="id")
    record = encode_owner(topic, claim)
    assert await owners.open_claims() is None
    other = await world.open_transaction("other", topic)
    assert await owners.open_claims() == [], "what another program writes holds readers back too, and is no claim"
    open_claim = await world.open_transaction("open", topic, record.key or b"", record.value or b"")
    assert await owners.open_claims() == [claim]
    for transaction in (other, open_claim):
        await transaction.end(commit=True)

    async def is_over() -> bool:
        return await owners.open_claims() is None

    await eventually(is_over)
    assert await owners.latest("actor", 0) == claim
