"""Copies of a changelog that is replaced."""

import asyncio
from collections.abc import Iterator

import pytest

from actors._core.task.commit import CommitMark
from actors._core.task.takeover import LogBounds, LostChangelog
from actors._core.task.topic_ids import TopicIds
from actors.errors import ReplacedLogError
from actors.ports import Committed, TopicPartition
from actors.runtime.state.restore import Changelog, Restorer
from actors.testing.fakes.ports import FakeLogs
from stores._core.record import Position
from stores._core.replay import NO_METADATA
from stores.memory import MemoryStore
from tests.unit.runtime.replicas.test_standbys import LOG, ONE, ZERO, World, standby


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.loop.close()


def test_a_copy_gets_no_records_of_a_changelog_that_was_created_again_and_is_longer_already(world: World) -> None:
    async def test() -> None:
        world.fill(20)
        world.fill(20, 1)
        world.copies.assign(standby(ZERO, ONE))
        await world.until(lambda: world.position() == world.position(1) == 20)
        before, follows = world.content(), world.follows
        world.cluster.delete_topic(LOG)
        world.cluster.make_topic(LOG, 2, is_compacted=True)
        world.fill(50)
        world.fill(50, 1)
        await asyncio.sleep(20)
        assert world.content() == before
        assert (world.position(), world.position(1)) == (20, 20)
        assert world.follows - follows < 10

    world.run(test())


def test_a_restore_gets_no_records_of_a_changelog_that_was_created_again_meanwhile(world: World) -> None:
    class Logs(FakeLogs):
        async def bounds(self, partition: TopicPartition) -> LogBounds:
            found = await super().bounds(partition)
            world.cluster.delete_topic(LOG)
            world.cluster.make_topic(LOG, 2, is_compacted=True)
            world.fill(50)
            return found

    async def test() -> None:
        world.fill(20)
        changelog = Changelog("counts", LOG, world.cluster.topic(LOG).topic_id, 3_600_000, 1_000_000, 2)
        store = MemoryStore()
        store.apply([(b"kept", NO_METADATA)], Position(1, 10, 0, 1, changelog.topic_id))
        restorer = Restorer(Logs(world.cluster, world.network), world.clock, clock_skew_margin_ms=0)
        with pytest.raises(ReplacedLogError, match="counts-changelog"):
            await restorer.restore(store, changelog, 0)
        assert [key for key, _ in store.scan()] == [b"kept"]

    world.run(test())


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
