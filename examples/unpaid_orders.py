"""Orders joined with their payments, and the unpaid ones (`faust -A examples.unpaid_orders worker`).

Orders and payments say when they happened. A payment belongs to its order if the two are at most 15 minutes apart. An
order without a payment is sent to a topic of its own: once, when a minute of grace is over too, by the time of records.
Payments are keyed by their own ids, so they are read by the order's.
"""

import os
from datetime import timedelta

import msgspec

from actors import App, Context

app = App("unpaid-orders", broker=os.environ.get("KAFKA_URL", "kafka://127.0.0.1:9092"))


class Order(msgspec.Struct):
    """An order; `at_ms` is its time, Unix milliseconds."""

    cents: int
    at_ms: int


class Payment(msgspec.Struct):
    """A payment for an order."""

    order: str
    cents: int
    at_ms: int


class Paid(msgspec.Struct):
    """A payment that came in time, and what the order asked for."""

    cents: int
    of_cents: int


orders = app.topic("placed-orders", key_type=str, value_type=Order, timestamp=lambda order: order.at_ms)
payments = app.topic("order-payments", key_type=str, value_type=Payment, timestamp=lambda payment: payment.at_ms)
paid_orders = app.topic("paid-orders", key_type=str, value_type=Paid)
unpaid_orders = app.topic("unpaid-orders", key_type=str, value_type=Order)


@app.join(
    orders,
    payments,
    within=timedelta(minutes=15),
    how="left",
    grace=timedelta(minutes=1),
    by={payments: lambda payment: payment.order},
)
async def check_payment(ctx: Context, order: Order, payment: Payment | None) -> None:
    """Send what was paid of an order, or the order if nothing was."""
    if payment is None:
        ctx.send(unpaid_orders, key=ctx.key, value=order)
    else:
        ctx.send(paid_orders, key=ctx.key, value=Paid(payment.cents, order.cents))
