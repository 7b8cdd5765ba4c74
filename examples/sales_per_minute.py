"""Sales per minute and shop, with late data (`faust -A examples.sales_per_minute worker`).

A sale says when it happened. A minute is counted until half a minute after its end, by the time of the sales; then its
total is sent, once. A sale that comes even later goes to a topic of its own.
"""

import os
from datetime import timedelta

import msgspec

from actors import App, Context, Tumbling, Window, aggregates

app = App("sales-minutes", broker=os.environ.get("KAFKA_URL", "kafka://127.0.0.1:9092"))


class Sale(msgspec.Struct):
    """A sale; `at_ms` is its time, Unix milliseconds."""

    cents: int
    at_ms: int


class Total(msgspec.Struct):
    """The sales of a shop in the minute that begins at `minute_ms`."""

    minute_ms: int
    cents: int


sales = app.topic("sales", key_type=str, value_type=Sale, timestamp=lambda sale: sale.at_ms)
late_sales = app.topic("late-sales", key_type=str, value_type=Sale)
totals = app.topic("sales-per-minute", key_type=str, value_type=Total)
minutes = app.window_store(
    "sales-minutes", Tumbling(minutes=1), grace=timedelta(seconds=30), aggregate=aggregates.sum()
)


@app.actor(sales, stores=[minutes], late=late_sales)
async def count_sale(ctx: Context, sale: Sale) -> None:
    """Add a sale to its minute."""
    minutes.add(ctx.key, sale.cents)


@minutes.on_close
async def send_total(ctx: Context, window: Window, cents: int) -> None:
    """Send what a shop sold in a minute."""
    ctx.send(totals, key=ctx.key, value=Total(window.start_ms, cents))
