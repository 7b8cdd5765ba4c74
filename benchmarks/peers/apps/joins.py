"""Ours joining two topics: `faust -A benchmarks.peers.apps.joins worker`."""

from __future__ import annotations

from datetime import timedelta

from actors import Context
from benchmarks.peers.apps.base import app, settings

# What `benchmarks/kafka_streams` has in Joins.java.
WITHIN = timedelta(minutes=1)
GRACE = timedelta(seconds=10)

source = app.topic(settings.source, key_type=bytes, value_type=bytes)
other = app.topic(settings.other, key_type=bytes, value_type=bytes)
target = app.topic(settings.target, key_type=bytes, value_type=bytes)


async def send_both(ctx: Context, left: bytes, right: bytes) -> None:
    """Send what matches, one value behind the other."""
    ctx.send(target, key=ctx.key, value=left + right)


if settings.work == "stream_join":
    app.join(source, other, within=WITHIN, how="inner", grace=GRACE, name="work")(send_both)
else:
    table = app.table(other)

    @app.actor(source, stores=[table], name="work")
    async def look_up(ctx: Context, value: bytes) -> None:
        """Send a record with the table's value of its key."""
        found = table.get(ctx.key)
        if found is not None:
            await send_both(ctx, value, found)
