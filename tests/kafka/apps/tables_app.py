"""Orders that get their customers as of their time, and a join of two tables."""

import os
from datetime import timedelta

from actors import App, Context

NAME = os.environ["APP_NAME"]
app = App(
    NAME,
    broker=os.environ["KAFKA_URL"],
    broker_session_timeout=6.0,
    broker_heartbeat_interval=0.5,
    broker_max_poll_records=50,
    broker_commit_interval=0.05,
    table_standby_replicas=int(os.environ.get("STANDBYS", "0")),
    processing_guarantee=os.environ.get("GUARANTEE", "exactly_once"),
)
orders = app.topic(f"{NAME}-orders", key_type=str, value_type=int)
enriched = app.topic(f"{NAME}-enriched", key_type=str, value_type=list)
results = app.topic(f"{NAME}-results", key_type=str, value_type=list)
customers = app.table(
    app.topic(f"{NAME}-customers", key_type=str, value_type=int), name="customers", history=timedelta(hours=1)
)
left, right = (
    app.table(app.topic(f"{NAME}-{side}", key_type=str, value_type=int), name=side) for side in ("left", "right")
)


@app.actor(orders, stores=[customers])
async def enrich(ctx: Context, number: int) -> None:
    """Send an order with its customer's value of its time, and of now."""
    value = [number, customers.get(ctx.key, as_of=ctx.timestamp_ms), customers.get(ctx.key)]
    ctx.send(enriched, key=ctx.key, value=value)


@app.join(left, right, how="outer")
async def both(ctx: Context, of_left: int | None, of_right: int | None) -> None:
    """Send a result, or the tombstone of one."""
    ctx.send(results, key=ctx.key, value=None if of_left is of_right is None else [of_left, of_right])
