"""Copies of a changelog that is replaced."""

import asyncio
from collections.abc import Iterator

import pytest

from actors._core.commit import CommitMark
from actors._core.takeover import LostChangelog
from actors._core.topic_ids import TopicIds
from actors.ports import Committed, TopicPartition
from tests.core.test_standbys import LOG, ZERO, World, standby


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.loop.close()


@pytest.mark.parametrize("lost", [LostChangelog.STOP, LostChangelog.RESTORE, LostChangelog.REBUILD])
def test_a_copy_of_a_changelog_that_was_created_again_is_kept_until_the_owner_has_gone_on(
    world: World, caplog: pytest.LogCaptureFixture, lost: LostChangelog
) -> None:
    def claimed(epoch: int, topic_id: str) -> None:
        mark = CommitMark(epoch, 1, "n", topics=TopicIds.of("", {"counts": topic_id}))
        world.cluster.group.offsets[TopicPartition("in", 0)] = Committed(20, mark.encode())

    async def test() -> None:
        world.fill(20)
        claimed(1, world.cluster.topic(LOG).topic_id)
        world.copies.assign(standby(ZERO))
        await world.until(lambda: world.position() == 20)
        before = world.content()
        world.cluster.delete_topic(LOG)
        topic = world.cluster.make_topic(LOG, 2, is_compacted=True)
        world.fill(5)
        await asyncio.sleep(20)
        assert world.content() == before
        assert world.copies.stores_of("count", 0) is None
        assert f"is the topic with the id {topic.topic_id} now" in caplog.text
        await world.copies.stop()
        world.copies = world.start(lost=lost)
        world.copies.assign(standby(ZERO))
        world.copies.start()
        await asyncio.sleep(20)
        assert (world.content() == before) is (lost is not LostChangelog.REBUILD)
        claimed(2, topic.topic_id)
        await world.until(lambda: world.position() == world.end())
        assert len(world.content()) == 5

    world.run(test())
