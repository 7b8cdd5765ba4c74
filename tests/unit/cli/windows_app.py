"""An app with a window store and a plain one, whose state a command shows."""

from actors import App, Context, Tumbling, aggregates

app = App("shown-windows", broker="kafka://127.0.0.1:1")
events = app.topic("events", key_type=str, value_type=int)
minutes = app.window_store("minutes", Tumbling(minutes=1), aggregate=aggregates.mean())
newest = app.store("newest", value_type=int)


@app.actor(events, stores=[minutes, newest])
async def add(ctx: Context, amount: int) -> None:
    """Add an amount to its minute."""
    minutes.add(ctx.key, amount)
    newest.set(ctx.key, amount)
