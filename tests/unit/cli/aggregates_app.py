"""An app with stores of aggregates, whose results a command shows."""

import msgspec

from actors import App, Context, aggregates


class Sale(msgspec.Struct):
    """A sale."""

    cents: int
    shop: str


app = App("shown-aggregates", broker="kafka://127.0.0.1:1")
sales = app.topic("sales", key_type=str, value_type=Sale)
means = app.store("means", aggregate=aggregates.mean())
largest = app.store("largest", aggregate=aggregates.top_n(2, by=lambda sale: sale.cents, value_type=Sale))


@app.actor(sales, stores=[means, largest])
async def add(ctx: Context, sale: Sale) -> None:
    """Add a sale to the aggregates of its key."""
    means.add(ctx.key, sale.cents)
    largest.add(ctx.key, sale)
