"""What a format costs: decoding and encoding of a record of each format, in CPU time.

`python -m benchmarks.formats`; the last line is JSON. The registry is one in memory, which codecs ask once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import click
import msgspec
import pydantic

from actors import App
from actors.declare.values.schemas import topic_codecs
from actors.formats import Avro, Json, JsonSchema, Protobuf
from actors.runtime.message.unresolved import resolved_now
from actors.testing import FakeRegistry

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


@click.command()
def main() -> None:
    """Measure all formats."""
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
    click.echo(json.dumps({"costs": rows}))


if __name__ == "__main__":
    main()
