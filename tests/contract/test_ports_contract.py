"""What `actors.ports` promises, on the simulated cluster and on a real broker: the simulation is worth what this is."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from actors._core.partitioner import partitioner_of
from actors._core.task.takeover import LogBounds
from actors.errors import (
    CommitRefusedError,
    OutcomeUnknownError,
    ReplacedLogError,
    RestoreError,
    UnstableOffsetError,
)
from actors.ports import CommitBatch, Committed, Output, OwnerRecord, TopicPartition
from stores._core.record import METADATA_HEADER, encode_metadata
from tests.contract.worlds import FakeWorld, RealWorld, World
from tests.kafka.helpers import eventually, unique

METADATA = encode_metadata(1, 0)
COMPACTED_CONFIG = {
    "cleanup.policy": "compact",
    "segment.ms": "50",
    "min.cleanable.dirty.ratio": "0.001",
    "max.compaction.lag.ms": "100",
}


@pytest.fixture(params=["fake", "real"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    opened = FakeWorld() if request.param == "fake" else await RealWorld.open(request.getfixturevalue("brokers"))
    try:
        yield opened
    finally:
        await opened.close()


@pytest.fixture
async def topic(world: World) -> str:
    name = unique("log")
    await world.make_topic(name)
    return name


def batch(topic: str, offset: int = 7, **parts: Any) -> CommitBatch:
    committed = Committed(offset, f"1;{offset};{uuid.uuid4().hex[:6]}")
    return CommitBatch(0, {TopicPartition(topic, 0): committed}, **parts)


def source_of(batch: CommitBatch) -> TopicPartition:
    return next(iter(batch.offsets))


async def read(world: World, topic: str, start: int = 0, end: int | None = None) -> list[tuple[int, bytes | None]]:
    source = TopicPartition(topic, 0)
    end = (await world.logs.bounds(source)).end if end is None else end
    found, reached = [], start
    async for records, next_offset in world.logs.read(source, start, end):
        assert reached < next_offset <= end
        reached = next_offset
        found += [(record.offset, record.value) for record in records]
    assert reached == max(start, end)
    return found


async def settled(world: World, source: TopicPartition) -> Committed | None:
    """Return the committed offset when no transaction can change it any more."""

    async def is_stable() -> bool:
        with contextlib.suppress(UnstableOffsetError):
            found.append(await world.group.stable_offset(source))
        return bool(found)

    found: list[Committed | None] = []
    await eventually(is_stable)
    return found[0]


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


# --- commits ----------------------------------------------------------------------------------------------------------


async def test_a_commit_is_there_as_a_whole(world: World, topic: str) -> None:
    log = world.task_log("a")
    await log.fence()
    outputs = unique("outputs")
    await world.make_topic(outputs)
    first = batch(
        topic,
        changelogs={topic: {b"k": (METADATA, b"v"), b"gone": (METADATA, None)}},
        outputs=[Output(outputs, 0, b"k", b"output", [("h", b"1")], None)],
    )
    receipt = await log.commit(first)
    assert await settled(world, source_of(first)) == first.offsets[source_of(first)]
    assert [value for _, value in await read(world, topic)] == [b"v", None]
    assert [value for _, value in await read(world, outputs)] == [b"output"]
    assert receipt.changelog_offsets == {topic: 2}
    assert (await world.logs.bounds(source_of(first))) == LogBounds(0, 3)
    await log.close()
    await log.close()


async def test_a_changelog_record_has_its_metadata(world: World, topic: str) -> None:
    log = world.task_log("a")
    await log.fence()
    await log.commit(batch(topic, changelogs={topic: {b"k": (METADATA, b"v")}}))
    await log.fence()
    async for records, _ in world.logs.read(TopicPartition(topic, 0), 0, 1):
        assert [(record.key, list(record.headers)) for record in records] == [(b"k", [(METADATA_HEADER, METADATA)])]


async def test_the_next_commit_begins_behind_the_marker(world: World, topic: str) -> None:
    log = world.task_log("a")
    await log.fence()
    receipts = [
        await log.commit(batch(topic, offset, changelogs={topic: {b"k": (METADATA, b"%d" % offset)}}))
        for offset in (1, 2, 3)
    ]
    assert [receipt.changelog_offsets[topic] for receipt in receipts] == [1, 3, 5]
    await log.fence()
    assert await read(world, topic) == [(0, b"1"), (2, b"2"), (4, b"3")]


async def test_a_commit_without_writes_moves_the_offset(world: World, topic: str) -> None:
    log = world.task_log("a")
    await log.fence()
    empty = batch(topic, 11)
    assert (await log.commit(empty)).changelog_offsets == {}
    await log.fence()
    assert await world.group.committed(source_of(empty)) == empty.offsets[source_of(empty)]


async def test_a_record_that_the_broker_never_takes_is_a_refusal(world: World, topic: str) -> None:
    small = unique("small")
    await world.make_topic(small, **{"max.message.bytes": "1000"})
    log, large = world.task_log("a"), Output(small, 0, b"k", bytes(2000), [], None)
    await log.fence()
    for _ in range(2):
        with pytest.raises(CommitRefusedError):
            await log.commit(batch(topic, changelogs={topic: {b"k": (METADATA, b"v")}}, outputs=[large]))
    assert await settled(world, TopicPartition(topic, 0)) is None
    assert await read(world, topic) == []
    await log.commit(batch(topic, outputs=[Output(small, 0, b"k", b"small", [], None)]))
    assert await settled(world, TopicPartition(topic, 0)) is not None
    assert [value for _, value in await read(world, small)] == [b"small"]


def nowhere(key: bytes, partitions: int) -> int:
    raise KeyError(key)


async def test_a_record_that_no_partition_can_be_found_for_is_a_refusal(world: World, topic: str) -> None:
    member = await world.join(topic)
    lost = Output(topic, partitioner_of(nowhere), b"k", b"v", [], None)
    for log in (world.task_log("a"), world.ordered_log("b", member.identity)):
        await log.fence()
        with pytest.raises(CommitRefusedError, match="KeyError"):
            await log.commit(batch(topic, changelogs={topic: {b"k": (METADATA, b"v")}}, outputs=[lost]))
        await log.fence()
        assert await read(world, topic) == []
        assert await world.group.committed(TopicPartition(topic, 0)) is None


# --- at least once ----------------------------------------------------------------------------------------------------


async def test_an_ordered_commit_has_no_markers(world: World, topic: str) -> None:
    member = await world.join(topic)
    log = world.ordered_log("a", member.identity)
    await log.fence()
    for offset in (1, 2):
        written = batch(
            topic,
            offset,
            changelogs={topic: {b"k": (METADATA, b"v%d" % offset)}},
            outputs=[Output(topic, 0, b"k", b"output", [], None)],
        )
        receipt = await log.commit(written)
        assert await world.group.committed(source_of(written)) == written.offsets[source_of(written)]
        assert receipt.changelog_offsets == {topic: 2 * offset}
    assert await read(world, topic) == [(0, b"output"), (1, b"v1"), (2, b"output"), (3, b"v2")]


async def test_an_ordered_commit_moves_the_offset_for_members_only(world: World, topic: str) -> None:
    member = await world.join(topic)
    strangers = [
        replace(member.identity, generation=member.identity.generation - 1),
        replace(member.identity, member_id="nobody"),
    ]
    for number, identity in enumerate([*strangers, member.identity]):
        log = world.ordered_log("a", identity)
        await log.fence()
        written = batch(topic, outputs=[Output(topic, 0, b"k", b"%d" % number, [], None)])
        if identity is member.identity:
            await log.commit(written)
            assert await world.group.committed(source_of(written)) == written.offsets[source_of(written)]
        else:
            with pytest.raises(OutcomeUnknownError):
                await log.commit(written)
            assert await world.group.committed(source_of(written)) is None
    assert [value for _, value in await read(world, topic)] == [b"0", b"1", b"2"]


async def test_an_ordered_log_fences_nobody(world: World, topic: str) -> None:
    member = await world.join(topic)
    logs = [world.ordered_log("a", member.identity) for _ in range(2)]
    for log in logs:
        await log.fence()
    for number, log in enumerate(logs):
        await log.commit(batch(topic, number, changelogs={topic: {b"k": (METADATA, b"%d" % number)}}))
    assert [value for _, value in await read(world, topic)] == [b"0", b"1"]


async def test_an_ordered_commit_stops_where_it_is_refused(world: World, topic: str) -> None:
    small = unique("small")
    await world.make_topic(small, **{"max.message.bytes": "1000"})
    member = await world.join(topic)
    log = world.ordered_log("a", member.identity)
    await log.fence()
    outputs = [Output(topic, 0, b"k", b"output", [], None), Output(small, 0, b"k", bytes(2000), [], None)]
    with pytest.raises(CommitRefusedError):
        await log.commit(batch(topic, changelogs={small: {b"k": (METADATA, b"v")}}, outputs=outputs))
    assert [value for _, value in await read(world, topic)] == [b"output"]
    assert await read(world, small) == []
    assert await world.group.committed(TopicPartition(topic, 0)) is None


# --- fences -----------------------------------------------------------------------------------------------------------


async def test_a_fence_settles_what_the_id_left_open(world: World, topic: str) -> None:
    left = await world.open_transaction("a", topic)
    log = world.task_log("a")
    await log.fence()
    assert await read(world, topic) == []
    with pytest.raises(Exception, match=r"(?i)fenced|invalid|epoch"):
        await left.end(commit=True)
    assert await read(world, topic) == []


async def test_a_fenced_producer_commits_nothing(world: World, topic: str) -> None:
    old, new = world.task_log("a"), world.task_log("a")
    await old.fence()
    await old.commit(batch(topic, 1, changelogs={topic: {b"k": (METADATA, b"old")}}))
    await new.fence()
    with pytest.raises(OutcomeUnknownError):
        await old.commit(batch(topic, 2, changelogs={topic: {b"k": (METADATA, b"fenced")}}))
    await new.commit(batch(topic, 3, changelogs={topic: {b"k": (METADATA, b"new")}}))
    await new.fence()
    assert [value for _, value in await read(world, topic)] == [b"old", b"new"]
    committed = await world.group.committed(TopicPartition(topic, 0))
    assert committed is not None
    assert committed.offset == 3


async def test_the_end_of_anothers_transaction(world: World, topic: str) -> None:
    other, log = world.task_log("dead"), world.task_log("a")
    await other.fence()
    left = await world.open_transaction("left", topic)
    await log.fence()
    await log.end_transaction_of(world.full_id("left"))
    assert await world.logs.open_records(TopicPartition(topic, 0)) is None
    with pytest.raises(Exception, match=r"(?i)fenced|invalid|epoch"):
        await left.end(commit=True)
    assert await read(world, topic) == []


async def test_what_is_open_is_shown(world: World, topic: str) -> None:
    source = TopicPartition(topic, 0)
    assert await world.logs.open_records(source) is None
    await world.send(topic, b"k", b"before")
    left = await world.open_transaction("left", topic)
    shown = await world.logs.open_records(source)
    assert shown is not None
    assert [record.value for record in shown] == [b"open"]
    await left.end(commit=True)
    await eventually(lambda: _nothing_is_open(world, source))


async def _nothing_is_open(world: World, source: TopicPartition) -> bool:
    return await world.logs.open_records(source) is None


# --- several tasks ----------------------------------------------------------------------------------------------------


async def topics_of(world: World, count: int) -> list[str]:
    names = [unique("several") for _ in range(count)]
    for name in names:
        await world.make_topic(name)
    return names


async def test_tasks_that_commit_together_share_a_transaction(world: World) -> None:
    names, log = await topics_of(world, 3), world.task_log("a")
    await log.fence()
    batches = [batch(name, number, changelogs={name: {b"k": (METADATA, b"v")}}) for number, name in enumerate(names)]
    receipts = await asyncio.gather(*(log.commit(one) for one in batches))
    assert [receipt.changelog_offsets for receipt in receipts] == [{name: 1} for name in names]
    for one in batches:
        assert await settled(world, source_of(one)) == one.offsets[source_of(one)]
        assert await read(world, source_of(one).topic) == [(0, b"v")]


async def test_a_refusal_is_its_own_tasks_alone(world: World) -> None:
    names, small, log = await topics_of(world, 3), unique("small"), world.task_log("a")
    await world.make_topic(small, **{"max.message.bytes": "1000"})
    await log.fence()
    outputs = [Output(small, 0, b"k", bytes(size), [], None) for size in (10, 2000, 20)]
    batches = [
        batch(name, 1, changelogs={name: {b"k": (METADATA, b"v")}}, outputs=[output])
        for name, output in zip(names, outputs, strict=True)
    ]
    done = await asyncio.gather(*(log.commit(one) for one in batches), return_exceptions=True)
    assert [isinstance(one, CommitRefusedError) for one in done] == [False, True, False]
    for number, one in enumerate(batches):
        found = await settled(world, source_of(one))
        assert (found is None) == (number == 1)
        assert len(await read(world, source_of(one).topic)) == (number != 1)
    assert sorted(len(value or b"") for _, value in await read(world, small)) == [10, 20]


async def test_a_member_of_a_former_generation_commits_nothing(world: World, topic: str) -> None:
    member, others = await world.join(topic), await topics_of(world, 1)
    strangers = [
        replace(member.identity, generation=member.identity.generation - 1),
        replace(member.identity, member_id="nobody"),
    ]
    for number, identity in enumerate([*strangers, member.identity]):
        log = world.task_log(f"a{number}", identity)
        await log.fence()
        written = batch(topic, outputs=[Output(others[0], 0, b"k", b"%d" % number, [], None)])
        if identity is member.identity:
            await log.commit(written)
            assert await settled(world, source_of(written)) == written.offsets[source_of(written)]
        else:
            with pytest.raises(OutcomeUnknownError):
                await log.commit(written)
            assert await settled(world, source_of(written)) is None
    assert [value for _, value in await read(world, others[0])] == [b"2"]


async def test_an_offset_is_stable_when_its_transaction_has_ended(world: World, topic: str) -> None:
    source = TopicPartition(topic, 0)
    pending = await world.open_offset("other", topic, 10)
    with pytest.raises(UnstableOffsetError):
        await world.group.stable_offset(source)
    assert await world.group.committed(source) is None
    await pending.end(commit=True)
    found = await settled(world, source)
    assert found is not None
    assert found.offset == 10


async def test_the_group_knows_its_members_in_any_generation(world: World, topic: str) -> None:
    member = await world.join(topic)
    assert await world.group.knows(member.identity.member_id)
    assert not await world.group.knows("nobody")
    await member.close()
    await eventually(lambda: _is_forgotten(world, member.identity.member_id))


async def _is_forgotten(world: World, member_id: str) -> bool:
    return not await world.group.knows(member_id)


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


@pytest.mark.parametrize("reads_committed", [True, False])
async def test_a_source_gives_what_is_committed_or_everything(world: World, topic: str, reads_committed: bool) -> None:
    source = TopicPartition(topic, 0)
    aborted = await world.open_transaction("other", topic)
    await aborted.end(commit=False)
    await eventually(lambda: _ends_at(world, topic, 2))
    await world.send(topic, b"k", b"2")
    member = await world.join(topic, reads_committed=reads_committed)
    member.source.start_from(source, 0)
    found: list[int] = []

    async def is_read() -> bool:
        for records in (await member.source.poll([source], 0.1)).values():
            found.extend(record.offset for record in records)
        return 2 in found

    await eventually(is_read)
    assert found == ([2] if reads_committed else [0, 2])


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
        return found if (0, b"0") not in found else None

    found = await eventually(has_gaps)
    assert found == [(6, b"3"), (7, None), (8, b"8")]
    assert await read(world, name, 1, 6) == []
    assert await world.logs.bounds(TopicPartition(name, 0)) == LogBounds(0, 9)


# --- the registry -----------------------------------------------------------------------------------------------------


async def test_the_newest_owner_is_found(world: World, topic: str) -> None:
    owners, log = world.owners(topic), world.task_log("a")
    assert await owners.latest("actor", 0) is None
    await log.fence()
    records = [OwnerRecord("actor", 0, epoch, f"worker{epoch}", "", 1) for epoch in (1, 2)]
    for record in records:
        await log.commit(batch(topic, outputs=[world.encode_owner(topic, record)]))
    await log.commit(batch(topic, outputs=[world.encode_owner(topic, replace(records[0], partition=1))]))
    await log.fence()
    assert await owners.latest("actor", 0) == records[1]
    assert await owners.latest("actor", 2) is None
