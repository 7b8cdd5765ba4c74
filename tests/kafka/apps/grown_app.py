"""Two actors, one of which has state."""

import os

from actors import App, Context

NAME = os.environ["APP_NAME"]
app = App(NAME, broker=os.environ["KAFKA_URL"], consumer_auto_offset_reset="latest")

source = app.topic(f"{NAME}-in", key_type=str, value_type=str)
plain = app.topic(f"{NAME}-plain", key_type=str, value_type=str)
out = app.topic(f"{NAME}-out", key_type=str, value_type=str)
kept = app.store("kept", key_type=str, value_type=str)


@app.actor(source, stores=[kept])
async def keep(ctx: Context, value: str) -> None:
    """Keep the last value; SAYS: say whether it is the key's first."""
    if "SAYS" in os.environ:
        ctx.send(out, key=ctx.key, value="first" if kept.get(ctx.key) is None else "repeat")
    kept.set(ctx.key, value)


@app.actor(plain)
async def pass_on(ctx: Context, value: str) -> None:
    """Keep nothing."""
    ctx.send(out, key=ctx.key, value=value)
