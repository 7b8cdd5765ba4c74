"""The main job with raw values: put-if-absent, first ones forwarded (the workload of `benchmarks.run_commands`)."""

import os

from actors import App, Context

app = App(
    os.environ.get("BENCH_APP", "bench"),
    broker=os.environ.get("KAFKA_URL", "kafka://127.0.0.1:9092"),
)
commands = app.topic(os.environ.get("BENCH_INPUT", "bench-input"), key_type=bytes, value_type=bytes)
runs = app.topic(os.environ.get("BENCH_OUTPUT", "bench-output"), key_type=bytes, value_type=bytes)
seen = app.store("seen", key_type=bytes, value_type=bytes)


@app.actor(commands, stores=[seen])
async def run_once(ctx: Context, command: bytes) -> None:
    """Forward a command the first time."""
    if seen.put_if_absent(ctx.key, command) is None:
        ctx.send(runs, key=ctx.key, value=command)
