"""A count in windows of 10 s whose finals are sent."""

import os
from datetime import timedelta

from actors import Context, Tumbling, Window, aggregates
from tests.kafka.apps.quick import NAME, quick_app

app = quick_app()
orders = app.topic(f"{NAME}-in", key_type=str, value_type=int)
finals = app.topic(f"{NAME}-out", key_type=str, value_type=list)
sales = app.window_store(
    "sales",
    Tumbling(seconds=int(os.environ.get("SIZE_S", "10"))),
    retention=timedelta(hours=2),
    aggregate=aggregates.sum(),
)


@sales.on_close
async def closed(ctx: Context, window: Window, total: int) -> None:
    """Send a final."""
    if ctx.key == os.environ.get("FAILS"):
        raise ValueError("no final")
    ctx.send(finals, key=ctx.key, value=[*window, total])


@app.actor(orders, stores=[sales])
async def count(ctx: Context, amount: int) -> None:
    """Add an amount."""
    sales.add(ctx.key, amount)
