"""Orders in a table of PostgreSQL, exactly once (`faust -A examples.postgres_sink worker`)."""

import os
from typing import Any

import msgspec

from actors import App
from actors.sinks import Record
from actors.sinks.postgres import Postgres


class Order(msgspec.Struct):
    """An order of a customer."""

    customer: str
    cents: int


app = App("shop", broker=os.environ.get("KAFKA_URL", "kafka://127.0.0.1:9092"))
orders = app.topic("placed-orders", key_type=str, value_type=Order)
DATABASE = os.environ.get("DATABASE_URL", "postgresql://shop@127.0.0.1/shop")


@app.sink(orders, to=Postgres(DATABASE, table="orders", key="id"))
def row(record: Record) -> dict[str, Any]:
    """Return the order's row."""
    return {"id": record.key, "customer": record.value.customer, "cents": record.value.cents}
