"""A program in Go, with franz-go's client of schema registries, writes what we read, and reads what we write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from actors import App
from actors.declare.values.schemas import topic_codecs
from actors.formats import Avro, JsonSchema, Protobuf
from actors.runtime.message.unresolved import resolved_now
from actors.testing import FakeRegistry
from tests.unit.formats.served import messages, served
from tests.unit.formats.test_avro import Order

SOURCES = Path(__file__).parent / "go"
MESSAGE = messages("go_order.proto", "GoOrder item:string count:int64")["GoOrder"]
FORMATS = {"avro": Avro(Order), "json": JsonSchema(Order), "protobuf": Protobuf(MESSAGE)}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, compiled; Go's module proxy is asked once on a machine."""
    file = tmp_path_factory.mktemp("go") / "formats"
    environment = {**os.environ, "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local"}
    command = [str(Path(sys.executable).with_name("go")), "build", "-o", str(file), "."]
    done = subprocess.run(command, cwd=SOURCES, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return file


@pytest.mark.parametrize("kind", list(FORMATS))
@pytest.mark.nightly
def test_each_reads_what_the_other_writes(program: Path, kind: str) -> None:
    def run(*words: str) -> str:
        command = [str(program), address, "orders-value", kind, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    with served(FakeRegistry()) as address:
        app = App("shop", broker="kafka://127.0.0.1:9092", schema_registry=address, register_schemas=True)
        _, codec = topic_codecs(app.topic("orders", format=FORMATS[kind]))
        value: Any = MESSAGE(item="hat", count=300) if kind == "protobuf" else Order("hat", 300)
        raw = resolved_now(lambda: codec.encode(value))
        assert run("read", raw.hex()) == "hat 300"
        written = bytes.fromhex(run("write", "hat", "300"))
        assert resolved_now(lambda: codec.decode(written)) == value
        if kind != "json":
            assert written == raw
        else:
            assert (written[:5], json.loads(written[5:])) == (raw[:5], json.loads(raw[5:]))
