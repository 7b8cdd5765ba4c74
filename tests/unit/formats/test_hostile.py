"""Hostile bytes, schemas and registries: at most the record's own policy applies, and memory is bounded."""

import json
import resource
import struct
from typing import Any

import msgspec
import pytest
from aiohttp import web

from actors import App, Context
from actors.errors import ConfigurationError, UnresolvedSchemaError
from actors.formats import Avro, CodecError, JsonSchema, Place, Protobuf
from actors.runtime.message.unresolved import resolved_now
from actors.testing import ActorTestDriver, FakeRegistry
from tests.unit.formats.served import messages, served
from tests.unit.formats.test_avro import Order, avro, shop
from tests.unit.formats.test_waiting import ORDER, framed, send

TREES = messages("tree.proto", "Tree left:.shop.Tree note:string")


class Node(msgspec.Struct):
    v: int
    next: "Node | None" = None


NODE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "v", "type": "int"}, {"name": "next", "type": ["null", "Node"]}],
}


def bound(registry: Any, format_: Any, type_: Any = None, part: Any = "value") -> Any:
    app = shop(registry)
    return format_.bind(Place("orders", part), type_ or format_.type, app)


def refusal(codec: Any, raw: bytes) -> str:
    with pytest.raises(CodecError) as refused:
        resolved_now(lambda: codec.decode(raw))
    return str(refused.value)


def value_of(schema: Any, raw: bytes) -> Any:
    codec = bound(registered(schema), Avro())
    return resolved_now(lambda: codec.decode(raw))


def registered(schema: Any, type_: str = "AVRO") -> FakeRegistry:
    registry = FakeRegistry()
    registry.register("orders-value", schema if isinstance(schema, str) else json.dumps(schema), type_)
    return registry


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "begins with neither"),
        (b'{"item": "hat"}', "begins with neither"),
        (b"\0\0\0", "begins with neither"),
        (b"\1" + b"x" * 15, "begins with neither"),
        (b"\0\0\0\0\1", "schema 1"),
        (b"\0\0\0\0\1\6ha", "schema 1"),
        (b"\0\0\0\0\1\6hat\2more", "4 bytes are behind its end"),
        (b"\0\0\0\0\1" + b"\xff" * 9 + b"\x7f", "schema 1"),
        (b"\0\0\0\0\1\xfe\xff\xff\xff\x0fhat", "schema 1"),
        (b"\0\0\0\0\7\6hat\2", "has no schema 7"),
        (b"\1" + b"x" * 16 + b"\6hat\2", "has no schema 78787878-7878"),
    ],
)
def test_wrong_bytes_are_named_with_subject_and_id(raw: bytes, reason: str) -> None:
    text = refusal(bound(registered(ORDER), Avro(Order)), raw)
    assert reason in text
    assert "subject orders-value" in text


def test_a_hostile_record_is_skipped_with_its_place_and_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    registry = registered(ORDER)
    app = shop(registry)
    orders = app.topic("orders", key_type=str, format=Avro(Order))
    items: list[str] = []

    @app.actor(orders, on_error="skip")
    async def collect(ctx: Context, order: Order) -> None:
        items.append(order.item)

    with ActorTestDriver(app, partitions=1) as driver:
        for raw in (b"\0\0\0\0\7\6hat\2", framed(1, ORDER, {"item": "hat", "count": 1}), b"{}"):
            send(driver, orders, raw)
        driver.settle()
    assert items == ["hat"]
    said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "orders[0] offset 0" in said[0]
    assert "the registry of the test has no schema 7 (subject orders-value)" in said[0]
    assert "orders[0] offset 2" in said[1]
    # An id that is missing is asked for once.
    assert registry.requests.count("GET schemas/ids/7") == 1


@pytest.mark.parametrize(
    ("id", "reason"),
    [
        (b"x", "begins with neither"),
        (b"\0\0\0", "has no schema 1640"),
        (b"\0\0\0\0\7", "has no schema 7"),
        (b"\1" + b"x" * 16, "has no schema 78787878-7878"),
        (b"\0\0\0\0\1more", "schema 1"),
    ],
)
def test_a_hostile_id_in_a_header_is_the_records_failure(
    id: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    app, items = shop(registered(ORDER)), list[str]()
    orders = app.topic("orders", key_type=str, format=Avro(Order))

    @app.actor(orders, on_error="skip")
    async def collect(ctx: Context, order: Order) -> None:
        items.append(order.item)

    with ActorTestDriver(app, partitions=1) as driver:
        for header in (id, b"\0\0\0\0\1"):
            driver.post(orders, key=b"ada", value=b"\6hat\2", headers=[("__value_schema_id", header)], raw=True)
        driver.settle()
    [text] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert (items, "orders[0] offset 0" in text) == (["hat"], True)
    assert reason in text
    assert "subject orders-value" in text


def test_ids_that_records_name_are_remembered_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.formats.registry.MOST_MISSING", 2)
    registry = registered(ORDER)
    codec = bound(registry, Avro(Order))
    for id in (7, 8, 9, 7):
        assert f"has no schema {id}" in refusal(codec, struct.pack(">bI", 0, id) + b"\6hat\2")
    assert [registry.requests.count(f"GET schemas/ids/{id}") for id in (7, 8, 9)] == [2, 1, 1]


@pytest.mark.parametrize("type_", [Node, None])
def test_deep_values_are_refused_and_dont_end_the_process(type_: Any) -> None:
    codec = bound(registered(NODE), Avro(type_))
    head = struct.pack(">bI", 0, 1)
    assert refusal(codec, head + b"\2\2" * 1_000_000 + b"\2\0").count("deeper than 200 levels")
    back = resolved_now(lambda: codec.decode(head + b"\2\2" * 50 + b"\2\0"))
    assert (back.v if type_ else back["v"]) == 1


def test_a_deep_value_cant_be_written() -> None:
    node = None
    for number in range(100_000):
        node = Node(number, node)
    codec = bound(FakeRegistry(), Avro(Node))
    with pytest.raises(CodecError, match=r"(?i)recursion|deeper"):
        resolved_now(lambda: codec.encode(node))
    while node is not None:
        # So deep a value can't be freed at once either.
        node = node.next
    data: Any = None
    for number in range(100_000):
        data = {"v": number, "next": data}
    codec = bound(registered(NODE), Avro(version=1))
    with pytest.raises(CodecError, match=r"(?i)recursion|deeper"):
        resolved_now(lambda: codec.encode(data))
    while data is not None:
        data = data["next"]


@pytest.mark.parametrize(
    "items", ["null", {"type": "record", "name": "Empty", "fields": []}, {"type": "fixed", "name": "F", "size": 0}]
)
def test_items_without_bytes_take_no_memory(items: Any) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "items", "type": {"type": "array", "items": items}}]}
    count = b"\xfe\xff\xff\xff\xff\xff\x7f"
    text = refusal(bound(registered(schema), Avro()), struct.pack(">bI", 0, 1) + count + b"\0")
    assert "items are in" in text


@pytest.mark.parametrize("items", ["string", "long", ["null", "string"]])
def test_lengths_that_lie_take_no_memory(items: Any) -> None:
    schema = {"type": "array", "items": items}
    head = struct.pack(">bI", 0, 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for raw in (b"\xfe\xff\xff\xff\xff\xff\x7f\2", b"\2\2\xfe\xff\xff\xff\x0f", b"\1\xfe\xff\xff\xff\x0f\2"):
        assert "schema 1" in refusal(bound(registered(schema), Avro()), head + raw)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


def test_large_schemas() -> None:
    fields = [{"name": f"f{number}", "type": "int", "doc": "x" * 60} for number in range(10_000)]
    schema = {"type": "record", "name": "Wide", "fields": fields}
    assert len(json.dumps(schema)) > 1_000_000
    raw = framed(1, schema, {f"f{number}": number for number in range(10_000)})
    assert value_of(schema, raw)["f9999"] == 9999
    union = [{"type": "record", "name": f"R{number}", "fields": [{"name": "v", "type": "int"}]} for number in range(50)]
    raw = framed(1, union, {"v": 3, "-type": "R49"})
    assert value_of(union, raw) == {"v": 3}


def test_schemas_in_schemas_are_looked_at_once_each() -> None:
    names = [f"R{number}" for number in range(60)]
    inner: Any = {"type": "record", "name": names[-1], "fields": [{"name": "v", "type": "int"}]}
    for name in reversed(names[:-1]):
        inner = {"type": "record", "name": name, "fields": [{"name": "a", "type": inner}, {"name": "b", "type": "int"}]}
    raw = avro(inner, value := nested(names))
    assert value_of(inner, struct.pack(">bI", 0, 1) + raw) == value


def nested(names: list[str]) -> Any:
    value: Any = {"v": 1}
    for _ in names[:-1]:
        value = {"a": value, "b": 2}
    return value


@pytest.mark.parametrize(
    "schema",
    ['{"type": "record"}', '{"type": "nonsense"}', "[]", "no JSON", '{"type": "record", "name": "R", "fields": 3}'],
)
def test_a_broken_schema_is_the_records_failure(schema: str) -> None:
    registry = FakeRegistry()
    registry._schemas.append({"schema": schema, "schemaType": "AVRO", "references": []})
    assert "schema 1" in refusal(bound(registry, Avro(Order)), b"\0\0\0\0\1\6hat\2")


@pytest.mark.parametrize(
    "schema",
    [
        {**ORDER, "name": "Customer", "fields": [{"name": "name", "type": "string"}]},
        {**ORDER, "fields": [{"name": "item", "type": "boolean"}]},
        '"string"',
        {"type": "map", "values": "int"},
    ],
)
def test_a_schema_of_something_else_is_the_records_failure(schema: Any) -> None:
    registry = registered(schema)
    assert "schema 1" in refusal(bound(registry, Avro(Order)), b"\0\0\0\0\1\6hat\2")


def test_a_schema_of_another_kind_is_the_records_failure() -> None:
    registry = registered('{"type": "object"}', "JSON")
    assert "it is of type JSON, not AVRO" in refusal(bound(registry, Avro(Order)), b"\0\0\0\0\1\6hat\2")
    assert "it is of type JSON, not PROTOBUF" in refusal(bound(registry, Protobuf(TREES["Tree"])), b"\0\0\0\0\1\0")


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        (b"", "message index"),
        (b"\2\x04", "its index [2] is no message of the schema"),
        (b"\2\2", "its index [1] is shop.Other"),
        (b"\1", "its message index has -1 numbers"),
        (b"\xfe\xff\xff\xff\xff\xff\xff\xff\x01", "message index"),
        (b"\x80\x80\x80\x80\x80\x80\x80\x80\x80", "message index"),
        (b"\0\x0a\xff\xff\xff\xff\x07", "parsing"),
        (b"\0" + b"\x0a\x7f" * 20, "parsing"),
    ],
)
def test_protobuf_with_a_wrong_index_or_content(rest: bytes, reason: str) -> None:
    text = 'syntax = "proto3"; package shop; // message No {\nmessage Tree { Tree left = 1; } message Other {}'
    codec = bound(registered(text, "PROTOBUF"), Protobuf(TREES["Tree"]))
    text = refusal(codec, b"\0\0\0\0\1" + rest)
    assert reason in text.replace("Error parsing message", "parsing")
    assert "schema 1 (subject orders-value)" in text


def test_deep_protobuf_is_refused() -> None:
    text = 'syntax = "proto3"; package shop; message Tree { Tree left = 1; string note = 2; }'
    codec = bound(registered(text, "PROTOBUF"), Protobuf(TREES["Tree"]))
    raw = b""
    for _ in range(2_000):
        size, length = len(raw), b""
        while size > 127:
            length, size = length + bytes([size & 127 | 128]), size >> 7
        raw = b"\x0a" + length + bytes([size]) + raw
    assert "schema 1" in refusal(codec, b"\0\0\0\0\1\0" + raw)


@pytest.mark.parametrize("rest", [b"", b"{", b'{"item": 1}', b"[" * 100_000, b'{"item": "\xff"}', b"NaN"])
def test_json_that_isnt_of_the_type(rest: bytes) -> None:
    registry = registered('{"type": "object"}', "JSON")
    assert "(subject orders-value)" in refusal(bound(registry, JsonSchema(Order)), b"\0\0\0\0\1" + rest)


# --- registries ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (500, '{"error_code": 50001, "message": "Error in the backend"}', "application/json"),
        (404, "<html>nginx</html>", "text/html"),
        (404, '{"error_code": 404, "message": "HTTP 404 Not Found"}', "application/json"),
        (200, "<html>Log in</html>", "text/html"),
        (200, "[]", "application/json"),
        (200, '{"schema": 3}', "application/json"),
        (200, '{"schema": "\\"string\\"", "references": [{"name": "a"}]}', "application/json"),
        (401, '{"error_code": 40101, "message": "Unauthorized"}', "application/json"),
        (200, "[" * 200_000, "application/json"),
        (200, '"' + "x" * 9_000_000 + '"', "application/json"),
    ],
)
def test_a_registry_that_answers_something_else_is_asked_again(
    status: int, body: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(_: Any) -> Any:
        return web.Response(status=status, text=body, content_type=kind)

    with served(FakeRegistry(), answer) as address:
        app = App("shop", broker="kafka://127.0.0.1:9092", schema_registry=address.replace("//", "//ada:secret@"))
        codec = Avro(Order).bind(Place("orders", "value"), Order, app)
        with pytest.raises(UnresolvedSchemaError):
            resolved_now(lambda: codec.decode(b"\0\0\0\0\1\6hat\2"))
    [text] = [record.getMessage() for record in caplog.records]
    assert f"the registry {address}" in text
    assert "schema 1" in text
    assert "secret" not in text
    assert len(text) < 1_000


def test_a_slow_registry_is_given_up_and_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    async def answer(_: Any) -> Any:
        await asyncio.sleep(3)
        return web.Response(text="{}")

    monkeypatch.setattr("actors.formats.registry.REQUEST_S", 0.1)
    with served(FakeRegistry(), answer) as address:
        app = App("shop", broker="kafka://127.0.0.1:9092", schema_registry=address)
        codec = Avro(Order).bind(Place("orders", "value"), Order, app)
        with pytest.raises(UnresolvedSchemaError):
            resolved_now(lambda: codec.decode(b"\0\0\0\0\1\6hat\2"))


def test_references_in_a_circle() -> None:
    registry = FakeRegistry()
    uses = {"name": "A", "subject": "a", "version": 1}
    registry.register("a", '{"type": "record", "name": "A", "fields": []}', "AVRO", [uses])
    codec = bound(registry, Avro(Order))
    with pytest.raises(UnresolvedSchemaError):
        resolved_now(lambda: codec.decode(b"\0\0\0\0\1\6hat\2"))


def test_without_a_registry_the_setting_is_named() -> None:
    with pytest.raises(ConfigurationError, match="schema_registry='http"):
        bound(None, Avro(Order)).decode(b"\0\0\0\0\1\6hat\2")
