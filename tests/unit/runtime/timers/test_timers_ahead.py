"""Records whose timestamps are far ahead, or in seconds, where timers go by stream time."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest

from actors import App, Context, OnError, Tumbling, UndecodableRecordError, aggregates
from actors.testing import ActorTestDriver
from actors.testing.fakes.cluster import EPOCH_MS

SECOND, DAY = timedelta(seconds=1), timedelta(days=1)
YEAR_9999_MS = 253_370_764_800_000
EITHER = pytest.mark.parametrize("concurrency", [1, 4])


class World:
    """An actor with a timer by stream time, due in 300 days, for each message "new"; `seen` has what it handled."""

    def __init__(
        self,
        on_error: Any = "stop",
        *,
        concurrency: int = 1,
        stores: Any = None,
        after: timedelta = 300 * DAY,
        **more: Any,
    ) -> None:
        self.app = app = App("shop", broker="kafka://127.0.0.1:1", **more)
        self.orders = app.topic("orders", key_type=str, value_type=str)
        self.seen: list[tuple[str, str | None]] = []
        options: dict[str, Any] = {"stores": [] if stores is None else stores(app), "concurrency": concurrency}

        @app.actor(self.orders, timers=True, name="order", on_error=on_error, **options)
        async def order(ctx: Context, message: str) -> None:
            self.seen.append((message, ctx.timer))
            if message == "new":
                ctx.schedule("due", after=after, name="t", stream_time=True)
            if message == "by the clock":
                ctx.schedule("rung", after=after, name="w")

    def send(self, driver: ActorTestDriver, message: str, at_ms: int | None = None, *, key: str = "a") -> None:
        driver.send(self.orders, key=key, value=message, timestamp_ms=at_ms)


@EITHER
def test_a_record_of_the_year_9999_makes_no_timer_due(concurrency: int) -> None:
    world = World(concurrency=concurrency)
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.send(driver, "new")
        with pytest.raises(UndecodableRecordError) as raised:
            world.send(driver, "far", YEAR_9999_MS, key="b")
        said = str(raised.value)
        for part in ("orders[0]", "offset 1", "key 'b'", str(YEAR_9999_MS), "max_time_ahead=86400 s", "timers"):
            assert part in said, said
        assert world.seen == [("new", None)]


@EITHER
@pytest.mark.parametrize("policy", ["skip", "park"])
def test_it_goes_by_the_policy_and_stream_time_does_not_move(policy: Any, concurrency: int) -> None:
    world = World(OnError(then=policy, dead_letters=True), concurrency=concurrency)
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.send(driver, "new")
        world.send(driver, "far", YEAR_9999_MS, key="b")
        assert [letter.key for letter in driver.dead_letters()] == ["b"]
        driver.crash(keep_disk=False)
        world.send(driver, "near", EPOCH_MS + 86_000_000)
        driver.advance(5)
        assert world.seen == [("new", None), ("near", None)]
        if policy == "park":
            driver.retry_parked("order", "b")
            assert [one.key for one in driver.parked("order")] == ["b"]


@EITHER
def test_the_bound_can_be_set_and_goes_on_with_the_clock(concurrency: int) -> None:
    world = World("skip", concurrency=concurrency, after=30 * SECOND, max_time_ahead=10 * SECOND)
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.send(driver, "new", EPOCH_MS)
        world.send(driver, "far", EPOCH_MS + 31_000)
        assert world.seen == [("new", None)]
        driver.advance(25)
        world.send(driver, "near", EPOCH_MS + 31_000)
        driver.settle()
        assert world.seen == [("new", None), ("near", None), ("due", "t")]


@EITHER
def test_before_a_timer_goes_by_it_such_a_record_is_handled_and_moves_nothing(concurrency: int) -> None:
    world = World("skip", concurrency=concurrency, after=10 * SECOND)
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.send(driver, "by the clock")
        world.send(driver, "far", YEAR_9999_MS)
        driver.advance(10)
        assert world.seen == [("by the clock", None), ("far", None), ("rung", "w")]
        # It would measure from the year 9999.
        world.send(driver, "new", YEAR_9999_MS)
        world.send(driver, "new", EPOCH_MS + 20_000)
        world.send(driver, "next", EPOCH_MS + 29_999)
        assert world.seen[3:] == [("new", None), ("new", None), ("next", None)]
        world.send(driver, "last", EPOCH_MS + 30_000)
        driver.settle()
        assert world.seen[6:] == [("last", None), ("due", "t")]


def test_a_record_that_windows_refuse_moves_the_timers_neither() -> None:
    world = World("skip", stores=lambda app: [app.window_store("w", Tumbling(minutes=1), aggregate=aggregates.count())])
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.send(driver, "new")
        world.send(driver, "far", YEAR_9999_MS)
        world.send(driver, "next")
        driver.advance(5)
        assert world.seen == [("new", None), ("next", None)]


def test_a_row_of_a_table_is_refused_too() -> None:
    tables: list[Any] = []

    def table_of(app: App) -> list[Any]:
        tables.append(app.table(app.topic("names", key_type=str, value_type=str)))
        return tables

    world = World("skip", stores=table_of)
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.send(driver, "new")
        driver.send(tables[0].topic, key="a", value="far", timestamp_ms=YEAR_9999_MS)
        driver.send(tables[0].topic, key="b", value="near")
        driver.advance(5)
        assert driver.items(tables[0]) == {"b": "near"}
        assert world.seen == [("new", None)]


@EITHER
def test_timestamps_in_seconds_are_named_once_where_timers_go_by_them(
    caplog: pytest.LogCaptureFixture, concurrency: int
) -> None:
    world = World(concurrency=concurrency)

    def named() -> list[str]:
        return [one.getMessage() for one in caplog.records if "timestamps are milliseconds" in one.getMessage()]

    with ActorTestDriver(world.app, partitions=1) as driver, caplog.at_level(logging.WARNING):
        world.send(driver, "early", EPOCH_MS // 1000)
        assert named() == []
        world.send(driver, "new")
        for number in range(3):
            world.send(driver, "next", EPOCH_MS // 1000 + number)
        (line,) = named()
        assert f"orders[0] offset 2: the timestamp {EPOCH_MS // 1000} is in 1970" in line
        assert len(world.seen) == 5


def test_a_timer_that_is_set_by_a_record_in_seconds_names_it(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    with ActorTestDriver(world.app, partitions=1) as driver, caplog.at_level(logging.WARNING):
        world.send(driver, "new", EPOCH_MS // 1000)
    assert "orders[0] offset 0: the timestamp 1700000000 is in 1970" in caplog.text


@pytest.mark.parametrize("is_batch", [True, False])
@pytest.mark.parametrize("crash_after", [None, 1, 2])
def test_a_timer_by_stream_time_goes_before_the_record_behind_the_one_that_made_it_due(
    is_batch: bool, crash_after: int | None
) -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    topic, out = app.topic("in", key_type=str, value_type=str), app.topic("out", key_type=str, value_type=str)

    @app.actor(topic, timers=True)
    async def remind(ctx: Context, value: str) -> None:
        if value.startswith("due"):
            ctx.send(out, key=ctx.key, value=value)
        else:
            ctx.schedule(f"due {value}", after=timedelta(seconds=10), name="t", stream_time=True)

    with ActorTestDriver(app, partitions=1) as driver:
        # Each makes the one before it due, and puts another in its place.
        for number in range(6):
            driver.post(topic, key="a", value=str(number), timestamp_ms=1_700_000_000_000 + 20_000 * number)
            driver.post(topic, key="b", value="later", timestamp_ms=1_700_000_000_000 + 20_000 * number + 15_000)
            if not is_batch:
                driver.settle()
            if number == crash_after:
                driver.crash(settle=False)
        driver.settle()
        sent = [message.value for message in driver.outputs(out) if message.key == "a"]
    assert sent == [f"due {number}" for number in range(6)]
