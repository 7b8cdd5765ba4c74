"""Stream time that follows the clock while the inputs are at their ends: `close_when_idle`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from actors import App, Context, Tumbling, aggregates
from actors.errors import ConfigurationError
from actors.testing import ActorTestDriver

NOON = datetime(2031, 1, 1, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1000)
IDLE = timedelta(seconds=30)


def late_by_clock(driver: ActorTestDriver) -> int:
    tasks = () if driver._worker is None else driver._worker.tasks
    return sum(sum(task.context.meters.late_by_clock.values()) for task in tasks)


class World:
    """Counts per minute and key; the results are in `results`."""

    def __init__(self, *, idle: timedelta | None = IDLE, **options: Any) -> None:
        self.app = App("shop", broker="kafka://127.0.0.1:1")
        self.topic = self.app.topic("in", key_type=str, value_type=str)
        self.results: list[tuple[str, int, int]] = []
        self.counts = self.app.window_store(
            "counts", Tumbling(minutes=1), aggregate=aggregates.count(), close_when_idle=idle
        )

        @self.app.actor(self.topic, stores=[self.counts], **options)
        async def count(ctx: Context, _: str) -> None:
            self.counts.add(ctx.key, None)

        @self.counts.on_close
        def close(ctx: Context, window: Any, number: int) -> None:
            self.results.append((ctx.key, (window.start_ms - NOON_MS) // 1000, number))

    def driver(self) -> ActorTestDriver:
        return ActorTestDriver(self.app, now=NOON)

    def send(self, driver: ActorTestDriver, key: str, at_s: int) -> None:
        driver.send(self.topic, key=key, value=key, timestamp_ms=NOON_MS + at_s * 1000)


def test_the_last_window_closes_when_its_input_is_idle() -> None:
    world = World()
    with world.driver() as driver:
        world.send(driver, "a", 10)
        driver.advance(80)
        assert world.results == []
        driver.advance(26)
        assert world.results == [("a", 0, 1)]


def test_it_stays_open_by_default() -> None:
    world = World(idle=None)
    with world.driver() as driver:
        world.send(driver, "a", 10)
        driver.advance(3600)
    assert world.results == []


def test_a_stage_across_keys_closes_with_the_windows_before_it() -> None:
    world, totals = World(), []
    across = world.counts.across(key=lambda key: "all", aggregate=aggregates.sum())
    across.on_close(lambda ctx, window, number: totals.append((window.start_ms - NOON_MS, number)))
    with world.driver() as driver:
        for key in "abcde":
            world.send(driver, key, 10)
        driver.advance(80)
        assert totals == []
        driver.advance(28)
        assert totals == [(0, 5)]


def test_it_closes_behind_a_hop() -> None:
    world = World(by=lambda value: value)
    with world.driver() as driver:
        world.send(driver, "x", 10)
        driver.advance(200)
    assert world.results == [("x", 0, 1)]


@pytest.mark.parametrize("by", [None, lambda value: value])
def test_what_it_makes_late_is_counted_apart(by: Any) -> None:
    world = World() if by is None else World(by=by)
    with world.driver() as driver:
        world.send(driver, "a", 10)
        driver.advance(200)
        world.send(driver, "a", 9)
        assert late_by_clock(driver) == 1
        world.send(driver, "a", 300)
        world.send(driver, "a", 11)
        assert late_by_clock(driver) == 1
    assert world.results[0] == ("a", 0, 1)


@pytest.mark.parametrize("is_one", [False, True])
def test_a_join_hands_out_what_has_no_match(is_one: bool) -> None:
    app, pairs = App("shop", broker="kafka://127.0.0.1:1"), []
    orders, payments = (app.topic(name, key_type=str, value_type=str) for name in ("orders", "payments"))

    within: dict[str, Any] = {"left": orders, "right": payments, "within": timedelta(minutes=1)}
    until: dict[str, Any] = {"one": orders, "many": payments, "until": lambda _: NOON_MS + 60_000}

    @app.join(**until if is_one else within, how="left", close_when_idle=IDLE)
    async def pay(ctx: Context, order: str, payment: str | None) -> None:
        pairs.append((order, payment))

    with ActorTestDriver(app, now=NOON) as driver:
        driver.send(orders, key="a", value="book", timestamp_ms=NOON_MS)
        assert pairs == []
        driver.advance(120)
    assert pairs == [("book", None)]


def test_timers_by_stream_time_fire() -> None:
    app, fired = App("shop", broker="kafka://127.0.0.1:1"), []
    topic = app.topic("in", key_type=str, value_type=str)

    @app.actor(topic, timers=True, close_when_idle=IDLE)
    async def remind(ctx: Context, value: str) -> None:
        if ctx.timer is None:
            ctx.schedule("again", after=timedelta(minutes=1), stream_time=True)
        else:
            fired.append(value)

    with ActorTestDriver(app, now=NOON) as driver:
        driver.send(topic, key="a", value="first", timestamp_ms=NOON_MS)
        driver.advance(60)
        assert fired == []
        driver.advance(60)
    assert fired == ["again"]


def test_an_actor_without_stream_time_is_refused() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    with pytest.raises(ConfigurationError, match="close_when_idle"):

        @app.actor(app.topic("in", key_type=str, value_type=str), close_when_idle=IDLE)
        async def work(ctx: Context, value: str) -> None: ...


@pytest.mark.parametrize("idle", [timedelta(0), timedelta(milliseconds=900), 30])
def test_a_distance_below_a_second_is_refused(idle: Any) -> None:
    with pytest.raises(ConfigurationError, match="close_when_idle"):
        World(idle=idle)
