"""Declarations and records that window stores can't work with: one clear error each."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from actors import (
    App,
    ConfigurationError,
    Context,
    Every,
    Hopping,
    NewerVersionError,
    Session,
    Sliding,
    Tumbling,
    UndecodableRecordError,
    UsageError,
    Window,
    aggregates,
)
from actors.testing import ActorTestDriver
from stores._core.record import METADATA_BYTES

MINUTE = timedelta(minutes=1)
NOON_MS = 1_700_049_600_000
YEAR_9999_MS = 253_370_764_800_000


def make_app(**options: Any) -> App:
    return App("shop", broker="kafka://127.0.0.1:1", **options)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Hopping(MINUTE, 2 * MINUTE), r"Hopping\(size=0:01:00, advance=0:02:00\): .*make advance at most"),
        (lambda: Hopping(MINUTE, timedelta(0)), r"Hopping\(advance=0:00:00\): it has to be a millisecond or longer"),
        (lambda: Tumbling(), r"Tumbling\(size=0:00:00\): it has to be a millisecond or longer"),
        (lambda: Tumbling(days=1, tz="Europe/Atlantis"), "tz='Europe/Atlantis'.*no such time zone"),
        (lambda: Tumbling(hours=5, tz="Europe/Berlin"), "the size is a number of whole days"),
        (lambda: Session(60), r"Session\(gap=60\): give a timedelta"),
        (lambda: Sliding(-MINUTE), "it has to be a millisecond or longer"),
        (
            lambda: Sliding(timedelta.max),
            r"Sliding\(difference=999999999 days, .*\): it has to be 36525 days or shorter",
        ),
        (lambda: Session(timedelta.max), "it has to be 36525 days or shorter"),
        (lambda: Tumbling(timedelta.max, days=1), "it has to be 36525 days or shorter"),
        (lambda: Tumbling(days=1e12), "it has to be 36525 days or shorter"),
        (lambda: Tumbling(days=999_999_999, tz="Europe/Berlin"), "it has to be 36525 days or shorter"),
        (lambda: Every(hours=1e15), r"Every\(interval=.*\): it has to be 36525 days or shorter"),
        (lambda: Hopping(timedelta.max, timedelta(seconds=1)), "it has to be 36525 days or shorter"),
        (lambda: Hopping(timedelta(days=7), timedelta(seconds=30)), "would be in 20160 windows, 20000 is the most"),
        (lambda: aggregates.collect(limit=0), r"collect\(limit=0\): give a number of 1 or more"),
        (lambda: aggregates.top_n(-1), r"top_n\(n=-1\): give a number of 1 or more"),
    ],
)
def test_kinds(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"windows": "1 minute"}, r"window store s: '1 minute': give Tumbling"),
        ({"grace": -MINUTE}, "window store s: grace=.*give a timedelta of 0 or more"),
        ({"grace": 5}, "grace"),
        ({"grace": timedelta.max}, "window store s: grace=.*give a timedelta of 0 or more, up to 36525 days"),
        ({"retention": 2 * MINUTE, "grace": 2 * MINUTE}, "window store s: retention=.*keep them at least as long"),
        ({"windows": Session(MINUTE)}, "window store s: sessions merge, so it needs aggregate="),
        (
            {"windows": Session(MINUTE), "aggregate": aggregates.Aggregate(0, lambda state, _: state)},
            "window store s: sessions merge, so it needs aggregate=",
        ),
    ],
)
def test_stores(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        make_app().window_store("s", options.pop("windows", Tumbling(MINUTE)), **options)


@pytest.mark.parametrize("late", ["keep", None, 3], ids=repr)
def test_late_is_checked(late: Any) -> None:
    app = make_app()
    store = app.window_store("s", Tumbling(MINUTE))
    with pytest.raises(
        ConfigurationError, match=r'actor add: late=.*it is "drop", "warn", "stop", "handle", or a topic'
    ):

        @app.actor(app.topic("in", key_type=str), stores=[store], late=late)
        async def add(ctx: Context, value: Any) -> None: ...


def test_late_without_windows_is_refused() -> None:
    app = make_app()
    with pytest.raises(ConfigurationError, match="actor add: late= is for actors with a window store"):

        @app.actor(app.topic("in", key_type=str), late="handle")
        async def add(ctx: Context, value: Any) -> None: ...


def test_two_functions_for_closes_are_refused() -> None:
    store = make_app().window_store("s", Tumbling(MINUTE))

    async def closed(ctx: Context, window: Window, value: Any) -> None: ...

    store.on_close(closed)
    with pytest.raises(UsageError, match="window store s: on_close is set already"):
        store.on_close(closed)


@pytest.mark.parametrize("when", ["before the actor", "after the actor"])
def test_closes_and_concurrency_are_refused_at_the_start(when: str) -> None:
    app = make_app()
    store = app.window_store("s", Tumbling(MINUTE))

    async def closed(ctx: Context, window: Window, value: Any) -> None: ...

    if when == "before the actor":
        store.on_close(closed)

    @app.actor(app.topic("in", key_type=str), stores=[store], concurrency=2)
    async def add(ctx: Context, value: Any) -> None: ...

    if when == "after the actor":
        store.on_close(closed)
    with (
        pytest.raises(ConfigurationError, match="actor add: window store s has on_close, whose calls have an order"),
        ActorTestDriver(app),
    ):
        pass


class World:
    """An app that counts in minutes."""

    def __init__(self, *, aggregate: Any = None, **options: Any) -> None:
        self.app = make_app(**options)
        self.events = self.app.topic("events", key_type=str, value_type=int)
        self.store = store = self.app.window_store("minutes", Tumbling(MINUTE), aggregate=aggregate)
        self.closed: list[Window] = []

        @store.on_close
        async def closed(ctx: Context, window: Window, value: Any) -> None:
            self.closed.append(window)

    def actor(self, handler: Any, **options: Any) -> None:
        self.app.actor(self.events, stores=[self.store], name="count", **options)(handler)


def test_add_without_an_aggregate_says_so() -> None:
    world = World()

    async def count(ctx: Context, value: int) -> None:
        world.store.add(ctx.key, value)

    world.actor(count)
    with (
        ActorTestDriver(world.app, partitions=1) as driver,
        pytest.raises(Exception, match=r"window store minutes: add\(\) needs aggregate="),
    ):
        driver.send(world.events, key="a", value=1)


async def add_one(ctx: Context, value: int) -> None:
    """Count nothing: stream time is all that matters."""


def test_timestamps_in_seconds_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.actor(add_one)
    with ActorTestDriver(world.app, partitions=1) as driver, caplog.at_level(logging.WARNING):
        for number in range(3):
            driver.send(world.events, key="a", value=1, timestamp_ms=NOON_MS // 1000 + number)
    (line,) = [one.getMessage() for one in caplog.records if "timestamps are milliseconds" in one.getMessage()]
    assert f"events[0] offset 0: the timestamp {NOON_MS // 1000} is in 1970" in line
    assert "timestamp=lambda value: 1000" in line


def test_a_record_of_the_year_9999_closes_nothing() -> None:
    world = World(aggregate=aggregates.count())

    async def count(ctx: Context, value: int) -> None:
        world.store.add(ctx.key, value)

    world.actor(count)
    with ActorTestDriver(world.app, partitions=1) as driver:
        driver.send(world.events, key="a", value=1)
        with pytest.raises(UndecodableRecordError) as raised:
            driver.send(world.events, key="a", value=1, timestamp_ms=YEAR_9999_MS)
        said = str(raised.value)
        for part in ("events[0]", "offset 1", "key 'a'", str(YEAR_9999_MS), "max_time_ahead=86400 s"):
            assert part in said, said
        assert world.closed == []


def test_such_a_record_is_skipped_by_policy_and_the_bound_can_be_set() -> None:
    world = World(aggregate=aggregates.count(), max_time_ahead=timedelta(seconds=10))
    times: list[int] = []

    async def count(ctx: Context, value: int) -> None:
        times.append(ctx.stream_ms)
        world.store.add(ctx.key, value)

    world.actor(count, on_error="skip")
    with ActorTestDriver(world.app, partitions=1) as driver:
        driver.send(world.events, key="a", value=1)
        (now_ms,) = times
        for ahead_s in (3600, 5):
            driver.send(world.events, key="a", value=1, timestamp_ms=now_ms + ahead_s * 1000)
        assert times == [now_ms, now_ms + 5000]
        # The bound goes on with the clock.
        driver.advance(20)
        for ahead_s in (3600, 25):
            driver.send(world.events, key="a", value=1, timestamp_ms=now_ms + ahead_s * 1000)
        assert times[2:] == [now_ms + 25_000]


def test_a_record_without_a_timestamp_is_an_error() -> None:
    world = World()
    world.actor(add_one)
    with (
        ActorTestDriver(world.app, partitions=1) as driver,
        pytest.raises(UndecodableRecordError, match="its timestamp is -1, and windows go by it"),
    ):
        driver.send(world.events, key="a", value=1, timestamp_ms=-1)


@pytest.mark.parametrize(
    ("letter", "row", "raw"),
    [(b"m", None, b"\xff"), (b"k", None, b"l\x91\x01"), (b"u", b"u", b"")],
)
def test_a_damaged_row_that_no_message_is_about_stops_its_partition(
    letter: bytes, row: bytes | None, raw: bytes
) -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    left, right = (app.topic(name, key_type=str, value_type=int) for name in ("left", "right"))
    orders = app.topic("orders", key_type=str, value_type=int)
    visits = app.window_store("visits", Session(timedelta(seconds=1)), aggregate=aggregates.count())
    called = []

    @app.actor(orders, stores=[visits], on_error="skip")
    async def count(ctx: Context, amount: int) -> None:
        visits.add(ctx.key, amount)

    @visits.on_close
    async def close(ctx: Context, window: Window, total: int) -> None:
        called.append(total)

    @app.join(left, right, within=timedelta(seconds=1), how="left", on_error="skip")
    async def paired(ctx: Context, one: int, other: int | None) -> None:
        called.append(one)

    topic, store = (left, "paired") if letter == b"u" else (orders, "visits")
    with ActorTestDriver(app, partitions=1) as driver:
        for after_s in (0, 1):
            driver.send(topic, key="a", value=1, timestamp_ms=NOON_MS + after_s * 1000)
        (files,) = (one for one in driver._disk.files() if one.store == store)
        rows = [one for one in files.data if one[:1] == letter]
        assert rows
        for one in rows:
            files.data[row or one] = files.data[one][:METADATA_BYTES] + raw
        driver.post(topic, key="a", value=1, timestamp_ms=NOON_MS + 60_000)
        with pytest.raises(NewerVersionError, match=f"a row of store {store} can't be read"):
            driver.crash()
