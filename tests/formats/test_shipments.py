"""The example `shipments` on real parts, each of which is killed in turn."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from actors.testing import ActorTestDriver, FakeRegistry
from dev import connect as kafka_connect
from dev import postgres as postgresql
from dev import registry as apicurio
from examples.shipment_pb2 import Shipment
from examples.shipments import Customer, Order, app, customers, orders, shipments, unknown
from tests.formats.changes import following, make_database, streaming
from tests.formats.test_confluent_clients import CONF
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, read_all, send

KEYS = 30
TABLE = (
    "create table customers (id int primary key, name text not null, city text not null)",
    "insert into customers select i, 'first ' || i, 'city ' || i from generate_series(1, 20) i",
)
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "customer", "type": "long"},
        {"name": "item", "type": "string"},
        {"name": "count", "type": "long", "default": 1},
    ],
}


def test_an_order_is_shipped_with_the_row_of_its_customer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "schema_registry", FakeRegistry())
    with ActorTestDriver(app) as driver:
        row = {"op": "c", "after": {"id": 1, "name": "Ada", "city": "London"}, "source": {"lsn": 7}}
        driver.send("db.public.customers", key=b'{"id":1}', value=json.dumps(row).encode(), raw=True)
        assert driver.get(customers, 1) == Customer(1, "Ada", "London")
        driver.send(orders, key="a", value=Order("a", 1, "hat", 2))
        driver.send(orders, key="b", value=Order("b", 2, "hat"))
        expected = Shipment(order="a", item="hat", count=2, name="Ada", city="London")
        assert [sent.value for sent in driver.outputs(shipments)] == [expected]
        assert [sent.value for sent in driver.outputs(unknown)] == [Order("b", 2, "hat")]


def changes(choices: random.Random, number: int) -> str:
    """Statements of all kinds; each is one transaction."""
    statements = []
    for _ in range(10):
        key, other = choices.sample(range(1, KEYS + 1), 2)
        kinds = (
            f"insert into customers values ({key}, 'new {number}', 'there') on conflict do nothing",
            f"update customers set name = 'round {number}', city = city || '.' where id = {key}",
            f"delete from customers where id = {key}",
            f"begin; delete from customers where id = {other}; update customers set id = {other} where id = {key};"
            "commit",
        )
        statements.append(choices.choice(kinds))
    return ";\n".join([*statements, ""])


def rows_of(database: str) -> dict[int, dict[str, Any]]:
    lines = postgresql.run_sql(database, "select id, name, city from customers").splitlines()
    rows = (line.split(",") for line in lines)
    return {int(id): {"id": int(id), "name": name, "city": city} for id, name, city in rows}


def register(settings: dict[str, str]) -> None:
    """Register the example's schemas, as before a deploy."""
    command = [sys.executable, "-m", "faust", "-A", "examples.shipments", "schemas", "register"]
    subprocess.run(command, env={**os.environ, **settings}, check=True, timeout=120)


class Shop:
    """The parts, what was ordered, and what came of it."""

    def __init__(self, brokers: str, database: str, registry: str, worker: WorkerProcess) -> None:
        self.brokers, self.database, self.worker = brokers, database, worker
        self.ordered: list[dict[str, Any]] = []
        # Its schema is in the client's cache from the first order on, whatever becomes of the registry.
        self.client = SchemaRegistryClient({"url": registry, "timeout": 30})
        self._write = AvroSerializer(self.client, json.dumps(ORDER), conf=CONF)
        self._read_order = AvroDeserializer(self.client, conf=CONF)
        # Confluent's reader asks a registry for descriptors in base64, which Apicurio doesn't make of text.
        self._read_shipment = ProtobufDeserializer(Shipment, {"use.deprecated.format": False})

    async def order(self, keys: Sequence[int]) -> list[dict[str, Any]]:
        """Order something for each customer."""
        first = len(self.ordered)
        new = [
            {"id": f"order-{number}", "customer": key, "item": "hat", "count": number}
            for number, key in enumerate(keys, first)
        ]
        place = SerializationContext("avro-orders", MessageField.VALUE)
        pairs = [(order["id"].encode(), self._write(order, place)) for order in new]
        await send(self.brokers, "avro-orders", pairs, partitions=3)
        self.ordered += new
        return new

    async def results(self) -> tuple[dict[str, Shipment], dict[str, dict[str, Any]]]:
        """What was shipped and what wasn't, by order, as Confluent's readers have it; each order is there once."""
        shipped = await read_all(self.brokers, "shipments")
        refused = await read_all(self.brokers, "orders-of-nobody")
        counts = Counter(record.key for record in (*shipped, *refused))
        assert not [key for key, count in counts.items() if count > 1], "orders that were handled twice"
        of_shipments = SerializationContext("shipments", MessageField.VALUE)
        of_orders = SerializationContext("orders-of-nobody", MessageField.VALUE)
        return (
            {record.key.decode(): self._read_shipment(record.value, of_shipments) for record in shipped},
            {record.key.decode(): self._read_order(record.value, of_orders) for record in refused},
        )

    async def all_handled(self) -> tuple[dict[str, Shipment], dict[str, dict[str, Any]]]:
        """The results, when every order has one."""

        async def enough() -> Any:
            shipped, refused = await self.results()
            return (shipped, refused) if len(shipped) + len(refused) == len(self.ordered) else None

        return await eventually(enough, deadline_s=120, what=self.worker.log)

    async def table(self) -> dict[int, dict[str, Any]]:
        """The table as its changelog has it."""
        decoder, rows = app.decoder("customers"), {}
        for record in await read_all(self.brokers, decoder.changelog):
            key = json.loads(decoder.key_json(record.key))
            rows[key] = None if record.value is None else json.loads(decoder.value_json(record.value))
        return {key: row for key, row in rows.items() if row is not None}

    async def follows(self) -> bool:
        """Whether the table is the database's."""
        return await self.table() == rows_of(self.database)

    async def check(self) -> None:
        """Compare the table with the database's, and orders of each customer with the rows."""
        await self.all_handled()  # the worker has made its changelog
        await eventually(self.follows, deadline_s=120, what=self.worker.log)
        expected, asked = rows_of(self.database), await self.order(range(1, KEYS + 1))
        shipped, refused = await self.all_handled()
        for order in asked:
            row = expected.get(order["customer"])
            if row is None:
                assert refused[order["id"]] == order
            else:
                shipment = shipped[order["id"]]
                assert (shipment.name, shipment.city) == (row["name"], row["city"])
                assert (shipment.item, shipment.count) == (order["item"], order["count"])


@pytest.mark.nightly
@pytest.mark.timeout(900)
async def test_orders_are_shipped_once_under_kills_of_worker_connect_and_registry(
    brokers: str, postgres: str, tmp_path: Path
) -> None:
    choices, database = random.Random(7), make_database(postgres)
    postgresql.run_sql(database, *TABLE)
    await make_topics(brokers, "avro-orders", "shipments", "orders-of-nobody", partitions=3)
    with (
        apicurio.up(tmp_path / "registry") as registry,
        kafka_connect.up(tmp_path / "connect", brokers) as connect,
        following(connect, database, prefix="db") as prefix,
    ):
        settings = {
            "SCHEMA_REGISTRY": registry.address,
            "BROKER_SESSION_TIMEOUT": "6",
            "BROKER_HEARTBEAT_INTERVAL": "0.5",
        }
        worker = WorkerProcess("examples.shipments", brokers, tmp_path / "worker", **settings)
        shop = Shop(brokers, database, registry.address, worker)
        await streaming(connect, prefix, database)
        await shop.order([1])
        register(settings)
        worker.start()
        await shop.check()
        for number in range(2):
            postgresql.run_sql(database, changes(choices, number))
            await shop.order(choices.choices(range(1, KEYS + 1), k=40))
            worker.kill()
            postgresql.run_sql(database, changes(choices, 10 + number))
            await shop.order(choices.choices(range(1, KEYS + 1), k=40))
            worker.start()
            await shop.check()

            postgresql.run_sql(database, changes(choices, 20 + number))
            connect.kill()
            await shop.order(choices.choices(range(1, KEYS + 1), k=40))
            postgresql.run_sql(database, changes(choices, 30 + number))
            connect = kafka_connect.up(tmp_path / "connect", brokers)
            await shop.check()

            registry.kill()
            await shop.order(choices.choices(range(1, KEYS + 1), k=40))
            await shop.all_handled()  # it has the schemas
            worker.kill()
            worker.start()  # it has none
            postgresql.run_sql(database, changes(choices, 40 + number))
            await eventually(shop.follows, deadline_s=120, what=worker.log)  # rows need none
            await shop.order(choices.choices(range(1, KEYS + 1), k=40))
            waits = f"{registry.address} doesn't give schema"
            await eventually(lambda: worker.log().count(waits) > number, deadline_s=120, what=worker.log)  # noqa: B023
            registry = apicurio.up(tmp_path / "registry")
            await shop.check()
        shop.client.__exit__(None, None, None)
        assert worker.terminate() == 0
