"""Schemas that use others: Confluent's serializers of Avro and JSON Schema write what we read, and the reverse."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from actors import App
from actors.declare.values.schemas import topic_codecs
from actors.formats import Avro, JsonSchema
from actors.runtime.message.unresolved import resolved_now
from actors.testing import FakeRegistry
from tests.unit.formats.served import served


class Item(msgspec.Struct):
    name: str


class Batch(msgspec.Struct):
    items: list[Item]


BATCH = Batch([Item("hat"), Item("coat")])
AVRO = (
    {"type": "record", "name": "Item", "fields": [{"name": "name", "type": "string"}]},
    {"type": "record", "name": "Batch", "fields": [{"name": "items", "type": {"type": "array", "items": "Item"}}]},
)
JSON = (
    {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    {
        "title": "Batch",
        "type": "object",
        "properties": {"items": {"type": "array", "items": {"$ref": "Item"}}},
        "required": ["items"],
    },
)


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_each_reads_what_the_other_writes(kind: str) -> None:
    with served(FakeRegistry()) as address:
        read_each_others(address, kind, "items", "batches")


def read_each_others(address: str, kind: str, used: str, topic_name: str) -> None:
    item, batch = AVRO if kind == "AVRO" else JSON
    place = SerializationContext(topic_name, MessageField.VALUE)
    with SchemaRegistryClient({"url": address, "timeout": 30}) as client:
        client.register_schema(used, Schema(json.dumps(item), kind))
        schema = Schema(json.dumps(batch), kind, [SchemaReference("Item", used, 1)])

        def as_data(value: Any, _: Any) -> Any:
            return msgspec.to_builtins(value)

        write, read = (
            (AvroSerializer(client, schema, as_data), AvroDeserializer(client))
            if kind == "AVRO"
            else (JSONSerializer(schema, client, as_data), JSONDeserializer(schema, schema_registry_client=client))
        )
        theirs = write(BATCH, place)
        app = App("shop", broker="kafka://127.0.0.1:9092", schema_registry=address)
        format_ = (Avro if kind == "AVRO" else JsonSchema)(Batch, version="latest")
        _, codec = topic_codecs(app.topic(topic_name, format=format_))
        assert resolved_now(lambda: codec.decode(theirs)) == BATCH
        own = resolved_now(lambda: codec.encode(BATCH))
        assert read(own, place) == msgspec.to_builtins(BATCH)
        assert own[:5] == theirs[:5]
