"""`faust schemas` at the real registry."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from actors.cli import cli
from tests.formats.test_registry import call
from tests.kafka.helpers import unique
from tests.unit.cli import schemas_app
from tests.unit.cli.test_schemas import OTHERS, RECEIPT


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["-A", "tests.unit.cli.schemas_app", *words])
    return done.exit_code, done.output


def test_schemas_are_checked_and_registered(registry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = unique("shop")
    monkeypatch.setattr(schemas_app, "app", schemas_app.make(registry, name, f"{name}-"))
    receipts, orders = f"{name}-receipts-value", f"{name}-orders-value"
    call(registry, f"/subjects/{receipts}/versions", {"schema": RECEIPT, "schemaType": "PROTOBUF"})
    call(registry, f"/subjects/{orders}/versions", {"schema": json.dumps(OTHERS)})
    for subject in (receipts, orders):
        call(registry, f"/config/{subject}", {"compatibility": "BACKWARD"}, "PUT")
    code, text = run("schemas", "check")
    assert (
        code,
        f"subject {receipts} (BACKWARD): this program can't read version 1: field shop.Receipt.owner" in text,
    ) == (1, True)
    assert f"subject {orders} (BACKWARD): this program can't read version 1: field item: it wasn't written" in text
    code, text = run("schemas", "register", receipts)
    assert (code, "status 409" in text, "field shop.Receipt.owner" in text) == (1, True, True)
    call(registry, f"/config/{receipts}", {"compatibility": "NONE"}, "PUT")
    code, text = run("schemas", "register")
    assert (code, f"registered {receipts}, version 2" in text, orders in text) == (0, True, False)
