"""Copies whose changelog doesn't say where it ends: they wait, the others go on."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from actors._core.group.assign import TaskId
from actors._core.task.takeover import LogBounds
from actors.errors import BrokerUnavailableError
from actors.ports import TopicPartition
from actors.testing.fakes.views import FakeTopicLogs
from tests.unit.runtime.replicas.test_standbys import LOG, ONE, ZERO, World, standby


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.loop.close()


class Ends:
    """What the partitions' leaders say of the logs' ends: nothing for those without one."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.leaderless: set[int] = set()
        self.asked = 0
        bounds = FakeTopicLogs.bounds

        async def asked(logs: Any, partition: TopicPartition) -> LogBounds:
            self.asked += 1
            if partition.partition in self.leaderless:
                await asyncio.sleep(30)
                raise BrokerUnavailableError(f"offsets of {partition}: it has no leader")
            return await bounds(logs, partition)

        patch.setattr(FakeTopicLogs, "bounds", asked)


def test_a_partition_without_a_leader_from_the_start_holds_up_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        ends = Ends(monkeypatch)
        ends.leaderless = {0}
        world.fill(10)
        world.fill(10, partition=1)
        world.copies.assign(standby(ZERO, ONE))
        await world.until(lambda: world.position(1) == 10, 5)
        for number in range(100):
            world.put(f"new{number}", "1", partition=1)
            await world.until(lambda: world.position(1) == world.end(1), 1)
            await asyncio.sleep(1)
        assert ends.asked < 250, "once a second for partition 1, less often for the other"
        await asyncio.wait_for(world.copies.release("count", 0), 1)
        world.copies.assign(standby(ONE))
        world.copies.assign(standby(ZERO, ONE))
        await asyncio.sleep(60)
        ends.leaderless.clear()
        await world.until(lambda: world.position() == 10, 20)

    with caplog.at_level(logging.INFO):
        world.run(test())
    assert f"{TopicPartition(LOG, 0)}: the changelog's end is unknown" in caplog.text
    assert f"{TopicPartition(LOG, 0)} answers again" in caplog.text


def test_a_partition_that_loses_its_leader_holds_up_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        ends = Ends(monkeypatch)
        world.copies.assign(standby(ZERO, ONE))
        await world.until(lambda: len(world.copies.lags()) == 2)
        ends.leaderless = {0}
        await asyncio.sleep(5)
        for number in range(30):
            world.put(f"new{number}", "1", partition=1)
            await world.until(lambda: world.position(1) == world.end(1), 1)
            await asyncio.sleep(1)
            assert world.copies.lags().get(ONE) == 0
        assert ZERO not in world.copies.lags(), "nobody knows what it lacks"
        assert len(world.copies.copies) == 2, "what it has can be read"
        ends.leaderless.clear()
        await world.until(lambda: world.copies.lags().get(ZERO) == 0, 20)

    world.run(test())


def test_many_partitions_without_a_leader_hold_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(partitions=100)

    async def test() -> None:
        ends = Ends(monkeypatch)
        ends.leaderless = set(range(99))
        world.put("new", "1", partition=99)
        world.copies.assign(standby(*(TaskId("count", number) for number in range(100))))
        await world.until(lambda: world.position(99) == 1, 15)
        await asyncio.sleep(100)
        ends.leaderless = {7}
        await world.until(lambda: len(world.copies.lags()) == 99, 25)

    world.run(test())
    world.loop.close()


def test_what_many_copies_lack_is_known_between_looks() -> None:
    world = World(partitions=400)
    tasks = [TaskId("count", number) for number in range(400)]

    async def test() -> None:
        world.copies.assign(standby(*tasks))
        await world.until(lambda: len(world.copies.lags()) == 400)
        for _ in range(40):
            await asyncio.sleep(1)
            assert len(world.copies.lags()) == 400

    world.run(test())
    world.loop.close()


def test_an_answer_that_the_copy_has_overtaken_is_no_loss(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bounds = FakeTopicLogs.bounds

    async def late(logs: FakeTopicLogs, partition: TopicPartition) -> LogBounds:
        answer = await bounds(logs, partition)
        await asyncio.sleep(2)
        return answer

    monkeypatch.setattr(FakeTopicLogs, "bounds", late)

    async def test() -> None:
        world.copies.assign(standby(ZERO))
        await world.until(lambda: world.copies.lags().get(ZERO) == 0)
        for number in range(100):
            world.put(f"k{number}", "1")
            await asyncio.sleep(0.2)
        await world.until(lambda: world.position() == world.end())
        assert world.follows == 1

    world.run(test())
    assert caplog.text == ""
