"""An app with window stores and a plain one, whose state a command shows."""

from datetime import timedelta

from actors import App, Context, Session, Sliding, Tumbling, aggregates

app = App("shown-windows", broker="kafka://127.0.0.1:1")
events = app.topic("events", key_type=str, value_type=int)
minutes = app.window_store("minutes", Tumbling(minutes=1), aggregate=aggregates.mean())
visits = app.window_store("visits", Session(timedelta(minutes=1)), aggregate=aggregates.count())
near = app.window_store("near", Sliding(timedelta(minutes=1)), aggregate=aggregates.count())
newest = app.store("newest", value_type=int)


@app.actor(events, stores=[minutes, visits, near, newest])
async def add(ctx: Context, amount: int) -> None:
    """Add an amount to its windows."""
    for windows in (minutes, visits, near):
        windows.add(ctx.key, amount)
    newest.set(ctx.key, amount)
