"""What a format costs: decoding and encoding of a record of each format, in CPU time.

`python -m benchmarks.formats`; the last line is JSON. The registry of the costs is in memory; codecs ask it once.

Beside Kafka Streams: values are decoded, counted per key, and sent with the count in them, exactly once. Kafka Streams
has the serdes of `peers/Formats.java`; its schemas aren't looked up in a registry, ours are, once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
import msgspec
import pydantic

from actors import App
from actors.declare.values.schemas import topic_codecs
from actors.formats import Avro, Json, JsonSchema, Place, Protobuf
from actors.runtime.message.unresolved import resolved_now
from actors.testing import FakeRegistry
from benchmarks.peers.broker import delete_topics, load, make_topics, start_cluster
from benchmarks.peers.rate import measure as measure_rate
from benchmarks.peers.systems import EXACTLY_ONCE, KAFKA_STREAMS, OURS, Job, prepare
from benchmarks.peers.values import Command, protobuf_command
from dev import registry

ROUNDS, CALLS = 7, 20_000


class Order(msgspec.Struct):
    """An order of eight fields."""

    id: int
    customer: str
    item: str
    count: int
    price: float
    note: str | None
    tags: list[str]
    attributes: dict[str, str]


class PydanticOrder(pydantic.BaseModel):
    """The same one for Pydantic."""

    id: int
    customer: str
    item: str
    count: int
    price: float
    note: str | None
    tags: list[str]
    attributes: dict[str, str]


FIELDS: dict[str, Any] = {
    "id": 123_456,
    "customer": "customer-17",
    "item": "a woollen hat",
    "count": 3,
    "price": 24.5,
    "note": None,
    "tags": ["winter", "wool"],
    "attributes": {"size": "m", "colour": "green"},
}


def protobuf_order() -> Any:
    """Return the class of the same order, without `protoc`."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="benchmark_order.proto", package="benchmark", syntax="proto3")
    message = file.message_type.add(name="Order")
    entry = message.nested_type.add(name="AttributesEntry")
    entry.options.map_entry = True
    for number, name in enumerate(("key", "value"), 1):
        entry.field.add(name=name, number=number, label=1, type=9)
    kinds = {"id": 3, "customer": 9, "item": 9, "count": 3, "price": 1, "note": 9, "tags": 9}
    for number, (name, kind) in enumerate(kinds.items(), 1):
        message.field.add(name=name, number=number, label=3 if name == "tags" else 1, type=kind)
    message.field.add(name="attributes", number=8, label=3, type=11, type_name=".benchmark.Order.AttributesEntry")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("benchmark.Order"))


def cost_us(call: Callable[[], Any]) -> float:
    """Return the CPU time of a call, the least of several rounds, in microseconds."""
    rounds = []
    for _ in range(ROUNDS):
        began_s = time.process_time()
        for _ in range(CALLS):
            call()
        rounds.append(time.process_time() - began_s)
    return round(min(rounds) / CALLS * 1e6, 2)


def measure(name: str, format_: Any, value: Any) -> dict[str, Any]:
    """Return the cost of a format."""
    app = App("benchmark", broker="kafka://127.0.0.1:9092", schema_registry=FakeRegistry())
    _, codec = topic_codecs(app.topic("orders", format=format_))
    raw: bytes = resolved_now(lambda: codec.encode(value))
    if resolved_now(lambda: codec.decode(raw)) != value:
        raise click.ClickException(f"{name} reads another value than it wrote")
    own = {"decode_us": cost_us(lambda: codec.decode(raw)), "encode_us": cost_us(lambda: codec.encode(value))}
    return {"format": name, "bytes": len(raw), **own}


# --- beside Kafka Streams --------------------------------------------------------------------------------------------

PARTITIONS, KEYS = 4, 1_000


def encoded(codec: Any, type_: Any, count: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield records of 1,000 keys: commands of about a hundred bytes."""
    texts = [
        resolved_now(partial(codec.encode, type_(command=f"move-{number:06d}", args=[f"x={number}", "to=" + "b" * 60])))
        for number in range(KEYS)
    ]
    for number in range(count):
        yield b"customer-%07d" % (number % KEYS), texts[number % KEYS]


async def rates(folder: Path, *, count: int, rounds: int) -> dict[str, float]:
    """Return, by format, our rate to that of Kafka Streams: the median of the ratios of all rounds."""
    ratios: dict[str, float] = {}
    with start_cluster(folder) as cluster, registry.up(folder / "registry") as schemas:
        app = App("benchmark", broker="kafka://127.0.0.1:9092", schema_registry=schemas.address, register_schemas=True)
        for work, format_ in (("count_avro", Avro(Command)), ("count_protobuf", Protobuf(protobuf_command()))):
            topic, name = f"input-{work.replace('_', '-')}", work.removeprefix("count_")
            format_.subject = "record"
            _, codec = topic_codecs(app.topic(topic, key_type=bytes, format=format_))
            await make_topics(cluster.bootstrap, topic, partitions=PARTITIONS)
            raw = await asyncio.to_thread(list, encoded(codec, format_.type, count))
            await load(cluster.bootstrap, topic, PARTITIONS, raw)
            schema = format_.shape(format_.type, Place(topic, "value")).schema
            assert schema is not None
            job = Job(
                OURS,
                work,
                EXACTLY_ONCE,
                cluster.bootstrap,
                "",
                topic,
                "",
                partitions=PARTITIONS,
                registry=schemas.address,
                schema=(schema.text, int.from_bytes(raw[0][1][1:5])),
            )
            pairs = [await _round(job, folder, name, number) for number in range(rounds)]
            ratios[name] = round(median(ours / theirs for ours, theirs in pairs), 2)
    return ratios


async def _round(job: Job, folder: Path, name: str, number: int) -> tuple[float, float]:
    found = {}
    for system in (OURS, KAFKA_STREAMS) if number % 2 == 0 else (KAFKA_STREAMS, OURS):
        app = f"{name}-{number}-{system.replace('_', '-')}"
        own = replace(job, system=system, app=app, target=f"{app}-out")
        rate = await measure_rate(own, folder / app, 1, timeout_s=600)
        click.echo(
            f"{name:<10} {system:<14} {rate.records_per_s:>8,.0f} records/s  {rate.cpu_s_per_million:>5.1f} CPU s per "
            f"million  {rate.max_rss_mb:>4.0f} MiB"
        )
        found[system] = rate.records_per_s
        await delete_topics(job.brokers, own.target, own.changelog)
    return found[OURS], found[KAFKA_STREAMS]


@click.command()
@click.option("--records", default=1_000_000, show_default=True, help="Of each format, beside Kafka Streams.")
@click.option("--repeat", default=3, show_default=True, help="Rounds; the systems take turns.")
@click.option("--costs-only", is_flag=True, help="Without brokers and Kafka Streams.")
def main(records: int, repeat: int, costs_only: bool) -> None:
    """Measure what formats cost, and their rates beside Kafka Streams with the same bytes."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    message = protobuf_order()
    values = {**FIELDS, "note": ""}
    rows = [
        measure("JSON, msgspec", Json(Order), Order(**FIELDS)),
        measure("JSON, Pydantic", Json(PydanticOrder), PydanticOrder(**FIELDS)),
        measure("Avro, msgspec", Avro(Order), Order(**FIELDS)),
        measure("Avro, Pydantic", Avro(PydanticOrder), PydanticOrder(**FIELDS)),
        measure("Protobuf", Protobuf(message), message(**values)),
        measure("JSON Schema, msgspec", JsonSchema(Order), Order(**FIELDS)),
    ]
    for row in rows:
        click.echo(
            "{format:<22} {bytes:>4} bytes  decode {decode_us:>6.2f} µs  encode {encode_us:>6.2f} µs".format(**row)
        )
    ratios: dict[str, float] = {}
    if not costs_only:
        prepare(KAFKA_STREAMS)
        with tempfile.TemporaryDirectory(prefix="formats-") as folder:
            ratios = asyncio.run(rates(Path(folder), count=records, rounds=repeat))
    click.echo(json.dumps({"costs": rows, "ratio_to_kafka_streams": ratios}))


if __name__ == "__main__":
    main()
