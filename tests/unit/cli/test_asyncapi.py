"""`faust asyncapi`: the document, by the public schema of AsyncAPI 3 (Apache-2.0, without its prose)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest
from click.testing import CliRunner
from jsonschema import Draft7Validator

from actors.cli import cli
from tests.unit.cli.schemas_app import RECEIPT

PUBLIC = Path(__file__).parents[2] / "formats" / "asyncapi-3.0.0.json.gz"


def written(module: str, *words: str) -> dict[str, Any]:
    done = CliRunner().invoke(cli, ["-A", module, "asyncapi", *words])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    errors = list(Draft7Validator(json.loads(gzip.decompress(PUBLIC.read_bytes()))).iter_errors(document))
    assert [error.message[:300] for error in errors] == []
    return document


def followed(document: Any, part: Any) -> Any:
    """A part with its references followed."""
    if isinstance(part, dict) and "$ref" in part:
        target = document
        for name in part["$ref"].removeprefix("#/").split("/"):
            target = target[name]
        return followed(document, target)
    if isinstance(part, dict):
        return {name: followed(document, inner) for name, inner in part.items()}
    return [followed(document, inner) for inner in part] if isinstance(part, list) else part


def test_a_document_of_all_kinds_of_topics() -> None:
    document = written("tests.unit.cli.asyncapi_app", "--title", "The shop", "--version", "2.1")
    assert document["info"] == {"title": "The shop", "version": "2.1"}
    assert document["servers"]["broker-2"] == {"host": "127.0.0.1:9093", "protocol": "kafka"}
    whole = followed(document, document)
    addresses = {channel["address"] for channel in document["channels"].values()}
    assert addresses == {"orders", "receipts", "notes", "sales", "customers", "accounts", "raw", "anything"}

    def message(channel: str, name: str) -> Any:
        return whole["channels"][channel]["messages"][name]

    order = message("orders", "Order")
    assert order["contentType"] == "application/vnd.confluent.avro"
    assert fastavro.parse_schema(order["payload"]["schema"])["name"] == "Order"
    receipt = message("receipts", "Receipt")
    assert receipt["headers"]["required"] == ["__value_schema_id"]
    assert "message Receipt" in receipt["payload"]["schema"]
    assert receipt["bindings"]["kafka"]["key"]["allOf"][0]["properties"]["zip"] == {"type": "integer"}
    sale = message("sales", "Sale")["payload"]
    assert sale["properties"]["deposit"]["properties"]["at"] == {"type": "string"}
    customer = message("customers", "Customer")
    assert customer["headers"]["required"] == ["__key_schema_id"]
    assert customer["payload"]["properties"]["notes"]["items"]["properties"]["text"]["type"] == "string"
    assert {
        name: part["headers"]["properties"]["fa-type"]["const"]
        for name, part in whole["channels"]["accounts"]["messages"].items()
    } == {"Deposit": "Deposit", "Close": "Close"}
    assert message("raw", "bytes")["contentType"] == "application/octet-stream"
    operations = {name: (part["action"], part.get("summary")) for name, part in document["operations"].items()}
    assert operations["count-orders"] == ("receive", "Actor count")
    assert operations["by_cents-sales"] == ("receive", "Actor by_cents")
    assert operations["send-receipts"] == ("send", None)
    assert "send-orders" not in operations
    assert RECEIPT.DESCRIPTOR.full_name == "shop.Receipt"


@pytest.mark.parametrize(
    "module",
    ["tests.unit.cli.send_app", "tests.unit.cli.tables_app", "tests.unit.cli.windows_app", "examples.unpaid_orders"],
)
def test_documents_of_other_apps_are_valid(module: str) -> None:
    assert written(module)["channels"]
