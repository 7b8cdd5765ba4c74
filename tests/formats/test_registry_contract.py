"""The registry of tests answers as a real one does, as far as formats ask it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from actors.errors import UnresolvedSchemaError
from actors.formats.registry import MissingSchemaError, Registry, RegistryClient, Schema, SchemaReference
from actors.testing import FakeRegistry
from tests.kafka.helpers import unique
from tests.unit.formats.served import served

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
JSON = json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object"})
WITH_A_NOTE = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": "string", "default": ""}]}


@pytest.fixture(params=["fake", "real"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "real":
        yield request.getfixturevalue("registry")
    else:
        with served(FakeRegistry()) as url:
            yield url


def client(address: str, *, registers: bool = True) -> RegistryClient:
    return RegistryClient(Registry(url=address), registers=registers)


def once(attempt: Callable[[], Any]) -> Any:
    """The result after one fetch; False if the registry didn't answer."""
    with pytest.raises(UnresolvedSchemaError) as unresolved:
        attempt()

    async def fetch() -> bool:
        return await unresolved.value.fetch()

    return attempt() if asyncio.run(fetch()) else False


def of_writer(address: str, subject: str, schema: Schema) -> Any:
    asks = client(address)
    return once(lambda: asks.writer(subject, schema))


def of_id(address: str, id: Any, kind: Any) -> Schema:
    asks = client(address)
    return once(lambda: asks.schema(id, kind))


def avro(schema: Any, *references: SchemaReference) -> Schema:
    return Schema(json.dumps(schema), "AVRO", references)


def test_a_schema_is_registered_and_read_by_its_id(address: str) -> None:
    subject = unique("orders")
    id, guid = of_writer(address, subject, avro(ORDER))
    schema = of_id(address, id, "AVRO")
    assert (json.loads(schema.text), schema.type) == (ORDER, "AVRO")
    again = client(address, registers=False)
    assert once(lambda: again.writer(subject, avro(ORDER))) == (id, guid)
    if guid is not None:
        assert json.loads(of_id(address, guid, "AVRO").text) == ORDER


def test_a_schema_that_nobody_registered_is_waited_for(address: str) -> None:
    subject = unique("orders")
    asks = client(address, registers=False)
    assert once(lambda: asks.writer(subject, avro(ORDER))) is False
    asyncio.run(client(address).register(subject, avro(WITH_A_NOTE)))
    assert once(lambda: asks.writer(subject, avro(ORDER))) is False
    assert asyncio.run(client(address).register(subject, avro(ORDER))) == 2
    assert once(lambda: asks.writer(subject, avro(ORDER)))


def test_versions_of_a_subject(address: str) -> None:
    subject = unique("orders")
    for schema in (ORDER, WITH_A_NOTE):
        asyncio.run(client(address).register(subject, avro(schema)))
    asks = client(address, registers=False)
    latest, id, _ = once(lambda: asks.version(subject, "latest"))
    first, other, _ = once(lambda: asks.version(subject, 1))
    assert (json.loads(latest.text), json.loads(first.text), id != other) == (WITH_A_NOTE, ORDER, True)
    assert once(lambda: asks.version(subject, 7)) is False
    assert once(lambda: asks.version(unique("missing"), "latest")) is False


@pytest.mark.parametrize("id", [987_654_321, uuid4()])
def test_an_unknown_id_is_missing_for_certain(address: str, id: Any) -> None:
    asks = client(address)
    with pytest.raises(MissingSchemaError, match=f"has no schema {id}"):
        once(lambda: asks.schema(id, "AVRO"))


def test_references_are_read_with_a_schema(address: str) -> None:
    orders, batches = unique("orders"), unique("batches")
    asyncio.run(client(address).register(orders, avro(ORDER)))
    batch = {"type": "record", "name": "Batch", "fields": [{"name": "order", "type": "Order"}]}
    uses = SchemaReference("Order", orders, 1)
    id, _ = of_writer(address, batches, avro(batch, uses))
    schema = of_id(address, id, "AVRO")
    assert schema.references == (uses,)
    assert {name: json.loads(text) for name, text in schema.resolved.items()} == {"Order": ORDER}


@pytest.mark.parametrize("kind", ["PROTOBUF", "JSON"])
def test_other_kinds(address: str, kind: Any) -> None:
    text = {"PROTOBUF": 'syntax = "proto3"; message Order { int64 id = 1; }', "JSON": JSON}[kind]
    id, _ = of_writer(address, unique("orders"), Schema(text, kind))
    asks = client(address)
    assert once(lambda: asks.schema(id, kind)).type == kind
    with pytest.raises(ValueError, match=f"of type {kind}, not AVRO"):
        asks.schema(id, "AVRO")


def test_what_commands_ask(address: str) -> None:
    subject = unique("orders")
    asks = client(address, registers=False)

    async def ask() -> None:
        assert (await asks.versions(subject), await asks.version_of(subject, avro(ORDER))) == ([], 0)
        assert [await asks.register(subject, avro(schema)) for schema in (ORDER, WITH_A_NOTE)] == [1, 2]
        assert await asks.versions(subject) == [1, 2]
        assert await asks.version_of(subject, avro(ORDER)) == 1
        assert json.loads((await asks.at_version(subject, 1))[1].text) == ORDER
        assert await asks.mode(subject) == "NONE"
        assert await asks.refusal(subject, avro({**ORDER, "doc": "another one"})) is None

    asyncio.run(ask())
