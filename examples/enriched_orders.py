"""Orders with their customers, from a table of change data capture (`faust -A examples.enriched_orders worker`).

The topic `customers` has the latest row of each customer, as Debezium and other tools write it: a record for each
change, a null value for a delete. An order gets the customer as of its own time, though it comes later; orders of
customers who aren't known go to a topic of their own.
"""

import os
from datetime import timedelta

import msgspec

from actors import App, Context

app = App("enriched-orders", broker=os.environ.get("KAFKA_URL", "kafka://127.0.0.1:9092"))


class Order(msgspec.Struct):
    """An order."""

    customer: str
    cents: int


class Customer(msgspec.Struct):
    """A row of the customers' table."""

    name: str
    city: str


class EnrichedOrder(msgspec.Struct):
    """An order with what is needed to ship it."""

    cents: int
    name: str
    city: str


orders = app.topic("orders", key_type=str, value_type=Order)
customers = app.table(app.topic("customers", key_type=str, value_type=Customer), history=timedelta(days=1))
enriched = app.topic("enriched-orders", key_type=str, value_type=EnrichedOrder)
unknown = app.topic("orders-of-unknown-customers", key_type=str, value_type=Order)


@app.actor(orders, by="customer", stores=[customers])
async def enrich(ctx: Context, order: Order) -> None:
    """Send an order on with its customer."""
    customer = customers.get(ctx.key, as_of=ctx.timestamp_ms)
    if customer is None:
        ctx.send(unknown, key=ctx.key, value=order)
    else:
        ctx.send(enriched, key=ctx.key, value=EnrichedOrder(order.cents, customer.name, customer.city))
