"""An app with map, list and set stores, whose state a command shows."""

from actors import App, Context

app = App("shown-rows", broker="kafka://127.0.0.1:1")
events = app.topic("events", key_type=str, value_type=str)
lines = app.list_store("lines", value_type=str)
cart = app.map_store("cart", row_type=str, value_type=int)
tags = app.set_store("tags")


@app.actor(events, stores=[lines, cart, tags])
async def add(ctx: Context, text: str) -> None:
    """Add a text to the rows of its key."""
    lines.at(ctx.key).append(text)
    cart.at(ctx.key)[text] = len(text)
    tags.at(ctx.key).add(text)
