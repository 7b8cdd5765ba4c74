"""Two actors read one topic by its own key: one keeps totals, the other one warns of the third order in an hour."""

from datetime import timedelta

from actors import App, Context

app = App("readers", broker="kafka://127.0.0.1:9092")
orders = app.topic("orders", key_type=str, value_type=int, shared=True)
warnings = app.topic("warnings", key_type=str, value_type=int)
totals = app.store("totals", key_type=str, value_type=int)
counts = app.store("counts", key_type=str, value_type=int, ttl=timedelta(hours=1))


@app.actor(orders, stores=[totals])
async def add(ctx: Context, cents: int) -> None:
    totals[ctx.key] = (totals.get(ctx.key) or 0) + cents


@app.actor(orders, stores=[counts])
async def warn(ctx: Context, cents: int) -> None:
    count = counts[ctx.key] = (counts.get(ctx.key) or 0) + 1
    if count == 3:
        ctx.send(warnings, key=ctx.key, value=cents)
