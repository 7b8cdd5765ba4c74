"""The registry of the tests: the calls that a client makes, and a kill."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from dev import registry as apicurio
from tests.kafka.helpers import unique

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
WITH_A_NOTE = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": "string", "default": ""}]}
NOTE_IS_REQUIRED = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": "string"}]}
PROTOBUF = 'syntax = "proto3"; message Order { int64 id = 1; }'
JSON_SCHEMA = json.dumps({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"})


def call(registry: str, path: str, body: Mapping[str, Any] | None = None, method: str | None = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = Request(registry + path, data, {"Content-Type": "application/vnd.schemaregistry.v1+json"}, method=method)
    try:
        with urlopen(request) as response:
            return response.status, json.loads(response.read())
    except HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def avro(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"schema": json.dumps(schema)}


def test_a_schema_is_registered_once_looked_up_and_judged(registry: str) -> None:
    subject = unique("orders")
    versions = f"/subjects/{subject}/versions"
    status, first = call(registry, versions, avro(ORDER))
    assert (status, call(registry, versions, avro(ORDER))) == (200, (200, first))
    assert call(registry, f"/subjects/{subject}", avro(ORDER))[1]["id"] == first["id"]
    assert json.loads(call(registry, f"/schemas/ids/{first['id']}")[1]["schema"]) == ORDER

    call(registry, f"/config/{subject}", {"compatibility": "BACKWARD"}, "PUT")
    judge = f"/compatibility/subjects/{subject}/versions/latest"
    assert call(registry, judge, avro(NOTE_IS_REQUIRED)) == (200, {"is_compatible": False})
    assert call(registry, versions, avro(NOTE_IS_REQUIRED))[0] == 409
    assert call(registry, judge, avro(WITH_A_NOTE)) == (200, {"is_compatible": True})
    assert call(registry, versions, avro(WITH_A_NOTE))[0] == 200
    latest = call(registry, f"{versions}/latest")[1]
    assert (latest["version"], json.loads(latest["schema"])) == (2, WITH_A_NOTE)


def test_protobuf_json_schema_and_references_are_registered(registry: str) -> None:
    orders, batches = unique("orders"), unique("batches")
    assert call(registry, f"/subjects/{orders}/versions", avro(ORDER))[0] == 200
    batch = {"type": "record", "name": "Batch", "fields": [{"name": "order", "type": "Order"}]}
    references = [{"name": "Order", "subject": orders, "version": 1}]
    assert call(registry, f"/subjects/{batches}/versions", {**avro(batch), "references": references})[0] == 200
    assert call(registry, f"/subjects/{batches}/versions/1")[1]["references"] == references
    for kind, schema in (("PROTOBUF", PROTOBUF), ("JSON", JSON_SCHEMA)):
        subject = unique(kind.lower())
        _, answer = call(registry, f"/subjects/{subject}/versions", {"schemaType": kind, "schema": schema})
        assert call(registry, f"/schemas/ids/{answer['id']}")[1]["schemaType"] == kind


def test_what_is_missing_has_confluents_error_codes(registry: str) -> None:
    status, answer = call(registry, "/schemas/ids/987654321")
    assert (status, answer["error_code"]) == (404, 40403)
    status, answer = call(registry, f"/subjects/{unique('missing')}/versions")
    assert (status, answer["error_code"]) == (404, 40401)


@pytest.mark.nightly
def test_a_killed_registry_comes_back_with_its_address_and_schemas(tmp_path: Path) -> None:
    with apicurio.up(tmp_path / "registry") as started:
        assert call(started.address, "/subjects/orders/versions", avro(ORDER))[0] == 200
        started.kill()
        again = apicurio.up(tmp_path / "registry")
        assert (again.address, again.process != started.process) == (started.address, True)
        assert call(again.address, "/subjects")[1] == ["orders"]
    assert not again.process.running()
    assert not (tmp_path / "registry").exists()
