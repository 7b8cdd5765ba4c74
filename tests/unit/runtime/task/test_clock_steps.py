"""Steps of a worker's wall clock: timers and expiry go on, and the partition's time never goes back."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from actors import App, Context
from actors.runtime.state.stores import store_commit
from actors.runtime.timers.timers import Timers
from actors.testing import ActorTestDriver
from stores._core.record import Position
from stores.memory import MemoryStore

HOUR_MS = 3_600_000
TEN_MINUTES_MS = 600_000


def reminders(concurrency: int = 1):
    """Give an app whose messages set a timer and a key that expires, and what it was told when."""
    app = App("steps", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=str)
    fired, expired, told = [], [], []

    def expire(ctx: Context, value: str) -> None:
        expired.append(value)

    brief = app.store("brief", key_type=str, value_type=str, ttl=timedelta(seconds=30), on_expire=expire)

    @app.actor(orders, stores=[brief], concurrency=concurrency, timers=True)
    async def order(ctx: Context, value: str) -> None:
        told.append(ctx.now_ms)
        if ctx.timer is not None:
            fired.append(value)
            return
        brief.set(ctx.key, value)
        ctx.schedule(value, after=timedelta(seconds=30))

    return app, orders, fired, expired, told


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("step_ms", [HOUR_MS, TEN_MINUTES_MS])
def test_what_waits_while_the_clock_is_set_back_is_late_by_as_much(concurrency, restarts, step_ms, caplog):
    app, orders, fired, expired, told = reminders(concurrency)
    with ActorTestDriver(app, partitions=1) as driver:
        driver._clock.wall_offset_ms = step_ms
        driver.send(orders, key="during", value="during")
        driver._clock.wall_offset_ms = 0
        if restarts:
            driver.crash(keep_disk=False)
        driver.send(orders, key="after", value="after")
        driver.advance(step_ms / 1000 + 25)
        assert not fired
        # The sweeper rests for some seconds between its passes.
        driver.advance(10)
        assert sorted(fired) == ["after", "during"]
        driver.advance(35)
        assert sorted(expired) == ["after", "during"]
        assert told == sorted(told)
    assert (f"{step_ms / 1000:.1f} s ahead" in caplog.text) is restarts


def test_the_partitions_time_stands_still_until_the_clock_has_caught_up():
    app, orders, _, _, told = reminders()
    with ActorTestDriver(app, partitions=1) as driver:
        driver._clock.wall_offset_ms = TEN_MINUTES_MS
        driver.send(orders, key="a", value="x")
        driver._clock.wall_offset_ms = 0
        latest_ms = told[-1]
        for number in range(1, 4):
            driver.crash()
            driver.advance(250)
            driver.send(orders, key="a", value="x")
            wall_ms = driver._clock.wall_ms()
            assert told[-1] == pytest.approx(max(latest_ms, wall_ms), abs=2_000)
            assert (wall_ms > latest_ms + 100_000) is (number == 3)
        assert told == sorted(told)


def test_a_task_whose_time_stands_still_rests(monkeypatch):
    app, orders, fired, _, _ = reminders()
    looks = []
    wait_s = Timers.wait_s
    monkeypatch.setattr(Timers, "wait_s", lambda self: looks.append(1) or wait_s(self))
    with ActorTestDriver(app, partitions=1) as driver:
        driver.send(orders, key="a", value="x")
        driver.advance(29.9)
        driver._clock.wall_offset_ms = -300_000
        looks.clear()
        driver.advance(299.5)
        assert not fired
        assert len(looks) < 1_000, "it looks again and again"
        driver.advance(35)
        assert fired == ["x"]


def test_a_position_that_was_written_by_a_clock_that_was_ahead_is_put_right_by_the_next_commit():
    store = MemoryStore()
    store.apply([], Position(1, 1, HOUR_MS, 1, "id"))
    asyncio.run(store_commit(store, {b"a": (b"", b"1")}, [2], 2, 1_000, 1, 1))
    assert store.position() == Position(2, 2, 1_000, 1, "id", transaction=1)
