"""Stores and tables with formats: the changelog has their bytes, and everything that shows values decodes them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pydantic
import pytest

from actors import App, Context
from actors.errors import ConfigurationError
from actors.formats import Avro, JsonSchema, Protobuf
from actors.testing import ActorTestDriver, FakeRegistry
from stores.memory import MemoryStore
from tests.unit.formats.served import messages
from tests.unit.formats.test_avro import Order, Total, shop
from tests.unit.web.queries.test_window_queries import ask
from tests.unit.web.query_server import PARTITIONS, POSITION, Served, spec_of

BAGS = messages(
    "bag.proto",
    """
Bag owner:string items:*.shop.Thing counts:*int64
Thing name:string
""",
)


class Note(pydantic.BaseModel):
    text: str
    stars: int = 0


def declared(app: App) -> tuple[Any, Any, Any]:
    orders = app.topic("orders", key_type=str, format=Avro(Order))
    totals = app.store("totals", format=Avro(Total))
    bags = app.store("bags", format=Protobuf(BAGS["Bag"]))
    notes = app.store("notes", value_type=Note)
    lines = app.store("lines", format=JsonSchema(Order))

    @app.actor(orders, stores=[totals, bags, notes, lines])
    async def keep(ctx: Context, order: Order) -> None:
        totals[ctx.key] = Total(totals.get(ctx.key, Total(0)).count + order.count)
        bag = bags.get(ctx.key, BAGS["Bag"](owner=ctx.key))
        bag.items.append(BAGS["Thing"](name=order.item))
        bag.counts.append(order.count)
        bags[ctx.key] = bag
        notes[ctx.key] = Note(text=order.item)
        lines[ctx.key] = order

    return orders, keep, (totals, bags, notes, lines)


SHOWN = {
    "totals": {"count": 5},
    "bags": {"owner": "ada", "items": [{"name": "hat"}, {"name": "coat"}], "counts": [2, 3]},
    "notes": {"text": "coat", "stars": 0},
    "lines": {"item": "coat", "count": 3},
}


def fill(driver: ActorTestDriver, orders: Any) -> None:
    driver.send(orders, key="ada", value=Order("hat", 2))
    driver.send(orders, key="ada", value=Order("coat", 3))


def test_the_changelog_has_the_bytes_and_a_restore_reads_them() -> None:
    registry = FakeRegistry()
    app = shop(registry)
    orders, _, (totals, *_) = declared(app)
    with ActorTestDriver(app) as driver:
        fill(driver, orders)
        driver.crash(keep_disk=False)
        again = shop(registry)
        orders, _, (totals, bags, *_) = declared(again)
        driver.restart(again)
        driver.send(orders, key="ada", value=Order("scarf", 1))
        assert driver.get(totals, "ada") == Total(6)
        assert [item.name for item in driver.get(bags, "ada").items] == ["hat", "coat", "scarf"]
    subjects = {name for name in registry._subjects if "changelog" in name}
    assert subjects == {f"shop--{store}-changelog-value" for store in ("totals", "bags", "lines")}


def recorded(registry: FakeRegistry) -> dict[tuple[str, int], dict[bytes, bytes]]:
    app = App("quick", broker="kafka://127.0.0.1:1", schema_registry=registry)
    orders, *_ = declared(app)
    with ActorTestDriver(app, partitions=PARTITIONS) as driver:
        fill(driver, orders)
        files = driver._disk.files()
        return {(file.store, int(file.path.name.rpartition("-")[2])): dict(file.data) for file in files}


class FormatsServed(Served):
    """A server of another process than the one that wrote."""

    def __init__(self, registry: FakeRegistry) -> None:
        super().__init__(schema_registry=registry)
        from actors._core.group.members import TaskId
        from actors.runtime.state.restore import Restored

        _, keep, stores = declared(self.app)
        with ThreadPoolExecutor(1) as pool:
            files = pool.submit(recorded, registry).result()
        self.spec = spec_of("keep", "orders", keep, stores)
        for number in range(PARTITIONS):
            task = self.tasks[TaskId("keep", number)] = self._task(number)
            held = [MemoryStore() for _ in stores]
            for store, memory in zip(stores, held, strict=True):
                memory.apply(list(files[store.name, number].items()), POSITION)
            task._stores = [Restored(memory, POSITION, is_empty=False) for memory in held]
        service: Any = self.app._actor_service
        service.copies = []
        self.queries.actors["keep"] = self.spec
        self.queries.stores |= dict.fromkeys((store.name for store in stores), self.spec)


@asynccontextmanager
async def serving(registry: FakeRegistry) -> Any:
    server = FormatsServed(registry)
    server.server.init_server()
    await server.server.start_server()
    try:
        yield server
    finally:
        await server.server.stop_server()
        await server.queries.workers.close()
        await server.lease.close()


async def test_queries_show_values_decoded() -> None:
    registry = FakeRegistry()
    async with serving(registry) as server:
        for store, value in SHOWN.items():
            status, content = await ask(server, f"/actors/{store}/ada")
            assert (status, content.get("value")) == (200, value)
            _, listed = await ask(server, f"/actors/{store}")
            assert [entry["value"] for entry in listed["items"]] == [value]


async def test_a_query_without_the_registry_is_answered_later() -> None:
    registry = FakeRegistry()
    async with serving(registry) as server:
        registry.is_down = True
        status, content = await ask(server, "/actors/totals/ada")
        assert (status, content["type"]) == (503, "urn:faust-actors:problem:not-ready")
        registry.is_down = False
        assert (await ask(server, "/actors/totals/ada"))[1]["value"] == {"count": 5}


def test_the_decoder_of_a_changelog_shows_values_decoded() -> None:
    registry = FakeRegistry()
    files = recorded(registry)
    app = App("quick", broker="kafka://127.0.0.1:1", schema_registry=registry)
    declared(app)
    from stores._core.record import METADATA_BYTES

    for store, value in SHOWN.items():
        [raw] = [raw[METADATA_BYTES:] for (name, _), rows in files.items() if name == store for raw in rows.values()]
        assert json.loads(app.decoder(store).value_json(raw)) == value


@pytest.mark.parametrize("ids", ["prefix", "header"])
def test_tables_and_joins_keep_the_ids_of_schemas(ids: Any) -> None:
    app = shop(FakeRegistry())
    orders = app.topic("orders", key_type=str, format=Avro(Order, ids=ids))
    customers = app.topic("customers", key_type=str, format=Avro(Total, ids=ids))
    named = app.topic("named", key_type=str, value_type=str)
    other = app.topic("other", key_type=str, format=Avro(Order, ids=ids))
    table = app.table(customers)
    seen: list[Any] = []

    @app.actor(orders, stores=[table])
    async def look(ctx: Context, order: Order) -> None:
        seen.append((order.item, table[ctx.key].count))
        ctx.send(other, key=ctx.key, value=Order(order.item, 9), headers=ctx.headers)

    @app.actor(app.topic("moved", key_type=str, format=Avro(Order, ids=ids)), by=lambda order: order.item)
    async def moved(ctx: Context, order: Order) -> None:
        ctx.send(named, key=ctx.key, value=f"{ctx.key} {order.count}")

    with ActorTestDriver(app) as driver:
        driver.send(customers, key="ada", value=Total(7))
        driver.send(
            orders,
            key="ada",
            value=Order("hat"),
        )
        # Handled again when the schema of what it sends was there.
        assert set(seen) == {("hat", 7)}
        sent = driver.outputs(other)
        assert [record.value for record in sent] == [Order("hat", 9)]
        assert [name for name, _ in sent[0].headers] == ["__value_schema_id"] * (ids == "header")
        driver.send("moved", key="x", value=Order("coat", 4))
        assert [record.value for record in driver.outputs(named)] == ["coat 4"]
        driver.restart()
        driver.send(orders, key="ada", value=Order("coat"))
        assert seen[-1] == ("coat", 7)


def test_an_app_has_a_format_for_all_typed_topics() -> None:
    app = shop(FakeRegistry(), format=Avro(subject="record"))
    orders = app.topic("orders", key_type=str, value_type=Order)
    notes = app.topic("notes", key_type=str, value_type=str)
    with ActorTestDriver(app) as driver:
        driver.send(orders, key="ada", value=Order("hat"))
        driver.send(notes, key="ada", value="text")
        assert [record.value for record in driver.outputs(orders)] == [Order("hat")]
        assert [record.value for record in driver.outputs(notes)] == ["text"]
        assert list(app.schema_registry._subjects) == ["Order"]


@pytest.mark.parametrize(
    ("declare", "text"),
    [
        (lambda app: app.topic("a", value_type=Total, format=Avro(Order)), "format= is of .*Order"),
        (
            lambda app: app.topic("a", value_serializer="json", format=Avro(Order)),
            "in the place of value_serializer|takes the place",
        ),
        (lambda app: app.topic("a", "b", format=Avro(Order)), "with one name"),
        (lambda app: app.topic("a", format="avro"), "is no format"),
        (
            lambda app: app.store("a", value_serializer="json", format=Avro(Order)),
            "in the place of value_serializer|takes the place",
        ),
        (lambda app: app.store("a", format=Avro(Order), version=2, upgrades={1: dict}), "kept as JSON"),
        (lambda app: app.topic("a", format=Avro(Order, subject="topics")), "subject='topics'"),
        (lambda app: app.store("a", format=Avro(complex)), "can't be converted|no Avro schema"),
        (lambda app: app.store("a", format=Protobuf(Order)), "no class that protoc generated"),
        (lambda app: App("x", format="avro"), "is no format"),
    ],
)
def test_what_cant_be_meant_is_refused(declare: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        declare(shop(FakeRegistry()))
