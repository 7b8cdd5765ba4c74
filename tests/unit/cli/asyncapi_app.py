"""An app with topics of all kinds."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

import msgspec
import pydantic

from actors import Actor, App, Context, receive
from actors.formats import Avro, JsonSchema, Protobuf
from tests.unit.cli.schemas_app import RECEIPT, Note, Order


class Deposit(msgspec.Struct):
    cents: int
    at: datetime


class Close(msgspec.Struct):
    reason: str | None = None


@dataclass
class Sale:
    deposit: Deposit
    price: Decimal


class Remark(pydantic.BaseModel):
    text: str


class Customer(pydantic.BaseModel):
    name: str
    notes: list[Remark] = []


class Place(msgspec.Struct, frozen=True):
    country: str
    zip: int


app = App("shop", broker="kafka://127.0.0.1:9092;kafka://127.0.0.1:9093", schema_registry="http://127.0.0.1:1")
orders = app.topic("orders", key_type=str, format=Avro(Order))
receipts = app.topic("receipts", key_type=Place, format=Protobuf(RECEIPT, ids="header"))
notes = app.topic("notes", key_type=bytes, format=JsonSchema(Note))
sales = app.topic("sales", key_type=str, value_type=Sale)
customers = app.topic("customers", key_format=Avro(Place, ids="header"), value_type=Customer)
accounts = app.topic("accounts", key_type=str)
raw = app.topic("raw", value_type=bytes)
anything = app.topic("anything")


@app.actor(orders)
async def count(ctx: Context, order: Order) -> None:
    pass


@app.actor(sales, by=lambda sale: str(sale.deposit.cents), name="by_cents")
async def by_cents(ctx: Context, sale: Sale) -> None:
    pass


@app.actor(accounts)
class Account(Actor[int]):
    @receive
    async def deposit(self, message: Deposit) -> None:
        pass

    @receive
    async def close(self, message: Close) -> None:
        pass
