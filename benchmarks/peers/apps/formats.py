"""Ours with Avro or Protobuf: `faust -A benchmarks.peers.apps.formats worker`."""

from __future__ import annotations

from typing import Any

from actors import Context
from actors.formats import Avro, Protobuf
from benchmarks.peers.apps.base import app, settings
from benchmarks.peers.values import Command, protobuf_command

# Both topics have one schema, and one id.
value_format: Any = (
    Avro(Command, subject="record") if settings.work == "count_avro" else Protobuf(protobuf_command(), subject="record")
)
source = app.topic(settings.source, key_type=bytes, format=value_format)
target = app.topic(settings.target, key_type=bytes, format=value_format)
state = app.store("state", key_type=bytes, value_type=int)


@app.actor(source, stores=[state], name="work")
async def count(ctx: Context, value: Any) -> None:
    """Count the records of each key, and send each value with the running count in it."""
    value.count = (state.get(ctx.key) or 0) + 1
    state.set(ctx.key, value.count)
    ctx.send(target, key=ctx.key, value=value)
