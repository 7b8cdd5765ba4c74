"""Topics of Avro: what a handler gets and sends, and what the wire has."""

import struct
from io import BytesIO

import fastavro
import msgspec

from actors import App, Context
from actors.formats import Avro
from actors.testing import ActorTestDriver, FakeRegistry


class Order(msgspec.Struct):
    item: str
    count: int = 1


class Total(msgspec.Struct):
    count: int


def shop(registry: FakeRegistry, **options: object) -> App:
    return App("shop", broker="kafka://127.0.0.1:9092", schema_registry=registry, **options)


def avro(schema: object, value: object) -> bytes:
    stream = BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def test_an_actor_reads_and_writes_avro_of_a_registry() -> None:
    registry = FakeRegistry()
    theirs = {"type": "record", "name": "Order", "fields": [{"name": "item", "type": "string"}]}
    id = registry.register("orders-value", msgspec.json.encode(theirs).decode())
    app = shop(registry)
    orders = app.topic("orders", key_type=str, format=Avro(Order))
    totals = app.topic("totals", key_type=str, format=Avro(Total))
    counts = app.store("counts", format=Avro(Total))

    @app.actor(orders, stores=[counts])
    async def count(ctx: Context, order: Order) -> None:
        total = Total(counts.get(ctx.key, Total(0)).count + order.count)
        counts.set(ctx.key, total)
        ctx.send(totals, key=ctx.key, value=total)

    with ActorTestDriver(app) as driver:
        for item in ("hat", "coat"):
            raw = struct.pack(">bI", 0, id) + avro(theirs, {"item": item})
            driver.send(orders, key=b"ada", value=raw, raw=True)
        sent = driver.outputs(totals)
        assert [one.value for one in sent] == [Total(1), Total(2)]
        asked = list(registry.requests)
        for _ in range(5):
            driver.send(orders, key="ada", value=Order("scarf", 2))
        assert driver.get(counts, "ada") == Total(12)
    # Nothing is asked for a record: once for each schema to read, up to three times for each to write.
    assert registry.requests[: len(asked)] == asked
    assert [one for one in registry.requests if "orders-value" in one] == [
        "POST subjects/orders-value",
        "POST subjects/orders-value/versions",
        "POST subjects/orders-value",
    ]
    assert len(registry.requests) == 10
