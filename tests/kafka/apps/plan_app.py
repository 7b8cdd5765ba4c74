"""Three programs of one app, of which each replaces the one before."""

import os
from typing import Any

from actors import App, Context, Tumbling, aggregates


def make(name: str, program: int, **options: Any) -> App:
    """Make one: the second has another version of a store, other windows and a new store, the third lacks a store."""
    app = App(name, broker_commit_interval=0.05, **options)
    inputs = app.topic(f"{name}-in", key_type=str, value_type=str)
    counts: Any = None
    if program == 1:
        counts = app.store("counts", key_type=str, value_type=int)
    elif program == 2:
        counts = app.store("counts", key_type=str, value_type=dict, version=2, upgrades={1: lambda n: {"n": n}})
    more = [app.store("extra")] if program > 1 else []
    windows = app.window_store("minutes", Tumbling(minutes=2 if program == 2 else 1), aggregate=aggregates.count())

    @app.actor(inputs, stores=[*([counts] if counts is not None else []), windows, *more])
    async def work(ctx: Context, value: str) -> None:
        """Count."""
        if counts is not None:
            n = counts.get(ctx.key)
            counts.set(ctx.key, {"n": (n or {"n": 0})["n"] + 1} if program == 2 else (n or 0) + 1)
        windows.add(ctx.key, None)

    return app


if "APP_NAME" in os.environ:
    app = make(os.environ["APP_NAME"], int(os.environ["PROGRAM"]), broker=os.environ["KAFKA_URL"])
