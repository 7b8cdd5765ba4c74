"""Late records are seen: what becomes of them, what the log says of them, and what the driver counts."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from actors import App, Context, Tumbling, Window, aggregates
from actors.errors import ConfigurationError, LateRecordError
from actors.runtime.observe.late import REPORT_S, LateReport, report_late
from actors.testing import ActorTestDriver

SECOND = 1_000
NOON_MS = 1_700_049_600_000
WHERE = {"key": "a"}


class World:
    """Counts per 10 seconds, without a grace."""

    def __init__(self, **options: Any) -> None:
        self.app = app = App("late-app")
        self.orders = app.topic("orders", key_type=str, value_type=int)
        self.finals = app.topic("finals", key_type=str, value_type=int)
        self.tens = tens = app.window_store("tens", Tumbling(seconds=10), aggregate=aggregates.count())

        @app.actor(self.orders, stores=[tens], **options)
        async def count(ctx: Context, _: int) -> None:
            tens.add(ctx.key, 1)

        @tens.on_close
        async def send(ctx: Context, _: Window, number: int) -> None:
            ctx.send(self.finals, key=ctx.key, value=number)

        self.count = count

    def send(self, driver: ActorTestDriver, *at_s: float) -> None:
        for number in at_s:
            driver.send(self.orders, value=1, timestamp_ms=NOON_MS + int(number * SECOND), **WHERE)


def joined(app: App, **options: Any) -> tuple[Any, Any, Any]:
    left, right = (app.topic(name, key_type=str, value_type=int) for name in ("left", "right"))

    @app.join(left, right, within=timedelta(seconds=10), grace=timedelta(0), **options)
    async def pair(ctx: Context, one: int, other: int) -> None:
        pass

    return left, right, pair


@pytest.mark.parametrize("on_error", ["stop", "skip", "park"])
def test_a_late_record_stops_its_partition_whatever_on_error_says(on_error: str) -> None:
    world = World(late="stop", on_error=on_error)
    with ActorTestDriver(world.app) as driver:
        world.send(driver, 1, 25)
        with pytest.raises(LateRecordError) as stopped:
            world.send(driver, 3)
        text = str(stopped.value)
        assert "orders[1] offset 2 key 'a'" in text
        assert "22 s behind stream time 2023-11-15T12:00:25" in text
        assert "tens" in text
        assert 'late="drop"' in text
        assert [final.value for final in driver.outputs(world.finals)] == [1]
        assert driver.late(world.count) == {"tens": 1}


def test_a_late_record_stops_a_join() -> None:
    app = App("late-app")
    left, right, _ = joined(app, late="stop")
    with ActorTestDriver(app) as driver:
        driver.send(left, value=1, timestamp_ms=NOON_MS + 30 * SECOND, **WHERE)
        driver.send(right, value=1, timestamp_ms=NOON_MS + 31 * SECOND, **WHERE)
        with pytest.raises(LateRecordError, match="pair"):
            driver.send(right, value=1, timestamp_ms=NOON_MS, **WHERE)


def retried(late: str) -> tuple[list[str], int, dict[str, int], list[Any]]:
    """Return the errors and the number of parked messages that are retried late, what was late, and the dead letters.

    Two messages of the key are parked, the one that failed and one that waits behind it.
    """
    fails = True
    app = App("late-app")
    orders = app.topic("orders", key_type=str, value_type=int)
    tens = app.window_store("tens", Tumbling(seconds=10), aggregate=aggregates.count())

    @app.actor(orders, stores=[tens], late=late, on_error="park")  # type: ignore[arg-type]
    async def count(ctx: Context, _: int) -> None:
        if fails:
            raise ValueError("not now")
        tens.add(ctx.key, 1)

    with ActorTestDriver(app, partitions=1) as driver:
        for value in (1, 2):
            driver.send(orders, key="a", value=value, timestamp_ms=NOON_MS)
        fails = False
        driver.send(orders, key="b", value=1, timestamp_ms=NOON_MS + 60 * SECOND)
        driver.retry_parked(count, "a")
        parked = driver.parked(count)
        return [str(one.error) for one in parked[:1]], len(parked), driver.late(count), driver.dead_letters()


def test_a_parked_message_that_is_late_when_it_is_retried_stays_parked() -> None:
    (error,), count, _, letters = retried("stop")
    assert "behind stream time" in error
    assert (count, len(letters)) == (2, 1)


@pytest.mark.parametrize("late", ["drop", "warn"])
def test_parked_messages_that_are_dropped_when_they_are_retried_are_dead_letters(late: str) -> None:
    errors, count, dropped, letters = retried(late)
    assert (errors, count, dropped) == ([], 0, {"tens": 2})
    assert [letter.value for letter in letters] == [1, 1, 2]
    assert "too late for the windows of its actor" in str(letters[-1].headers)


@pytest.mark.parametrize("late", ["drop", "warn"])
def test_a_parked_record_of_a_join_that_is_dropped_when_it_is_retried_is_a_dead_letter(late: Any) -> None:
    fails = True
    app = App("late-app")
    left, right = (app.topic(name, key_type=str, value_type=int) for name in ("left", "right"))

    @app.join(left, right, within=timedelta(seconds=10), grace=timedelta(0), late=late, on_error="park")
    async def pair(ctx: Context, one: int, other: int) -> None:
        if fails:
            raise ValueError("not now")

    with ActorTestDriver(app, partitions=1) as driver:
        for topic in (left, right):
            driver.send(topic, key="a", value=1, timestamp_ms=NOON_MS)
        fails = False
        for topic in (left, right):
            driver.send(topic, key="b", value=1, timestamp_ms=NOON_MS + 600 * SECOND)
        driver.retry_parked(pair, "a")
        assert driver.parked(pair) == []
        assert "too late for the windows of its actor" in str(driver.dead_letters()[-1].headers)


@pytest.mark.parametrize("late", ["drop", "warn"])
def test_what_is_dropped_is_counted_and_the_count_outlives_a_crash(late: str) -> None:
    world = World(late=late)
    with ActorTestDriver(world.app) as driver:
        world.send(driver, 1, 25)
        assert driver.late(world.count) == {"tens": 0}
        world.send(driver, 3, 4)
        driver.crash()
        world.send(driver, 5)
        assert driver.late(world.count) == {"tens": 3}


def lines_of(driver: ActorTestDriver, report: LateReport, caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    caplog.clear()
    with caplog.at_level(logging.INFO):
        report.minute(driver._worker.tasks)
    return [(line.levelno, line.getMessage()) for line in caplog.records if "late" in line.getMessage()]


@pytest.mark.parametrize(
    ("late", "level"), [("drop", logging.INFO), ("handle", logging.INFO), ("warn", logging.WARNING)]
)
def test_one_line_a_minute_names_the_newest_late_record(
    late: str, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(late=late)
    with ActorTestDriver(world.app) as driver:
        report = LateReport()
        for _ in range(300):
            driver.post(world.orders, value=1, timestamp_ms=NOON_MS + 25 * SECOND, **WHERE)
        driver.settle()
        world.send(driver, 1, 3)
        ((found, text),) = lines_of(driver, report, caplog)
        assert found == level
        assert "actor count: 2 of 302 records were too late for tens" in text
        assert "orders[1] offset 301 key 'a'" in text
        assert "22 s behind stream time 2023-11-15T12:00:25" in text
        assert lines_of(driver, report, caplog) == []
        world.send(driver, 4)
        # One of one: more than one in a hundred.
        ((found, text),) = lines_of(driver, report, caplog)
        assert found == logging.WARNING
        assert "1 of 1 records" in text


def test_the_line_names_the_feed_that_is_ahead(caplog: pytest.LogCaptureFixture) -> None:
    app = App("late-app")
    left, right, pair = joined(app)
    with ActorTestDriver(app) as driver:
        report = LateReport()
        driver.send(left, value=1, timestamp_ms=NOON_MS + 30 * SECOND, **WHERE)
        driver.send(right, value=1, timestamp_ms=NOON_MS + 90 * SECOND, **WHERE)
        driver.send(left, value=1, timestamp_ms=NOON_MS, **WHERE)
        ((_, text),) = lines_of(driver, report, caplog)
        assert "right[1] is ahead, at 2023-11-15T12:01:30" in text
        assert driver.late(pair) == {"pair": 1}


def test_late_records_of_a_tables_history_have_a_line(caplog: pytest.LogCaptureFixture) -> None:
    app = App("late-app")
    rates = app.topic("rates", key_type=str, value_type=int)
    table = app.table(rates, history=timedelta(seconds=10))
    orders = app.topic("orders", key_type=str, value_type=int)

    @app.actor(orders, stores=[table])
    async def count(ctx: Context, _: int) -> None:
        pass

    with ActorTestDriver(app) as driver:
        report = LateReport()
        driver.send(rates, value=1, timestamp_ms=NOON_MS + 90 * SECOND, **WHERE)
        driver.send(rates, value=1, timestamp_ms=NOON_MS, **WHERE)
        ((_, text),) = lines_of(driver, report, caplog)
        assert "rates[1] offset 1" in text
        assert "90 s behind" in text


def test_the_worker_reports_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    world = World()

    class Clock:
        def __init__(self) -> None:
            self.slept: list[float] = []

        async def sleep(self, seconds: float) -> None:
            if len(self.slept) == 2:
                raise asyncio.CancelledError
            self.slept.append(seconds)

    with ActorTestDriver(world.app) as driver, caplog.at_level(logging.INFO):
        world.send(driver, 25, 1)
        tasks, clock = list(driver._worker.tasks), Clock()
        with suppress(asyncio.CancelledError):
            asyncio.run(report_late(lambda: tasks, clock))  # type: ignore[arg-type]
        assert clock.slept == [REPORT_S] * 2
        assert len([line for line in caplog.records if "too late" in line.getMessage()]) == 1


def test_the_driver_refuses_an_actor_for_which_nothing_is_late() -> None:
    app = App("late-app")

    @app.actor(app.topic("orders", key_type=str, value_type=int))
    async def count(ctx: Context, _: int) -> None:
        pass

    with ActorTestDriver(app) as driver:
        assert driver.late(count) == {}


@pytest.mark.parametrize("late", ["halt", 3], ids=repr)
def test_a_join_names_what_late_may_be(late: Any) -> None:
    with pytest.raises(ConfigurationError, match='it is "drop", "warn", "stop", or a topic'):
        joined(App("late-app"), late=late)


@pytest.mark.parametrize("options", [{}, {"by": lambda order: str(order)}])
def test_late_records_may_not_go_where_the_actor_reads_them_again(options: dict[str, Any]) -> None:
    app = App("late-app")
    orders = app.topic("orders", key_type=str, value_type=int)
    tens = app.window_store("tens", Tumbling(seconds=10), aggregate=aggregates.count())

    async def count(ctx: Context, _: int) -> None:
        tens.add(ctx.key, 1)

    with pytest.raises(
        ConfigurationError, match="records that are late go to topic orders, and the actor itself reads"
    ):
        app.actor(orders, stores=[tens], late=app.topic("orders"), **options)(count)
    with pytest.raises(ConfigurationError, match="records that are late go to topic right, and the actor itself"):
        joined(app, late=app.topic("right"))
