"""An app whose schemas are in a registry; REGISTRY says where."""

import os
from typing import Any

import msgspec

from actors import App, Context
from actors.formats import Avro, JsonSchema, Protobuf
from tests.unit.formats.served import messages

RECEIPT = messages("cli_receipt.proto", "Receipt owner:string cents:int64")["Receipt"]


class Order(msgspec.Struct):
    item: str
    count: int = 1


class Total(msgspec.Struct):
    count: int


class Note(msgspec.Struct):
    text: str


def make(registry: Any, name: str = "schemas", prefix: str = "") -> App:
    app = App(name, broker="kafka://127.0.0.1:1", schema_registry=registry)
    orders = app.topic(f"{prefix}orders", key_type=str, format=Avro(Order))
    app.topic(f"{prefix}receipts", key_type=str, format=Protobuf(RECEIPT))
    app.topic(f"{prefix}notes", key_type=str, format=JsonSchema(Note))
    totals = app.store("totals", format=Avro(Total))

    @app.actor(orders, stores=[totals])
    async def count(ctx: Context, order: Order) -> None:
        totals[ctx.key] = Total(order.count)

    return app


app = make(os.environ.get("SCHEMAS_APP_REGISTRY", "http://127.0.0.1:1"))
