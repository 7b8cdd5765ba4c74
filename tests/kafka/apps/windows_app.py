"""A count in windows of 10 s whose finals are sent."""

import os
from datetime import timedelta

from actors import App, Context, Tumbling, Window, aggregates

NAME = os.environ["APP_NAME"]
app = App(
    NAME,
    broker=os.environ["KAFKA_URL"],
    broker_session_timeout=6.0,
    broker_heartbeat_interval=0.5,
    broker_max_poll_records=50,
    broker_commit_interval=0.05,
    table_standby_replicas=int(os.environ.get("STANDBYS", "0")),
)
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
