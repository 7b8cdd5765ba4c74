"""Whether one program reads what another writes, and which field prevents it; fastavro and Protobuf are the judges."""

import json
from io import BytesIO
from typing import Any

import fastavro
import pytest

from actors.formats.registry import Schema
from actors.formats.schemas.compatibility import lines, problems


def avro(*fields: Any, name: str = "Order") -> Any:
    names = ("name", "type", "default")
    return {
        "type": "record",
        "name": name,
        "fields": [dict(zip(names[: len(field)], field, strict=True)) for field in fields],
    }


ENUM = {"type": "enum", "name": "Colour", "symbols": ["red", "blue"]}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
ITEM = avro(("name", "string"), name="Item")
AVRO = [
    (avro(("id", "long")), avro(("id", "long")), {"id": 1}, []),
    (avro(("id", "long"), ("note", "string", "")), avro(("id", "long")), {"id": 1}, []),
    (avro(("id", "long"), ("note", "string")), avro(("id", "long")), {"id": 1}, ["note"]),
    (avro(("id", "long")), avro(("id", "int")), {"id": 1}, []),
    (avro(("id", "int")), avro(("id", "long")), {"id": 1}, ["id"]),
    (avro(("id", "string")), avro(("id", "bytes")), {"id": b"1"}, []),
    (avro(("id", ["null", "long"])), avro(("id", "long")), {"id": 1}, []),
    (avro(("id", "long")), avro(("id", ["null", "long"])), {"id": None}, ["id"]),
    (avro(("id", ["null", "string"])), avro(("id", "long")), {"id": 1}, ["id"]),
    (
        avro(("colour", {**ENUM, "symbols": ["red"]})),
        avro(("colour", ENUM)),
        {"colour": "blue"},
        ["colour"],
    ),
    (
        avro(("colour", {**ENUM, "symbols": ["red"], "default": "red"})),
        avro(("colour", ENUM)),
        {"colour": "blue"},
        [],
    ),
    (
        avro(("items", {"type": "array", "items": avro(("name", "string"), ("size", "long"), name="Item")})),
        avro(("items", {"type": "array", "items": ITEM})),
        {"items": [{"name": "hat"}]},
        ["items[].size"],
    ),
    (
        avro(("item", ["null", avro(("name", "string"), ("size", "long"), name="Item")])),
        avro(("item", ["null", ITEM])),
        {"item": {"name": "hat"}},
        ["item.size"],
    ),
    (
        avro(("at", {"type": "map", "values": "long"})),
        avro(("at", {"type": "map", "values": "string"})),
        {"at": {"a": "b"}},
        ["at[]"],
    ),
    (
        {**avro(("id", "long")), "fields": [{"name": "number", "type": "long", "aliases": ["id"]}]},
        avro(("id", "long")),
        {"id": 1},
        [],
    ),
    (
        avro(("id", {"type": "fixed", "size": 3, "name": "F"})),
        avro(("id", {"type": "fixed", "size": 2, "name": "F"})),
        {"id": b"ab"},
        ["id"],
    ),
]


@pytest.mark.parametrize(("reader", "writer", "value", "fields"), AVRO)
def test_avro_as_fastavro_reads_it(reader: Any, writer: Any, value: Any, fields: list[str]) -> None:
    found = problems(Schema(json.dumps(reader)), Schema(json.dumps(writer)))
    assert [path for path, _ in found] == fields
    stream = BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(writer), value)
    stream.seek(0)
    try:
        fastavro.schemaless_reader(stream, fastavro.parse_schema(writer), fastavro.parse_schema(reader))
    except Exception:
        assert found
    else:
        assert not found


def test_avro_that_is_recursive_of_another_name_or_scale() -> None:
    tree = avro(("children", {"type": "array", "items": "Order"}))
    assert problems(Schema(json.dumps(tree)), Schema(json.dumps(tree))) == []
    [(_, text)] = problems(Schema(json.dumps(avro(name="Sale"))), Schema(json.dumps(avro())))
    assert "record Order was written, and Sale is read" in text
    other = avro(("price", {**DECIMAL, "scale": 3}))
    [(path, text)] = problems(Schema(json.dumps(other)), Schema(json.dumps(avro(("price", DECIMAL)))))
    assert path == "price"
    assert text == "the decimals written have 9 digits with scale 2, those read 9 digits with scale 3"


def jsons(reader: Any, writer: Any) -> list[str]:
    found = problems(Schema(json.dumps(reader), "JSON"), Schema(json.dumps(writer), "JSON"))
    return [path for path, _ in found]


def item(properties: dict[str, Any], *required: str, **more: Any) -> Any:
    return {"type": "object", "properties": properties, "required": list(required), **more}


def test_json_schemas() -> None:
    text, number = {"type": "string"}, {"type": "number"}
    assert jsons(item({"a": number}), item({"a": {"type": "integer"}})) == []
    assert jsons(item({"a": {"type": "integer"}}), item({"a": number})) == ["a"]
    assert jsons(item({"a": text, "b": text}, "a", "b"), item({"a": text}, "a")) == ["b"]
    assert jsons(item({}, additionalProperties=False), item({"a": text})) == ["a"]
    assert jsons(item({"a": {"anyOf": [text, {"type": "null"}]}}), item({"a": text})) == []
    assert jsons(item({"a": text}), item({"a": {"anyOf": [text, {"type": "null"}]}})) == ["a"]
    assert jsons(item({"a": {"enum": ["x"]}}), item({"a": {"enum": ["x", "y"]}})) == ["a"]
    assert jsons(item({"a": {"enum": ["x", "y"]}}), item({"a": {"enum": ["x"]}})) == []
    nested = {"$ref": "#/$defs/Item", "$defs": {"Item": item({"n": number, "again": {"$ref": "#/$defs/Item"}})}}
    other = {"$ref": "#/$defs/Item", "$defs": {"Item": item({"n": text, "again": {"$ref": "#/$defs/Item"}})}}
    assert (jsons(nested, nested), jsons(nested, other)) == ([], ["n"])


PROTO = """
syntax = "proto3";
package shop;
// message Not { int64 id = 1; }
message Order {
  int64 id = 1;
  repeated Item items = 2 [packed = false];
  oneof paid { string card = 3; bool cash = 4; }
  map<string, int64> sizes = 5;
  Colour colour = 6;
  message Item { string name = 1; reserved 2; option deprecated = true; }
  enum Colour { RED = 0; BLUE = 1; }
}
"""


def protos(reader: str, writer: str) -> list[str]:
    return [path for path, _ in problems(Schema(reader, "PROTOBUF"), Schema(writer, "PROTOBUF"))]


def test_protobuf() -> None:
    assert protos(PROTO, PROTO) == []
    assert protos(PROTO.replace("int64 id = 1", "int32 id = 1"), PROTO) == []
    assert protos(PROTO.replace("int64 id = 1", "sint64 id = 1"), PROTO) == ["shop.Order.id"]
    assert protos(PROTO.replace("  int64 id = 1;", ""), PROTO) == []
    assert protos(PROTO.replace("string card = 3", "int64 card = 3"), PROTO) == ["shop.Order.card"]
    assert protos(PROTO.replace("message Item", "message Thing").replace("Item items", "Thing items"), PROTO) == [
        "shop.Order.items",
        "shop.Order.Item",
    ]
    assert protos(PROTO.replace("Colour colour", "uint32 colour"), PROTO) == []
    assert lines(Schema(PROTO, "PROTOBUF"))[:3] == [
        "message shop.Order",
        "    1 id: int64",
        "    2 items: repeated Item",
    ]


def test_protobuf_as_text_and_as_a_descriptor_are_the_same() -> None:
    import base64

    from tests.unit.formats.served import messages

    order = messages("compatibility.proto", "Sale id:int64 names:*string\n    Line text:string")["Sale"]
    descriptor = base64.b64encode(order.DESCRIPTOR.file.serialized_pb).decode()
    text = "package shop; message Sale { int64 id = 1; repeated string names = 2; message Line { string text = 1; } }"
    assert lines(Schema(descriptor, "PROTOBUF")) == lines(Schema(text, "PROTOBUF"))
    assert protos(descriptor, text) == protos(text, descriptor) == []


def test_schemas_of_two_types() -> None:
    [(_, text)] = problems(Schema("{}", "JSON"), Schema('"string"'))
    assert text == "it is of type JSON, and was written as AVRO"
