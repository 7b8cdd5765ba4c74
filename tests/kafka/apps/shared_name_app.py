"""An app that reads sales by shop; its id and its actor's name make that of the topic between."""

import os

from actors import App, Context

NAME, SALES = os.environ["APP_NAME"], os.environ["SALES"]
app = App(NAME, broker=os.environ["KAFKA_URL"], broker_session_timeout=6.0, broker_heartbeat_interval=0.5)
counts = app.store("counts", value_type=int)


@app.actor(app.topic(SALES, key_type=str, value_type=dict), by="shop", stores=[counts], name=os.environ["ACTOR"])
async def count(ctx: Context, sale: dict[str, str]) -> None:
    """Count the sales of a shop."""
    counts.set(ctx.key, counts.get(ctx.key, 0) + 1)
