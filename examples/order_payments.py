"""Orders joined with their payments (`faust -A examples.order_payments worker`).

Orders and payments are two topics with the same keys and as many partitions each. They meet in one state, whichever
comes first, and an order that is paid is sent on: once, whatever dies in between.
"""

import os
from datetime import timedelta

import msgspec

from actors import App, Context

app = App("order-payments", broker=os.environ.get("KAFKA_URL", "kafka://127.0.0.1:9092"))


class Order(msgspec.Struct):
    """The price of an order, in cents."""

    cents: int


class Payment(msgspec.Struct):
    """An amount that was paid, in cents."""

    cents: int


class Account(msgspec.Struct):
    """The state of an order; `due` is None until the order is there."""

    due: int | None = None
    paid: int = 0


orders = app.topic("orders", key_type=str, value_type=Order)
payments = app.topic("payments", key_type=str, value_type=Payment)
settled = app.topic("settled", key_type=str, value_type=Account)
accounts = app.store("accounts", key_type=str, value_type=Account)


@app.actor(orders, payments, stores=[accounts], max_task_idle=timedelta(milliseconds=100))
async def join(ctx: Context, order: Order) -> None:
    """Note an order."""
    account = accounts.get(ctx.key) or Account()
    account.due = order.cents
    keep(ctx, account)


@app.on(join, payments)
async def paid(ctx: Context, payment: Payment) -> None:
    """Note a payment."""
    account = accounts.get(ctx.key) or Account()
    account.paid += payment.cents
    keep(ctx, account)


def keep(ctx: Context, account: Account) -> None:
    """Send an order that is paid on, and keep all others."""
    if account.due is not None and account.paid >= account.due:
        ctx.send(settled, key=ctx.key, value=account)
        accounts.delete(ctx.key)
    else:
        accounts.set(ctx.key, account)
