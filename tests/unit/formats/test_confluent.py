"""Confluent's own serializers write, and we read; and back."""

import warnings
from typing import Any

import msgspec
import pytest

from actors import App
from actors.declare.values.schemas import topic_codecs
from actors.formats import Avro, JsonSchema, Protobuf
from actors.runtime.message.outputs import sent_headers
from actors.runtime.message.unresolved import resolved_now
from actors.testing import FakeRegistry
from tests.unit.formats.served import messages, served

with warnings.catch_warnings():
    # Its HTTP client is deprecated.
    warnings.simplefilter("ignore")
    from confluent_kafka.schema_registry import (
        SchemaRegistryClient,
        header_schema_id_serializer,
        record_subject_name_strategy,
        topic_record_subject_name_strategy,
    )
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

ITEMS = messages("item.proto", "Item name:string")
ORDERS = messages(
    "order.proto",
    """
Other note:string
Order id:string items:*.shop.Item
    Line text:string
    Price cents:int64 currency:string
""",
    uses=("item.proto",),
)


class Order(msgspec.Struct):
    item: str
    count: int = 1


class JsonOrder(Order):
    """Of its own name, which is its subject."""


AVRO = msgspec.json.encode(
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "item", "type": "string"}, {"name": "count", "type": "long", "default": 1}],
    }
).decode()
JSON = msgspec.json.encode(
    {"title": "JsonOrder", "type": "object", "properties": {"item": {"type": "string"}, "count": {"type": "integer"}}}
).decode()
SUBJECTS = {"record": record_subject_name_strategy, "topic-record": topic_record_subject_name_strategy}


def as_data(order: Order, _: Any = None) -> dict[str, Any]:
    return msgspec.to_builtins(order)


def of_data(data: dict[str, Any], _: Any = None) -> Order:
    return Order(**data)


def of_json(data: dict[str, Any], _: Any = None) -> JsonOrder:
    return JsonOrder(**data)


def theirs(kind: str, client: SchemaRegistryClient, message: Any, options: dict[str, Any]) -> tuple[Any, Any]:
    if kind == "avro":
        return AvroSerializer(client, AVRO, as_data, options), AvroDeserializer(client, AVRO, of_data)
    if kind == "json":
        return JSONSerializer(JSON, client, as_data, options), JSONDeserializer(JSON, of_json, client)
    return (
        ProtobufSerializer(type(message), client, options),
        ProtobufDeserializer(type(message), {"use.deprecated.format": False}, client),
    )


VALUES = {
    "avro": Order("a long hat", 3),
    "json": JsonOrder("a long coat", 2),
    "protobuf": ORDERS["Order"](id="1", items=[ITEMS["Item"](name="hat")]),
    "nested": ORDERS["Order.Price"](cents=5, currency="crowns"),
}


@pytest.mark.parametrize("part", ["key", "value"])
@pytest.mark.parametrize("ids", ["prefix", "header"])
@pytest.mark.parametrize("subject", ["topic", "record", "topic-record"])
@pytest.mark.parametrize("kind", list(VALUES))
def test_each_reads_what_the_other_writes(kind: str, subject: Any, ids: Any, part: Any) -> None:
    with served(FakeRegistry()) as address:
        read_each_others(address, kind, subject=subject, ids=ids, part=part)


def read_each_others(
    address: str, kind: str, *, subject: Any, ids: Any, part: Any, topic_name: str = "orders", reads_back: bool = True
) -> None:
    value = VALUES[kind]
    with SchemaRegistryClient({"url": address, "timeout": 30}) as client:
        options: dict[str, Any] = {"auto.register.schemas": True}
        if subject in SUBJECTS:
            options["subject.name.strategy"] = SUBJECTS[subject]
        if ids == "header":
            options["schema.id.serializer"] = header_schema_id_serializer
        write, read = theirs(kind, client, value, options)
        app = App("shop", broker="kafka://127.0.0.1:9092", schema_registry=address, register_schemas=True)
        made = {"avro": Avro, "json": JsonSchema}.get(kind, Protobuf)
        format_ = made(type(value), subject=subject, ids=ids)
        name = "format" if part == "value" else "key_format"
        topic = app.topic(topic_name, **{name: format_})
        place = SerializationContext(topic_name, MessageField.VALUE if part == "value" else MessageField.KEY, [])
        raw = write(value, place)
        codec = topic_codecs(topic)[part == "value"]
        headers = [(header, bytes(content)) for header, content in place.headers]
        assert bool(headers) == (ids == "header")
        assert resolved_now(lambda: codec.from_record(headers, raw)) == value
        own = resolved_now(lambda: codec.encode(value))
        back = sent_headers(codec.headers(value))
        assert [header for header, _ in back] == [header for header, _ in headers]
        if not reads_back:
            return
        assert read(own, SerializationContext(topic_name, place.field, back)) == value
        if kind != "json" and kind != "avro":
            # The same schema: it isn't registered twice, and the bytes are the same.
            assert (own, back) == (raw, headers)
