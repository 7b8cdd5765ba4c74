"""Topics that several actors read by their own key: `app.topic(..., shared=True)`."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from actors import Actor, App, ConfigurationError, Context, HandlerFailedError, OnError, receive
from actors.testing import ActorTestDriver


class Order(msgspec.Struct):
    customer: int
    cents: int


class Shop:
    """Two actors of one topic; with `by_customer` a third one by another key."""

    def __init__(self, *, shared: bool = True, by_customer: bool = False, on_error: Any = "stop") -> None:
        self.app = app = App("shop", broker="kafka://127.0.0.1:1")
        self.orders = app.topic("orders", key_type=str, value_type=Order, shared=shared)
        self.sums = app.store("sums", key_type=str, value_type=int)
        self.counts = app.store("counts", key_type=str, value_type=int)
        self.customers = app.store("customers", key_type=int, value_type=int)

        @app.actor(self.orders, stores=[self.sums], on_error=on_error)
        async def add(ctx: Context, order: Order) -> None:
            self.sums[ctx.key] = self.sums.get(ctx.key, 0) + order.cents

        @app.actor(self.orders, stores=[self.counts], on_error=on_error)
        async def count(ctx: Context, order: Order | None) -> None:
            self.counts[ctx.key] = self.counts.get(ctx.key, 0) + (order is not None)

        if by_customer:

            @app.actor(self.orders, by="customer", stores=[self.customers])
            async def per_customer(ctx: Context, order: Order) -> None:
                self.customers[ctx.key] = self.customers.get(ctx.key, 0) + order.cents


def test_each_actor_gets_each_record_once_whoever_crashes() -> None:
    shop = Shop(by_customer=True)
    with ActorTestDriver(shop.app) as driver:
        for number in range(20):
            driver.post(shop.orders, key=f"o{number % 7}", value=Order(number % 3, number))
            if number % 5 == 0:
                driver.crash(keep_disk=number % 2 == 0, settle=False)
        driver.settle()
        assert sum(driver.items(shop.sums).values()) == sum(range(20))
        assert sum(driver.items(shop.counts).values()) == 20
        assert driver.items(shop.customers) == {rest: sum(range(rest, 20, 3)) for rest in range(3)}


def test_tombstones_are_shared_too() -> None:
    app, deleted = App("shop", broker="kafka://127.0.0.1:1"), list[str]()
    orders = app.topic("orders", key_type=str, value_type=Order, shared=True)

    async def note(ctx: Context, order: Order | None) -> None:
        if order is None:
            deleted.append(ctx.topic)

    for name in ("one", "two"):
        app.actor(orders, name=name)(note)
    with ActorTestDriver(app) as driver:
        driver.send(orders, key="o1", value=Order(1, 5))
        driver.send(orders, key="o1")
    assert sorted(deleted) == ["shop--one-orders-repartition", "shop--two-orders-repartition"]


def test_an_ask_goes_to_one_of_the_actors_alone() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=Order, shared=True)
    seen: list[str] = []

    @app.actor(orders)
    async def price(ctx: Context, order: Order) -> int:
        seen.append("price")
        return order.cents

    @app.actor(orders)
    async def audit(ctx: Context, order: Order) -> None:
        seen.append("audit")

    with ActorTestDriver(app) as driver:
        assert driver.ask(price, "o1", Order(1, 5)) == 5
        assert seen == ["price"]
        driver.send(orders, key="o1", value=Order(1, 5))
        assert sorted(seen) == ["audit", "price", "price"]


def test_a_record_without_a_key_is_an_error_by_on_error() -> None:
    shop = Shop(on_error=OnError(then="skip", retries=0))
    with ActorTestDriver(shop.app) as driver:
        driver.send(shop.orders, value=Order(1, 5))
        driver.send(shop.orders, key="o1", value=Order(1, 7))
        assert driver.items(shop.sums) == {"o1": 7}
    shop = Shop()
    with ActorTestDriver(shop.app) as driver, pytest.raises(HandlerFailedError, match="the record has no key"):
        driver.send(shop.orders, value=Order(1, 5))


def test_two_actors_of_a_topic_that_isnt_shared_are_refused_with_the_word_to_write() -> None:
    with pytest.raises(ConfigurationError, match=r"declare it with app.topic\('orders', ..., shared=True\)"):
        Shop(shared=False)


def test_readers_with_different_policies_are_refused() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=Order, shared=True)

    async def read(ctx: Context, order: Order) -> None: ...

    app.actor(orders, name="one")(read)
    with pytest.raises(ConfigurationError, match="topic orders is read by other keys by actors with different on_err"):
        app.actor(orders, name="two", on_error=OnError(then="skip"))(read)


# --- keys of by= -----------------------------------------------------------------------------------------------------


def test_an_int_field_becomes_what_the_stores_have_for_keys() -> None:
    for key_type in (int, str):
        app = App("shop", broker="kafka://127.0.0.1:1")
        orders = app.topic("orders", key_type=str, value_type=Order)
        sums = app.store("sums", key_type=key_type, value_type=int)

        @app.actor(orders, by="customer", stores=[sums])
        async def add(ctx: Context, order: Order, sums: Any = sums) -> None:
            sums[ctx.key] = sums.get(ctx.key, 0) + order.cents

        with ActorTestDriver(app) as driver:
            driver.send(orders, key="o1", value=Order(7, 5))
            assert driver.items(sums) == {key_type(7): 5}


def test_a_function_gives_the_int_keys_that_the_stores_have() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=Order)
    sums = app.store("sums", key_type=int, value_type=int)

    @app.actor(orders, by=lambda order: order.customer, stores=[sums])
    async def add(ctx: Context, order: Order) -> None:
        sums[ctx.key] = order.cents

    with ActorTestDriver(app) as driver:
        driver.send(orders, key="o1", value=Order(7, 5))
        assert driver.items(sums) == {7: 5}


def test_a_class_says_what_an_int_field_becomes() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=Order)

    @app.actor(orders, by="customer")
    class Customer(Actor[dict, str]):
        @receive
        async def order(self, order: Order) -> None:
            self.state = {"cents": order.cents}

    with ActorTestDriver(app) as driver:
        driver.send(orders, key="o1", value=Order(7, 5))
        assert driver.items(Customer) == {"7": {"cents": 5}}


def test_a_text_field_for_int_keys_is_refused() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    people = app.topic("people", key_type=str, value_type=dict)
    named = app.topic("named", key_type=str, value_type=Named)
    sums = app.store("sums", key_type=int, value_type=int)

    async def add(ctx: Context, value: Any) -> None: ...

    app.actor(people, by="anything", stores=[sums])(add)
    with pytest.raises(ConfigurationError, match="by='name' of topic named gives str, and the keys are int"):
        app.actor(named, by="name", name="named", stores=[app.store("more", key_type=int, value_type=int)])(add)


class Named(msgspec.Struct):
    name: str
