"""Counts messages per key and per value, keeps a timer and a read model for each key, and says each count."""

import os
from datetime import timedelta
from typing import Any

from actors import App, Context


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

    return app


if "APP_NAME" in os.environ:
    app = make(os.environ["APP_NAME"], os.environ.get("APP_READS", "in"), broker=os.environ["KAFKA_URL"])
