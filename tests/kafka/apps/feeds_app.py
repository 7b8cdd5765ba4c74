"""Forwards clicks by their page, and counts them in windows of 10 s whose finals are sent."""

from datetime import timedelta

from actors import Context, Tumbling, Window, aggregates
from tests.kafka.apps.quick import NAME, quick_app

app = quick_app()
clicks = app.topic(f"{NAME}-clicks", key_type=str, value_type=str)
finals = app.topic(f"{NAME}-finals", key_type=str, value_type=list)
tens = app.window_store("tens", Tumbling(seconds=10), retention=timedelta(hours=2), aggregate=aggregates.count())


@tens.on_close
async def closed(ctx: Context, window: Window, total: int) -> None:
    """Send a final."""
    ctx.send(finals, key=ctx.key, value=[*window, total])


@app.actor(clicks)
async def forward(ctx: Context, page: str) -> None:
    """Send a click on by its page; what is no page stops its partition."""
    if page == "none":
        raise ValueError("no page")
    ctx.send(pages, key=page, value=ctx.key)


pages = app.topic(f"{NAME}-pages", key_type=str, value_type=str, writers=[forward])


@app.actor(pages, stores=[tens])
async def count(ctx: Context, user: str) -> None:
    """Count a click."""
    tens.add(ctx.key, user)
