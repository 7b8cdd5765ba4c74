"""The test driver: its clock, the checks of a start, and a worker that ended."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from actors import (
    Actor,
    App,
    ConfigurationError,
    Context,
    EffectCall,
    Tumbling,
    UsageError,
    Window,
    aggregates,
    receive,
)
from actors.errors import ActorsError
from actors.testing import ActorTestDriver
from actors.testing.machine import last_full_hour

LAST_FULL_HOUR = last_full_hour  # before the suite sets a time of its own
NEW_YEAR = datetime(2031, 1, 1, tzinfo=UTC)


class Item(msgspec.Struct):
    name: str
    cents: int


class RenamedItem(msgspec.Struct):
    name: str
    price: int


class Sales:
    """An app whose actor fails on "bad", schedules "later", and keeps items; the options take parts of it out."""

    def __init__(self, item: Any = Item, **options: Any) -> None:
        self.app = App("shop", broker="kafka://127.0.0.1:1")
        self.topic = self.app.topic("in", key_type=str, value_type=str)
        self.items = self.app.store("items", key_type=str, value_type=item)
        options = {"on_error": "park", "timers": True} | options

        @self.app.effect()
        async def post(call: EffectCall) -> None:
            raise ConnectionError("no network")

        self.post = post

        @self.app.actor(
            self.topic, name="work", stores=[self.items], effects=[post] * options.pop("posts", 1), **options
        )
        async def work(ctx: Context, value: str) -> None:
            if value == "bad":
                raise ValueError("not this one")
            if value == "later":
                ctx.schedule("timer", after=timedelta(days=1))
            if value == "post":
                ctx.effect(post)
            self.items.set(ctx.key, item(value, 1))

    def driver(self) -> ActorTestDriver:
        return ActorTestDriver(self.app, effects={self.post: self.post})


@pytest.mark.parametrize(
    ("value", "options", "refusal"),
    [
        ("bad", {"on_error": "stop"}, "1 parked messages? of 1 keys? wait"),
        ("later", {"timers": False}, "1 timers? of 1 keys? wait"),
        ("post", {"posts": 0}, "1 effects? of 1 keys? wait"),
        ("hat", {"item": RenamedItem}, "store items: the type of its values doesn't fit"),
    ],
)
def test_a_restart_with_another_program_is_refused_as_a_worker_would_be(value, options, refusal):
    before = Sales()
    with before.driver() as driver:
        driver.send(before.topic, key="a", value=value)
        with pytest.raises(ConfigurationError, match=refusal):
            driver.restart(Sales(**options).app)
        driver.restart()
        driver.send(before.topic, key="b", value="hat")
        assert driver.get(before.items, "b") == Item("hat", 1)


def test_a_program_without_a_store_that_has_state_is_refused():
    before, after = Sales(), App("shop", broker="kafka://127.0.0.1:1")

    @after.actor(after.topic("in", key_type=str, value_type=str), name="work", stores=[after.store("goods")])
    async def work(ctx: Context, value: str) -> None: ...

    with before.driver() as driver:
        driver.send(before.topic, key="a", value="hat")
        with pytest.raises(ConfigurationError, match="store items: no actor of this program has it any more"):
            driver.restart(after)


def test_the_clock_begins_at_the_time_that_was_given():
    app = App("clock", broker="kafka://127.0.0.1:1")
    topic = app.topic("in", key_type=str, value_type=str)
    times: list[int] = []

    @app.actor(topic)
    async def work(ctx: Context, value: str) -> None:
        times.append(ctx.timestamp_ms)

    with ActorTestDriver(app, now=NEW_YEAR) as driver:
        driver.send(topic, key="a", value="x")
        driver.advance(60)
        driver.crash()
        driver.send(topic, key="a", value="y")
    start_ms = int(NEW_YEAR.timestamp() * 1000)
    assert 0 <= times[0] - start_ms < 1000
    assert 60_000 <= times[1] - start_ms < 61_000


@pytest.mark.parametrize("now", [datetime(2031, 1, 1), datetime(1969, 1, 1, tzinfo=UTC), 1_700_000_000])
def test_a_clock_without_a_time_zone_is_refused(now):
    with pytest.raises(UsageError, match=r"now=datetime\(2031, 1, 1, tzinfo=UTC\)"):
        ActorTestDriver(App("clock", broker="kafka://127.0.0.1:1"), now=now)


def test_a_record_of_now_is_not_ahead_of_the_clock(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("actors.testing.machine.last_full_hour", LAST_FULL_HOUR)
    app = App("clock", broker="kafka://127.0.0.1:1")
    sales = app.topic("sales", key_type=str, value_type=int)
    minutes = app.window_store("minutes", Tumbling(minutes=1), aggregate=aggregates.sum())

    @app.actor(sales, stores=[minutes])
    async def count(ctx: Context, cents: int) -> None:
        minutes.add(ctx.key, cents)

    with ActorTestDriver(app) as driver:
        driver.send(sales, key="a", value=1, timestamp_ms=int(time.time() * 1000))
        assert list(driver.windows(minutes, "a").values()) == [1]


def test_a_handler_that_exits_ends_the_worker_at_once():
    app = App("exits", broker="kafka://127.0.0.1:1")
    topic = app.topic("in", key_type=str, value_type=str)
    has_to_exit = True

    @app.actor(topic)
    class Exits(Actor[list[str]]):
        @receive
        async def take(self, value: str) -> None:
            if value == "exit" and has_to_exit:
                sys.exit(3)
            self.state.append(value)

    with ActorTestDriver(app) as driver:
        driver.send(topic, key="a", value="x")
        with pytest.raises(SystemExit):
            driver.send(topic, key="a", value="exit")
        began_s = driver.now_s
        with pytest.raises(ActorsError, match=r"the worker has ended: SystemExit: 3.*restart\(\)"):
            driver.send(topic, key="b", value="y")
        assert driver.now_s - began_s < 1
        has_to_exit = False
        driver.restart()
        assert driver.items(Exits) == {"a": ["x", "exit"], "b": ["y"]}


def test_event_time_comes_as_far_after_a_crash_as_before() -> None:
    app = App("shop", broker="kafka://127.0.0.1:9092")
    sales = app.topic("sales", key_type=str, value_type=str)
    totals = app.topic("totals", key_type=str, value_type=int)
    minutes = app.window_store("minutes", Tumbling(minutes=1), aggregate=aggregates.count())

    @app.actor(sales, by=lambda shop: shop, stores=[minutes])
    async def count(ctx: Context, shop: str) -> None:
        minutes.add(ctx.key, 1)

    @minutes.on_close
    async def send(ctx: Context, window: Window, number: int) -> None:
        ctx.send(totals, key=ctx.key, value=number)

    with ActorTestDriver(app) as driver:
        start_ms = 1_699_999_980_000
        driver.post(sales, key="a", value="berlin", timestamp_ms=start_ms)
        driver.post(sales, key="a", value="paris", timestamp_ms=start_ms + 120_000)
        driver.crash(settle=False)
        driver.settle()
        assert [(sent.key, sent.value) for sent in driver.outputs(totals)] == [("berlin", 1)]
