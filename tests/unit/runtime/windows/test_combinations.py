"""Windows beside everything else that an actor can have."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from actors import (
    Actor,
    App,
    Context,
    EffectCall,
    HandlerFailedError,
    Session,
    Sliding,
    Tumbling,
    Window,
    aggregates,
    query,
    receive,
)
from actors.errors import ReadOnlyQueryError
from actors.testing import ActorTestDriver

BEGIN_MS = 1_700_000_000_000
SECOND = timedelta(seconds=1)
URL = "kafka://127.0.0.1:1"


def at(seconds: float) -> int:
    return BEGIN_MS + int(seconds * 1000)


def seconds(window: Window) -> tuple[float, float]:
    return (window.start_ms - BEGIN_MS) / 1000, (window.end_ms - BEGIN_MS) / 1000


# --- inputs ----------------------------------------------------------------------------------------------------------


def test_several_inputs_share_stream_time() -> None:
    app = App("shop", broker=URL)
    left, right = (app.topic(name, key_type=str, value_type=int) for name in ("left", "right"))
    sums = app.topic("sums", key_type=str, value_type=list)
    store = app.window_store("both", Tumbling(seconds=10), aggregate=aggregates.sum())

    @app.actor(left, right, stores=[store], late="handle")
    async def add(ctx: Context, amount: int) -> None:
        assert bool(store.add(ctx.key, amount)) is not ctx.late

    @store.on_close
    async def closed(ctx: Context, window: Window, total: int) -> None:
        ctx.send(sums, key=ctx.key, value=[*seconds(window), total])

    with ActorTestDriver(app, partitions=1) as driver:
        for topic, amount, at_s in ((left, 1, 1), (right, 2, 9), (right, 4, 12), (left, 8, 5), (left, 16, 25)):
            driver.send(topic, key="a", value=amount, timestamp_ms=at(at_s))
            driver.crash(keep_disk=False)
        assert [one.value for one in driver.outputs(sums)] == [[0, 10, 3], [10, 20, 4]]


def test_records_that_are_read_by_another_key_have_their_event_times() -> None:
    app = App("shop", broker=URL)
    payments = app.topic("payments", key_type=str, timestamp=lambda payment: at(payment["at_s"]))
    orders = app.topic("orders", key_type=str)
    sums = app.topic("sums", key_type=str, value_type=list)
    store = app.window_store("paid", Tumbling(seconds=10), aggregate=aggregates.sum())

    @app.actor(orders, payments, by={payments: lambda payment: payment["order"]}, stores=[store])
    async def add(ctx: Context, value: dict[str, Any]) -> None:
        store.add(ctx.key, value["cents"])

    @store.on_close
    async def closed(ctx: Context, window: Window, total: int) -> None:
        ctx.send(sums, key=ctx.key, value=[*seconds(window), total])

    with ActorTestDriver(app, partitions=2) as driver:
        for cents, at_s in ((1, 3), (2, 8), (4, 11), (8, 2), (16, 31)):
            driver.send(payments, key=f"p{cents}", value={"order": "a", "cents": cents, "at_s": at_s})
        driver.send(orders, key="a", value={"cents": 32}, timestamp_ms=at(45))
        assert [one.value for one in driver.outputs(sums)] == [[0, 10, 3], [10, 20, 4], [30, 40, 16]]


def test_keys_side_by_side_count_each_message() -> None:
    app = App("shop", broker=URL)
    clicks = app.topic("clicks", key_type=str, value_type=int)
    tens = app.window_store("tens", Tumbling(seconds=10), grace=60 * SECOND, aggregate=aggregates.count())
    visits = app.window_store("visits", Session(5 * SECOND), grace=60 * SECOND, aggregate=aggregates.count())

    @app.actor(clicks, stores=[tens, visits], concurrency=4)
    async def count(ctx: Context, number: int) -> None:
        tens.add(ctx.key, number)
        visits.add(ctx.key, number)
        with pytest.raises(Exception, match="concurrency"):
            next(tens.fetch_all())

    with ActorTestDriver(app, partitions=2) as driver:
        for number in range(60):
            driver.post(clicks, key=f"k{number % 5}", value=number, timestamp_ms=at(number))
            if number % 20 == 10:
                driver.settle()
                driver.crash(keep_disk=False)
        driver.settle()
        for number in range(5):
            assert list(driver.windows(tens, f"k{number}").values()) == [2] * 6
            assert list(driver.windows(visits, f"k{number}").values()) == [12]


# --- closes that fail ------------------------------------------------------------------------------------------------


class Failing:
    """Counts in windows whose closes fail for the key "bad" until it is mended; nothing else could take a command."""

    def __init__(self, kind: Any, on_error: str = "stop") -> None:
        self.app = App("shop", broker=URL)
        self.clicks = self.app.topic("clicks", key_type=str, value_type=int)
        self.closes: list[str] = []
        self.fails = True
        self.seen: list[tuple[str, int]] = []
        self.store = self.app.window_store("tens", kind, aggregate=aggregates.sum())

        @self.store.on_close
        async def closed(ctx: Context, window: Window, total: int) -> None:
            if ctx.key == "bad" and self.fails:
                raise ValueError("no close")
            self.closes.append(ctx.key)

        @self.app.actor(self.clicks, stores=[self.store], on_error=on_error)
        async def count(ctx: Context, number: int) -> None:
            self.seen.append((ctx.key, number))
            if number == 13 and self.fails:
                raise ValueError("no number")
            self.store.add(ctx.key, number)

    def fill(self, driver: ActorTestDriver) -> str:
        """Let it stop its partition; give the id of the close."""
        for key in ("bad", "good"):
            driver.send(self.clicks, key=key, value=1, timestamp_ms=at(0))
        with pytest.raises(HandlerFailedError, match="faust -A APP stopped drop count 0 ") as caught:
            driver.send(self.clicks, key="z", value=1, timestamp_ms=at(100))
        return str(caught.value).split("stopped drop count 0 ")[1].rstrip("`.")

    def tell(self, driver: ActorTestDriver, command: str, id: str) -> None:
        told = {"actor": "count", "what": "internal", "command": command, "id": id}
        driver.post(self.clicks, value=0, partition=0, headers={"fa-control": json.dumps(told).encode()})
        driver.advance(60)


KINDS = [Tumbling(seconds=10), Session(5 * SECOND), Sliding(10 * SECOND)]


@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_a_close_that_stopped_its_partition_is_dropped_by_a_command(kind: Any) -> None:
    world = Failing(kind)
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.tell(driver, "drop", world.fill(driver))
        driver.send(world.clicks, key="after", value=2, timestamp_ms=at(101))
        driver.crash(keep_disk=False)
        driver.send(world.clicks, key="z", value=2, timestamp_ms=at(200))
        assert sorted(world.closes) == sorted(["good", "z", "after"])
        assert (None, 0) not in world.seen


@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_a_close_that_stopped_its_partition_is_tried_again_by_a_command(kind: Any) -> None:
    world = Failing(kind)
    with ActorTestDriver(world.app, partitions=1) as driver:
        id = world.fill(driver)
        world.fails = False
        world.tell(driver, "retry", id)
        driver.send(world.clicks, key="after", value=2, timestamp_ms=at(101))
        assert sorted(set(world.closes) - {"z"}) == ["bad", "good"]
        assert (None, 0) not in world.seen


def test_windows_of_a_key_with_parked_messages_close_and_the_parked_ones_are_late() -> None:
    world = Failing(Tumbling(seconds=10), "park")
    with ActorTestDriver(world.app, partitions=1) as driver:
        for number, at_s in ((1, 0), (13, 1), (2, 2)):
            driver.send(world.clicks, key="a", value=number, timestamp_ms=at(at_s))
        assert [one.value for one in driver.parked("count")] == [13, 2]
        driver.send(world.clicks, key="z", value=1, timestamp_ms=at(100))
        driver.crash(keep_disk=False)
        assert world.closes == ["a"]
        world.fails, seen = False, len(world.seen)
        driver.retry_parked("count", "a")
        assert driver.parked("count") == []
        assert world.seen[seen:] == []
        assert list(driver.windows(world.store, "a").values()) == [1]


# --- what a close may do ---------------------------------------------------------------------------------------------


def test_a_close_writes_schedules_tells_and_acts_once() -> None:
    app = App("shop", broker=URL)
    clicks = app.topic("clicks", key_type=str, value_type=int)
    totals = app.store("totals", value_type=int)
    tens = app.window_store("tens", Tumbling(seconds=10), aggregate=aggregates.sum())
    rang: list[tuple[str, int]] = []
    posted: list[str] = []
    told: list[int] = []

    @app.effect()
    async def post(call: EffectCall, total: int) -> None:
        posted.append(call.idempotency_key)

    @app.actor(app.topic("limits", key_type=str, value_type=int))
    async def take(ctx: Context, number: int) -> None:
        told.append(number)

    @app.actor(clicks, stores=[tens, totals], timers=True, effects=[post])
    async def count(ctx: Context, number: int) -> None:
        if ctx.timer is None:
            tens.add(ctx.key, number)
        else:
            rang.append((ctx.key, number))
            # A timer belongs to the stream time at which it fires, whatever the clock says.
            tens.add(ctx.key, 100)

    @tens.on_close
    async def closed(ctx: Context, window: Window, total: int) -> None:
        totals.set(ctx.key, totals.get(ctx.key, 0) + total)
        ctx.schedule(total, after=5 * SECOND, name=f"after {window.start_ms}")
        ctx.effect(post, total)
        ctx.tell(take, "x", total)

    with ActorTestDriver(app, partitions=1, effects={post: post}) as driver:
        driver.advance(1_000)
        for number, at_s in ((1, 1), (2, 8), (4, 12)):
            driver.send(clicks, key="a", value=number, timestamp_ms=at(at_s))
            driver.crash(keep_disk=False)
        driver.advance(6)
        assert driver.items(totals) == {"a": 3}
        assert (rang, len(posted), told) == ([("a", 3)], 1, [3])
        driver.send(clicks, key="z", value=0, timestamp_ms=at(40))
        driver.advance(6)
        assert driver.items(totals) == {"a": 3 + 104}
        assert rang == [("a", 3), ("a", 104)]


def test_a_close_that_fails_takes_back_all_that_it_did() -> None:
    app = App("shop", broker=URL)
    clicks = app.topic("clicks", key_type=str, value_type=int)
    totals = app.store("totals", value_type=int)
    tens = app.window_store("tens", Tumbling(seconds=10), aggregate=aggregates.sum())
    hours = app.window_store("hours", Tumbling(hours=1), aggregate=aggregates.sum())
    attempts: dict[int, int] = defaultdict(int)

    @app.actor(clicks, stores=[tens, totals, hours], timers=True, on_error="stop")
    async def count(ctx: Context, number: int) -> None:
        assert ctx.timer is None
        tens.add(ctx.key, number)

    @tens.on_close
    async def closed(ctx: Context, window: Window, total: int) -> None:
        attempts[window.start_ms] += 1
        totals.set(ctx.key, totals.get(ctx.key, 0) + total)
        hours.add(ctx.key, total)
        if attempts[window.start_ms] == 1:
            ctx.schedule(total, after=SECOND)
            raise ValueError("again")

    with ActorTestDriver(app, partitions=1) as driver:
        driver.send(clicks, key="a", value=1, timestamp_ms=at(1))
        with pytest.raises(HandlerFailedError, match="the close of the window"):
            driver.send(clicks, key="a", value=2, timestamp_ms=at(11))
        driver.crash()
        driver.advance(10)
        assert driver.items(totals) == {"a": 1}
        assert list(driver.windows(hours, "a").values()) == [1]


# --- asks and queries ------------------------------------------------------------------------------------------------


def test_a_close_that_asks_is_told_to_tell() -> None:
    app = App("shop", broker=URL)
    clicks, orders = (app.topic(name, key_type=str, value_type=int) for name in ("clicks", "orders"))
    tens = app.window_store("tens", Tumbling(seconds=10), aggregate=aggregates.count())

    @app.actor(orders)
    async def order(ctx: Context, number: int) -> int:
        return number

    @app.actor(clicks, stores=[tens])
    async def count(ctx: Context, number: int) -> None:
        tens.add(ctx.key, number)

    @tens.on_close
    async def closed(ctx: Context, window: Window, clicks: int) -> None:
        await ctx.ask(order, ctx.key, clicks)

    with ActorTestDriver(app, partitions=1) as driver:
        driver.send(clicks, key="a", value=1, timestamp_ms=at(1))
        with pytest.raises(HandlerFailedError, match=r"the close of the window.*or use ctx.tell, as on_close has to"):
            driver.send(clicks, key="a", value=2, timestamp_ms=at(11))


def test_a_question_may_be_late_and_is_told_so() -> None:
    app = App("shop", broker=URL)
    clicks = app.topic("clicks", key_type=str, value_type=int)
    tens = app.window_store("tens", Tumbling(seconds=10), aggregate=aggregates.count())

    @app.actor(clicks, stores=[tens], late="handle")
    async def count(ctx: Context, number: int) -> str:
        tens.add(ctx.key, number)
        return f"{'late' if ctx.late else 'in time'}"

    with ActorTestDriver(app, partitions=1) as driver:
        assert driver.ask(count, "a", 1) == "in time"
        driver.advance_stream_time(count, at(10**7))
        assert driver.ask(count, "a", 1) == "late"


def test_a_question_that_is_dropped_as_late_is_answered_with_none() -> None:
    app = App("shop", broker=URL)
    clicks = app.topic("clicks", key_type=str, value_type=int)
    tens = app.window_store("tens", Tumbling(seconds=10), aggregate=aggregates.count())

    @app.actor(clicks, stores=[tens])
    async def count(ctx: Context, number: int) -> int:
        return len(tens.add(ctx.key, number))

    with ActorTestDriver(app, partitions=1) as driver:
        assert driver.ask(count, "a", 1) == 1
        driver.advance_stream_time(count, at(10**7))
        assert driver.ask(count, "a", 1) is None


class Clicked(msgspec.Struct, tag="clicked"):
    """A click."""

    page: str


class Cleared(msgspec.Struct, tag="cleared"):
    """Nothing was clicked."""


class World:
    """A class actor with two window stores, which takes messages of two types and answers queries."""

    def __init__(self) -> None:
        self.app = app = App("shop", broker=URL)
        self.inputs = app.topic("inputs", key_type=str)
        self.late = app.topic("late", key_type=str, value_type=Clicked | Cleared)
        self.finals = app.topic("finals", key_type=str, value_type=list)
        tens = self.tens = app.window_store(
            "tens", Tumbling(seconds=10), retention=20 * SECOND, aggregate=aggregates.count()
        )
        visits = self.visits = app.window_store(
            "visits", Session(5 * SECOND), retention=20 * SECOND, aggregate=aggregates.collect(limit=9)
        )
        finals = self.finals

        @app.actor(self.inputs, stores=[tens, visits], late=self.late)
        class Shopper(Actor[int]):
            def initial_state(self) -> int:
                return 0

            @receive
            def clicked(self, message: Clicked) -> None:
                self.state += 1
                tens.add(self.key, message.page)
                visits.add(self.key, message.page)

            @receive
            def cleared(self, message: Cleared) -> None:
                self.state = 0

            @query
            def show(self, back_s: int = 3600) -> dict[str, Any]:
                from_ms = self.ctx.stream_ms - back_s * 1000
                return {
                    "state": self.state,
                    "stream_ms": self.ctx.stream_ms,
                    "late": self.ctx.late,
                    "now": tens.get(self.key),
                    "tens": [[*seconds(window), count] for window, count in tens.fetch(self.key, from_ms)],
                    "visits": [[*seconds(window), pages] for window, pages in visits.fetch(self.key, reverse=True)],
                }

            @query
            def write(self) -> list[Any]:
                return tens.add(self.key, "x")

        for store in (tens, visits):

            @store.on_close
            async def closed(ctx: Context, window: Window, value: Any, name: str = store.name) -> None:
                ctx.send(finals, key=ctx.key, value=[name, *seconds(window), value])

        self.actor = Shopper


def test_two_kinds_of_windows_and_two_types_of_messages_in_one_class() -> None:
    world = World()
    with ActorTestDriver(world.app, partitions=1) as driver:
        for page, at_s in (("a", 1), ("b", 4), ("c", 12), ("d", 30)):
            driver.tell(world.actor, "k", Clicked(page), timestamp_ms=at(at_s))
        driver.crash(keep_disk=False)
        driver.tell(world.actor, "k", Clicked("e"), timestamp_ms=at(2))
        driver.tell(world.actor, "k", Cleared(), timestamp_ms=at(3))
        assert [one.value for one in driver.outputs(world.finals)] == [
            ["visits", 1, 4, ["a", "b"]],
            ["tens", 0, 10, 2],
            ["visits", 12, 12, ["c"]],
            ["tens", 10, 20, 1],
        ]
        assert [one.value for one in driver.outputs(world.late)] == [Clicked("e"), Cleared()]
        assert driver.get(world.actor, "k") == 4


def test_queries_read_windows_as_they_are_committed() -> None:
    world = World()
    with ActorTestDriver(world.app, partitions=1) as driver:
        driver.advance(1_000)
        for page, at_s in (("a", 1), ("b", 4), ("c", 12), ("d", 30)):
            driver.tell(world.actor, "k", Clicked(page), timestamp_ms=at(at_s))
        assert driver.query(world.actor, "show", "k") == {
            "state": 4,
            "stream_ms": at(30),
            "late": False,
            "now": 1,
            # What began 20 s before is past its retention.
            "tens": [[30, 40, 1]],
            "visits": [[30, 30, ["d"]], [12, 12, ["c"]]],
        }
        assert driver.query(world.actor, "show", "nobody")["visits"] == []
        with pytest.raises(ReadOnlyQueryError, match="a query only reads, and it writes"):
            driver.query(world.actor, "write", "k")


# --- the store -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_a_renamed_store_keeps_its_windows_and_what_is_closed(kind: Any) -> None:
    def make(name: str, **options: Any) -> tuple[App, Any, Any, Any]:
        app = App("shop", broker=URL)
        clicks = app.topic("clicks", key_type=str, value_type=int)
        finals = app.topic("finals", key_type=str, value_type=int)
        store = app.window_store(name, kind, aggregate=aggregates.sum(), **options)

        @app.actor(clicks, stores=[store])
        async def count(ctx: Context, number: int) -> None:
            store.add(ctx.key, number)

        @store.on_close
        async def closed(ctx: Context, window: Window, total: int) -> None:
            ctx.send(finals, key=ctx.key, value=total)

        return app, clicks, finals, store

    app, clicks, finals, _ = make("tens")
    with ActorTestDriver(app, partitions=1) as driver:
        for key, number, at_s in (("a", 1, 0), ("b", 2, 100)):
            driver.send(clicks, key=key, value=number, timestamp_ms=at(at_s))
        renamed, clicks, finals, store = make("dozens", renamed_from="tens")
        driver.restart(renamed)
        assert list(driver.windows(store, "b").values()) == [2]
        for key, number, at_s in (("a", 4, 1), ("b", 8, 101), ("z", 16, 200)):
            driver.send(clicks, key=key, value=number, timestamp_ms=at(at_s))
        sent = [(one.key, one.value) for one in driver.outputs(finals)]
        assert sent[0] == ("a", 1)
        assert [key for key, _ in sent].count("a") == 1
        assert ("b", 10) in sent


@pytest.mark.parametrize(
    ("kind", "times", "last", "shown"),
    [
        (Tumbling(seconds=10), (0, 10, 20), 30, [20]),
        (Session(5 * SECOND), (0, 14, 20), 34, [14, 20]),
        (Session(5 * SECOND), (0, 12, 20), 34, [20]),
        (Sliding(5 * SECOND), (0, 17, 24), 34, [19]),
    ],
)
def test_handlers_and_queries_show_the_same_windows_at_the_end_of_a_retention(
    kind: Any, times: tuple[int, ...], last: int, shown: list[int]
) -> None:
    app = App("shop", broker=URL)
    clicks = app.topic("clicks", key_type=str, value_type=int)
    store = app.window_store("tens", kind, retention=20 * SECOND, aggregate=aggregates.sum())
    seen: list[list[float]] = []
    every: list[Window] = []

    @app.actor(clicks, stores=[store])
    async def count(ctx: Context, number: int) -> None:
        every.extend(window for window, _ in store.add(ctx.key, number) if ctx.key == "a")
        seen.append([seconds(window)[0] for window, _ in store.fetch("a")])
        assert [seconds(window)[0] for window in every if store.get("a", window) is not None] == seen[-1]

    with ActorTestDriver(app, partitions=1) as driver:
        for key, at_s in (*(("a", at_s) for at_s in times), ("z", last)):
            driver.send(clicks, key=key, value=1, timestamp_ms=at(at_s))
        # Of sessions the end counts, which belongs to them; of other windows the start.
        assert seen[-1] == shown
        assert [seconds(window)[0] for window in driver.windows(store, "a")] == shown
