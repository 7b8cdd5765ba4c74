"""Orders joined with customers by a foreign key; both topics have other numbers of partitions."""

from actors import Context
from tests.kafka.apps.quick import NAME, quick_app

app = quick_app()
results = app.topic(f"{NAME}-results", key_type=str, value_type=list)
orders = app.table(app.topic(f"{NAME}-orders", key_type=str, value_type=list), name="orders")
customers = app.table(app.topic(f"{NAME}-customers", key_type=str, value_type=int), name="customers")


@app.join(orders, customers, on=lambda order: order[0])
async def enriched(ctx: Context, order: list | None, customer: int | None) -> None:
    """Send the number of the order, its customer's name, and the number of the customer's record."""
    ctx.send(results, key=ctx.key, value=None if order is None else [order[1], order[0], customer])
