"""Inputs that are read by another key than theirs."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
import pytest

from actors import App, ConfigurationError, Context, HandlerFailedError, OnError, aggregates
from actors._core.partitioner import MURMUR2
from actors._core.task.policy import Then
from actors.ports import TopicPartition
from actors.replay.replay import Replayer
from actors.testing import ActorTestDriver


class Payment(msgspec.Struct):
    order_id: str | None
    cents: int


class World:
    """Payments, keyed by customer or not at all, summed up by order."""

    def __init__(self, by: Any = "order_id", **options: Any) -> None:
        self.app = app = App("shop", store="memory://")
        self.payments = app.topic("payments", key_type=str, value_type=Payment)
        self.sums = app.store("sums", value_type=int)
        self.seen: list[tuple[Any, int, list[tuple[str, bytes]]]] = []

        @app.actor(self.payments, by=by, stores=[self.sums], **options)
        async def add_up(ctx: Context, payment: Payment) -> None:
            self.seen.append((ctx.key, ctx.timestamp_ms, list(ctx.headers)))
            self.sums.set(ctx.key, self.sums.get(ctx.key, 0) + payment.cents)

        self.add_up = add_up


@pytest.mark.parametrize("by", ["order_id", lambda payment: payment.order_id])
def test_records_come_by_their_new_key_with_their_timestamps_and_headers(by: Any) -> None:
    world = World(by)
    with ActorTestDriver(world.app) as driver:
        for customer in ("ada", "bob", None):
            driver.send(
                world.payments, key=customer, value=Payment("o1", 5), timestamp_ms=1234, headers=[("trace", b"x")]
            )
        assert driver.get(world.sums, "o1") == 15
        assert world.seen == [("o1", 1234, [("trace", b"x")])] * 3
        driver.crash(keep_disk=False)
        driver.send(world.payments, key="ada", value=Payment("o1", 1))
        assert driver.get(world.sums, "o1") == 16


def test_actors_that_read_one_topic_by_different_keys_share_a_reader() -> None:
    world = World()
    cents = world.app.store("cents", value_type=int)

    @world.app.actor(world.payments, by=lambda payment: str(payment.cents), stores=[cents])
    async def count(ctx: Context, payment: Payment) -> None:
        cents.set(ctx.key, cents.get(ctx.key, 0) + 1)

    assert list(world.app.actors) == ["payments-repartition", "add_up", "count"]
    with ActorTestDriver(world.app) as driver:
        driver.send(world.payments, key="ada", value=Payment("o1", 5))
        driver.send(world.payments, key="ada", value=Payment("o2", 5))
        assert (driver.items(world.sums), driver.items(cents)) == ({"o1": 5, "o2": 5}, {"5": 2})


def test_one_of_several_inputs_is_read_by_another_key() -> None:
    app = App("shop", store="memory://")
    orders = app.topic("orders", key_type=str, value_type=int)
    payments = app.topic("payments", key_type=str, value_type=Payment)
    due = app.store("due", value_type=int)

    @app.actor(orders, payments, by={payments: "order_id"}, stores=[due])
    async def join(ctx: Context, value: int | Payment) -> None:
        due.set(ctx.key, due.get(ctx.key, 0) + (value if isinstance(value, int) else -value.cents))

    with ActorTestDriver(app) as driver:
        driver.send(orders, key="o1", value=100)
        driver.send(payments, key="ada", value=Payment("o1", 40))
        assert driver.get(due, "o1") == 60


def test_the_new_keys_are_written_and_placed_as_those_of_the_other_inputs() -> None:
    app = App("shop", store="memory://")
    orders = app.topic("orders", key_type=str, key_serializer="json", value_type=int, partitioner="crc32")
    payments = app.topic("payments", key_type=str, value_type=Payment)
    due = app.store("due", key_serializer="json", value_type=int)

    @app.actor(payments, orders, by={payments: "order_id"}, stores=[due])
    async def join(ctx: Context, value: int | Payment) -> None:
        due.set(ctx.key, due.get(ctx.key, 0) + (value if isinstance(value, int) else -value.cents))

    with ActorTestDriver(app) as driver:
        for number in range(8):
            driver.post(orders, key=f"o{number}", value=100)
            driver.post(payments, key="ada", value=Payment(f"o{number}", 40))
        driver.settle()
        assert driver.items(due) == {f"o{number}": 60 for number in range(8)}


def test_what_was_forwarded_before_the_actor_began_is_read_whatever_the_reset_policy() -> None:
    app = App("shop", store="memory://", consumer_auto_offset_reset="latest")
    payments = app.topic("payments", key_type=str, value_type=Payment)
    seen: list[tuple[str, int]] = []

    @app.actor(payments, by="order_id")
    async def add_up(ctx: Context, payment: Payment) -> None:
        seen.append((ctx.key, payment.cents))

    class Early(ActorTestDriver):
        """Has a record in each topic before the tasks begin."""

        def _start(self) -> None:
            for cents, topic in enumerate(("payments", "shop--add_up-payments-repartition"), 1):
                value = msgspec.json.encode(Payment("o1", cents))
                self._cluster.produce(TopicPartition(topic, MURMUR2.home(b"o1", 3)), [(b"o1", value, [], 1)])
            super()._start()

    with Early(app) as driver:
        driver.send(payments, key="ada", value=Payment("o1", 3))
    assert seen == [("o1", 2), ("o1", 3)]


def test_state_is_recomputed_from_the_records_by_their_new_key() -> None:
    world = World()
    with ActorTestDriver(world.app, partitions=1) as driver:
        for order in ("o1", "o2", "o1"):
            driver.send(world.payments, key="ada", value=Payment(order, 5))
        replayer = Replayer.of(world.app, "add_up")
        log, _ = driver._cluster.fetch(TopicPartition(replayer.topics[0], 0), 0, 1 << 30)
    rows = list(replayer.run(0, [(0, record) for record in log], partition_count=1))
    assert [(row.key, row.value) for row in rows if row.store == "sums"] == [(b"o1", b"10"), (b"o2", b"5")]


def test_a_record_without_a_key_follows_the_actors_policy_and_is_named() -> None:
    world = World()
    with ActorTestDriver(world.app) as driver, pytest.raises(HandlerFailedError, match="gives no key") as raised:
        driver.send(world.payments, key="ada", value=Payment(None, 5))
    assert raised.value.topic == "payments"
    skipping = World(on_error="skip")
    with ActorTestDriver(skipping.app) as driver:
        driver.send(skipping.payments, key="ada", value=Payment(None, 5))
        driver.send(skipping.payments, key="ada", value=Payment("o1", 5))
        assert driver.items(skipping.sums) == {"o1": 5}


def test_a_function_that_raises_follows_the_policy_too() -> None:
    world = World(lambda payment: 1 / 0, on_error="park")
    with ActorTestDriver(world.app) as driver:
        driver.send(world.payments, key="ada", value=Payment("o1", 5))
        [parked] = driver.parked("payments-repartition")
        assert "ZeroDivisionError" in str(parked.error)


class TwoReaders(World):
    """Payments that a second actor counts by their amount, which all have; 13 it tells nobody."""

    def __init__(self, then: Then, **options: Any) -> None:
        policy = OnError(then=then, **options)
        super().__init__("order_id", on_error=policy)
        self.cents = self.app.store("cents", value_type=int)

        def amount(payment: Payment) -> str | None:
            return None if payment.cents == 13 else str(payment.cents)

        @self.app.actor(self.payments, by=amount, stores=[self.cents], on_error=policy)
        async def count(ctx: Context, payment: Payment) -> None:
            self.cents.set(ctx.key, self.cents.get(ctx.key, 0) + 1)


def test_what_is_skipped_for_one_actor_comes_to_the_others_once(caplog: pytest.LogCaptureFixture) -> None:
    world = TwoReaders("skip", dead_letters=True)
    with ActorTestDriver(world.app, partitions=1) as driver:
        for payment in (Payment(None, 5), Payment("o1", 13), Payment(None, 13), Payment("o1", 5)):
            driver.send(world.payments, key="ada", value=payment)
        driver.crash(keep_disk=False)
        assert (driver.items(world.sums), driver.items(world.cents)) == ({"o1": 18}, {"5": 2})
        for actor, wanted in (("add_up", [None, None]), ("count", ["o1", None])):
            letters = driver.dead_letters(actor)
            assert [(letter.key, letter.value.order_id) for letter in letters] == [("ada", order) for order in wanted]
            whys = [dict(letter.headers)["fa-error"].decode() for letter in letters]
            assert all(why.endswith(f"NoKeyError: by= of actor {actor} gives no key for it") for why in whys)
        assert driver.dead_letters("payments-repartition") == []
    logged = [record.getMessage() for record in caplog.records if "skipped" in record.getMessage()]
    assert logged == [
        f"payments[0] offset {offset}: by= of actor {actor} gives no key for it: skipped after 1 attempts"
        for offset, actor in [(0, "add_up"), (1, "count"), (2, "add_up"), (2, "count")]
    ]


def test_what_is_skipped_is_a_dead_letter_with_the_types_of_the_topic_that_it_came_from() -> None:
    app = App("shop", store="memory://")
    orders = app.topic("orders", key_type=str, value_type=int)
    payments = app.topic("payments", key_type=int, value_type=Payment)
    policy = OnError(then="skip", dead_letters=True)

    @app.actor(orders, payments, by={payments: "order_id"}, on_error=policy)
    async def join(ctx: Context, value: int | Payment) -> None:
        """Take all."""

    with ActorTestDriver(app) as driver:
        driver.send(payments, key=7, value=Payment(None, 40))
        assert [(letter.key, letter.value) for letter in driver.dead_letters(join)] == [(7, Payment(None, 40))]


def test_what_is_skipped_for_one_actor_is_tried_as_often_as_all_else() -> None:
    tries: list[str] = []

    def flaky(payment: Payment) -> str:
        tries.append(payment.order_id or "")
        if tries.count(tries[-1]) < int(tries[-1]):
            raise ConnectionError("not yet")
        return tries[-1]

    world, policy = World(flaky, on_error=OnError(retries=2, then="skip")), OnError(retries=2, then="skip")
    cents = world.app.store("cents", value_type=int)

    @world.app.actor(world.payments, by=lambda payment: str(payment.cents), stores=[cents], on_error=policy)
    async def count(ctx: Context, payment: Payment) -> None:
        cents.set(ctx.key, cents.get(ctx.key, 0) + 1)

    with ActorTestDriver(world.app) as driver:
        for times in ("1", "3", "4"):
            driver.send(world.payments, key="ada", value=Payment(times, 5))
        assert (tries, driver.items(world.sums), driver.items(cents)) == (
            ["1", *["3"] * 3, *["4"] * 3],
            {"1": 5, "3": 5},
            {"5": 3},
        )


def test_what_is_parked_for_one_actor_is_held_back_from_the_others_until_it_is_retried() -> None:
    is_mended = False

    def order_of(payment: Payment) -> str | None:
        return "o0" if payment.order_id is None and is_mended else payment.order_id

    world = World(order_of, on_error="park")
    cents = world.app.store("cents", value_type=int)

    @world.app.actor(world.payments, by=lambda payment: str(payment.cents), stores=[cents], on_error="park")
    async def count(ctx: Context, payment: Payment) -> None:
        cents.set(ctx.key, cents.get(ctx.key, 0) + 1)

    with ActorTestDriver(world.app) as driver:
        driver.send(world.payments, key="ada", value=Payment(None, 5))
        driver.send(world.payments, key="ada", value=Payment("o1", 5))
        driver.send(world.payments, key="bob", value=Payment("o1", 5))
        assert (driver.items(world.sums), driver.items(cents)) == ({"o1": 5}, {"5": 1})
        assert [(one.key, one.attempts) for one in driver.parked("payments-repartition")] == [("ada", 1), ("ada", 0)]
        is_mended = True
        driver.retry_parked("payments-repartition", "ada")
        assert (driver.items(world.sums), driver.items(cents)) == ({"o0": 5, "o1": 10}, {"5": 3})
        assert driver.parked("payments-repartition") == []


def test_what_stops_for_one_actor_is_held_back_from_the_others() -> None:
    world = TwoReaders("stop")
    with ActorTestDriver(world.app) as driver:
        with pytest.raises(HandlerFailedError, match="by= of actor add_up gives no key for it") as raised:
            driver.send(world.payments, key="ada", value=Payment(None, 5))
        assert "NoKeyError" in repr(raised.value.__cause__.__cause__)
        assert (driver.items(world.sums), driver.items(world.cents)) == ({}, {})


@pytest.mark.parametrize(
    ("by", "value", "why"),
    [
        (lambda payment: 1 / 0, Payment("o1", 5), "raised ZeroDivisionError: division by zero"),
        (
            lambda payment: payment.cents / 2,
            Payment("o1", 5),
            "gives a key that isn't its input's: expected str, got float",
        ),
        ("order_id", None, "its value is null"),
    ],
)
def test_what_is_wrong_with_a_key_is_said_with_actor_and_record(by: Any, value: Any, why: str) -> None:
    world = World(by)
    with ActorTestDriver(world.app) as driver, pytest.raises(HandlerFailedError, match=why) as raised:
        driver.send(world.payments, key="ada", value=value)
    text = str(raised.value)
    assert "offset 0 key 'ada': " + ("its value" if value is None else "by= of actor add_up") in text
    assert "by= of actor add_up" in text
    assert "PartlyFailedError" not in text
    assert "actor payments-repartition" not in text


def test_an_input_that_is_read_by_another_key_has_a_handler_of_its_own() -> None:
    app = App("shop", store="memory://")
    orders = app.topic("orders", key_type=str, value_type=int)
    payments = app.topic("payments", key_type=str, value_type=Payment)
    seen: list[Any] = []

    @app.actor(orders, payments, by={payments: "order_id"}, timers=True)
    async def join(ctx: Context, value: int) -> None:
        seen.append((ctx.key, value))

    @app.on(join, payments)
    async def paid(ctx: Context, payment: Payment) -> None:
        seen.append((ctx.key, payment))

    with ActorTestDriver(app) as driver:
        driver.send(orders, key="o1", value=100)
        driver.send(payments, key="ada", value=Payment("o1", 40))
    assert seen == [("o1", 100), ("o1", Payment("o1", 40))]
    with pytest.raises(ConfigurationError, match="behind the first, payments, not for topic refunds"):
        app.on(join, app.topic("refunds"))(lambda ctx, value: None)


def test_names_that_topics_cant_have_are_refused() -> None:
    for app_id, topic, actor in [("a", "t" * 89, "m"), ("a" * 140, "t" * 50, "m" * 50)]:
        app = App(app_id, store="memory://")
        with pytest.raises(ConfigurationError, match=r"can't be read by another key: its name has up to 88 characters"):
            app.actor(app.topic(topic), by="x", name=actor)(lambda ctx, value: None)


class Refund(Payment):
    reason: Unknown = None  # type: ignore[name-defined] # noqa: F821  as of an import for type checkers


def test_a_field_may_be_of_a_base_class_or_a_type_that_is_not_there() -> None:
    app = App("shop", store="memory://")
    for by in ("order_id", "reason"):
        app.actor(app.topic(by, value_type=Refund), by=by, name=by)(lambda ctx, value: None)


class Later:
    async def __call__(self, payment: Payment) -> str:
        return "o1"


def test_what_cant_be_meant_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no field 'orderid', did you mean order_id"):
        World("orderid")
    with pytest.raises(ConfigurationError, match="no field ''"):
        World("")
    with pytest.raises(ConfigurationError, match="is async"):
        World(Later())
    with pytest.raises(ConfigurationError, match="an input in by= has to be a topic"):
        World({"payments": "order_id"})
    with pytest.raises(ConfigurationError, match="by= of topic payments"):
        World(lambda: "x")
    app = App("shop", store="memory://")
    orders, payments = app.topic("orders"), app.topic("payments")
    with pytest.raises(ConfigurationError, match="say of which by= is"):
        app.actor(orders, payments, by="x", name="a")(lambda ctx, value: None)
    with pytest.raises(ConfigurationError, match="by= is for topic refunds"):
        app.actor(orders, payments, by={app.topic("refunds"): "x"}, name="b")(lambda ctx, value: None)
    world = World()
    with pytest.raises(ConfigurationError, match="different on_error="):
        world.app.actor(world.payments, by="cents", on_error="skip", name="c")(lambda ctx, value: None)


class Bid(msgspec.Struct):
    bidder: int | None
    lot: UUID
    price: float
    name: str = ""


class Bids:
    """Counts bids by a field, in a store whose keys are of its type."""

    def __init__(self, by: Any, key_type: Any, **options: Any) -> None:
        self.app = app = App("bids", store="memory://")
        self.bids = app.topic("bids", key_type=str, value_type=Bid)
        self.counts = app.store("counts", key_type=key_type, value_type=int)
        self.users = app.topic("users", key_type=key_type, value_type=Bid)
        inputs = [self.users, self.bids] if options.pop("beside", False) else [self.bids]
        by = {self.bids: by} if len(inputs) > 1 else by

        @app.actor(*inputs, by=by, stores=[self.counts], **options)
        async def count(ctx: Context, bid: Bid) -> None:
            self.counts.set(ctx.key, self.counts.get(ctx.key, 0) + 1)


LOT = UUID(int=7)


@pytest.mark.parametrize(
    ("by", "key_type", "key"),
    [
        ("bidder", int, 7),
        (lambda bid: bid.bidder, str, "7"),
        ("name", str, "n"),
    ],
)
@pytest.mark.parametrize("beside", [False, True])
def test_keys_of_other_types_than_text(by: Any, key_type: Any, key: Any, beside: bool) -> None:
    world = Bids(by, key_type, beside=beside)
    with ActorTestDriver(world.app) as driver:
        driver.send(world.bids, key="1", value=Bid(7, LOT, 1.5, "n"))
        if beside:
            driver.send(world.users, key=key, value=Bid(1, LOT, 1.5))
        assert driver.items(world.counts) == {key: 1 + beside}


def test_an_int_field_beside_an_input_with_text_as_keys_becomes_text() -> None:
    world = Bids("bidder", str, beside=True)
    with ActorTestDriver(world.app) as driver:
        driver.send(world.bids, key="1", value=Bid(7, LOT, 1.5))
        driver.send(world.users, key="7", value=Bid(1, LOT, 1.5))
        assert driver.items(world.counts) == {"7": 2}


@pytest.mark.parametrize(
    ("by", "key_type", "beside", "text"),
    [
        ("lot", str, False, "by='lot' of topic bids gives UUID, and the keys are str"),
        ("price", str, False, "by='price' of topic bids gives float, and the keys are str: give a function that"),
        (
            "name",
            int,
            True,
            "by='name' of topic bids gives str, and the keys are int: give a function that returns int",
        ),
        ("bidder", UUID, True, "gives int, and the keys are UUID"),
    ],
)
def test_a_field_that_can_be_no_key_is_refused_where_it_is_declared(
    by: str, key_type: Any, beside: bool, text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        Bids(by, key_type, beside=beside)


def test_groups_and_joins_take_an_int_field_for_text_and_refuse_others_where_they_are_declared() -> None:
    app = App("bids", store="memory://")
    bids = app.topic("bids", key_type=str, value_type=Bid)
    table, users = app.table(bids), app.table(app.topic("users", key_type=str, value_type=str))
    with pytest.raises(ConfigurationError, match="actor prices: by='price' of topic bids gives float"):
        table.aggregate("prices", by="price", aggregate=aggregates.count())
    with pytest.raises(ConfigurationError, match="on='price' of topic bids gives float, and the keys are str"):
        app.join(table, users, on="price", name="priced")(lambda ctx, bid, user: None)
    bidders = table.aggregate("bidders", by="bidder", aggregate=aggregates.count())
    app.actor(bids, stores=[table], name="keep")(lambda ctx, bid: None)
    with ActorTestDriver(app) as driver:
        driver.send(bids, key="1", value=Bid(7, LOT, 1.5))
        assert driver.items(bidders) == {"7": 1}
