"""A paused task handles nothing, keeps what it has, and goes on where it was."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from actors import App, Context, EffectCall, OnError
from actors._core.task.pauses import Pause, pause_key
from actors._kafka.admin.owners import KafkaOwners
from actors.errors import BrokerUnavailableError
from actors.ports import TopicPartition
from actors.runtime.observe.status import TaskStatus, measured
from actors.runtime.pauses import END_LOOK_S, LOOK_S, follow_pauses
from actors.testing import ActorTestDriver
from actors.testing.fakes.ports import FakeLogs

FEW_S = 3 * max(LOOK_S, END_LOOK_S)


class World:
    """`order` counts by key, takes `takes_s` for each message, and notes what it begins with."""

    def __init__(self, *, takes_s: float = 0.0, concurrency: int = 1, refresh_s: float = 60.0, **options: Any) -> None:
        self.app = app = App("paused", broker="kafka://127.0.0.1:1", checkpoint_refresh=timedelta(seconds=refresh_s))
        self.orders = app.topic("orders", key_type=str, value_type=str)
        self.counts = app.store("counts", key_type=str, value_type=int)
        self.out = app.topic("out", key_type=str, value_type=str)
        self.begun: list[str] = []
        self.called: list[str] = []
        self._sent: list[str] = []
        world = self

        @app.effect()
        async def mail(call: EffectCall, text: str) -> str:
            world.called.append(text)
            return f"sent {text}"

        self.mail = mail

        @app.actor(self.orders, stores=[self.counts], timers=True, effects=[mail], concurrency=concurrency, **options)
        async def order(ctx: Context, text: str) -> None:
            world.begun.append(text)
            if text.startswith("bad"):
                raise ValueError("not now")
            if takes_s and not text.startswith(("sent", "due")):
                await asyncio.sleep(takes_s)
            self.counts.set(ctx.key, self.counts.get(ctx.key, 0) + 1)
            ctx.send(self.out, key=ctx.key, value=text)
            if text == "timer":
                ctx.schedule("due", after=timedelta(seconds=10), name="t")
            if text == "mail":
                ctx.effect(mail, text)

    def driver(self) -> ActorTestDriver:
        return ActorTestDriver(self.app, partitions=1, effects={self.mail: self.mail})

    def tell(self, driver: ActorTestDriver, *, is_paused: bool, partition: int | None = None) -> None:
        """Write what an operator says into the registry."""
        pause = Pause(actor="order", partition=partition, is_paused=is_paused, at_ms=7, by="ann")
        topic, key = driver._setup.owners_topic, pause_key("order", partition)
        driver._produce(topic, key, msgspec.json.encode(pause), (), 0, None)

    def follow(self, driver: ActorTestDriver, seconds: float = FEW_S) -> None:
        """Let the worker follow the registry for so long."""
        owners = KafkaOwners(driver._setup.owners_topic, FakeLogs(driver._cluster, driver._network))

        async def follow() -> None:
            follower = asyncio.create_task(follow_pauses(owners, lambda: self.tasks(driver), driver._clock))
            await asyncio.sleep(seconds)
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)

        driver._run(follow())

    def pause(self, driver: ActorTestDriver) -> None:
        self.tell(driver, is_paused=True)
        self.follow(driver)

    def resume(self, driver: ActorTestDriver) -> None:
        self.tell(driver, is_paused=False)
        self.follow(driver)
        driver.settle()

    def tasks(self, driver: ActorTestDriver) -> list[Any]:
        return [] if driver._worker is None else list(driver._worker.tasks)

    def status(self, driver: ActorTestDriver) -> TaskStatus:
        worker = driver._worker
        assert worker is not None
        (task,) = measured(worker.meters, self.tasks(driver))["tasks"]
        return task

    def post(self, driver: ActorTestDriver, *texts: str) -> None:
        for text in texts:
            driver.post(self.orders, key=text, value=text)

    def sent(self, driver: ActorTestDriver) -> list[str]:
        """Return all that was sent so far."""
        self._sent += [one.value for one in driver.outputs(self.out)]
        return self._sent


@pytest.mark.parametrize("concurrency", [1, 4])
def test_nothing_is_handled_until_it_is_resumed_whoever_takes_over(concurrency: int) -> None:
    world = World(concurrency=concurrency)
    with world.driver() as driver:
        driver.send(world.orders, key="a", value="a")
        driver.send(world.orders, key="t", value="timer")
        world.pause(driver)
        world.post(driver, "b", "c")
        world.follow(driver, 30)
        assert world.begun == ["a", "timer"]
        assert driver.get(world.counts, "a") == 1
        seen = world.status(driver)
        assert (seen.paused_at_ms, seen.paused_by, seen.state, seen.lag) == (7, "ann", "running", 2)
        # Nobody follows the registry after this: the takeover reads it.
        driver.crash(keep_disk=False, settle=False)
        driver.advance(30, settle=False)
        world.post(driver, "d")
        driver.advance(5, settle=False)
        assert (world.begun, world.status(driver).epoch) == (["a", "timer"], 2)
        world.resume(driver)
        assert sorted(world.begun) == sorted(world.sent(driver)) == ["a", "b", "c", "d", "due", "timer"]
        assert world.status(driver).paused_at_ms is None


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_pause_in_the_middle_of_a_batch_lets_what_runs_come_to_its_end(concurrency: int) -> None:
    world = World(concurrency=concurrency, takes_s=2.0, refresh_s=1.0)
    names = [f"n{number}" for number in range(8)]
    with world.driver() as driver:
        driver.send(world.orders, key="a", value="a")
        # What comes in a pause is fetched together after it.
        world.pause(driver)
        world.post(driver, *names)
        world.tell(driver, is_paused=False)
        world.follow(driver, 3)
        world.pause(driver)
        assert world.begun == world.sent(driver) == ["a", *names[: 2 * concurrency]]
        # Checkpoints are renewed meanwhile: what was delivered isn't passed over by that.
        world.follow(driver, 20)
        assert world.begun == ["a", *names[: 2 * concurrency]]
        assert world.status(driver).lag == 8 - 2 * concurrency
        driver.crash(settle=False)
        driver.advance(10, settle=False)
        assert world.begun == ["a", *names[: 2 * concurrency]]
        world.resume(driver)
        assert world.begun == world.sent(driver) == ["a", *names]


@pytest.mark.parametrize("concurrency", [1, 2])
def test_the_rest_of_a_batch_goes_on_after_a_pause(concurrency: int) -> None:
    world = World(concurrency=concurrency, takes_s=2.0, refresh_s=1.0)
    names = [f"n{number}" for number in range(8)]
    with world.driver() as driver:
        world.post(driver, *names)
        driver.advance(3, settle=False)
        world.pause(driver)
        world.follow(driver, 20)
        world.resume(driver)
        assert world.begun == world.sent(driver) == names


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_message_that_fails_is_not_tried_again_in_a_pause(concurrency: int) -> None:
    policy = OnError(retries=100, longest_wait=timedelta(seconds=1), then="park")
    world = World(concurrency=concurrency, on_error=policy)
    with world.driver() as driver:
        world.post(driver, "bad", "after")
        driver.advance(3, settle=False)
        world.pause(driver)
        tried = len(world.begun)
        world.follow(driver, 20)
        assert len(world.begun) == tried
        world.tell(driver, is_paused=False)
        world.follow(driver, 5)
        assert len(world.begun) > tried


@pytest.mark.parametrize("concurrency", [1, 4])
def test_no_effect_is_begun_in_a_pause(concurrency: int) -> None:
    world = World(concurrency=concurrency, takes_s=2.0)
    with world.driver() as driver:
        world.post(driver, "mail")
        driver.advance(1, settle=False)
        world.pause(driver)
        world.follow(driver, 20)
        assert (world.sent(driver), world.called) == (["mail"], [])
        world.resume(driver)
        assert (world.sent(driver), world.called) == (["mail", "sent mail"], ["mail"])


@pytest.mark.parametrize("concurrency", [1, 4])
def test_timers_that_came_due_wait_for_the_input_that_came_before(concurrency: int) -> None:
    world = World(concurrency=concurrency)
    with world.driver() as driver:
        driver.send(world.orders, key="t", value="timer")
        world.pause(driver)
        world.post(driver, "before")
        world.follow(driver, 30)
        world.post(driver, "behind")
        world.follow(driver)
        world.resume(driver)
        assert world.begun.index("before") < world.begun.index("due")
        assert sorted(world.begun) == ["before", "behind", "due", "timer"]


def test_one_partition_of_an_actor_is_paused() -> None:
    world = World()
    with ActorTestDriver(world.app, partitions=2, effects={world.mail: world.mail}) as driver:
        world.tell(driver, is_paused=True, partition=1)
        world.follow(driver)
        for partition in (0, 1):
            driver.post(world.orders, key="k", value=f"in {partition}", partition=partition)
        world.follow(driver, 10)
        paused = {task.partition: task.paused is not None for task in world.tasks(driver)}
        assert (world.begun, paused) == (["in 0"], {0: False, 1: True})


def test_a_task_stays_as_it_is_while_the_registry_can_not_be_read(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    with world.driver() as driver:
        world.pause(driver)

        async def away() -> None:
            raise BrokerUnavailableError("no answer")

        owners = KafkaOwners(driver._setup.owners_topic, FakeLogs(driver._cluster, driver._network))
        owners.refresh = away

        async def follow() -> None:
            follower = asyncio.create_task(follow_pauses(owners, lambda: world.tasks(driver), driver._clock))
            await asyncio.sleep(FEW_S)
            assert not follower.done()
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)

        driver._run(follow())
        assert [task.paused is not None for task in world.tasks(driver)] == [True]
    said = [record for record in caplog.records if "can't be read" in record.getMessage()]
    assert [record.levelname for record in said if record.levelname != "DEBUG"] == ["WARNING"]


def test_a_paused_task_ends_when_it_is_asked_to() -> None:
    world = World(takes_s=2.0)
    with world.driver() as driver:
        world.post(driver, "a", "b", "c")
        driver.advance(1, settle=False)
        world.pause(driver)
        assert driver._worker is not None
        before_s = driver.now_s
        driver._run(driver._worker.stop(4.0))
        assert driver.now_s - before_s < 1
        assert driver._cluster.group.offsets[TopicPartition("orders", 0)].offset == 1
