"""Counts what it gets and sends it on; a message "bad" is put aside, and what "ship" has done outside is given up."""

from __future__ import annotations

import os

from actors import App, Context, EffectCall

NAME = os.environ["APP_NAME"]
app = App(
    NAME,
    broker=os.environ["KAFKA_URL"],
    web_port=int(os.environ["WEB_PORT"]),
    # A process that is killed and comes back is the same member: nobody waits for its session to end.
    consumer_group_instance_id="one",
    rocksdb_cache_bytes=8 << 20,
    rocksdb_write_buffer_bytes=8 << 20,
)
inputs = app.topic(f"{NAME}-in", key_type=str, value_type=str)
outputs = app.topic(f"{NAME}-out", key_type=str, value_type=str)
counts = app.store("counts", key_type=str, value_type=int)


@app.effect(attempts=1)
async def ship(call: EffectCall) -> None:
    """Fail."""
    raise ValueError("nobody ships")


@app.actor(inputs, stores=[counts], on_error="park", effects=[ship])
async def count(ctx: Context, value: str) -> None:
    """Count."""
    if value == "bad":
        raise ValueError(value)
    if value == "ship":
        ctx.effect(ship)
    counts.set(ctx.key, counts.get(ctx.key, 0) + 1)
    ctx.send(outputs, key=ctx.key, value=value)
