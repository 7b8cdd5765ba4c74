"""Ours: `faust -A benchmarks.backlog.app worker`, for the row that the environment names."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from actors import Context, Tumbling, Window, aggregates
from benchmarks.backlog.rows import COUNT, JOIN, ROWS
from benchmarks.peers.apps.base import app as app
from benchmarks.peers.apps.base import settings

row = ROWS[settings.work]
grace, size = timedelta(milliseconds=row.grace_ms), timedelta(milliseconds=row.size_ms)
topics = (settings.source, settings.other)[: row.inputs]
inputs = [app.topic(topic, key_type=str, value_type=str) for topic in topics]
target = app.topic(settings.target, key_type=str, value_type=str)
options: dict[str, Any] = {"max_task_idle": timedelta(milliseconds=row.idle_ms)} if row.idle_ms else {}
if row.by is not None:
    options["by"] = {inputs[row.by]: lambda value: value}


async def pay(ctx: Context, order: str, payment: str | None) -> None:
    """Send whether an order was paid."""
    ctx.send(target, key=ctx.key, value="unpaid" if payment is None else "paid")


if row.result == JOIN:
    app.join(*inputs, within=size, how="left", grace=grace, name="work", **options)(pay)
elif row.result == COUNT:
    counts = app.window_store("windows", Tumbling(size), grace=grace, aggregate=aggregates.count())

    @app.actor(*inputs, stores=[counts], name="work", **options)
    async def count(ctx: Context, value: str) -> None:
        """Count a record."""
        counts.add(ctx.key, value)

    @counts.on_close
    async def send_count(ctx: Context, window: Window, count: int) -> None:
        """Send a window's count."""
        ctx.send(target, key=f"{ctx.key}@{window.start_ms}", value=str(count))

else:
    sides = app.window_store("windows", Tumbling(size), grace=grace, value_type=list[int])

    @app.actor(*inputs, stores=[sides], name="work", **options)
    async def left(ctx: Context, value: str) -> None:
        """Note a record of the first input."""
        sides.update(ctx.key, lambda before: sorted({0, *before}), initial=[])

    @app.on(left, inputs[1])
    async def right(ctx: Context, value: str) -> None:
        """Note a record of the second input."""
        sides.update(ctx.key, lambda before: sorted({1, *before}), initial=[])

    @sides.on_close
    async def send_both(ctx: Context, window: Window, inputs: list[int]) -> None:
        """Send a key that both inputs have."""
        if inputs == [0, 1]:
            ctx.send(target, key=f"{ctx.key}@{window.start_ms}", value="both")
