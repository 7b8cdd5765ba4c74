"""Joins of tables by a foreign key: results follow both tables, whoever dies, and none comes after a newer one."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from actors import App, ConfigurationError, Context, HandlerFailedError, Table, UndecodableRecordError
from actors._core.windows.foreign_keys import Answer, Subscription, digest, encode_message, within
from actors.declare.streams import foreign_joins
from actors.runtime.message import grouping
from actors.testing import ActorTestDriver

NOON_MS = 1_700_049_600_000


class Order(msgspec.Struct):
    customer: int | None
    number: int


class Shop:
    """Orders by text keys, joined with customers by whole numbers; each result is sent to `out`."""

    def __init__(self, how: str = "inner", rows: Any = Order, **options: Any) -> None:
        self.app = app = App("shop", broker="kafka://127.0.0.1:1")
        self.orders: Table[str, Order] = app.table(app.topic("orders", key_type=str, value_type=rows))
        self.customers: Table[int, int] = app.table(app.topic("customers", key_type=int, value_type=int))
        self.subscriptions = app.topic("shop--joined-orders-repartition", key_type=int, value_type=bytes)
        self.answers = app.topic("shop--joined-customers-repartition", key_type=str, value_type=bytes)
        self.out = app.topic("out", key_type=str)

        @app.join(self.orders, self.customers, how=how, **{"on": "customer", **options})
        async def joined(ctx: Context, order: Order | None, customer: int | None) -> None:
            if order is not None and order.number == 13:
                raise ValueError("unlucky")
            value = None if order is None else [order.customer, order.number, customer]
            ctx.send(self.out, key=ctx.key, value=value)

    def results(self, driver: ActorTestDriver) -> list[tuple[str, Any]]:
        """Return what was sent since the last call, as (key, value) without times."""
        return [(one.key, one.value) for one in driver.outputs(self.out)]

    def put(self, driver: ActorTestDriver, key: str, order: Order | None, at: int = 0) -> list[tuple[str, Any]]:
        """Send an order, and return the results."""
        driver.send(self.orders.topic, key=key, value=order, timestamp_ms=NOON_MS + at)
        return self.results(driver)

    def name(self, driver: ActorTestDriver, key: int, customer: int | None, at: int = 0) -> list[tuple[str, Any]]:
        """Send a customer, and return the results."""
        driver.send(self.customers.topic, key=key, value=customer, timestamp_ms=NOON_MS + at)
        return self.results(driver)


@pytest.fixture(params=["inner", "left"])
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def wanted(how: str, orders: dict[str, Order], customers: dict[int, int]) -> dict[str, Any]:
    rows = {
        key: (order, customers.get(-1 if order.customer is None else order.customer)) for key, order in orders.items()
    }
    return {
        key: [order.customer, order.number, customer]
        for key, (order, customer) in rows.items()
        if customer is not None or how == "left"
    }


@pytest.mark.parametrize("page", [256, 2])
def test_results_follow_both_tables_in_order(how: str, page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "PAGE_ROWS", page)
    rng, shop = random.Random(f"{how}{page}"), Shop(how)
    orders: dict[str, Order] = {}
    customers: dict[int, int] = {}
    shown: dict[str, Any] = {}
    newest: dict[Any, int] = {}
    with ActorTestDriver(shop.app, partitions=3) as driver:
        for number in range(1_000, 1_300):
            at_ms = NOON_MS + number
            if rng.random() < 0.6:
                key, order = rng.choice("abcdefghij"), Order(rng.choice([1, 2, 3, 4, None]), number)
                if rng.random() < 0.2:
                    orders.pop(key, None)
                    driver.post(shop.orders.topic, key=key, value=None, timestamp_ms=at_ms)
                else:
                    orders[key] = order
                    driver.post(shop.orders.topic, key=key, value=order, timestamp_ms=at_ms)
            else:
                name = rng.choice([1, 2, 3, 4])
                customers[name] = number
                if rng.random() < 0.3:
                    del customers[name]
                driver.post(shop.customers.topic, key=name, value=customers.get(name), timestamp_ms=at_ms)
            if number % 60 == 50:
                driver.crash(keep_disk=number % 120 == 50, settle=False)
            if number % 150 == 149:
                driver.settle()
        driver.settle()
        for key, value in shop.results(driver):
            assert value is not None or shown.get(key) is not None, f"the end of {key} is told twice"
            shown[key] = value
            if value is not None:
                customer, order_number, customer_number = value
                assert newest.get(key, 0) <= order_number
                newest[key] = order_number
                assert newest.get((key, customer), 0) <= (customer_number or 0) or customer_number is None
                newest[key, customer] = customer_number or newest.get((key, customer), 0)
        assert {key: value for key, value in shown.items() if value is not None} == wanted(how, orders, customers)
        assert len(orders) > 3
        named = {key: order for key, order in orders.items() if order.customer is not None}
        assert driver.items(shop.app.stores["joined-subscribers"]) == {
            within(b"%d" % (order.customer or 0), key.encode()): digest(msgspec.json.encode(order))
            for key, order in named.items()
        }


def test_an_inner_join_has_results_while_both_rows_are_there() -> None:
    shop = Shop()
    with ActorTestDriver(shop.app) as driver:
        assert shop.put(driver, "a", Order(1, 5)) == []
        assert shop.name(driver, 1, 100) == [("a", [1, 5, 100])]
        assert shop.put(driver, "b", Order(1, 6)) == [("b", [1, 6, 100])]
        assert shop.name(driver, 1, 101) in (
            [("a", [1, 5, 101]), ("b", [1, 6, 101])],
            [("b", [1, 6, 101]), ("a", [1, 5, 101])],
        )
        assert shop.put(driver, "a", Order(2, 5)) == [("a", None)]
        assert shop.put(driver, "a", Order(2, 7)) == []
        assert shop.name(driver, 1, 102) == [("b", [1, 6, 102])]
        assert shop.name(driver, 2, 200) == [("a", [2, 7, 200])]
        assert shop.put(driver, "a", Order(None, 8)) == [("a", None)]
        assert shop.put(driver, "a", Order(None, 9)) == []
        assert shop.put(driver, "a", None) == []
        assert shop.name(driver, 1, None) == [("b", None)]
        assert shop.name(driver, 1, None) == []
        assert shop.put(driver, "b", None) == []
        assert shop.name(driver, 1, 103) == []


def test_a_left_join_has_results_for_all_left_rows() -> None:
    shop = Shop("left")
    with ActorTestDriver(shop.app) as driver:
        assert shop.put(driver, "a", Order(None, 5)) == [("a", [None, 5, None])]
        assert shop.put(driver, "a", Order(1, 5)) == [("a", [1, 5, None])]
        assert shop.name(driver, 1, 100) == [("a", [1, 5, 100])]
        assert shop.put(driver, "a", Order(2, 6)) == [("a", [2, 6, None])]
        assert shop.name(driver, 1, None) == []
        assert shop.put(driver, "a", None) == [("a", None)]
        assert shop.put(driver, "a", None) == []


def test_a_result_has_the_later_time_of_its_rows_and_a_change_its_own() -> None:
    shop = Shop()
    with ActorTestDriver(shop.app) as driver:
        for topic, key, value, at in (
            (shop.customers.topic, 1, 100, 50),
            (shop.orders.topic, "a", Order(1, 5), 20),
            (shop.orders.topic, "a", Order(1, 6), 70),
            (shop.customers.topic, 1, 101, 60),
            (shop.orders.topic, "a", None, 65),
        ):
            driver.send(topic, key=key, value=value, timestamp_ms=NOON_MS + at)
        assert [one.timestamp_ms - NOON_MS for one in driver.outputs(shop.out)] == [50, 70, 60, 65]


def test_a_right_row_answers_its_subscribers_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is answered once; what a page finds changed has pages of its own."""
    monkeypatch.setattr(grouping, "PAGE_ROWS", 10)
    shop = Shop()
    with ActorTestDriver(shop.app, partitions=2) as driver:
        for number in range(35):
            driver.send(shop.orders.topic, key=f"k{number}", value=Order(1, 100 + number))
        driver.outputs(shop.subscriptions)
        results = shop.name(driver, 1, 7)
        assert sorted(results) == sorted((f"k{number}", [1, 100 + number, 7]) for number in range(35))
        pages = driver.outputs(shop.subscriptions)
        assert len(pages) == 3
        left_key = msgspec.msgpack.decode(pages[0].value)[0]
        stale = encode_message(Subscription(left_key, digest(b"6"), is_page=True))
        driver.send(shop.subscriptions, key=1, value=stale)
        assert shop.results(driver) == []
        again = encode_message(Subscription(left_key, digest(b"7"), is_page=True))
        driver.send(shop.subscriptions, key=1, value=again)
        assert len(shop.results(driver)) == 25


def test_pages_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "PAGE_BYTES", 1)
    shop = Shop()
    with ActorTestDriver(shop.app, partitions=1) as driver:
        for key in "abc":
            driver.send(shop.orders.topic, key=key, value=Order(1, 5))
        driver.outputs(shop.subscriptions)
        assert len(shop.name(driver, 1, 7)) == 3
        assert len(driver.outputs(shop.subscriptions)) == 2


def test_an_answer_for_a_former_value_is_dropped() -> None:
    shop = Shop()
    with ActorTestDriver(shop.app) as driver:
        shop.name(driver, 1, 100)
        shop.put(driver, "a", Order(1, 5))
        shop.put(driver, "a", Order(1, 6))
        for order, expected in ((Order(1, 5), []), (Order(1, 6), [("a", [1, 6, 99])])):
            raw = encode_message(Answer(digest(msgspec.json.encode(order)), b"99"))
            driver.send(shop.answers, key="a", value=raw)
            assert shop.results(driver) == expected
        shop.put(driver, "a", None)
        driver.send(shop.answers, key="a", value=raw)
        assert shop.results(driver) == []


def test_rows_that_were_there_before_the_join_are_taken_up(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "PAGE_ROWS", 3)
    shop = Shop(how)
    orders = {f"k{number}": Order(rng_key, 100 + number) for number, rng_key in enumerate([1, 2, None, 3] * 5)}
    groupings, shop.orders.groupings = shop.orders.groupings, []
    with ActorTestDriver(shop.app, partitions=2) as driver:
        for key, order in orders.items():
            if order.customer is not None:
                driver.send(shop.orders.topic, key=key, value=order)
        assert shop.name(driver, 1, 100) == []
        shop.orders.groupings = groupings
        for number in range(20):
            order = Order(None, 200 + number)
            driver.post(shop.orders.topic, key=f"new{number}", value=order, timestamp_ms=NOON_MS)
            orders[f"new{number}"] = order
        driver.settle()
        orders = {key: order for key, order in orders.items() if order.customer is not None or key.startswith("new")}
        assert dict(shop.results(driver)) == wanted(how, orders, {1: 100})


def test_rows_of_before_that_name_no_right_row_have_a_left_result() -> None:
    shop = Shop("left")
    groupings, shop.orders.groupings = shop.orders.groupings, []
    # Without a result of its own: as if the table had belonged to another actor.
    with pytest.MonkeyPatch.context() as patch, ActorTestDriver(shop.app, partitions=1) as driver:
        patch.setattr(foreign_joins._Left, "_tell", lambda *_: _nothing())
        shop.put(driver, "a", Order(None, 5))
        patch.undo()
        shop.orders.groupings = groupings
        assert shop.put(driver, "b", None) == [("a", [None, 5, None])]


async def _nothing() -> None:
    pass


@pytest.mark.parametrize("raw", [b"\xff", encode_message(Answer(b"d", b"no number")), b""])
def test_what_is_no_answer_is_undecodable(raw: bytes) -> None:
    shop = Shop()
    with (
        ActorTestDriver(shop.app, partitions=1) as driver,
        pytest.raises(UndecodableRecordError, match=r"shop--joined-customers-repartition\[0\] offset 0"),
    ):
        driver.send(shop.answers, key="a", value=raw)


@pytest.mark.parametrize("raw", [b"\xff", b"", b"\x93\x01\x02\x03"])
def test_what_is_no_subscription_is_undecodable(raw: bytes) -> None:
    shop = Shop()
    with (
        ActorTestDriver(shop.app, partitions=1) as driver,
        pytest.raises(UndecodableRecordError, match=r"shop--joined-orders-repartition\[0\] offset 0"),
    ):
        driver.send(shop.subscriptions, key=1, value=raw)


def test_a_row_of_which_on_raises_or_gives_no_key_stops_the_join() -> None:
    for on, text in (
        (lambda order: order.customer // 0, "on= of join joined raised ZeroDivisionError for the row of key 'a'"),
        (lambda order: "one", "on= of join joined gives 'one' for the row of key 'a', which isn't a key of the right"),
    ):
        shop = Shop(on=on)
        with ActorTestDriver(shop.app) as driver:
            with pytest.raises(HandlerFailedError) as caught:
                shop.put(driver, "a", Order(1, 5))
            assert text in str(caught.value)
            assert driver.items(shop.orders) == {}


def test_a_result_that_fails_is_skipped_and_the_row_stays() -> None:
    shop = Shop(on_error="skip")
    with ActorTestDriver(shop.app) as driver:
        shop.name(driver, 1, 100)
        assert shop.put(driver, "a", Order(1, 13)) == []
        assert driver.items(shop.orders) == {"a": Order(1, 13)}
        assert shop.put(driver, "a", Order(1, 14)) == [("a", [1, 14, 100])]


class Sale(msgspec.Struct):
    """What orders are after an upgrade that reads none of the earlier ones."""

    customer: int | None
    number: int
    currency: str


@pytest.mark.parametrize("then", ["stop", "skip", "park"])
@pytest.mark.parametrize("customer", [1, 2, None])
def test_a_left_row_that_the_new_type_cant_read_can_change(then: Any, customer: int | None) -> None:
    before, after = (Shop("left", rows, on_error=then) for rows in (Order, Sale))
    with ActorTestDriver(before.app) as driver:
        for number in (1, 2):
            before.name(driver, number, number * 100)
        before.put(driver, "a", Order(1, 5))
        driver.restart(after.app)
        result = [customer, 6, customer and customer * 100]
        assert after.put(driver, "a", Sale(customer, 6, "EUR")) == [("a", result)]
        assert list(driver.items(after.app.stores["joined-subscribers"])) == (
            [] if customer is None else [within(b"%d" % customer, b"a")]
        )
        assert after.put(driver, "a", None) == [("a", None)]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"how": "outer"}, "how='outer': a join by a foreign key is inner or left"),
        ({"how": "cross"}, "how='cross': a join by a foreign key is inner or left"),
        ({"on": "client"}, "on= of topic orders: there is no field 'client'"),
        ({"on": 5}, "on= of topic orders"),
        ({"on": lambda: 1}, "on= of topic orders can't be called with one argument"),
        ({"misplaced": "warn"}, "misplaced='warn': the two tables find each other's rows"),
        ({"name": "n" * 95}, "names have up to 100 letters"),
        ({"by": "customer"}, "by= is for two topics: leave it out"),
    ],
)
def test_joins_that_cant_be_meant(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        Shop(**options)


def test_a_join_of_a_table_with_itself_or_of_topics_by_a_foreign_key_is_refused() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    orders = app.table(app.topic("orders", key_type=str, value_type=Order))
    with pytest.raises(ConfigurationError, match="both sides are table orders: join two tables"):
        app.join(orders, orders, on="customer")
    with pytest.raises(ConfigurationError, match="on= is for two tables"):
        app.join(orders.topic, app.topic("customers", key_type=str), on="customer")


def test_topics_with_names_that_are_too_long_are_refused() -> None:
    app = App("s" * 180, broker="kafka://127.0.0.1:1")
    orders, customers = (app.table(app.topic(name * 8, key_type=str, value_type=Order)) for name in ("left", "right"))
    with pytest.raises(ConfigurationError, match=r"^join joined.* Kafka takes 249: give it a shorter name"):

        @app.join(orders, customers, on="customer", name="joined" * 5)
        async def joined(ctx: Context, order: Any, customer: Any) -> None:
            pass
