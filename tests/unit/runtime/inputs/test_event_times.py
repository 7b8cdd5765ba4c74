"""Topics with `timestamp=`, on the test driver: a field of the value is the time of a record."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from actors import (
    Actor,
    App,
    ConfigurationError,
    Context,
    HandlerFailedError,
    Session,
    Tumbling,
    UndecodableRecordError,
    aggregates,
    receive,
)
from actors._core.event_time import NoTimeError
from actors.ports import TopicPartition
from actors.replay.replay import Replayer
from actors.runtime.inputs.inbox import Inbox
from actors.testing import ActorTestDriver

NOON_MS = 1_700_049_600_000


class Order(msgspec.Struct):
    amount: int
    at_ms: Any = None


class World:
    """An app whose actor notes the messages that its handler gets, with their times."""

    def __init__(self, *, timestamp: Any = lambda order: order.at_ms, **options: Any) -> None:
        self.app = app = App("shop", broker="kafka://127.0.0.1:1")
        self.orders = app.topic("orders", key_type=str, value_type=Order, timestamp=timestamp)
        self.refunds = app.topic("refunds", key_type=str, value_type=Order, timestamp=timestamp)
        self.plain = app.topic("plain", key_type=str, value_type=Order)
        self.out = app.topic("out", key_type=str, value_type=int)
        self.amounts = app.store("amounts")
        self.seen: list[tuple[int, int]] = []

        @app.actor(self.orders, self.refunds, self.plain, stores=[self.amounts], **options)
        async def note(ctx: Context, order: Order) -> None:
            if order.amount == 13:
                raise ValueError("thirteen")
            self.seen.append((order.amount, ctx.timestamp_ms))
            self.amounts.set(ctx.key, [*self.amounts.get(ctx.key, []), order.amount])
            ctx.send(self.out, key=ctx.key, value=order.amount)

        self.note = note


@pytest.mark.parametrize("options", [{}, {"concurrency": 4}], ids=str)
def test_a_field_is_the_time_of_messages_and_outputs(options: dict[str, Any]) -> None:
    world = World(**options)
    with ActorTestDriver(world.app, partitions=1) as driver:
        driver.send(world.orders, key="a", value=Order(1, NOON_MS), timestamp_ms=5)
        driver.send(world.plain, key="a", value=Order(2, NOON_MS), timestamp_ms=6)
        assert world.seen == [(1, NOON_MS), (2, 6)]
        assert [(sent.value, sent.timestamp_ms) for sent in driver.outputs(world.out)] == [(1, NOON_MS), (2, 6)]


def test_inputs_are_merged_by_it() -> None:
    world = World()
    with ActorTestDriver(world.app, partitions=1) as driver:
        # By their own timestamps they would come in another order.
        driver.crash(settle=False)
        driver.post(world.orders, key="a", value=Order(1, NOON_MS + 3), timestamp_ms=1)
        driver.post(world.refunds, key="a", value=Order(2, NOON_MS + 1), timestamp_ms=2)
        driver.post(world.orders, key="a", value=Order(3, NOON_MS + 4), timestamp_ms=3)
        driver.post(world.refunds, key="a", value=Order(4, NOON_MS + 2), timestamp_ms=4)
        driver.settle()
        assert [amount for amount, _ in world.seen] == [2, 4, 1, 3]


WRONG = [
    (-1, "returned -1: times are from 0 to"),
    (None, "returned None, not a number"),
    ("noon", "returned 'noon', not a number"),
]


@pytest.mark.parametrize(("at_ms", "text"), WRONG, ids=str)
@pytest.mark.parametrize("options", [{}, {"concurrency": 4}], ids=str)
def test_a_wrong_time_stops_the_partition_in_front_of_it(options: dict[str, Any], at_ms: Any, text: str) -> None:
    world = World(**options)
    with ActorTestDriver(world.app, partitions=1) as driver:
        driver.send(world.orders, key="a", value=Order(1, NOON_MS))
        with pytest.raises(UndecodableRecordError) as raised:
            driver.send(world.orders, key="a", value=Order(2, at_ms))
        said = str(raised.value)
        for part in ("orders[0]", "offset 1", "key 'a'", "timestamp= of topic orders", text):
            assert part in said, said
        assert [amount for amount, _ in world.seen] == [1]
        assert driver.get(world.amounts, "a") == [1]


def test_a_function_that_raises_is_named() -> None:
    world = World(timestamp=lambda order: order.nothing)
    with ActorTestDriver(world.app, partitions=1) as driver:
        with pytest.raises(UndecodableRecordError, match="orders raised AttributeError") as raised:
            driver.send(world.orders, key="a", value=Order(1))
        assert isinstance(raised.value.__cause__, NoTimeError)
        assert isinstance(raised.value.__cause__.__cause__, AttributeError)


@pytest.mark.parametrize("options", [{}, {"concurrency": 4}], ids=str)
def test_skip_goes_on_behind_it(options: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    world = World(on_error="skip", **options)
    with ActorTestDriver(world.app, partitions=1) as driver, caplog.at_level(logging.ERROR):
        for amount, at_ms in [(1, NOON_MS), (2, None), (3, NOON_MS + 1)]:
            driver.post(world.orders, key="a", value=Order(amount, at_ms))
        driver.settle()
        assert [amount for amount, _ in world.seen] == [1, 3]
        assert "offset 1: timestamp= of topic orders returned None" in caplog.text


def test_a_parked_one_gets_its_time_when_the_function_is_mended() -> None:
    known: dict[int, int] = {1: NOON_MS}
    world = World(on_error="park", timestamp=lambda order: known[order.amount])
    with ActorTestDriver(world.app, partitions=1) as driver:
        for amount in (1, 2, 2, 1):
            driver.send(world.orders, key="a", value=Order(amount), timestamp_ms=7)
        first, *behind = driver.parked(world.note)
        assert "raised KeyError: 2" in str(first.error)
        assert first.value == Order(2)
        assert [(one.value.amount, one.error) for one in behind] == [(2, None), (1, None)]
        driver.retry_parked(world.note, "a")
        assert [one.attempts for one in driver.parked(world.note)] == [2, 0, 0]
        known[2] = NOON_MS + 5
        driver.retry_parked(world.note, "a")
        assert world.seen == [(1, NOON_MS), *[(2, NOON_MS + 5)] * 2, (1, NOON_MS)]


def test_a_message_that_was_parked_for_its_handler_keeps_its_time() -> None:
    world = World(on_error="park")
    with ActorTestDriver(world.app, partitions=1) as driver:
        driver.send(world.orders, key="a", value=Order(13, NOON_MS), timestamp_ms=7)
        (parked,) = driver.parked(world.note)
        assert parked.timestamp_ms == NOON_MS


@pytest.mark.parametrize(
    ("sent", "error", "text"),
    [
        ({"key": b"a", "value": b"{", "raw": True}, UndecodableRecordError, "it doesn't decode"),
        ({"key": "a", "value": Order(13, NOON_MS)}, HandlerFailedError, "thirteen"),
        ({"key": "a", "value": None}, UndecodableRecordError, "the value is null"),
    ],
    ids=["undecodable", "handler", "null"],
)
def test_other_errors_are_as_without_it(sent: Any, error: Any, text: str) -> None:
    world = World()
    with ActorTestDriver(world.app, partitions=1) as driver, pytest.raises(error, match=text):
        driver.send(world.orders, **sent)


def test_a_tombstone_keeps_its_own_timestamp() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=Order, timestamp=lambda order: order.at_ms)
    seen: list[tuple[Any, int]] = []

    @app.actor(orders, tombstones=True)
    async def note(ctx: Context, order: Order | None) -> None:
        seen.append((order, ctx.timestamp_ms))

    with ActorTestDriver(app, partitions=1) as driver:
        driver.send(orders, key="a", value=None, timestamp_ms=7)
    assert seen == [(None, 7)]


def test_class_actors_and_other_keys() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=Order, timestamp=lambda order: order.at_ms)
    seen: list[tuple[Any, int]] = []

    @app.actor(orders, by=lambda order: f"n{order.amount}")
    class Note(Actor[int]):
        @receive
        async def see(self, order: Order) -> None:
            seen.append((self.key, self.ctx.timestamp_ms))

    with ActorTestDriver(app, partitions=2) as driver:
        driver.send(orders, key="a", value=Order(4, NOON_MS), timestamp_ms=7)
    assert seen == [("n4", NOON_MS)]


def test_windows_go_by_it_and_a_record_without_a_time_moves_no_stream_time() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=Order, timestamp=lambda order: order.at_ms)
    sums = app.window_store("sums", Tumbling(minutes=1), aggregate=aggregates.sum())
    times: list[int] = []

    @app.actor(orders, stores=[sums], on_error="skip")
    async def add(ctx: Context, order: Order) -> None:
        times.append(ctx.stream_ms)
        sums.add(ctx.key, order.amount)

    with ActorTestDriver(app, partitions=1) as driver:
        for amount, at_ms in [(1, NOON_MS), (2, None), (4, NOON_MS + 59_000), (8, NOON_MS + 10)]:
            driver.send(orders, key="a", value=Order(amount, at_ms))
        assert times == [NOON_MS, NOON_MS + 59_000, NOON_MS + 59_000]
        assert driver.windows(sums, "a") == {(NOON_MS, NOON_MS + 60_000): 13}


def test_stream_time_timers_go_by_it() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=Order, timestamp=lambda order: order.at_ms)
    seen: list[int] = []

    @app.actor(orders, timers=True, on_error="skip")
    async def note(ctx: Context, order: Order) -> None:
        seen.append(order.amount)
        if order.amount == 1:
            ctx.schedule(Order(100), after=timedelta(minutes=1), stream_time=True)

    with ActorTestDriver(app, partitions=1) as driver:
        driver.send(orders, key="a", value=Order(1, NOON_MS))
        # Its own timestamp is the virtual time; it has none, and isn't handled.
        driver.send(orders, key="a", value=Order(2, None), timestamp_ms=NOON_MS + 10_000_000)
        driver.send(orders, key="a", value=Order(3, NOON_MS + 59_999))
        assert seen == [1, 3]
        driver.send(orders, key="a", value=Order(4, NOON_MS + 60_000))
        assert seen == [1, 3, 4, 100]


def test_a_replay_hands_out_the_same_times() -> None:
    world = World()
    with ActorTestDriver(world.app, partitions=1) as driver:
        driver.send(world.orders, key="a", value=Order(1, NOON_MS), timestamp_ms=5)
        log = driver._cluster.fetch(TopicPartition("orders", 0), 0, 10)[0]
    replayer = Replayer.of(world.app, world.note)
    rows = list(replayer.run(0, [(0, record) for record in log], partition_count=1))
    assert world.seen == [(1, NOON_MS)] * 2
    assert [row.value for row in rows if row.store == "amounts"] == [b"[1]"]


def test_topics_without_it_are_left_alone() -> None:
    inbox = Inbox(10, lambda: None)
    inbox.open([0])
    records: list[Any] = [Order(1)]
    records[0] = type("Record", (), {"offset": 0})()
    inbox.put(0, records)
    assert inbox.take()[0][1] is records


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("at_ms", r"app.topic\('orders'\): timestamp= can't be called: it is 'at_ms'"),
        (lambda: 1, r"app.topic\('orders'\): timestamp= can't be called with one argument"),
    ],
    ids=["text", "no argument"],
)
def test_what_cant_be_called_is_refused(given: Any, text: str) -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    with pytest.raises(ConfigurationError, match=text):
        app.topic("orders", timestamp=given)


def test_async_functions_are_refused() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")

    async def later(_: Any) -> int:
        return 1

    with pytest.raises(ConfigurationError, match="is async: make it a plain function"):
        app.topic("orders", timestamp=later)


def test_sessions_by_a_field() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=Order, timestamp=lambda order: order.at_ms)
    visits = app.window_store("visits", Session(timedelta(seconds=5)), aggregate=aggregates.count())

    @app.actor(orders, stores=[visits])
    async def add(ctx: Context, order: Order) -> None:
        visits.add(ctx.key, order)

    with ActorTestDriver(app, partitions=1) as driver:
        for at_s in (0, 4):
            driver.send(orders, key="a", value=Order(1, NOON_MS + at_s * 1000))
        assert driver.windows(visits, "a") == {(NOON_MS, NOON_MS + 4000): 2}
