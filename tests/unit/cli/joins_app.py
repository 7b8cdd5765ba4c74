"""An app with a join, and a store of its function's, whose state a command shows."""

from datetime import timedelta

from actors import App, Context

app = App("shown-joins", broker="kafka://127.0.0.1:1")
orders = app.topic("orders", key_type=str, value_type=int)
payments = app.topic("payments", key_type=str, value_type=int)
debts = app.store("debts", value_type=int)


@app.join(orders, payments, within=timedelta(minutes=1), how="outer", stores=[debts])
async def paid(ctx: Context, order: int | None, payment: int | None) -> None:
    """Keep what isn't paid."""
    debts.set(ctx.key, (order or 0) - (payment or 0))
