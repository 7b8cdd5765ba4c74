"""What a task does while its commit is under way."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from actors import App, Context
from actors._core.group.members import TaskId
from actors._core.partitioner import partition_for
from actors._core.task.lifecycle import State
from actors.errors import NewerVersionError
from actors.ports import TopicPartition
from actors.runtime.timers.timers import Timers
from actors.runtime.worker import WAITS_LONG_S
from actors.testing import ActorTestDriver
from actors.testing.fakes.errors import NoAnswerError

SOURCE = TopicPartition("in", 0)


class Slow:
    """A broker that answers the end of a transaction when it is told to."""

    def __init__(self, driver: ActorTestDriver) -> None:
        self._ask = driver._network.ask
        self.asked: list[str] = []
        self.fails = False
        self._may_answer: asyncio.Event | None = None
        driver._network.ask = self.ask  # type: ignore[method-assign]

    def hold(self) -> None:
        """Answer no more."""
        self._may_answer = asyncio.Event()

    def answer(self) -> None:
        """Answer all."""
        if self._may_answer is not None:
            self._may_answer.set()

    async def ask(self, request: str, function: Callable[..., Any], *args: Any) -> Any:
        """See `DirectNetwork.ask`."""
        self.asked.append(request)
        if request == "EndTxn" and self._may_answer is not None:
            await self._may_answer.wait()
            if self.fails:
                self.fails = False
                raise NoAnswerError
        return await self._ask(request, function, *args)


class World:
    """An actor that adds up what it gets for a key, and sends the sums."""

    def __init__(self, concurrency: int, **options: Any) -> None:
        self.app = app = App("under-way", broker="kafka://127.0.0.1:1")
        self.input = app.topic("in", key_type=str, value_type=int)
        self.sums = app.topic("sums", key_type=str, value_type=int)
        self.held = held = app.store("held", key_type=str, value_type=int)
        self.handled: list[int] = []
        self.cancelled = 0

        @app.actor(self.input, stores=[held], concurrency=concurrency, **options)
        async def add(ctx: Context, value: int) -> None:
            self.handled.append(value)
            try:
                await asyncio.sleep(1e6 if value < 0 else 0)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            total = held.get(ctx.key, 0) + value
            held.set(ctx.key, total)
            ctx.send(self.sums, key=ctx.key, value=total)

    def sent(self, driver: ActorTestDriver) -> list[int]:
        return [sent.value for sent in driver.outputs(self.sums)]


@contextlib.contextmanager
def held(concurrency: int) -> Iterator[tuple[World, ActorTestDriver, Slow]]:
    """An actor whose first commit gets no answer until the broker may give it."""
    world = World(concurrency)
    with ActorTestDriver(world.app, partitions=1) as driver:
        slow = Slow(driver)
        slow.hold()
        yield world, driver, slow


@pytest.mark.parametrize("concurrency", [1, 4])
def test_messages_are_handled_above_what_is_under_way(concurrency: int) -> None:
    with held(concurrency) as (world, driver, slow):
        driver.post(world.input, key="a", value=1)
        driver.advance(0.5, settle=False)
        assert driver._worker is not None
        task = driver._worker.task_of(TaskId("add", 0))
        assert task is not None
        assert (frozen := task.held_bytes) > 0
        for value in (10, 100):
            driver.post(world.input, key="a", value=value)
            driver.advance(0.02, settle=False)
        assert world.handled == [1, 10, 100]
        assert slow.asked.count("EndTxn") == 1, "one commit is under way, the next one waits for its end"
        assert not task.is_idle
        assert task.held_bytes > frozen
        assert world.sent(driver) == []
        slow.answer()
        driver.settle()
        assert slow.asked.count("EndTxn") == 2
        assert world.sent(driver) == [1, 11, 111]
        assert task.held_bytes == 0
        assert driver.items(world.held) == {"a": 111}


@pytest.mark.parametrize("concurrency", [1, 4])
def test_what_came_after_a_commit_that_failed_is_dropped_with_it(concurrency: int) -> None:
    with held(concurrency) as (world, driver, slow):
        for value in (1, 10):
            driver.post(world.input, key="a", value=value)
            driver.advance(0.5, settle=False)
        slow.fails = True
        slow.answer()
        driver.settle()
        assert sorted(world.handled) == [1, 1, 10, 10]
        assert world.sent(driver) == [1, 11]
        assert driver.items(world.held) == {"a": 11}


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_handler_that_hangs_is_cancelled_while_a_commit_is_under_way(concurrency: int) -> None:
    with held(concurrency) as (world, driver, slow):
        for value in (1, -1):
            driver.post(world.input, key="a", value=value)
            driver.advance(0.5, settle=False)
        assert driver._worker is not None
        driver._run(driver._worker.revoked())
        slow.answer()
        driver.advance(0.5, settle=False)
        assert world.cancelled == 1
        assert driver._worker.is_free(TaskId("add", 0))


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_handler_that_hangs_holds_up_its_own_partition_alone_and_is_named(concurrency: int, caplog) -> None:
    world = World(concurrency)
    other = next(key for key in "bcdefgh" if partition_for(key.encode(), 2) != partition_for(b"a", 2))
    with ActorTestDriver(world.app, partitions=2) as driver:
        driver.post(world.input, key="a", value=-1)
        driver.advance(0.5, settle=False)
        for value in (1, 10):
            driver.post(world.input, key=other, value=value)
            driver.advance(0.5, settle=False)
        assert world.sent(driver) == [1, 11]
        assert driver.items(world.held) == {other: 11}
        assert "hasn't returned" not in caplog.text
        driver.advance(3 * WAITS_LONG_S, settle=False)
        assert re.findall(r"offset (\d+): its handler hasn't returned for (\d+) s", caplog.text) == [
            ("0", "60"),
            ("0", "120"),
        ]
        assert driver._worker is not None
        driver._run(driver._worker.revoked())
        driver.advance(0.5, settle=False)
        assert world.cancelled == 1


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_commit_that_is_under_way_is_waited_for_when_the_task_ends(concurrency: int) -> None:
    with held(concurrency) as (world, driver, slow):
        for value in (1, 10):
            driver.post(world.input, key="a", value=value)
            driver.advance(0.5, settle=False)
        assert driver._worker is not None
        driver._run(driver._worker.revoked())
        assert not driver._worker.is_free(TaskId("add", 0))
        slow.answer()
        driver.advance(0.5, settle=False)
        assert driver._worker.is_free(TaskId("add", 0))
        assert world.handled == [1, 10]
        assert world.sent(driver) == [1, 11]


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_task_that_stands_still_has_stored_what_it_committed(
    concurrency: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(concurrency, timers=True)
    with ActorTestDriver(world.app, partitions=1) as driver:
        slow = Slow(driver)
        slow.hold()
        driver.post(world.input, key="a", value=1)
        driver.advance(0.5, settle=False)

        def find_newer(_: Timers) -> float:
            raise NewerVersionError("a timer of a newer release")

        monkeypatch.setattr(Timers, "wait_s", find_newer)
        driver.post(world.input, key="a", value=10)
        driver.advance(0.5, settle=False)
        slow.answer()
        driver.advance(0.5, settle=False)
        assert driver._worker is not None
        task = driver._worker.task_of(TaskId("add", 0))
        assert task is not None
        assert task.state is State.HALTED
        assert task.committed is not None
        assert task.committed["held"].get(b"a") is not None
        assert world.sent(driver) == [1]


def test_what_waits_for_its_transaction_is_not_sent_when_the_task_takes_over_again() -> None:
    world = World(1)
    with ActorTestDriver(world.app, partitions=2) as driver:
        slow = Slow(driver)
        slow.hold()
        driver.post(world.input, key="a", value=1)
        driver.advance(0.5, settle=False)
        homes = {key: partition_for(key.encode(), 2) for key in "abcdefgh"}
        key = next(key for key, home in homes.items() if home != homes["a"])
        driver.post(world.input, key=key, value=10)
        driver.advance(0.5, settle=False)
        assert world.handled == [1, 10]
        assert driver._worker is not None
        task = driver._worker.task_of(TaskId("add", homes[key]))
        assert task is not None
        task.reinitialize("somebody doubts")
        driver.advance(0.5, settle=False)
        slow.answer()
        driver.settle()
        assert world.handled == [1, 10, 10]
        assert sorted(world.sent(driver)) == [1, 10]


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_commit_is_due_by_age_behind_messages_that_were_committed_alone(concurrency: int) -> None:
    app, commits = App("under-way", broker="kafka://127.0.0.1:1"), []
    input = app.topic("in", key_type=str, value_type=int)

    @app.actor(input, concurrency=concurrency)
    async def wait(ctx: Context, value: int) -> None:
        await asyncio.sleep(0.2)

    with ActorTestDriver(app, partitions=1) as driver:
        driver.send(input, key="a", value=1)
        assert driver._worker is not None
        task = driver._worker.task_of(TaskId("wait", 0))
        assert task is not None
        # As after a commit that the broker refused.
        task.context.poison.careful_until["in"] = 3
        for value in range(50):
            driver.post(input, key="a", value=value)
        driver._cluster.transactions.on_decision.append(commits.append)
        driver.advance(8, settle=False)
        assert len(commits) > 5
