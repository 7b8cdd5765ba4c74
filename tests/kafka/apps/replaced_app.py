"""Windows, a join, a table and a topic by another key, whose topics are deleted and created again."""

from datetime import timedelta

from actors import Context, Tumbling, Window, aggregates
from tests.kafka.apps.quick import NAME, quick_app

app = quick_app()
clicks, ones, others, asks = (
    app.topic(f"{NAME}-{topic}", key_type=str, value_type=int) for topic in ("clicks", "ones", "others", "asks")
)
out = app.topic(f"{NAME}-out", key_type=str, value_type=list)
tens = app.window_store("tens", Tumbling(seconds=10), aggregate=aggregates.sum())
rows = app.table(app.topic(f"{NAME}-rows", key_type=str, value_type=int), name="rows")


@app.actor(clicks, stores=[tens])
async def count(ctx: Context, number: int) -> None:
    """Add a number to its window."""
    tens.add(ctx.key, number)


@tens.on_close
async def close(ctx: Context, window: Window, total: int) -> None:
    """Send a final."""
    ctx.send(out, key=ctx.key, value=["final", total])


@app.join(ones, others, within=timedelta(seconds=5), how="left")
async def paired(ctx: Context, one: int, other: int | None) -> None:
    """Send a pair."""
    ctx.send(out, key=ctx.key, value=["pair", one, other])


@app.actor(asks, stores=[rows])
async def answer(ctx: Context, number: int) -> None:
    """Say what the table has."""
    ctx.send(out, key=ctx.key, value=["row", number, rows.get(ctx.key)])
