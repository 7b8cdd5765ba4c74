"""A worker on a real broker with a real registry, behind Confluent's serializer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from actors import App, Context
from actors.formats import Avro, Protobuf
from tests.kafka.helpers import eventually, make_topics, read_all, send, unique
from tests.unit.formats.served import messages
from tests.unit.formats.test_avro import Order, Total
from tests.unit.formats.test_confluent import AVRO, as_data

RECEIPT = messages("receipt.proto", "Counted owner:string count:int64")["Counted"]


async def test_a_worker_reads_avro_of_confluents_serializer_and_writes_protobuf(
    brokers: str, registry: str, tmp_path: Path
) -> None:
    orders_name, receipts_name = unique("orders"), unique("receipts")
    await make_topics(brokers, orders_name, receipts_name)
    app = App(
        unique("shop"),
        broker=";".join(f"kafka://{broker}" for broker in brokers.split(",")),
        datadir=str(tmp_path),
        schema_registry=registry,
        register_schemas=True,
    )
    orders = app.topic(orders_name, key_type=str, format=Avro(Order))
    receipts = app.topic(receipts_name, key_type=str, format=Protobuf(RECEIPT))
    totals = app.store("totals", format=Avro(Total))

    @app.actor(orders, stores=[totals])
    async def count(ctx: Context, order: Order) -> None:
        total = Total(totals.get(ctx.key, Total(0)).count + order.count)
        totals[ctx.key] = total
        ctx.send(receipts, key=ctx.key, value=RECEIPT(owner=ctx.key, count=total.count))

    with SchemaRegistryClient({"url": registry, "timeout": 30}) as client:
        write = AvroSerializer(client, AVRO, as_data)
        place = SerializationContext(orders_name, MessageField.VALUE)
        await send(brokers, orders_name, [(b"ada", write(Order("hat", number), place)) for number in (1, 2, 3)])
        async with app.running():

            async def done() -> Any:
                records = await read_all(brokers, receipts_name)
                return records if len(records) == 3 else None

            records: Any = await eventually(done)
        # Confluent's reader asks for descriptors in base64, which Apicurio doesn't make of text.
        back = [RECEIPT.FromString(record.value[6:]) for record in records]
        latest = client.get_latest_version(f"{receipts_name}-value")
        assert {record.value[:6] for record in records} == {b"\0" + latest.schema_id.to_bytes(4) + b"\0"}
        assert "message Counted {" in latest.schema.schema_str
        assert [(receipt.owner, receipt.count) for receipt in back] == [("ada", 1), ("ada", 3), ("ada", 6)]
