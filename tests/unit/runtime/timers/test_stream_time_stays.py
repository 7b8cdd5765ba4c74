"""Stream time of a partition without a timer by it: a later owner goes on from it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from actors import App, Context
from actors.testing import ActorTestDriver
from actors.testing.fakes.cluster import EPOCH_MS

EITHER = pytest.mark.parametrize("concurrency", [1, 4])
SECOND = timedelta(seconds=1)
LONG_AGO_MS = EPOCH_MS - 86_400_000
YEAR_9999_MS = 253_370_764_800_000


class World:
    """An actor whose messages set timers by stream time, due 10 s later; `handled` has what it handled."""

    def __init__(self, **options: Any) -> None:
        self.app = App("shop", broker="kafka://127.0.0.1:1")
        self.orders = self.app.topic("orders", key_type=str, value_type=str)
        self.handled: list[str] = []
        self.is_cured = False
        world = self

        @self.app.actor(self.orders, timers=True, name="order", **options)
        async def order(ctx: Context, text: str) -> None:
            if text == "doomed" and not world.is_cured:
                raise ValueError("not yet")
            world.handled.append(text)
            if text in ("set", "doomed", "rung", "set when due"):
                ctx.schedule("due", after=10 * SECOND, stream_time=True)
            if text == "by the clock":
                ctx.schedule("rung", after=10 * SECOND)
            if text == "first":
                ctx.schedule("doomed", after=10 * SECOND, stream_time=True)

    def send(self, driver: ActorTestDriver, text: str, at_s: float, *, key: str = "a") -> None:
        driver.send(self.orders, key=key, value=text, timestamp_ms=LONG_AGO_MS + int(at_s * 1000))


@EITHER
@pytest.mark.parametrize("is_killed", [True, False])
def test_a_message_that_was_parked_sets_a_timer_that_is_due_already(concurrency: int, is_killed: bool) -> None:
    world = World(concurrency=concurrency, on_error="park")
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.send(driver, "doomed", 0)
        world.send(driver, "other", 10, key="b")
        driver.crash(keep_disk=False) if is_killed else driver.restart()
        world.is_cured = True
        driver.retry_parked("order", "a")
        driver.settle()
        assert world.handled == ["other", "doomed", "due"]


@EITHER
def test_a_late_record_sets_a_timer_that_is_due_already(concurrency: int) -> None:
    world = World(concurrency=concurrency)
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.send(driver, "other", 10)
        driver.crash(keep_disk=False)
        world.send(driver, "set", 0)
        driver.settle()
        assert world.handled == ["other", "set", "due"]


@EITHER
def test_a_timer_by_the_clock_sets_one_from_stream_time_on(concurrency: int) -> None:
    world = World(concurrency=concurrency)
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.send(driver, "by the clock", 0)
        driver.crash(keep_disk=False)
        driver.advance(10)
        world.send(driver, "before", 9.999)
        assert world.handled == ["by the clock", "rung", "before"]
        world.send(driver, "behind", 10)
        driver.settle()
        assert world.handled[3:] == ["behind", "due"]


@EITHER
def test_a_parked_timer_by_stream_time_sets_another_from_its_own_time_on(concurrency: int) -> None:
    world = World(concurrency=concurrency, on_error="park")
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.send(driver, "first", 0)
        world.send(driver, "other", 15, key="b")
        driver.settle()
        (parked,) = driver.parked("order")
        assert parked.key == "a"
        world.is_cured = True
        driver.retry_parked("order", "a")
        world.send(driver, "before", 19.999, key="b")
        assert world.handled == ["first", "other", "doomed", "before"]
        world.send(driver, "behind", 20, key="b")
        driver.settle()
        assert world.handled[4:] == ["behind", "due"]


@EITHER
def test_records_far_ahead_are_refused_from_the_first_timer_on_by_later_owners_too(concurrency: int) -> None:
    world = World(concurrency=concurrency, on_error="skip")
    far_s = (YEAR_9999_MS - LONG_AGO_MS) / 1000
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.send(driver, "other", 0)
        driver.crash(keep_disk=False)
        world.send(driver, "far", far_s)
        world.send(driver, "set", 0)
        driver.crash(keep_disk=False)
        world.send(driver, "farther", far_s)
        world.send(driver, "behind", 10)
        driver.settle()
        assert world.handled == ["other", "far", "set", "behind", "due"]
