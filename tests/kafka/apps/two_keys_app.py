"""Reads payments by their order beside orders, and by their customer beside customers; counts what comes of each."""

import json
import os
from typing import Any

from actors import App, Context

NAME = os.environ["APP_NAME"]
app = App(NAME, broker=os.environ["KAFKA_URL"], broker_session_timeout=6.0, broker_heartbeat_interval=0.5)
payments, orders, customers = (
    app.topic(f"{NAME}-{name}", key_type=str) for name in ("payments", "orders", "customers")
)
out = app.topic(f"{NAME}-out", key_type=str, value_type=str)
by_order = app.store("by_order", value_type=int)
by_customer = app.store("by_customer", value_type=int)


@app.actor(orders, payments, by={payments: "order"}, stores=[by_order])
async def join_orders(ctx: Context, value: dict[str, Any]) -> None:
    """Count what comes of an order."""
    count = by_order.get(ctx.key, 0) + 1
    by_order.set(ctx.key, count)
    ctx.send(out, key=ctx.key, value=json.dumps([count, "order" in value, value["number"]]))


@app.actor(customers, payments, by={payments: "customer"}, stores=[by_customer])
async def join_customers(ctx: Context, value: dict[str, Any]) -> None:
    """Count what comes of a customer."""
    count = by_customer.get(ctx.key, 0) + 1
    by_customer.set(ctx.key, count)
    ctx.send(out, key=ctx.key, value=json.dumps([count, "order" in value, value["number"]]))
