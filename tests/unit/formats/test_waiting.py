"""A registry that is down stops what needs it, and nothing else."""

import logging
import struct
from typing import Any

import msgspec
import pytest

from actors import App, Context
from actors.formats import Avro
from actors.testing import ActorTestDriver, FakeRegistry
from tests.unit.formats.test_avro import Order, Total, avro, shop

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "item", "type": "string"}, {"name": "count", "type": "long"}],
}
OTHER = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": "string"}]}


def framed(id: int, schema: Any, value: Any) -> bytes:
    return struct.pack(">bI", 0, id) + avro(schema, value)


def counting(registry: FakeRegistry, **options: Any) -> tuple[App, Any, Any]:
    app = shop(registry)
    orders = app.topic("orders", key_type=str, format=Avro(Order), **options.pop("topic", {}))
    counts = app.store("counts", value_type=int)

    @app.actor(orders, stores=[counts], **options)
    async def count(ctx: Context, order: Order) -> None:
        counts[ctx.key] = counts.get(ctx.key, 0) + order.count

    return app, orders, counts


def send(driver: ActorTestDriver, topic: Any, raw: bytes, key: bytes = b"ada") -> None:
    # Nothing settles while the registry is down.
    driver.post(topic, key=key, value=raw, raw=True)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"concurrency": 4},
        {"on_error": "park"},
        {"topic": {"timestamp": lambda order: order.count}},
    ],
    ids=["in order", "by key", "parking", "timed"],
)
def test_a_registry_that_is_down_stops_what_meets_an_unknown_id_until_it_is_back(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    registry = FakeRegistry()
    first = registry.register("orders-value", msgspec.json.encode(ORDER).decode())
    second = registry.register("orders-value", msgspec.json.encode(OTHER).decode())
    app, orders, counts = counting(registry, **options)
    with ActorTestDriver(app, partitions=2) as driver:
        send(driver, orders, framed(first, ORDER, {"item": "hat", "count": 1}))
        driver.settle()
        registry.is_down = True
        send(driver, orders, framed(second, OTHER, {"item": "hat", "count": 10, "note": ""}))
        send(driver, orders, framed(first, ORDER, {"item": "hat", "count": 100}))
        # Its partition needs no other schema.
        send(driver, orders, framed(first, ORDER, {"item": "hat", "count": 1000}), b"bob")
        driver.advance(20, settle=False)
        assert driver.items(counts) == {"ada": 1, "bob": 1000}
        assert 3 < registry.requests.count(f"GET schemas/ids/{second}") < 60
        registry.is_down = False
        driver.advance(20)
        assert driver.items(counts) == {"ada": 111, "bob": 1000}
        if "on_error" in options:
            assert driver.parked("count") == []
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.name for record in errors] == ["actors.formats.registry"]
    assert f"doesn't give schema {second}: the registry is down" in errors[0].getMessage()


def test_what_is_written_waits_for_its_schema_too() -> None:
    registry = FakeRegistry()
    id = registry.register("orders-value", msgspec.json.encode(ORDER).decode())
    app = shop(registry)
    orders = app.topic("orders", key_type=str, format=Avro(Order))
    totals = app.topic("totals", key_type=str, format=Avro(Total))
    calls: list[int] = []

    @app.actor(orders, on_error="skip")
    async def count(ctx: Context, order: Order) -> None:
        calls.append(order.count)
        ctx.send(totals, key=ctx.key, value=Total(order.count))

    with ActorTestDriver(app) as driver:
        registry.registers = False
        send(driver, orders, framed(id, ORDER, {"item": "hat", "count": 1}))
        driver.advance(5, settle=False)
        assert calls == [1]
        registry.register("totals-value", msgspec.json.encode(app_schema()).decode())
        driver.advance(5)
        assert [sent.value for sent in driver.outputs(totals)] == [Total(1)]
        assert calls == [1, 1]


def app_schema() -> Any:
    return {"type": "record", "name": "Total", "fields": [{"name": "count", "type": "long"}]}


def test_a_parked_message_is_handled_again_after_a_restart() -> None:
    registry = FakeRegistry()
    id = registry.register("orders-value", msgspec.json.encode(ORDER).decode())

    def made(is_mended: bool) -> tuple[App, Any, Any]:
        app = shop(registry)
        orders = app.topic("orders", key_type=str, format=Avro(Order))
        counts = app.store("counts", value_type=int)

        @app.actor(orders, stores=[counts], on_error="park")
        async def count(ctx: Context, order: Order) -> None:
            assert is_mended
            counts[ctx.key] = order.count

        return app, orders, counts

    app, orders, _ = made(False)
    with ActorTestDriver(app) as driver:
        send(driver, orders, framed(id, ORDER, {"item": "hat", "count": 1}))
        driver.settle()
        assert [parked.value for parked in driver.parked("count")] == [Order("hat")]
        # Another process knows no schema.
        app, orders, counts = made(True)
        driver.restart(app)
        driver.retry_parked("count", "ada")
        assert driver.items(counts) == {"ada": 1}
