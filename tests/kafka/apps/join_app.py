"""Counts the messages of two inputs per key in one state, and echoes each running value with its topic."""

import os

from actors import App, Context

NAME = os.environ["APP_NAME"]
app = App(NAME, broker=os.environ["KAFKA_URL"], broker_session_timeout=6.0, broker_heartbeat_interval=0.5)
left = app.topic(f"{NAME}-left", key_type=bytes, value_type=bytes)
right = app.topic(f"{NAME}-right", key_type=bytes, value_type=bytes)
out = app.topic(f"{NAME}-out", key_type=bytes, value_type=bytes)
counts = app.store("counts", key_type=bytes, value_type=int)


@app.actor(left, right, stores=[counts])
async def join(ctx: Context, value: bytes) -> None:
    """Count a message."""
    count = counts.get(ctx.key, 0) + 1
    counts.set(ctx.key, count)
    side = ctx.topic.removeprefix(f"{NAME}-").encode()
    ctx.send(out, key=ctx.key, value=b"%d:%s:%s" % (count, side, value))
