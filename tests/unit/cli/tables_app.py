"""An app with a table, whose rows a command shows."""

from datetime import timedelta

from actors import App, Context

app = App("shown-tables", broker="kafka://127.0.0.1:1")
orders = app.topic("orders", key_type=str, value_type=int)
customers = app.table(app.topic("customers", key_type=str, value_type=dict), history=timedelta(hours=1))


@app.actor(orders, stores=[customers])
async def enrich(ctx: Context, number: int) -> None:
    """Do nothing."""
