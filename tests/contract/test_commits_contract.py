"""What a commit promises, on the simulated cluster and on a real broker."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from actors._core.partitioner import partitioner_of
from actors._core.task.takeover import LogBounds
from actors.errors import (
    CommitRefusedError,
    FencedError,
    OutcomeUnknownError,
    UnstableOffsetError,
)
from actors.ports import Output, TopicPartition
from stores._core.record import METADATA_HEADER
from tests.contract.helpers import METADATA, batch, read, settled, source_of
from tests.contract.worlds import World
from tests.kafka.helpers import eventually, unique

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
    assert await settled(world, source_of(empty)) == empty.offsets[source_of(empty)]


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
    lost = Output(topic, partitioner_of(nowhere), b"k", b"v", [], None)
    log = world.task_log("a")
    await log.fence()
    with pytest.raises(CommitRefusedError, match="KeyError"):
        await log.commit(batch(topic, changelogs={topic: {b"k": (METADATA, b"v")}}, outputs=[lost]))
    await log.fence()
    assert await read(world, topic) == []
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
    with pytest.raises(FencedError):
        await old.commit(batch(topic, 2, changelogs={topic: {b"k": (METADATA, b"fenced")}}))
    await new.commit(batch(topic, 3, changelogs={topic: {b"k": (METADATA, b"new")}}))
    await new.fence()
    assert [value for _, value in await read(world, topic)] == [b"old", b"new"]
    committed = await settled(world, TopicPartition(topic, 0))
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


async def test_open_transactions_of_workers_that_left_are_found(world: World, topic: str) -> None:
    own, dead = (world.full_id(f"app:worker:w{number}") for number in (1, 2))
    names = ("app:worker:w1", "app:worker:w2", "app:worker:0", "app2:worker:w3")
    opened = [await world.open_transaction(name, topic, name.encode()) for name in names]
    assert await world.group.left_open(own) == set(), "it isn't a member"
    member = await world.join(topic, transactional_id=own)
    await eventually(lambda: _left_open(world, own, {dead}))
    # One that doesn't say so may be any of them.
    other = await world.join(topic)
    await eventually(lambda: _left_open(world, own, set()))
    await other.close()
    await eventually(lambda: _left_open(world, own, {dead}))
    for one in opened:
        await one.end(commit=False)
    await eventually(lambda: _left_open(world, own, set()))
    await member.close()


async def _left_open(world: World, own_id: str, ids: set[str]) -> bool:
    return await world.group.left_open(own_id) == ids


async def _is_forgotten(world: World, member_id: str) -> bool:
    return not await world.group.knows(member_id)
