"""The sink that is measured: orders, merged by their keys, or each a line of its own (`BENCH_LINES`)."""

import os
from datetime import timedelta
from typing import Any

import msgspec

from actors import App
from actors.sinks import Record
from actors.sinks.postgres import Postgres

DATABASE = os.environ["BENCH_DATABASE"]
app = App(
    os.environ["BENCH_APP"], broker=os.environ["KAFKA_URL"], broker_session_timeout=6.0, broker_heartbeat_interval=1.0
)


class Order(msgspec.Struct):
    customer: str
    cents: int


orders = app.topic(os.environ["BENCH_INPUT"], key_type=str, value_type=Order)
BATCH = int(os.environ.get("BENCH_BATCH", "10000"))
OPTIONS: dict[str, Any] = {"batch": BATCH, "within": timedelta(seconds=0.2)}

if "BENCH_LINES" in os.environ:

    @app.sink(orders, to=Postgres(DATABASE, table="lines"), **OPTIONS)
    def line(record: Record) -> dict[str, Any]:
        return {"partition": record.partition, "at": record.offset}

else:

    @app.sink(orders, to=Postgres(DATABASE, table="orders", key="id"), **OPTIONS)
    def row(record: Record) -> dict[str, Any]:
        return {"id": record.key, "customer": record.value.customer, "cents": record.value.cents}
