"""A handler that waits 5 ms, with state (the workload of `benchmarks.parallel`)."""

import asyncio
import os

from actors import App, Context

app = App(os.environ.get("BENCH_APP", "parallel"), broker=os.environ.get("KAFKA_URL", "kafka://127.0.0.1:9092"))
calls = app.topic(os.environ.get("BENCH_INPUT", "parallel-input"), key_type=bytes, value_type=bytes)
counts = app.store("counts", key_type=bytes, value_type=int)


@app.actor(calls, stores=[counts], concurrency=int(os.environ.get("BENCH_CONCURRENCY", "100")))
async def count(ctx: Context, _: bytes) -> None:
    """Count, as if it asked a service that takes 5 ms to answer."""
    await asyncio.sleep(0.005)
    counts.set(ctx.key, (counts.get(ctx.key) or 0) + 1)
