"""Counts records per key and sends each running value on (the workload of `benchmarks.standby`)."""

import os

from actors import App, Context

app = App(
    os.environ.get("BENCH_APP", "standby"),
    broker=os.environ.get("KAFKA_URL", "kafka://127.0.0.1:9092"),
    table_standby_replicas=int(os.environ.get("BENCH_STANDBYS", "1")),
)
counted = app.topic("standby-input", key_type=bytes, value_type=bytes)
echo = app.topic("standby-output", key_type=bytes, value_type=int)
counts = app.store("counts", key_type=bytes, value_type=int)


@app.actor(counted, stores=[counts])
async def count(ctx: Context, value: bytes) -> None:
    """Count; what is loaded before the measurement isn't sent on."""
    number = (counts.get(ctx.key) or 0) + 1
    counts.set(ctx.key, number)
    if value != b"load":
        ctx.send(echo, key=ctx.key, value=number)
