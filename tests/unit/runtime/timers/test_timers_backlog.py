"""Timers that came due while no worker ran, and the input that was there before them."""

from __future__ import annotations

import asyncio
import math
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from actors import App, Context
from actors.ports import TopicPartition
from actors.runtime.timers.backlog import PATIENCE_S, Backlog
from actors.testing import ActorTestDriver

SOURCE = TopicPartition("in", 0)


class World:
    """`orders` sets a timer at "set", sends itself another message at "loop", and notes all that it handles."""

    def __init__(self, **options: Any) -> None:
        self.app = App("late", broker="kafka://127.0.0.1:1")
        self.orders = self.app.topic("orders", key_type=str, value_type=str)
        self.handled: list[str] = []
        world = self

        @self.app.actor(self.orders, timers=True, **options)
        async def order(ctx: Context, text: str) -> None:
            world.handled.append(text)
            if text == "set":
                ctx.schedule("fired", after=timedelta(seconds=100), name="t")
            if text.startswith("loop"):
                await asyncio.sleep(0.5)
                ctx.send(world.orders, key=ctx.key, value="loop")

    def without_worker(self, driver: ActorTestDriver, *posts: tuple[float, str]) -> None:
        """Let no worker run while messages are sent, each after so many seconds."""
        driver._kill()
        for seconds, text in posts:
            driver._run(asyncio.sleep(seconds))
            if text:
                driver.post(self.orders, key=text[0], value=text)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_timer_that_came_due_meanwhile_fires_after_the_input_that_was_there_before(concurrency: int) -> None:
    world = World(concurrency=concurrency)
    with ActorTestDriver(world.app, partitions=1) as driver:
        driver.send(world.orders, key="a", value="set")
        world.without_worker(driver, (50, "a1"), (10, "b1"), (39, "a2"), (500, ""))
        driver._run(driver._restart())
        assert world.handled == ["set", "a1", "b1", "a2", "fired"]


@pytest.mark.parametrize("concurrency", [1, 4])
def test_it_does_not_wait_for_input_that_came_after_it_was_due(concurrency: int) -> None:
    world = World(concurrency=concurrency)
    with ActorTestDriver(world.app, partitions=1) as driver:
        driver.send(world.orders, key="a", value="set")
        world.without_worker(driver, (150, "b1"), (1, "b2"))
        driver._run(driver._restart())
        assert sorted(world.handled) == ["b1", "b2", "fired", "set"]
        assert concurrency > 1 or world.handled.index("fired") < world.handled.index("b2")


@pytest.mark.parametrize("concurrency", [1, 4])
def test_an_endless_input_does_not_hold_it_up(concurrency: int) -> None:
    world = World(concurrency=concurrency)
    with ActorTestDriver(world.app, partitions=1) as driver:
        driver.send(world.orders, key="a", value="set")
        world.without_worker(driver, (50, "loop"), (500, ""))
        driver._run(driver._restart(settle=False))
        driver.advance(60, settle=False)
        assert world.handled.index("fired") < 10
        assert len(world.handled) > 30


def backlog(end: int, position: int | None = 0) -> tuple[Backlog, SimpleNamespace]:
    at = SimpleNamespace(position=position, now_s=0.0)
    clock: Any = SimpleNamespace(monotonic=lambda: at.now_s)
    return Backlog(SOURCE, end, lambda _: at.position, clock), at


def records(*timestamps: int, start: int = 0) -> Any:
    return [SimpleNamespace(offset=offset, timestamp=ms) for offset, ms in enumerate(timestamps, start)]


def test_the_lowest_timestamp_is_that_of_what_is_left_of_the_input_that_was_there() -> None:
    left, at = backlog(end=4)
    assert left.lowest_ms(0, []) == -math.inf
    assert left.lowest_ms(0, records(100, 300, 200)) == 100
    assert left.lowest_ms(1, records(100, 300, 200)) == 200
    assert left.lowest_ms(3, records(50, start=4)) == -math.inf
    at.position = 4
    assert left.lowest_ms(3, []) == math.inf
    assert left.lowest_ms(3, records(1, start=3)) == math.inf


def test_input_that_does_not_come_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    left, at = backlog(end=4)
    assert left.lowest_ms(1, []) == -math.inf
    at.now_s = PATIENCE_S - 1
    assert left.lowest_ms(2, []) == -math.inf
    at.now_s += PATIENCE_S
    assert left.lowest_ms(2, []) == math.inf
    assert "timers that are due wait no longer for the input before offset 4" in caplog.text
