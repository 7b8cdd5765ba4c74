"""Counts by minute, sends each final count once, and answers probes (the workload of `benchmarks.windows`)."""

from __future__ import annotations

import os
import time

from actors import App, Context, Tumbling, Window, aggregates

app = App("closing", broker=os.environ.get("KAFKA_URL", "kafka://127.0.0.1:9092"))
events = app.topic("closing-input", key_type=bytes, value_type=bytes)
finals = app.topic("closing-finals", key_type=bytes, value_type=int)
probes = app.topic("closing-probes", key_type=bytes, value_type=bytes)
minutes = app.window_store("minutes", Tumbling(minutes=1), key_type=bytes, aggregate=aggregates.count())
closed = [0]
"""How many windows this process has closed."""


@app.actor(events, stores=[minutes])
async def count_event(ctx: Context, value: bytes) -> None:
    """Count; a probe, which says when it was sent, is answered with the time and with how many windows are closed."""
    minutes.add(ctx.key, value)
    if value:
        ctx.send(probes, key=ctx.key, value=b"%s %d %d" % (value, time.monotonic_ns(), closed[0]))


@minutes.on_close
async def send_count(ctx: Context, window: Window, count: int) -> None:
    """Send a final count."""
    closed[0] += 1
    ctx.send(finals, key=ctx.key, value=count)
