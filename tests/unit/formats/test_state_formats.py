"""Window stores and states of class actors with formats."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from actors import Actor, App, Context, Session, Sliding, Tumbling, aggregates, query, receive
from actors.errors import ConfigurationError
from actors.formats import Avro, JsonSchema, Protobuf
from actors.formats.schemas.declared import declared_schemas, exported
from actors.testing import ActorTestDriver, FakeRegistry
from tests.unit.formats.served import messages
from tests.unit.formats.test_avro import Order, Total, shop

NOON_MS = 1_700_049_600_000
MINUTE = timedelta(minutes=1)
BALANCE = messages("balance.proto", "Balance cents:int64 notes:*string")["Balance"]


class Deposit(msgspec.Struct):
    cents: int


class Balance(msgspec.Struct):
    cents: int = 0


def minutes(app: App, format_: Any, windows: Any) -> tuple[Any, Any, Any]:
    orders = app.topic("orders", key_type=str, format=Avro(Order))
    closed = app.topic("closed", key_type=str, format=Avro(Total))
    store = app.window_store("minutes", windows, format=format_)

    @app.actor(orders, stores=[store])
    async def count(ctx: Context, order: Order) -> None:
        store.update(ctx.key, lambda total: Total(total.count + order.count), initial=Total(0))

    @store.on_close
    async def close(ctx: Context, window: Any, total: Total) -> None:
        ctx.send(closed, key=ctx.key, value=total)

    return orders, closed, store


@pytest.mark.parametrize("format_", [Avro(Total), JsonSchema(Total)], ids=repr)
@pytest.mark.parametrize("windows", [Tumbling(MINUTE), Sliding(MINUTE)], ids=repr)
def test_windows_have_the_formats_bytes_and_another_process_reads_them(format_: Any, windows: Any) -> None:
    registry = FakeRegistry()
    app = shop(registry)
    orders, closed, store = minutes(app, format_, windows)
    with ActorTestDriver(app) as driver:
        driver.send(orders, key="ada", value=Order("hat", 2), timestamp_ms=NOON_MS)
        again = shop(registry)
        orders, closed, store = minutes(again, format_, windows)
        driver.crash(keep_disk=False)
        driver.restart(again)
        assert list(driver.windows(store, "ada").values()) == [Total(2)]
        driver.send(orders, key="ada", value=Order("coat", 3), timestamp_ms=NOON_MS)
        assert list(driver.windows(store, "ada").values()) == [Total(5)]
        driver.send(orders, key="ada", value=Order("scarf", 1), timestamp_ms=NOON_MS + 600_000)
        assert [sent.value for sent in driver.outputs(closed)] == [Total(5)]
    assert "shop--minutes-changelog-value" in registry._subjects


def test_a_close_waits_for_the_registry() -> None:
    registry = FakeRegistry()
    app = shop(registry)
    orders, closed, _ = minutes(app, Avro(Total), Tumbling(MINUTE))
    with ActorTestDriver(app, partitions=1) as driver:
        for key, count in (("ada", 2), ("bob", 7)):
            driver.send(orders, key=key, value=Order("hat", count), timestamp_ms=NOON_MS)
        registry.is_down = True
        driver.post(orders, key="ada", value=Order("hat", 1), timestamp_ms=NOON_MS + 600_000)
        driver.advance(5, settle=False)
        assert driver.outputs(closed) == []
        registry.is_down = False
        driver.advance(20)
        assert {sent.key: sent.value for sent in driver.outputs(closed)} == {"ada": Total(2), "bob": Total(7)}


def test_a_view_tells_of_values_whose_schema_its_process_lacks() -> None:
    registry, seen = FakeRegistry(), list[Any]()

    def made() -> tuple[App, Any]:
        app = shop(registry)
        messages = app.topic("messages", key_type=str, value_type=str)
        kept = app.store("kept", format=Avro(Total))
        app.view(kept).on_change(lambda *change: seen.append(change))

        @app.actor(messages, stores=[kept])
        async def keep(ctx: Context, message: str) -> None:
            if message == "set":
                kept[ctx.key] = Total(3)
            else:
                kept.delete(ctx.key)

        return app, messages

    app, messages = made()
    with ActorTestDriver(app) as driver:
        driver.send(messages, key="ada", value="set")
        again, messages = made()
        driver.restart(again)
        driver.send(messages, key="ada", value="delete")
        driver.settle()
    assert seen == [("ada", None, Total(3)), ("ada", Total(3), None)]


@pytest.mark.parametrize("comes", ["nothing", "a message of the key"])
def test_what_expires_is_handed_out_when_its_schema_is_here(comes: str) -> None:
    registry, expired = FakeRegistry(), list[Any]()

    def made() -> tuple[App, Any]:
        app = shop(registry)
        deposits = app.topic("deposits", key_type=str, value_type=Deposit)

        @app.actor(deposits)
        class Account(Actor[Balance]):
            state_format = Avro()
            state_ttl = timedelta(hours=1)

            @receive
            async def deposit(self, message: Deposit) -> None:
                if message.cents:
                    self.state.cents += message.cents

            async def on_expire(self) -> None:
                expired.append((self.key, self.state.cents))

        return app, deposits

    app, deposits = made()
    with ActorTestDriver(app) as driver:
        driver.send(deposits, key="ada", value=Deposit(5))
        again, deposits = made()
        driver.restart(again)
        registry.is_down = comes != "nothing"
        driver.advance(2 * 3600, settle=False)
        if registry.is_down:
            driver.post(deposits, key="ada", value=Deposit(0))
            driver.advance(30, settle=False)
            assert expired == []
            registry.is_down = False
        driver.advance(3600)
    assert set(expired) == {("ada", 5)}


def test_a_store_is_published_to_a_topic_with_a_format() -> None:
    registry = FakeRegistry()
    app = shop(registry)
    deposits = app.topic("deposits", key_type=str, value_type=Deposit)
    balances = app.topic("balances", key_type=str, format=Avro(Balance))
    kept = app.store("kept", value_type=Balance, publish=balances)

    @app.actor(deposits, stores=[kept])
    async def keep(ctx: Context, message: Deposit) -> None:
        if message.cents:
            kept[ctx.key] = Balance(message.cents)
        else:
            kept.delete(ctx.key)

    with ActorTestDriver(app, partitions=1) as driver:
        for cents in (5, 0):
            driver.send(deposits, key="ada", value=Deposit(cents))
            assert driver.outputs(balances)[-1].value == (Balance(cents) if cents else None)


def joined(app: App, ids: Any) -> tuple[Any, Any, Any]:
    left = app.topic("left", key_type=str, format=Avro(Order, ids=ids))
    right = app.topic("right", key_type=str, format=Avro(Total, ids=ids))
    pairs = app.topic("pairs", key_type=str, value_type=str)

    @app.join(left, right, within=timedelta(seconds=10), how="left")
    async def pair(ctx: Context, order: Order, total: Total | None) -> None:
        ctx.send(pairs, key=ctx.key, value=f"{order.item} {total and total.count}")

    return left, right, pairs


@pytest.mark.parametrize("ids", ["prefix", "header"])
def test_a_join_keeps_records_with_the_ids_of_their_schemas(ids: Any) -> None:
    registry = FakeRegistry()
    app = shop(registry)
    left, right, pairs = joined(app, ids)
    with ActorTestDriver(app, partitions=1) as driver:
        driver.send(left, key="ada", value=Order("hat"), timestamp_ms=NOON_MS)
        driver.send(left, key="bob", value=Order("coat"), timestamp_ms=NOON_MS)
        again = shop(registry)
        left, right, pairs = joined(again, ids)
        driver.restart(again)
        driver.send(right, key="ada", value=Total(7), timestamp_ms=NOON_MS + 1_000)
        for topic, value in ((left, Order("scarf")), (right, Total(1))):
            driver.send(topic, key="eve", value=value, timestamp_ms=NOON_MS + 60_000)
        assert sorted(sent.value for sent in driver.outputs(pairs)) == ["coat None", "hat 7", "scarf 1"]


def account(app: App, format_: Any, state: Any) -> tuple[Any, Any]:
    class Account(Actor[state]):
        state_format = format_

        @receive
        async def deposit(self, message: Deposit) -> None:
            self.state.cents += message.cents

        @query
        def cents(self) -> int:
            return self.state.cents

    deposits = app.topic("deposits", key_type=str, value_type=Deposit)
    return deposits, app.actor(deposits)(Account)


@pytest.mark.parametrize(
    ("format_", "state"), [(Avro(), Balance), (JsonSchema(Balance), Balance), (Protobuf(), BALANCE)], ids=repr
)
def test_a_class_actors_state_has_the_formats_bytes(format_: Any, state: Any) -> None:
    registry = FakeRegistry()
    app = shop(registry)
    deposits, declared = account(app, format_, state)
    with ActorTestDriver(app) as driver:
        driver.send(deposits, key="ada", value=Deposit(5))
        again = shop(registry)
        deposits, declared = account(again, format_, state)
        driver.crash(keep_disk=False)
        driver.restart(again)
        assert driver.query(declared.at("ada").cents) == 5
        driver.send(deposits, key="ada", value=Deposit(2))
        assert driver.get(declared, "ada") == state(cents=7)
        # What changes nothing writes nothing.
        changed = driver.changelog(declared)
        driver.send(deposits, key="ada", value=Deposit(0))
        assert driver.changelog(declared) == changed
    assert "shop--Account-changelog-value" in registry._subjects


def test_a_state_that_gets_a_field_is_read_by_its_schema() -> None:
    registry = FakeRegistry()
    app = shop(registry)
    deposits, _ = account(app, Avro(), Balance)
    with ActorTestDriver(app) as driver:
        driver.send(deposits, key="ada", value=Deposit(5))
        newer = msgspec.defstruct("Balance", [("cents", int, 0), ("currency", str, "EUR")])
        again = shop(registry)
        _, declared = account(again, Avro(), newer)
        driver.restart(again)
        assert driver.get(declared, "ada") == newer(5, "EUR")


def test_schemas_of_windows_and_states_are_listed_and_exported() -> None:
    app = shop(FakeRegistry())
    minutes(app, Avro(Total), Tumbling(MINUTE))
    account(app, Avro(), Balance)
    app.window_store("counts", Tumbling(MINUTE), aggregate=aggregates.count())
    subjects = {declared.subject for declared in declared_schemas(app)}
    assert {"shop--minutes-changelog-value", "shop--Account-changelog-value"} < subjects
    schemas = json.loads(json.dumps(asyncio.run(exported(app))))
    assert {name: own["has_windows"] for name, own in schemas.items()} == {
        "shop--minutes-changelog": True,
        "shop--Account-changelog": False,
    }


def state_of(format_: Any, **options: Any) -> Any:
    def declare(app: App) -> None:
        class Account(Actor[Balance]):
            @receive
            async def deposit(self, message: Deposit) -> None: ...

        for name, value in {"state_format": format_, **options}.items():
            setattr(Account, name, value)
        app.actor(app.topic("deposits", key_type=str))(Account)

    return declare


def windows_of(*windows: Any, **options: Any) -> Any:
    return lambda app: app.window_store("a", *(windows or (Tumbling(MINUTE),)), **options)


@pytest.mark.parametrize(
    ("declare", "text"),
    [
        (
            windows_of(format=Avro(Total), aggregate=aggregates.count()),
            "window store a: format= is a part of aggregate=",
        ),
        (windows_of(Session(MINUTE), format=Avro(Total)), "sessions merge"),
        (lambda app: app.store("a", format=Avro(Total), aggregate=aggregates.count()), "a: format= is a part of"),
        (windows_of(value_type=Order, format=Avro(Total)), "store a: format= is of .*Total.* type is .*Order"),
        (windows_of(value_serializer="json", format=Avro(Total)), "a: format= takes the place of value_serializer="),
        (windows_of(format="avro"), "store a: format='avro' is no format"),
        (lambda app: app.store("a", format="avro"), "store a: format='avro' is no format"),
        (
            lambda app: app.view(app.topic("a", key_type=str, format=Avro(Total, ids="header"))),
            "topic a has ids of schemas in headers",
        ),
        (
            lambda app: app.store("a", publish=app.topic("b", key_type=str, format=Avro(Total, ids="header"))),
            "store a: publish=.* topic b: .*ids in headers",
        ),
        (
            lambda app: app.store("a", publish=app.topic("b", key_format=Avro(str), value_type=int)),
            "store a: publish=.* topic b: .*key_format",
        ),
        (state_of("avro"), "store Account: format='avro' is no format"),
        (state_of(Avro(Total)), "store Account: format= is of .*Total"),
        (state_of(Avro(), state_version=2, state_upgrades={1: dict}), "store Account: .*kept as JSON"),
        (state_of(Protobuf()), "no class that protoc generated"),
        (state_of(None, state_version=0), "version=0 has to be a whole number"),
        (lambda app: app.store("a", version=0), "version=0 has to be a whole number"),
    ],
)
def test_what_cant_be_meant_is_refused(declare: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        declare(shop(FakeRegistry()))


class Place(msgspec.Struct, frozen=True):
    shop: str
    id: int


@pytest.mark.parametrize("ids", ["prefix", "header"])
def test_stores_have_the_bytes_of_the_inputs_keys(ids: Any) -> None:
    app = App("shop", broker="kafka://127.0.0.1:9092", schema_registry=FakeRegistry())
    orders = app.topic("orders", key_format=Avro(Place, ids=ids), value_type=int)
    sums = app.store("sums", key_type=Place, value_type=int)
    lists = app.list_store("lists", key_type=Place, value_type=int)
    minutes = app.window_store("minutes", Tumbling(MINUTE), key_type=Place, aggregate=aggregates.sum())

    @app.actor(orders, stores=[sums, lists, minutes])
    async def add(ctx: Context, cents: int) -> None:
        sums[ctx.key] = sums.get(ctx.key, 0) + cents
        lists.at(ctx.key).append(cents)
        minutes.add(ctx.key, cents)

    with ActorTestDriver(app, partitions=8) as driver:
        for number in range(20):
            for cents in (1, 2):
                driver.send(orders, key=Place("a", number), value=cents, timestamp_ms=1_700_000_000_000)
        assert [driver.get(sums, Place("a", number)) for number in range(20)] == [3] * 20
        driver.restart()
        assert driver.get(sums, Place("a", 7)) == 3
        assert driver.get(lists, Place("a", 7)) == [1, 2]
        assert list(driver.windows(minutes, Place("a", 7)).values()) == [3]
