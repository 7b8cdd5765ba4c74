"""Ours over event time: `faust -A benchmarks.peers.apps.windows worker`."""

from __future__ import annotations

from datetime import timedelta
from struct import Struct

from actors import Context, Hopping, Session, Tumbling, aggregates
from actors._core.windows.kinds import Windows
from benchmarks.peers.apps.base import app, settings

# What `benchmarks/kafka_streams` has in Windows.java.
GRACE = timedelta(seconds=10)
RETENTION = timedelta(hours=1)
KINDS: dict[str, Windows] = {
    "tumbling": Tumbling(minutes=1),
    "hopping": Hopping(timedelta(minutes=1), advance=timedelta(seconds=10)),
    "session": Session(timedelta(seconds=30)),
}
_one = Struct(">q").pack
_two = Struct(">qq").pack

source = app.topic(settings.source, key_type=bytes, value_type=bytes)
target = app.topic(settings.target, key_type=bytes, value_type=bytes)
state = app.window_store(
    "state", KINDS[settings.work], grace=GRACE, retention=RETENTION, key_type=bytes, aggregate=aggregates.count()
)


async def count_in_windows(ctx: Context, value: bytes) -> None:
    """Count the records of each key and window, and send each count that changed, by key and start."""
    for window, count in state.add(ctx.key, value):
        ctx.send(target, key=ctx.key + _one(window.start_ms), value=_one(count))


async def count_in_sessions(ctx: Context, value: bytes) -> None:
    """The same for sessions, by key, end and start."""
    for window, count in state.add(ctx.key, value):
        ctx.send(target, key=ctx.key + _two(window.end_ms, window.start_ms), value=_one(count))


app.actor(source, stores=[state], name="work")(count_in_sessions if settings.work == "session" else count_in_windows)
