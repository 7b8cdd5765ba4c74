"""Topics of several types, each with a schema and a subject of its own, as Confluent's clients write them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from actors import App, Context
from actors.declare.values.schemas import topic_codecs
from actors.errors import ConfigurationError
from actors.formats import Avro, CodecError, JsonSchema, Protobuf
from actors.formats.schemas.declared import declared_schemas
from actors.runtime.message.outputs import sent_headers
from actors.runtime.message.unresolved import resolved_now
from actors.testing import ActorTestDriver, FakeRegistry
from tests.unit.formats.served import messages, served
from tests.unit.formats.test_confluent import (
    SUBJECTS,
    AvroSerializer,
    JSONSerializer,
    MessageField,
    ProtobufSerializer,
    SchemaRegistryClient,
    SerializationContext,
    header_schema_id_serializer,
)

EVENTS = messages("events.proto", "Opened id:int64\nClosed id:int64 note:string")
Opened, Closed = EVENTS["Opened"], EVENTS["Closed"]


class Created(msgspec.Struct, tag=True):
    id: int


class Deleted(msgspec.Struct, tag=True):
    id: int


def schema_of(name: str, kind: str) -> str:
    if kind == "avro":
        return json.dumps({"type": "record", "name": name, "fields": [{"name": "id", "type": "long"}]})
    return json.dumps({"title": name, "type": "object", "properties": {"id": {"type": "integer"}}})


def theirs(kind: str, client: Any, value: Any, options: dict[str, Any]) -> Any:
    if kind == "protobuf":
        return ProtobufSerializer(type(value), client, options)
    text = schema_of(type(value).__name__, kind)
    if kind == "avro":
        return AvroSerializer(client, text, lambda value, _: {"id": value.id}, options)
    return JSONSerializer(text, client, lambda value, _: {"id": value.id}, options)


FORMATS = {
    "avro": (Avro, Created | Deleted, [Created(1), Deleted(2)]),
    "json": (JsonSchema, Created | Deleted, [Created(1), Deleted(2)]),
    "protobuf": (Protobuf, Opened | Closed, [Opened(id=1), Closed(id=2, note="x")]),
}


@pytest.mark.parametrize("ids", ["prefix", "header"])
@pytest.mark.parametrize("subject", ["record", "topic-record"])
@pytest.mark.parametrize("kind", FORMATS)
def test_each_type_has_a_subject(kind: str, subject: Any, ids: Any) -> None:
    made, type_, values = FORMATS[kind]
    registry = FakeRegistry()
    with served(registry) as address, SchemaRegistryClient({"url": address, "timeout": 30}) as client:
        options = {"auto.register.schemas": True, "subject.name.strategy": SUBJECTS[subject]}
        if ids == "header":
            options["schema.id.serializer"] = header_schema_id_serializer
        app = App("shop", broker="kafka://127.0.0.1:9092", schema_registry=address, register_schemas=True)
        codec = topic_codecs(app.topic("changes", format=made(type_, subject=subject, ids=ids)))[1]
        for value in values:
            place = SerializationContext("changes", MessageField.VALUE, [])
            raw = theirs(kind, client, value, options)(value, place)
            headers = [(name, bytes(content)) for name, content in place.headers]
            assert resolved_now(lambda raw=raw, headers=headers: codec.from_record(headers, raw)) == value
            own = resolved_now(lambda value=value: codec.encode(value))
            headers = sent_headers(codec.headers(value))
            assert resolved_now(lambda raw=own, headers=headers: codec.from_record(headers, raw)) == value
        subjects = client.get_subjects()
        names = [type(value).DESCRIPTOR.full_name if kind == "protobuf" else type(value).__name__ for value in values]
        assert sorted(subjects) == sorted(name if subject == "record" else f"changes-{name}" for name in names)
        with pytest.raises(CodecError, match="expected one of"):
            codec.encode("hat")


def test_messages_of_one_file_share_the_subject_of_their_topic() -> None:
    app = App("shop", broker="kafka://127.0.0.1:9092", schema_registry=FakeRegistry())
    changes = app.topic("changes", key_type=str, format=Protobuf(Opened | Closed))
    others = app.topic("others", key_type=str, format=Protobuf(Opened | Closed))

    @app.actor(changes)
    async def follow(ctx: Context, change: Any) -> None:
        ctx.send(others, key=ctx.key, value=change)

    with ActorTestDriver(app) as driver:
        for change in (Opened(id=1), Closed(id=2)):
            driver.send(changes, key="ada", value=change)
        assert [sent.value for sent in driver.outputs(others)] == [Opened(id=1), Closed(id=2)]


@pytest.mark.parametrize("ids", ["prefix", "header"])
def test_a_deletion_has_no_schema(ids: Any) -> None:
    app = App("shop", broker="kafka://127.0.0.1:9092", schema_registry=FakeRegistry(), register_schemas=True)
    changes = app.topic("changes", key_type=str, format=Avro(Created | Deleted, subject="record", ids=ids))
    others = app.topic("others", key_type=str, format=Avro(Created | Deleted, subject="record", ids=ids))

    @app.actor(changes, tombstones=True)
    async def follow(ctx: Context, change: Any) -> None:
        ctx.send(others, key=ctx.key, value=change, headers=ctx.headers)

    with ActorTestDriver(app) as driver:
        for change in (Created(1), None):
            driver.send(changes, key="ada", value=change)
        assert [sent.value for sent in driver.outputs(others)] == [Created(1), None]


def test_schemas_of_all_types_are_declared() -> None:
    app = App("shop", broker="kafka://127.0.0.1:9092", schema_registry=FakeRegistry())
    app.topic("changes", key_type=str, format=Avro(Created | Deleted, subject="record"))
    app.topic("events", key_type=str, format=Protobuf(Opened | Closed, subject="record"))
    app.topic("all", key_type=str, format=Avro(Created | Deleted))
    names = ["Created", "Deleted", "all-value", "shop.Closed", "shop.Opened"]
    assert [declared.subject for declared in declared_schemas(app)] == names


def test_keys_of_several_types_have_the_id_in_their_bytes() -> None:
    app = App("shop", broker="kafka://127.0.0.1:9092", schema_registry=FakeRegistry())
    with pytest.raises(ConfigurationError, match="keys of several types"):
        topic_codecs(app.topic("changes", key_format=Avro(Created | Deleted, subject="record", ids="header")))
