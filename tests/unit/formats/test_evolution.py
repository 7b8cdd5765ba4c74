"""A schema that changes: what an earlier or a later program wrote is read, in topics and in stores."""

from __future__ import annotations

import json
import struct
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import msgspec
import pytest

from actors import Context
from actors.formats import Avro, CodecError, Place, Protobuf
from actors.runtime.message.unresolved import resolved_now
from actors.testing import ActorTestDriver, FakeRegistry
from tests.unit.formats.served import messages
from tests.unit.formats.test_avro import avro, shop
from tests.unit.formats.test_hostile import bound, registered

OLD = messages("old.proto", "Letter text:string")["Letter"]
NEW = messages("new.proto", "Letter2 text:string stars:int64")["Letter2"]


class Order(msgspec.Struct):
    item: str
    count: int = 1
    tags: list[str] = []
    note: str | None = None
    places: dict[str, int] = msgspec.field(default_factory=dict)


class Item(msgspec.Struct):
    name: str


class Batch(msgspec.Struct):
    items: list[Annotated[Item, msgspec.Meta(title="an item")]]


class Defaults(msgspec.Struct, omit_defaults=True):
    item: str
    raw: bytes = b"abc\xff"
    price: Annotated[Decimal, msgspec.Meta(extra={"precision": 12, "scale": 2})] = Decimal("-1.25")
    on: date = date(2031, 1, 2)
    at: datetime = datetime(2031, 1, 2, 3, tzinfo=UTC)
    hour: time = time(3, 4, 5, 6)
    id: UUID = UUID(int=7)
    maybe: date | None = date(2031, 1, 2)
    number: float | int = 3
    none: bytes | None = None


CENTS = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}
WRITTEN = [
    {"name": "raw", "type": "bytes", "default": "abc\u00ff"},
    {"name": "price", "type": CENTS, "default": "\u0083"},
    {"name": "on", "type": {"type": "int", "logicalType": "date"}, "default": 22281},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}, "default": 1925089200000000},
    {"name": "hour", "type": {"type": "long", "logicalType": "time-micros"}, "default": 11045000006},
    {
        "name": "id",
        "type": {"type": "string", "logicalType": "uuid"},
        "default": "00000000-0000-0000-0000-000000000007",
    },
    {"name": "maybe", "type": [{"type": "int", "logicalType": "date"}, "null"], "default": 22281},
    {"name": "number", "type": ["long", "double"], "default": 3},
    {"name": "none", "type": ["null", "bytes"], "default": None},
]  # fmt: skip


def test_defaults_are_those_of_avro_and_are_read_as_values() -> None:
    derived = Avro(Defaults).shape(Defaults, Place("orders", "value"))
    assert json.loads(derived.schema.text)["fields"][1:] == WRITTEN
    theirs = {"type": "record", "name": "Defaults", "fields": [{"name": "item", "type": "string"}, *WRITTEN]}
    for format_ in (Avro(Defaults), Avro(Defaults, schema=theirs)):
        codec = bound(registered({**theirs, "fields": theirs["fields"][:1]}), format_)
        assert resolved_now(lambda codec=codec: codec.decode(b"\0\0\0\0\1\6hat")) == Defaults("hat")
        # Fields that are left out because they are the defaults are written.
        own = bound(FakeRegistry(), format_)
        raw = resolved_now(lambda own=own: own.encode(Defaults("hat", raw=b"x")))
        assert own.decode(raw) == Defaults("hat", raw=b"x")


def record(**fields: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "Order",
        "fields": [{"name": name, "type": type_} for name, type_ in fields.items()],
    }


@pytest.mark.parametrize(
    ("schema", "data", "value"),
    [
        (record(item="string"), {"item": "hat"}, Order("hat")),
        (record(item="string", count="int"), {"item": "hat", "count": 7}, Order("hat", 7)),
        (record(weight="double", item="string"), {"item": "hat", "weight": 1.5}, Order("hat")),
        (record(item="string", note="string"), {"item": "hat", "note": "x"}, Order("hat", note="x")),
        (record(item="string", note=["string", "null"]), {"item": "hat", "note": None}, Order("hat")),
    ],
)
def test_fields_come_and_go(schema: Any, data: Any, value: Any) -> None:
    codec = bound(registered(schema), Avro(Order))
    raw = struct.pack(">bI", 0, 1) + avro(schema, data)
    assert resolved_now(lambda: codec.decode(raw)) == value


def test_a_field_without_a_default_that_the_writer_lacks_is_the_records_failure() -> None:
    codec = bound(registered(record(count="int")), Avro(Order))
    with pytest.raises(CodecError, match=r"schema 1 \(subject orders-value\).*item"):
        resolved_now(lambda: codec.decode(b"\0\0\0\0\1\2"))


def test_a_fixed_version_is_written_with() -> None:
    registry = registered(record(item="string"))
    registry.register("orders-value", json.dumps(record(item="string", count="int")))
    for version, id in ((1, 1), ("latest", 2), (2, 2)):
        codec = bound(registry, Avro(Order, version=version))
        raw = resolved_now(lambda codec=codec: codec.encode(Order("hat", 5)))
        assert raw[:5] == struct.pack(">bI", 0, id)
        assert resolved_now(lambda codec=codec, raw=raw: codec.decode(raw)) == Order("hat", 1 if id == 1 else 5)
    assert registry.requests == [
        *("GET subjects/orders-value/versions/1", "GET subjects/orders-value/versions/latest"),
        "GET subjects/orders-value/versions/2",
    ]


def test_a_store_reads_what_an_earlier_program_wrote() -> None:
    class Total(msgspec.Struct):
        count: int

    registry = FakeRegistry()

    def program(type_: Any, make: Any) -> Any:
        app = shop(registry)
        orders = app.topic("orders", key_type=str, value_type=int)
        totals = app.store("totals", format=Avro(type_))

        @app.actor(orders, stores=[totals])
        async def count(ctx: Context, number: int) -> None:
            totals[ctx.key] = make(totals.get(ctx.key), number)

        return app, orders, totals

    first, orders, totals = program(Total, lambda old, number: Total(number))
    later = msgspec.defstruct("Total", [("count", int), ("note", str, "none")])
    with ActorTestDriver(first) as driver:
        driver.send(orders, key="ada", value=5)
        again, orders, totals = program(later, lambda old, number: later(old.count + number, "more"))
        driver.restart(again)
        assert driver.get(totals, "ada") == later(5, "none")
        driver.send(orders, key="ada", value=1)
        assert driver.get(totals, "ada") == later(6, "more")
        # And back: the field that this program doesn't know is dropped.
        former, orders, totals = program(Total, lambda old, number: Total(old.count + number))
        driver.restart(former)
        driver.send(orders, key="ada", value=1)
        assert driver.get(totals, "ada") == Total(7)


def test_protobuf_keeps_fields_that_a_class_doesnt_know() -> None:
    text = 'syntax = "proto3"; package shop; message Letter { string text = 1; int64 stars = 2; }'
    codec = bound(registered(text, "PROTOBUF"), Protobuf(OLD))
    content = NEW(text="hello", stars=5).SerializeToString()
    letter = resolved_now(lambda: codec.decode(b"\0\0\0\0\1\0" + content))
    assert letter.text == "hello"
    raw = resolved_now(lambda: codec.encode(letter))
    assert NEW.FromString(raw[6:]).stars == 5


def test_references_name_types_of_other_schemas() -> None:
    registry = FakeRegistry()
    registry.register(
        "item", json.dumps({"type": "record", "name": "Item", "fields": [{"name": "name", "type": "string"}]})
    )
    uses = {"name": "Item", "subject": "item", "version": 1}
    batch = {
        "type": "record",
        "name": "Batch",
        "fields": [{"name": "items", "type": {"type": "array", "items": "Item"}}],
    }
    id = registry.register("orders-value", json.dumps(batch), "AVRO", [uses])

    codec = bound(registry, Avro(Batch))
    assert resolved_now(lambda: codec.decode(struct.pack(">bI", 0, id) + b"\2\6hat\0")) == Batch([Item("hat")])
    latest = bound(registry, Avro(Batch, version="latest"))
    raw = resolved_now(lambda: latest.encode(Batch([Item("coat")])))
    assert raw == struct.pack(">bI", 0, id) + b"\2\x08coat\0"
