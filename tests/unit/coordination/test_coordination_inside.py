"""Locks inside of handlers: what is handled again, what is given up, and what else the handler asks."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from actors import App
from actors.coordination import Coordination, CoordinationError, coordination
from actors.coordination.service.coordinator import ACTOR
from actors.testing import ActorTestDriver
from tests.unit.coordination.test_coordination import APP, acquire, ask

Body = Callable[[Any, str, Any], Awaitable[None]]


class World:
    """An app with the service, an actor that does what the test says, and one that it can ask."""

    def __init__(self, body: Body) -> None:
        self.app = App(APP, broker="kafka://127.0.0.1:1")
        coordination(self.app)
        self.handled: list[str] = []

        @self.app.actor(self.app.topic("other-in", key_type=str, value_type=str), name="other", concurrency=2)
        async def other(ctx, what) -> str:
            self.handled.append(what)
            return "ok"

        @self.app.actor(self.app.topic("jobs", key_type=str, value_type=str), concurrency=4)
        async def job(ctx, what) -> None:
            await body(ctx, what, other)

        self.topic = self.app.definition_of(job).topic


@pytest.mark.parametrize("first_s", [20.0, 0.5])
def test_renewals_change_no_id_of_what_the_handler_asks(first_s):
    times = 0

    async def body(ctx, what, other) -> None:
        nonlocal times
        async with Coordination.inside(ctx).lock("printer", ttl=3):
            # The first time it is renewed often, the second time it isn't.
            await asyncio.sleep(0.5 if times else first_s)
            times += 1
            await ctx.ask(other, "k", "charge the card")
            if times == 1:
                await asyncio.sleep(3600)

    world = World(body)
    with ActorTestDriver(world.app) as driver:
        driver.post(world.topic, key="a", value="x")
        driver.advance(40, settle=False)
        assert world.handled == ["charge the card"]
        driver.crash()
        assert (times, world.handled) == (2, ["charge the card"])


def test_a_message_that_is_handled_again_has_all_of_its_locks_however_often_it_tried():
    owners: list[list[str]] = []

    async def body(ctx, what, other) -> None:
        inside = Coordination.inside(ctx)
        own: list[str] = []
        for _ in range(1 if owners else 5):
            assert await Coordination.inside(ctx).try_lock("taken") is None
        async with inside.lock("one", ttl=3) as one:
            await asyncio.sleep(0.5 if owners else 20)
            async with inside.lock("two", ttl=3600) as two, Coordination.inside(ctx).semaphore("two-2", 2) as three:
                own += [one.owner, two.owner, three.owner]
                owners.append(own)
                assert len(set(own)) == 3
                if len(owners) == 1:
                    await asyncio.sleep(3600)

    world = World(body)
    with ActorTestDriver(world.app) as driver:
        ask(driver, "taken", acquire("somebody", ttl_ms=24 * 3_600_000))
        driver.post(world.topic, key="a", value="x")
        driver.advance(60, settle=False)
        assert len(owners) == 1
        begin_s = driver.now_s
        driver.crash(settle=False)
        driver.advance(60, settle=False)
        assert len(owners) == 2, "it waits for what it holds itself"
        assert owners[0] == owners[1]
        assert driver.now_s - begin_s < 3600


def test_two_locks_of_one_name_in_one_message_are_two_owners():
    seen: list[Any] = []

    async def body(ctx, what, other) -> None:
        async with Coordination.inside(ctx).lock("x", ttl=30):
            seen.append(await Coordination.inside(ctx).try_lock("x"))

    world = World(body)
    with ActorTestDriver(world.app) as driver:
        driver.send(world.topic, key="a", value="x")
        assert seen == [None]


def test_a_handler_that_gives_up_waiting_leaves_no_waiter():
    async def body(ctx, what, other) -> None:
        if what == "holder":
            async with Coordination.inside(ctx).lock("x", ttl=30):
                await asyncio.sleep(60)
            return
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2), Coordination.inside(ctx).lock("x", ttl=3600):
                pass

    world = World(body)
    with ActorTestDriver(world.app) as driver:
        driver.post(world.topic, key="a", value="holder")
        driver.advance(5, settle=False)
        driver.post(world.topic, key="b", value="impatient")
        driver.advance(20, settle=False)
        lock = driver.get(ACTOR, "x").lock
        assert [held.count for held in lock.holders] == [1]
        assert lock.waiters == ()
        driver.advance(60)
        assert driver.get(ACTOR, "x").lock.holders == ()


def test_a_lease_that_outlives_its_message_is_not_renewed_and_can_be_given_back():
    kept: list[Any] = []

    async def body(ctx, what, other) -> None:
        kept.append(await Coordination.inside(ctx).acquire(what, ttl=9))

    world = World(body)
    with ActorTestDriver(world.app) as driver:
        for name in ("x", "y"):
            driver.send(world.topic, key="a", value=name)
        driver._run(kept[0].release())
        assert driver.get(ACTOR, "x").lock.holders == ()
        driver.advance(30)
        assert kept[1].lost.is_set()
        assert driver.get(ACTOR, "y").lock.holders == ()


def test_an_app_without_the_service_says_so():
    app = App("lonely", broker="kafka://127.0.0.1:1")
    seen: list[str] = []

    @app.actor(app.topic("in", key_type=str, value_type=str), concurrency=2)
    async def act(ctx, what) -> None:
        with pytest.raises(CoordinationError) as caught:
            Coordination.inside(ctx)
        seen.append(str(caught.value))

    with ActorTestDriver(app) as driver:
        driver.send(app.definition_of(act).topic, key="a", value="x")
    assert seen == ["the app of this handler doesn't run the service: call coordination(app)"]
