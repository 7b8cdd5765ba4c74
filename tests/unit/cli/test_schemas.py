"""`faust schemas`: what the program declares, beside a registry."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from actors.cli import cli
from actors.testing import FakeRegistry
from tests.unit.cli import schemas_app
from tests.unit.formats.served import served

OTHERS = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "count", "type": "long"}, {"name": "shop", "type": "string"}],
}
TOTAL = {"type": "record", "name": "Total", "fields": [{"name": "sum", "type": "long"}]}
RECEIPT = 'syntax = "proto3"; package shop; message Receipt { int64 owner = 1; }'
NOTE = json.dumps({"type": "object", "properties": {"text": {"type": "integer"}}, "required": ["text"]})


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    fake = FakeRegistry()
    with served(fake) as address:
        monkeypatch.setattr(schemas_app, "app", schemas_app.make(address))
        yield fake


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["-A", "tests.unit.cli.schemas_app", *words])


def listed(*words: str) -> dict[str, Any]:
    return {entry["subject"]: entry for entry in json.loads(run("--json", "schemas", *words).stdout)}


def test_schemas_are_registered_once(registry: FakeRegistry) -> None:
    before = listed("list")
    assert list(before) == ["notes-value", "orders-value", "receipts-value", "schemas--totals-changelog-value"]
    assert not any(entry["registered"] for entry in before.values())
    done = run("schemas", "register")
    assert (done.exit_code, done.output.splitlines()) == (0, [f"registered {name}, version 1" for name in before])
    assert all(entry["version"] == 1 for entry in listed("list").values())
    assert "nothing was registered" in run("schemas", "register").output
    assert run("schemas", "check").exit_code == 0
    assert run("schemas", "diff").output == ""


def test_a_check_names_the_field_and_whom_it_breaks(registry: FakeRegistry) -> None:
    registry.mode = "FULL"
    for subject, schema, kind in (
        ("orders-value", json.dumps(OTHERS), "AVRO"),
        ("schemas--totals-changelog-value", json.dumps(TOTAL), "AVRO"),
        ("receipts-value", RECEIPT, "PROTOBUF"),
        ("notes-value", NOTE, "JSON"),
    ):
        registry.register(subject, schema, kind)
    checked = run("schemas", "check")
    assert checked.exit_code == 1
    lines = [line for line in checked.output.splitlines() if line.startswith("subject ")]
    proto = "field shop.Receipt.owner: number 1 was written as"
    assert lines == [
        "subject notes-value (FULL): this program can't read version 1: field text: integer was written, and string is "
        "read",
        "subject notes-value (FULL): programs with version 1 can't read this one's: field text: string was written, "
        "and integer is read",
        # An input: what it writes isn't judged.
        "subject orders-value (FULL): this program can't read version 1: field item: it wasn't written, and has no "
        "default",
        f"subject receipts-value (FULL): this program can't read version 1: {proto} int64 owner, and is read as string",
        f"subject receipts-value (FULL): programs with version 1 can't read this one's: {proto} string owner, and is "
        "read as int64",
        "subject schemas--totals-changelog-value (FULL): this program can't read version 1: field count: it wasn't "
        "written, and has no default",
        "subject schemas--totals-changelog-value (FULL): programs with version 1 can't read this one's: field sum: it "
        "wasn't written, and has no default",
    ]
    different = run("schemas", "diff", "receipts-value").output.splitlines()
    assert different[3:] == [
        " message shop.Receipt",
        "-    1 owner: int64",
        "+    1 owner: string",
        "+    2 cents: int64",
    ]


@pytest.mark.parametrize(
    ("mode", "breaks"),
    [("NONE", 0), ("BACKWARD", 1), ("FORWARD", 1), ("FULL", 2), ("BACKWARD_TRANSITIVE", 2), ("FULL_TRANSITIVE", 4)],
)
def test_the_mode_says_which_versions_are_judged(registry: FakeRegistry, mode: str, breaks: int) -> None:
    registry.mode = mode
    for field in ("sum", "amount"):
        schema = {**TOTAL, "fields": [{"name": field, "type": "long"}]}
        registry.register("schemas--totals-changelog-value", json.dumps(schema))
    assert len(listed("check")["schemas--totals-changelog-value"]["breaks"]) == breaks


def test_schemas_of_inputs_are_those_of_their_writers(registry: FakeRegistry) -> None:
    registry.register("orders-value", json.dumps({**OTHERS, "fields": [{"name": "item", "type": "string"}]}))
    assert "registered orders-value" not in run("schemas", "register").output
    assert listed("list")["orders-value"]["registered"]
    assert "registered orders-value, version 2" in run("schemas", "register", "orders-value").output
    wrong = run("schemas", "register", "order-value")
    assert (wrong.exit_code, "Subjects: notes-value, orders-value" in wrong.output) == (1, True)


def test_a_version_that_is_of_no_such_type_is_one_line(registry: FakeRegistry) -> None:
    # A registry that takes a schema of Protobuf under a subject of Avro calls it Avro.
    registry.register("receipts-value", RECEIPT, "PROTOBUF")
    registry._schemas[-1]["schemaType"] = "AVRO"
    done = run("schemas", "diff", "receipts-value")
    assert (done.exit_code, done.output.count("\n")) == (1, 1)
    assert done.output.startswith("Error: subject receipts-value, version 1: a schema isn't JSON")


def test_a_registry_that_is_down_or_missing_is_one_line(
    registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schemas_app, "app", schemas_app.make("http://127.0.0.1:1"))
    done = run("schemas", "check")
    assert (done.exit_code, done.output.count("\n")) == (1, 1)
    assert done.output.startswith("Error: the schema registry: ")
    monkeypatch.setattr(schemas_app, "app", schemas_app.make(None))
    assert "schema_registry=" in run("schemas", "list").output


def test_a_plan_has_the_schemas(registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_changes(*_: Any) -> list[Any]:
        return []

    monkeypatch.setattr(sys.modules["actors.cli.deploy.plan"], "_planned", no_changes)
    registry.mode = "BACKWARD"
    registry.register("schemas--totals-changelog-value", json.dumps(TOTAL))
    done = run("plan")
    assert done.exit_code == 1
    assert "! schema schemas--totals-changelog-value: this program can't read version 1: field count" in done.output
    assert "+ schema notes-value: not registered, a new subject. Workers wait for it: `schemas register`" in done.output
    registry.mode = "NONE"
    assert run("plan").exit_code == 2
    run("schemas", "register")
    assert run("plan").exit_code == 0


def test_an_export_has_the_schemas_of_the_stores(registry: FakeRegistry) -> None:
    topic = "schemas--totals-changelog"
    registry.register("other", json.dumps(OTHERS))
    registry.register(f"{topic}-value", json.dumps(TOTAL))
    run("schemas", "register")
    [(changelog, own)] = json.loads(run("schemas", "export").output).items()
    assert changelog == topic
    assert json.loads(own["writers"]["2"]) == TOTAL
    assert own["reader"] in own["writers"].values() or json.loads(own["reader"]) in map(
        json.loads, own["writers"].values()
    )
