"""Orders joined with customers by a foreign key; both topics have other numbers of partitions."""

import os

from actors import App, Context

NAME = os.environ["APP_NAME"]
app = App(
    NAME,
    broker=os.environ["KAFKA_URL"],
    broker_session_timeout=6.0,
    broker_heartbeat_interval=0.5,
    broker_max_poll_records=50,
    broker_commit_interval=0.05,
)
results = app.topic(f"{NAME}-results", key_type=str, value_type=list)
orders = app.table(app.topic(f"{NAME}-orders", key_type=str, value_type=list), name="orders")
customers = app.table(app.topic(f"{NAME}-customers", key_type=str, value_type=int), name="customers")


@app.join(orders, customers, on=lambda order: order[0])
async def enriched(ctx: Context, order: list | None, customer: int | None) -> None:
    """Send the number of the order, its customer's name, and the number of the customer's record."""
    ctx.send(results, key=ctx.key, value=None if order is None else [order[1], order[0], customer])
