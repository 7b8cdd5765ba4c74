"""Avro orders with the customers of a PostgreSQL, as Protobuf (`faust -A examples.shipments worker`).

The schemas are in a registry, whose address is in `SCHEMA_REGISTRY`; `faust -A examples.shipments schemas register`
puts them there. Debezium writes the table's changes to the topic `db.public.customers`. `shipment_pb2` is what `protoc`
makes of `shipment.proto`.
"""

import os

import msgspec

from actors import App, Context
from actors.formats import Avro, Protobuf
from examples.shipment_pb2 import Shipment

app = App("shipments", broker=os.environ.get("KAFKA_URL", "kafka://127.0.0.1:9092"))


class Order(msgspec.Struct):
    """An order of a customer."""

    id: str
    customer: int
    item: str
    count: int = 1


class Customer(msgspec.Struct):
    """A row of the database's table."""

    id: int
    name: str
    city: str


orders = app.topic("avro-orders", key_type=str, format=Avro(Order))
customers = app.table(
    app.topic("db.public.customers", key_type=int, value_type=Customer), name="customers", cdc="debezium"
)
shipments = app.topic("shipments", key_type=str, format=Protobuf(Shipment))
unknown = app.topic("orders-of-nobody", key_type=str, format=Avro(Order))


@app.actor(orders, by="customer", stores=[customers])
async def ship(ctx: Context, order: Order) -> None:
    """Send an order on with its customer's row."""
    customer = customers.get(ctx.key)
    if customer is None:
        ctx.send(unknown, key=order.id, value=order)
    else:
        shipment = Shipment(order=order.id, item=order.item, count=order.count, name=customer.name, city=customer.city)
        ctx.send(shipments, key=order.id, value=shipment)
