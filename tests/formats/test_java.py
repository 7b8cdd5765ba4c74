"""A program in Java, with Apicurio's serializers and ids as Confluent's, writes what we read, and reads what we write.

Confluent's own aren't in Maven Central. Apicurio's for Protobuf has a message of its own in the place of Confluent's
message indexes.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from actors import App
from actors.declare.values.schemas import topic_codecs
from actors.formats import Avro, JsonSchema
from actors.local_kafka.jars import java
from actors.runtime.message.unresolved import resolved_now
from benchmarks.peers.java_build import ensure_built
from dev.registry import CONFLUENT_API
from tests.kafka.helpers import unique
from tests.unit.formats.test_avro import Order

NEEDS = (
    "io.apicurio:apicurio-registry-serdes-avro-serde:2.6.13.Final",
    "io.apicurio:apicurio-registry-serdes-jsonschema-serde:2.6.13.Final",
    "org.apache.kafka:kafka-clients:4.4.0",
)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "format_"), [("avro", Avro(Order)), ("json", JsonSchema(Order))], ids=["avro", "json"]
)
def test_each_reads_what_the_other_writes(registry: str, kind: str, format_: Any) -> None:
    program = ensure_built(Path(__file__).parent / "java", "formats-java", NEEDS)
    topic, own_api = unique("orders"), registry.removesuffix(CONFLUENT_API) + "/apis/registry/v2"

    def run(*words: str) -> str:
        command = [java(), "-cp", f"{program}/*", "Formats", own_api, topic, kind, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    app = App("shop", broker="kafka://127.0.0.1:9092", schema_registry=registry, register_schemas=True)
    _, codec = topic_codecs(app.topic(topic, format=format_))
    raw = resolved_now(lambda: codec.encode(Order("hat", 300)))
    assert run("read", raw.hex()) == "hat 300"
    _, place, _ = codec.origin
    schema = format_.shape(Order, place).schema
    assert schema is not None
    written = bytes.fromhex(run("write", schema.text, "hat", "300"))
    assert (written, resolved_now(lambda: codec.decode(written))) == (raw, Order("hat", 300))
