"""Tables on the test driver: rows follow their topic, handlers read them, and what can't be meant is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from actors import (
    Actor,
    App,
    ConfigurationError,
    Context,
    HandlerFailedError,
    Table,
    UndecodableRecordError,
    UsageError,
    receive,
)
from actors._faust.inputs import check_alike
from actors.errors import ForeignKeyError
from actors.testing import ActorTestDriver

NOON_MS = 1_700_049_600_000
HOUR = timedelta(hours=1)


class Order(msgspec.Struct):
    cents: int


class Customer(msgspec.Struct):
    name: str


class Shop:
    """Orders that are sent on with their customer's name."""

    def __init__(self, *, history: timedelta | None = None, **options: Any) -> None:
        self.app = app = App("shop", broker="kafka://127.0.0.1:1")
        self.orders = app.topic("orders", key_type=str, value_type=Order)
        self.customers = app.topic("customers", key_type=str, value_type=Customer)
        self.out = app.topic("out", key_type=str, value_type=list)
        self.table: Table[str, Customer] = app.table(self.customers, history=history)

        @app.actor(self.orders, stores=[self.table], **options)
        async def enrich(ctx: Context, order: Order) -> None:
            customer = self.table.get(ctx.key, as_of=ctx.timestamp_ms if history else None)
            name = None if customer is None else customer.name
            ctx.send(self.out, key=ctx.key, value=[order.cents, name])

        self.enrich = enrich


def sent(driver: ActorTestDriver, topic: Any) -> list[Any]:
    return [one.value for one in driver.outputs(topic)]


@pytest.mark.parametrize("concurrency", [1, 4])
def test_handlers_read_the_latest_value(concurrency: int) -> None:
    shop = Shop(concurrency=concurrency)
    with ActorTestDriver(shop.app) as driver:
        driver.send(shop.orders, key="ada", value=Order(1))
        driver.send(shop.customers, key="ada", value=Customer("Ada"))
        driver.send(shop.orders, key="ada", value=Order(2))
        driver.send(shop.customers, key="ada", value=Customer("Ada L."))
        driver.crash()
        driver.send(shop.orders, key="ada", value=Order(3))
        driver.crash(keep_disk=False)
        driver.send(shop.orders, key="ada", value=Order(4))
        driver.send(shop.customers, key="ada", value=None)
        driver.send(shop.orders, key="ada", value=Order(5))
        assert sent(driver, shop.out) == [[1, None], [2, "Ada"], [3, "Ada L."], [4, "Ada L."], [5, None]]
        assert driver.items(shop.table) == {}


def test_a_table_shows_its_rows_and_their_times() -> None:
    shop = Shop()
    times = []

    @shop.app.query(shop.enrich)
    def times_of(ctx: Context) -> Any:
        times.append(shop.table.timestamp_ms(ctx.key))
        return shop.table.get(ctx.key)

    with ActorTestDriver(shop.app) as driver:
        driver.send(shop.customers, key="ada", value=Customer("Ada"), timestamp_ms=NOON_MS)
        driver.send(shop.customers, key="bob", value=Customer("Bob"), timestamp_ms=-1)
        assert driver.items(shop.table) == {"ada": Customer("Ada"), "bob": Customer("Bob")}
        assert driver.get(shop.table, "ada") == Customer("Ada")
        assert driver.query(shop.enrich, "times_of", "ada") == Customer("Ada")
        assert driver.query(shop.enrich, "times_of", "bob") == Customer("Bob")
        assert driver.query(shop.enrich, "times_of", "eve") is None
    assert times == [NOON_MS, 0, None]


def test_what_is_there_is_handled_in_the_order_of_time() -> None:
    shop = Shop()
    with ActorTestDriver(shop.app, partitions=1) as driver:
        for cents, at_ms in ((1, 5), (2, 10), (3, 15)):
            driver.post(shop.orders, key="ada", value=Order(cents), timestamp_ms=NOON_MS + at_ms)
        for name, at_ms in (("Ada", 10), ("Ada L.", 12)):
            driver.post(shop.customers, key="ada", value=Customer(name), timestamp_ms=NOON_MS + at_ms)
        driver.settle()
        # Of equal timestamps the table's goes first.
        assert sent(driver, shop.out) == [[1, None], [2, "Ada"], [3, "Ada L."]]


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_a_table_is_read_from_its_beginning(reset: str) -> None:
    before = Shop()
    plain = App("shop", broker="kafka://127.0.0.1:1", consumer_auto_offset_reset=reset)
    orders = plain.topic("orders", key_type=str, value_type=Order)
    plain.topic("customers", key_type=str, value_type=Customer)
    plain.topic("out", key_type=str, value_type=list)
    seen = plain.store("seen", value_type=int)

    @plain.actor(orders, stores=[seen], name="enrich")
    async def see(ctx: Context, order: Order) -> None:
        seen.set(ctx.key, order.cents)

    after = App("shop", broker="kafka://127.0.0.1:1", consumer_auto_offset_reset=reset)
    after.topic("out", key_type=str, value_type=list)
    orders = after.topic("orders", key_type=str, value_type=Order)
    later = after.store("seen", value_type=int)
    table = after.table(after.topic("customers", key_type=str, value_type=Customer))

    @after.actor(orders, stores=[later, table], name="enrich")
    async def enrich(ctx: Context, order: Order) -> None:
        customer = table.get(ctx.key)
        ctx.send("out", key=ctx.key, value=[order.cents, None if customer is None else customer.name])

    with ActorTestDriver(plain) as driver:
        driver.send(before.customers, key="ada", value=Customer("Ada"))
        driver.send(orders, key="ada", value=Order(1))
        driver._cluster.make_topic("shop--customers-changelog", 3, is_compacted=True)
        driver.restart(after)
        driver.send(orders, key="ada", value=Order(2))
        assert sent(driver, before.out) == [[2, "Ada"]]


def test_keys_of_a_field_meet_the_table() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", value_type=dict)
    customers = app.table(app.topic("customers", key_type=int, value_type=Customer))
    out = app.topic("out", key_type=int, value_type=str)

    @app.actor(orders, by="customer", stores=[customers])
    async def enrich(ctx: Context, order: dict[str, Any]) -> None:
        found = customers.get(ctx.key)
        ctx.send(out, key=ctx.key, value="nobody" if found is None else found.name)

    with ActorTestDriver(app) as driver:
        driver.send(customers.topic, key=7, value=Customer("Ada"))
        driver.send(orders, value={"customer": 7})
        driver.send(orders, value={"customer": 8})
        assert [(one.key, one.value) for one in driver.outputs(out)] == [(7, "Ada"), (8, "nobody")]


def test_a_class_reads_tables() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    customers = app.table(app.topic("customers", key_type=str, value_type=Customer))
    out = app.topic("out", key_type=str, value_type=str)

    class Total(msgspec.Struct):
        cents: int = 0

    @app.actor(app.topic("orders", key_type=str), stores=[customers])
    class Account(Actor[Total]):
        @receive
        async def ordered(self, order: Order) -> None:
            self.state.cents += order.cents
            found = customers.get(self.key)
            self.ctx.send(out, key=self.key, value=f"{found and found.name} {self.state.cents}")

    with ActorTestDriver(app) as driver:
        driver.send(customers.topic, key="ada", value=Customer("Ada"))
        driver.tell(Account, "ada", Order(5))
        driver.send(customers.topic, key="ada", value=None)
        driver.tell(Account, "ada", Order(6))
        assert sent(driver, out) == ["Ada 5", "None 11"]


def test_a_topic_that_is_listed_calls_the_handler_after_each_change() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    customers = app.table(app.topic("customers", key_type=str, value_type=Customer))
    out = app.topic("out", key_type=str, value_type=list)

    @app.actor(customers.topic, stores=[customers])
    async def changed(ctx: Context, customer: Customer | None) -> None:
        held = customers.get(ctx.key)
        assert held == customer
        ctx.send(out, key=ctx.key, value=[held and held.name])

    with ActorTestDriver(app) as driver:
        for name in ("Ada", "Ada", None, None, "Eve"):
            driver.send(customers.topic, key="ada", value=None if name is None else Customer(name))
        assert sent(driver, out) == [["Ada"], ["Ada"], [None], ["Eve"]]


@pytest.mark.parametrize(
    "write",
    [
        lambda table: table.set("ada", Customer("Eve")),
        lambda table: table.__setitem__("ada", Customer("Eve")),
        lambda table: table.delete("ada"),
        lambda table: table.__delitem__("ada"),
        lambda table: table.put_if_absent("bob", Customer("Eve")),
        lambda table: table.compare_and_set("ada", Customer("Ada"), None),
    ],
)
def test_handlers_cant_write(write: Any) -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=int)
    table = app.table(app.topic("customers", key_type=str, value_type=Customer))

    @app.actor(orders, stores=[table])
    async def wrong(ctx: Context, _: int) -> None:
        write(table)

    with ActorTestDriver(app) as driver:
        driver.send(table.topic, key="ada", value=Customer("Ada"))
        with pytest.raises(HandlerFailedError, match="table customers has what topic customers says") as raised:
            driver.send(orders, key="ada", value=1)
        assert isinstance(raised.value.__cause__, UsageError)


def test_a_key_of_another_partition_is_refused() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=int)
    table = app.table(app.topic("customers", key_type=str, value_type=Customer), history=HOUR)

    @app.actor(orders, stores=[table])
    async def wrong(ctx: Context, number: int) -> None:
        for other in range(10):
            table.get(f"k{other}", as_of=number)

    with ActorTestDriver(app) as driver, pytest.raises(HandlerFailedError) as raised:
        driver.send(orders, key="ada", value=1)
    assert isinstance(raised.value.__cause__, ForeignKeyError)


@pytest.mark.parametrize("then", ["stop", "skip", "park"])
def test_rows_that_dont_decode_are_treated_by_policy(then: Any) -> None:
    shop = Shop(on_error=then)
    with ActorTestDriver(shop.app) as driver:
        driver.send(shop.customers, key="ada", value=Customer("Ada"))
        if then == "stop":
            with pytest.raises(UndecodableRecordError, match=r"customers\[\d\] offset \d"):
                driver.send(shop.customers, key=b"ada", value=b"{", raw=True)
            return
        driver.send(shop.customers, key=b"ada", value=b"{", raw=True)
        driver.send(shop.orders, key="ada", value=Order(1))
        if then == "skip":
            assert sent(driver, shop.out) == [[1, "Ada"]]
            return
        # Later messages of the key wait, the order too.
        assert sent(driver, shop.out) == []
        driver.drop_parked(shop.enrich, "ada")
        driver.retry_parked(shop.enrich, "ada")
        driver.crash(keep_disk=False)
        assert driver.items(shop.table) == {"ada": Customer("Ada")}


def test_a_record_without_a_key_is_no_row() -> None:
    shop = Shop()
    with ActorTestDriver(shop.app) as driver, pytest.raises(UndecodableRecordError, match="key"):
        driver.send(shop.customers, key=None, value=b"{}", raw=True)


def test_crashes_leave_the_table_as_it_is() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=int)
    table = app.table(app.topic("customers", key_type=str, value_type=Customer), history=HOUR)

    @app.actor(orders, stores=[table])
    async def nothing(ctx: Context, _: int) -> None:
        pass

    with ActorTestDriver(app) as driver:
        for number in range(20):
            driver.post(table.topic, key=f"k{number % 5}", value=Customer(f"c{number}"))
            if number == 11:
                driver.crash(keep_disk=False, settle=False)
        driver.settle()
        driver.crash(keep_disk=False)
        assert driver.items(table) == {f"k{number % 5}": Customer(f"c{number}") for number in range(15, 20)}


# --- declarations --------------------------------------------------------------------------------------------------


def declared(app: App, **options: Any) -> Table[Any, Any]:
    return app.table(app.topic("customers", key_type=str, value_type=Customer), **options)


def on_orders(app: App, *stores: Any, key_type: Any = str, **options: Any) -> None:
    @app.actor(app.topic("orders", key_type=key_type, value_type=int), stores=stores, **options)
    async def handle(ctx: Context, value: int) -> None:
        pass


def two_actors(app: App) -> None:
    topic = app.topic("customers", key_type=str)
    for name in ("one", "two"):
        on_orders_called(app, name, app.table(topic, name=name))


def on_orders_called(app: App, name: str, table: Any) -> None:
    @app.actor(app.topic(f"{name}-in", key_type=str), name=name, stores=[table])
    async def handle(ctx: Context, value: int) -> None:
        pass


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda app: app.table("customers"), r"app.table\(\): the topic has to be a topic of app.topic"),
        (lambda app: declared(app, history=60), r"table customers: history=60 .*timedelta\(seconds=60\)"),
        (lambda app: declared(app, history=-HOUR), "history=.*has to be more than 0"),
        (lambda app: declared(app, history=timedelta(microseconds=1)), "a millisecond or longer"),
        (lambda app: declared(app, name="a/b"), "store 'a/b': names have"),
        (lambda app: (declared(app), declared(app)), "store customers: the app has a store of that name"),
        (
            lambda app: on_orders(app, declared(app, history=HOUR), concurrency=4),
            "table customers has a history, .*concurrency",
        ),
        (
            lambda app: on_orders(app, declared(app), key_type=int),
            r"keys of table customers \(topic customers\) are declared as str, and those of topic orders as int",
        ),
        (
            lambda app: on_orders(app, declared(app), declared(app, name="again")),
            "topic customers is listed twice",
        ),
        (two_actors, r"topic customers is the input of actor one, .*app.view\(topic\)"),
    ],
)
def test_declarations_that_cant_be_meant(make: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        make(App("shop", broker="kafka://127.0.0.1:1"))


def test_as_of_is_a_number() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=int)
    table = declared(app, history=HOUR)

    @app.actor(orders, stores=[table])
    async def wrong(ctx: Context, value: int) -> None:
        assert table.get(ctx.key, as_of=-1) is None
        table.get(ctx.key, as_of=datetime.now(UTC))  # type: ignore[arg-type]

    with ActorTestDriver(app) as driver:
        driver.send(table.topic, key="ada", value=Customer("Ada"))
        with pytest.raises(HandlerFailedError, match=r"as_of=datetime.*give Unix milliseconds"):
            driver.send(orders, key="ada", value=1)


def test_as_of_needs_a_history() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=int)
    table = declared(app)

    @app.actor(orders, stores=[table])
    async def wrong(ctx: Context, value: int) -> None:
        table.get(ctx.key, as_of=value)

    with ActorTestDriver(app) as driver, pytest.raises(HandlerFailedError, match=r"history=timedelta\(hours=1\)"):
        driver.send(orders, key="ada", value=1)


def test_other_partition_counts_are_refused_with_all_names() -> None:
    shop = Shop()
    counts = {"orders": 2, "customers": 3}
    with pytest.raises(ConfigurationError, match=r"actor enrich: .*\(orders 2, customers 3\)"):
        check_alike(shop.app, shop.app.actors["enrich"], counts)


def test_a_table_keeps_its_place_when_an_input_is_added() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    orders, payments = (app.topic(name, key_type=str, value_type=int) for name in ("orders", "payments"))
    table = declared(app)

    async def handle(ctx: Context, value: int) -> None:
        pass

    app.actor(orders, table, payments, stores=[table])(handle)
    assert app.actors["handle"].topic_names == ["orders", "customers", "payments"]
    with ActorTestDriver(app) as driver:
        driver.send(table.topic, key="ada", value=Customer("Ada"))
        driver.send(payments, key="ada", value=1)
        assert driver.items(table) == {"ada": Customer("Ada")}
    for wrong in ([table, orders], [orders, declared(app, name="other")]):
        with pytest.raises(
            ConfigurationError, match=r"a topic of app.topic\(...\) first, and the table in stores= too"
        ):
            app.actor(*wrong, stores=[table], name="wrong")(handle)


def test_timers_of_an_actor_on_a_table_are_no_rows() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    table = declared(app)
    seen: list[Any] = []

    @app.actor(table.topic, stores=[table], timers=True)
    async def remind(ctx: Context, customer: Customer | None) -> None:
        if ctx.timer is None:
            ctx.schedule(Customer("timer"), after=timedelta(seconds=1))
        seen.append((ctx.timer is None, customer, table.get(ctx.key)))

    with ActorTestDriver(app) as driver:
        driver.send(table.topic, key="ada", value=Customer("Ada"))
        driver.advance(2)
        ada = Customer("Ada")
        assert seen == [(True, ada, ada), (False, Customer("timer"), ada)]
