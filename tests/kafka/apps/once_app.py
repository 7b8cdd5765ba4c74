"""An actor that handles each key once."""

import os
from datetime import timedelta

from actors import App, Context
from actors._faust.startup import registry

NAME = os.environ["APP_NAME"]
# A changelog that one broker doesn't show is gone: there is no other broker that might.
registry.SEEN_S = 1.0
app = App(
    NAME,
    broker=os.environ["KAFKA_URL"],
    consumer_auto_offset_reset="earliest",
    commit_deadline=timedelta(seconds=3),
)

source = app.topic(f"{NAME}-in", key_type=str, value_type=str)
out = app.topic(f"{NAME}-out", key_type=str, value_type=str)
seen = app.store("seen", key_type=str, value_type=str)


@app.actor(source, stores=[seen])
async def once(ctx: Context, value: str) -> None:
    """Pass the first message of each key on."""
    if seen.put_if_absent(ctx.key, value) is None:
        ctx.send(out, key=ctx.key, value=value)
