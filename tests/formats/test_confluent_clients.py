"""Confluent's serializers for Python and the registry of the tests: what one writes the other knows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.schema_registry import (
    AsyncSchemaRegistryClient,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    header_schema_id_serializer,
    topic_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext, SerializationError
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from tests.kafka.helpers import unique

AVRO = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
# the default strategy calls a part of the API that this registry lacks, and to such a call it sometimes sends no answer
CONF = {"subject.name.strategy": topic_subject_name_strategy}
JSON_SCHEMA = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Order", "type": "object"}
ORDER = {"id": 7}


def generated_class() -> type:
    """What `protoc` makes of a message with a number."""
    file = FileDescriptorProto(name="tests/order.proto", package="tests", syntax="proto3")
    file.message_type.add(name="Order").field.add(
        name="id", number=1, type=FieldDescriptorProto.TYPE_INT64, label=FieldDescriptorProto.LABEL_OPTIONAL
    )
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("tests.Order"))


@pytest.fixture
def client(registry: str) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": registry, "timeout": 30}) as connected:
        yield connected


def serializers(name: str, client: SchemaRegistryClient) -> tuple[Any, Any, Any]:
    """A serializer, its deserializer, and a value."""
    if name == "avro":
        return AvroSerializer(client, json.dumps(AVRO), conf=CONF), AvroDeserializer(client, conf=CONF), ORDER
    if name == "json":
        schema = json.dumps(JSON_SCHEMA)
        deserialize = JSONDeserializer(schema, schema_registry_client=client, conf=CONF)
        return JSONSerializer(schema, client, conf=CONF), deserialize, ORDER
    order = generated_class()
    deserialize = ProtobufDeserializer(order, schema_registry_client=client, conf=CONF)
    return ProtobufSerializer(order, client, conf=CONF), deserialize, order(id=7)


@pytest.mark.parametrize("name", ["avro", "json", "protobuf"])
def test_a_value_is_read_as_it_was_written(client: SchemaRegistryClient, name: str) -> None:
    serialize, deserialize, value = serializers(name, client)
    topic = unique("orders")
    context = SerializationContext(topic, MessageField.VALUE)
    data = serialize(value, context)
    registered = client.get_latest_version(f"{topic}-value")
    assert (data[:1], int.from_bytes(data[1:5])) == (b"\0", registered.schema_id)
    assert deserialize(data, context) == value


def test_this_registry_has_no_guids_for_ids_in_headers(client: SchemaRegistryClient) -> None:
    """Tests of these need a fake one."""
    serialize = AvroSerializer(
        client, json.dumps(AVRO), conf={**CONF, "schema.id.serializer": header_schema_id_serializer}
    )
    with pytest.raises(SerializationError, match="GUID is not set"):
        serialize(ORDER, SerializationContext(unique("orders"), MessageField.VALUE, []))


def test_a_reference_is_resolved(client: SchemaRegistryClient) -> None:
    orders, batches = unique("orders"), unique("batches")
    client.register_schema(orders, Schema(json.dumps(AVRO), "AVRO"))
    batch = {"type": "record", "name": "Batch", "fields": [{"name": "order", "type": "Order"}]}
    schema = Schema(json.dumps(batch), "AVRO", [SchemaReference("Order", orders, 1)])
    topic = SerializationContext(batches, MessageField.VALUE)
    data = AvroSerializer(client, schema, conf=CONF)({"order": ORDER}, topic)
    assert AvroDeserializer(client, conf=CONF)(data, topic) == {"order": ORDER}


async def test_the_async_client_registers_and_looks_up(registry: str) -> None:
    subject = unique("orders")
    async with AsyncSchemaRegistryClient({"url": registry, "timeout": 30}) as client:
        number = await client.register_schema(subject, Schema(json.dumps(AVRO), "AVRO"))
        assert json.loads((await client.get_schema(number)).schema_str) == AVRO
        assert await client.test_compatibility(subject, Schema(json.dumps(AVRO), "AVRO"))
