"""The app under fire: count, sum, min and max per key, and an echo of every running value.

The echo goes to the input's own partition number, so that it can be compared with the input record by record.
"""

import os

import msgspec

from actors import App, Context

NAME = os.environ["APP_NAME"]
app = App(
    NAME,
    broker=os.environ["KAFKA_URL"],
    broker_session_timeout=6.0,
    broker_heartbeat_interval=0.5,
    topic_replication_factor=int(os.environ.get("REPLICATION", "3")),
)


class Stats(msgspec.Struct):
    """What was seen of a key so far."""

    count: int
    sum: int
    min: int
    max: int


class Echo(msgspec.Struct):
    """An input, and its key's state after it."""

    offset: int
    value: int
    stats: Stats


source = app.topic(f"{NAME}-in", key_type=str, value_type=int)
echoes = app.topic(f"{NAME}-echo", key_type=str, value_type=Echo)
stats = app.store("stats", key_type=str, value_type=Stats)


@app.actor(source, stores=[stats])
async def summarise(ctx: Context, value: int) -> None:
    """Fold the value into its key's state."""
    held = stats.get(ctx.key)
    new = (
        Stats(1, value, value, value)
        if held is None
        else Stats(held.count + 1, held.sum + value, min(held.min, value), max(held.max, value))
    )
    stats.set(ctx.key, new)
    ctx.send(echoes, key=ctx.key, value=Echo(ctx.offset, value, new), partition=ctx.partition)
