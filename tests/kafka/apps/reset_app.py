"""Counts messages per key and per value, keeps a timer and a read model for each key, and says each count.

Another actor has windows, an effect that waits, parked messages and timers by stream time; a join has rows.
"""

import os
from datetime import timedelta
from typing import Any

from actors import App, Context, EffectCall, Tumbling, Window, aggregates


def make(name: str, read: str = "in", **options: Any) -> App:
    """Make it. Values are counted by another actor, which reads them by another key; `read` is what is counted."""
    app = App(name, broker_commit_interval=0.05, broker_session_timeout=6.0, broker_heartbeat_interval=0.5, **options)
    inputs = app.topic(f"{name}-{read}", key_type=str, value_type=str)
    values = app.topic(f"{name}-values", key_type=str, value_type=str)
    out = app.topic(f"{name}-out", key_type=str, value_type=int)
    model = app.topic(f"{name}-model", key_type=str, value_type=int)
    counts = app.store("counts", key_type=str, value_type=int, publish=model)
    by_value = app.store("by-value", key_type=str, value_type=int)

    @app.actor(inputs, stores=[counts], timers=True)
    async def count(ctx: Context, value: str) -> None:
        """Count by key."""
        counts.set(ctx.key, (counts.get(ctx.key) or 0) + 1)
        ctx.schedule(f"later-{value}", after=timedelta(days=1))
        ctx.send(out, key=ctx.key, value=counts.get(ctx.key))

    @app.actor(values, by=lambda value: value, stores=[by_value])
    async def tally(ctx: Context, value: str) -> None:
        """Count by value."""
        by_value.set(ctx.key, (by_value.get(ctx.key) or 0) + 1)
        ctx.send(out, key=ctx.key, value=by_value.get(ctx.key))

    watch_and_pair(app, name)
    return app


def watch_and_pair(app: App, name: str) -> None:
    """Add the actor with windows and the join, which say what they do in another topic."""
    watched, left, right = (
        app.topic(f"{name}-{kind}", key_type=str, value_type=str) for kind in ("watched", "left", "right")
    )
    seen = app.topic(f"{name}-seen", key_type=str, value_type=list)
    minutes = app.window_store("minutes", Tumbling(minutes=1), aggregate=aggregates.count())

    @app.effect(first_wait=timedelta(hours=1), longest_wait=timedelta(hours=1), attempts=0)
    async def post(call: EffectCall) -> None:
        """Be where nobody listens."""
        raise ConnectionError

    @minutes.on_close
    async def closed(ctx: Context, window: Window, count: int) -> None:
        ctx.send(seen, key=ctx.key, value=["final", count])

    @app.actor(watched, stores=[minutes], effects=[post], timers=True, on_error="park")
    async def watch(ctx: Context, value: str) -> None:
        """Count in windows."""
        if value == "bad":
            raise ValueError(value)
        if ctx.timer is not None:
            ctx.send(seen, key=ctx.key, value=["rung", value])
            return
        minutes.add(ctx.key, None)
        ctx.effect(post)
        ctx.schedule(value, after=timedelta(seconds=30), stream_time=True)

    @app.join(left, right, within=timedelta(seconds=10), how="left")
    async def pair(ctx: Context, one: str, other: str | None) -> None:
        """Say a pair."""
        ctx.send(seen, key=ctx.key, value=["pair", one, other])


if "APP_NAME" in os.environ:
    app = make(os.environ["APP_NAME"], os.environ.get("APP_READS", "in"), broker=os.environ["KAFKA_URL"])
