"""Records that are handled in the order of their times: `order="time"`."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from actors import App, Context, HandlerFailedError, Tumbling, Window, aggregates
from actors.errors import ConfigurationError
from actors.testing import ActorTestDriver

NOON = datetime(2031, 1, 1, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1000)


class World:
    """Notes what it handles; "bad" fails until it is mended. The last value of a key wins."""

    def __init__(self, **options: Any) -> None:
        self.app = App("shop", broker="kafka://127.0.0.1:1")
        self.left, self.right = (self.app.topic(name, key_type=str, value_type=str) for name in ("left", "right"))
        self.seen: list[tuple[str, str, int, int]] = []
        self.is_mended = False
        self.last = self.app.store("last", key_type=str, value_type=str)
        self.log = self.app.store("log", key_type=str, value_type=list[str])
        options = {"order": "time", "stores": [self.last, self.log], "name": "work"} | options

        @self.app.actor(self.left, self.right, **options)
        async def work(ctx: Context, value: str) -> None:
            if value == "bad" and not self.is_mended:
                raise ValueError("not this one")
            self.seen.append((ctx.topic, value, ctx.timestamp_ms - NOON_MS, ctx.offset))
            self.last.set(ctx.key, value)
            self.log.set(ctx.key, [*(self.log.get(ctx.key) or []), value])

        self.work = work

    def driver(self) -> ActorTestDriver:
        return ActorTestDriver(self.app, now=NOON, partitions=1)

    def post(self, driver: ActorTestDriver, topic: Any, value: str, at_ms: int) -> None:
        driver.post(topic, key="a", value=value, timestamp_ms=NOON_MS + at_ms)

    @property
    def values(self) -> list[str]:
        return [value for _, value, _, _ in self.seen]


def test_records_are_handled_in_the_order_of_their_times() -> None:
    world = World()
    with world.driver() as driver:
        for value, at_ms in (("a", 10), ("c", 30), ("d", 40)):
            world.post(driver, world.left, value, at_ms)
        for value, at_ms in (("b", 20), ("e", 50)):
            world.post(driver, world.right, value, at_ms)
        driver.settle()
        assert world.seen == [
            ("left", "a", 10, 0),
            ("right", "b", 20, 0),
            ("left", "c", 30, 1),
            ("left", "d", 40, 2),
            ("right", "e", 50, 1),
        ]
        assert driver.get(world.last, "a") == "e"


def test_a_late_record_goes_the_way_of_late_ones() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    late = app.topic("late", key_type=str, value_type=str)
    topic, seen = app.topic("in", key_type=str, value_type=str), []

    @app.actor(topic, order="time", late=late)
    async def work(ctx: Context, value: str) -> None:
        seen.append(value)

    with ActorTestDriver(app, now=NOON) as driver:
        driver.send(topic, key="a", value="now", timestamp_ms=NOON_MS)
        driver.send(topic, key="a", value="before", timestamp_ms=NOON_MS - 1)
        assert seen == ["now"]
        assert [sent.value for sent in driver.outputs(late)] == ["before"]


@pytest.mark.parametrize("seed", range(5))
def test_crashes_lose_and_double_nothing(seed: int) -> None:
    chance, world = random.Random(seed), World()
    with world.driver() as driver:
        records = [(chance.choice((world.left, world.right)), str(number), number) for number in range(60)]
        # Each input has its records in order, and one of them is read first.
        for topic, value, at_ms in sorted(records, key=lambda record: record[0] is world.left):
            world.post(driver, topic, value, at_ms)
        driver.crash(keep_disk=False, settle=False)
        driver.settle()
        driver.crash(keep_disk=seed % 2 == 0)
        assert driver.get(world.log, "a") == [str(number) for number in range(60)]
        assert not [row for row in driver.items(world.app.stores["work-waiting"]) if row != b"s"]


def test_a_parked_record_keeps_its_input() -> None:
    world = World(on_error="park")
    with world.driver() as driver:
        world.post(driver, world.right, "bad", 10)
        world.post(driver, world.left, "good", 20)
        driver.settle()
        assert world.values == []
        world.is_mended = True
        driver.retry_parked(world.work, "a")
    assert [(topic, value, offset) for topic, value, _, offset in world.seen] == [
        ("right", "bad", 0),
        ("left", "good", 0),
    ]


def test_what_comes_while_a_record_is_parked_comes_to_its_turn_first() -> None:
    world = World(on_error="park")
    with world.driver() as driver:
        world.post(driver, world.left, "bad", 10)
        world.post(driver, world.right, "bad too", 15)
        driver.settle()
        assert world.values == []
        for topic, value, at_ms in ((world.left, "c", 30), (world.left, "d", 50), (world.right, "b", 20)):
            world.post(driver, topic, value, at_ms)
        driver.settle()
        world.is_mended = True
        driver.retry_parked(world.work, "a")
    assert world.values == ["bad", "bad too", "b", "c", "d"]


def test_a_record_that_stops_the_partition_can_be_dropped_by_its_name() -> None:
    world = World(on_error="stop")
    with world.driver() as driver:
        world.post(driver, world.right, "bad", 10)
        with pytest.raises(HandlerFailedError) as failed:
            driver.settle()
    assert "called by the record at right[0] offset 0" in str(failed.value)
    assert "stopped drop work 0 right-0`" in str(failed.value)


def test_a_skipped_record_is_gone() -> None:
    world = World(on_error="skip")
    with world.driver() as driver:
        world.post(driver, world.right, "bad", 10)
        world.post(driver, world.left, "good", 20)
        driver.settle()
        assert world.values == ["good"]
        assert not [row for row in driver.items(world.app.stores["work-waiting"]) if row != b"s"]


def test_a_window_closes_between_the_records_before_and_behind_it() -> None:
    app, steps = App("shop", broker="kafka://127.0.0.1:1"), []
    left, right = (app.topic(name, key_type=str, value_type=str) for name in ("left", "right"))
    seconds = app.window_store("seconds", Tumbling(seconds=1), aggregate=aggregates.count())

    @app.actor(left, right, stores=[seconds], order="time")
    async def work(ctx: Context, value: str) -> None:
        steps.append(value)
        seconds.add(ctx.key, None)

    @seconds.on_close
    def close(ctx: Context, window: Any, count: int) -> None:
        steps.append(f"{count} until {window.end_ms - NOON_MS}")

    with ActorTestDriver(app, now=NOON) as driver:
        # The last of the right ones lets all of the left ones go at once.
        records = [*((left, at_ms) for at_ms in (500, 1500, 2500, 3100)), (right, 100), (right, 900), (right, 5000)]
        for topic, at_ms in records:
            driver.post(topic, key="a", value=str(at_ms), timestamp_ms=NOON_MS + at_ms)
        driver.settle()
    assert steps[:5] == ["100", "500", "900", "3 until 1000", "1500"]
    assert steps[5:] == ["1 until 2000", "2500", "1 until 3000", "3100", "1 until 4000", "5000"]


def test_tasks_downstream_follow_an_actor_in_which_nothing_waits() -> None:
    world = World()
    told = world.app.topic("told", key_type=str, value_type=str, writers=[world.work])
    minutes = world.app.window_store("minutes", Tumbling(minutes=1), aggregate=aggregates.count())
    counts: list[int] = []

    @world.app.on(world.work, world.right)
    async def tell(ctx: Context, value: str) -> None:
        ctx.send(told, key=ctx.key, value=value)

    @world.app.actor(told, stores=[minutes])
    async def count(ctx: Context, value: str) -> None:
        minutes.add(ctx.key, value)

    @minutes.on_close
    async def note(ctx: Context, window: Window, value: int) -> None:
        counts.append(value)

    with world.driver() as driver:
        for at_ms in (0, 30_000, 90_000):
            world.post(driver, world.left, "price", at_ms)
            world.post(driver, world.right, "order", at_ms)
        driver.close_windows()
    assert counts == [2, 1]


def test_concurrency_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="order="):
        World(concurrency=4)


def test_windows_behind_records_in_order_close() -> None:
    app, closed = App("shop", broker="kafka://127.0.0.1:1"), []
    topic = app.topic("in", key_type=str, value_type=str)
    tens = app.window_store("tens", Tumbling(seconds=10), aggregate=aggregates.collect(100, str))

    @app.actor(topic, order="time")
    async def forward(ctx: Context, value: str) -> None:
        ctx.send(moved, key="all", value=value)

    moved = app.topic("moved", key_type=str, value_type=str, writers=[forward])

    @app.actor(moved, stores=[tens])
    async def count(ctx: Context, value: str) -> None:
        tens.add(ctx.key, value)

    @tens.on_close
    def close(ctx: Context, window: Any, values: list[str]) -> None:
        closed.append(values)

    with ActorTestDriver(app, now=NOON) as driver:
        for seconds in (1, 3, 5, 11, 25):
            driver.post(topic, key="a", value=str(seconds), timestamp_ms=NOON_MS + seconds * 1_000)
        driver.settle()
    assert closed == [["1", "3", "5"], ["11"]]


@pytest.mark.parametrize("history", [None, timedelta(hours=1)], ids=["latest", "history"])
@pytest.mark.parametrize("order", range(4))
def test_the_first_the_last_and_the_row_of_the_time_depend_on_no_order_of_arrival(
    order: int, history: timedelta | None
) -> None:
    app, chance = App("shop", broker="kafka://127.0.0.1:1"), random.Random(order)
    left, right, prices = (app.topic(name, key_type=str, value_type=int) for name in ("left", "right", "prices"))
    first, last = (app.store(name, key_type=str, value_type=int) for name in ("first", "last"))
    table = app.table(prices, history=history)
    priced: dict[int, int | None] = {}

    @app.actor(left, right, order="time", stores=[first, last, table])
    async def work(ctx: Context, number: int) -> None:
        first.put_if_absent(ctx.key, number)
        last.set(ctx.key, number)
        priced[number] = table.get(ctx.key) if history is None else table.get(ctx.key, as_of=ctx.timestamp_ms)

    rows: dict[Any, list[tuple[str, int, int]]] = {left: [], right: [], prices: []}
    wanted: dict[int, int | None] = {}
    places: dict[str, list[int]] = {}
    held: dict[str, int] = {}
    for number in range(120):
        topic, key = chance.choice(list(rows)), chance.choice("abcd")
        rows[topic].append((key, number, NOON_MS - 200_000 + number * 1_000))
        if topic is prices:
            held[key] = number
        else:
            wanted[number] = held.get(key)
            places.setdefault(key, []).append(number)
    with ActorTestDriver(app, now=NOON, partitions=2) as driver:
        # The topics are written one after the other, and what is there is handled, but none is silent before its end.
        for topic in chance.sample(list(rows), len(rows)):
            for key, number, at_ms in rows[topic]:
                driver.post(topic, key=key, value=number, timestamp_ms=at_ms)
            driver.advance(0.02, settle=False)
        driver.settle()
        assert priced == wanted
        assert driver.items(first) == {key: numbers[0] for key, numbers in places.items()}
        assert driver.items(last) == {key: numbers[-1] for key, numbers in places.items()}
