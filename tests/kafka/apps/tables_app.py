"""Orders that get their customers as of their time, and a join of two tables."""

from datetime import timedelta

from actors import Context
from tests.kafka.apps.quick import NAME, quick_app

app = quick_app()
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
