"""What Kafka's `EosTestClient` does: echo, min and sum of `data`, and max and count behind `repartition`."""

import os
import struct

from actors import App, Context

INT, LONG = struct.Struct(">i"), struct.Struct(">q")
"""What Java's serializers of integers write."""

# The name, and those of the topics, are what the driver looks for.
app = App("EosTest", broker=os.environ["KAFKA_URL"], broker_session_timeout=6.0, broker_heartbeat_interval=0.5)
data, repartition = (app.topic(name, key_type=str, value_type=bytes) for name in ("data", "repartition"))
echoes, minima, sums, maxima, counts = (
    app.topic(name, key_type=str, value_type=bytes) for name in ("echo", "min", "sum", "max", "cnt")
)
least, total, largest, number = (
    app.store(name, key_type=str, value_type=int) for name in ("least", "total", "largest", "number")
)


@app.actor(data, stores=[least, total])
async def fold(ctx: Context, raw: bytes) -> None:
    """Echo a number, and send its key's minimum and sum."""
    (value,) = INT.unpack(raw)
    held = least.get(ctx.key)
    smallest = value if held is None else min(value, held)
    summed = value + (total.get(ctx.key) or 0)
    least.set(ctx.key, smallest)
    total.set(ctx.key, summed)
    ctx.send(echoes, key=ctx.key, value=raw)
    ctx.send(minima, key=ctx.key, value=INT.pack(smallest))
    ctx.send(sums, key=ctx.key, value=LONG.pack(summed))
    ctx.send(repartition, key=ctx.key, value=raw)


@app.actor(repartition, stores=[largest, number])
async def fold_again(ctx: Context, raw: bytes) -> None:
    """Send a key's maximum and count."""
    (value,) = INT.unpack(raw)
    held = largest.get(ctx.key)
    greatest = value if held is None else max(value, held)
    counted = 1 + (number.get(ctx.key) or 0)
    largest.set(ctx.key, greatest)
    number.set(ctx.key, counted)
    ctx.send(maxima, key=ctx.key, value=INT.pack(greatest))
    ctx.send(counts, key=ctx.key, value=LONG.pack(counted))
