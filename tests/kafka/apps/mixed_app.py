"""Actors beside a Faust agent, a table, a page and a timer in one app."""

import os

import faust

from actors import App, Context

NAME = os.environ["APP_NAME"]
app = App(
    NAME,
    broker=os.environ["KAFKA_URL"],
    store=os.environ.get("TABLE_STORE", "memory://"),
    web_port=int(os.environ.get("WEB_PORT", "0")) or 6066,
)


class Order(faust.Record):
    """An order."""

    item: str
    amount: int


orders = app.topic(f"{NAME}-orders", key_type=str, value_type=Order)
accepted = app.topic(f"{NAME}-accepted", key_type=str, value_type=Order)
totals_out = app.topic(f"{NAME}-totals", key_type=str, value_type=int)
seen = app.store("seen", key_type=str, value_type=Order)
totals = app.Table("totals", default=int, partitions=2)


@app.actor(orders, stores=[seen])
async def accept(ctx: Context, order: Order) -> None:
    """Accept each order once."""
    if seen.put_if_absent(ctx.key, order) is None:
        ctx.send(accepted, key=ctx.key, value=order)


@app.agent(accepted)
async def total(stream: faust.Stream[Order]) -> None:
    """Add up accepted amounts per item, with Faust's own agent and table."""
    async for order in stream.group_by(Order.item, partitions=2):
        totals[order.item] += order.amount
        await totals_out.send(key=order.item, value=totals[order.item])
