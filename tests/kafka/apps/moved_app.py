"""Windows, a join, timers, effects, ids and parked messages, each with work in hand; APP_MENDED says what works."""

import os
from datetime import timedelta
from typing import Any

import msgspec

from actors import App, Context, EffectCall, Every, Session, Tumbling, Window, aggregates

NAME = os.environ.get("APP_NAME", "moved")
app = App(
    NAME,
    broker=os.environ.get("KAFKA_URL", "kafka://127.0.0.1:9092"),
    worker_secret=os.environ.get("APP_SECRET"),
    broker_session_timeout=6.0,
    broker_heartbeat_interval=0.5,
    broker_commit_interval=0.05,
)


class Order(msgspec.Struct):
    """What is done for it."""

    number: int
    what: str = ""


orders = app.topic(f"{NAME}-orders", key_type=str, value_type=Order)
payments = app.topic(f"{NAME}-payments", key_type=str, value_type=int)
bills = app.topic(f"{NAME}-bills", key_type=str, value_type=int)
out = app.topic(f"{NAME}-out", key_type=str, value_type=list)
kept = timedelta(seconds=200)
sums = app.window_store(
    "sums",
    Tumbling(seconds=10),
    grace=timedelta(seconds=5),
    retention=kept,
    aggregate=aggregates.sum(),
    emit=Every(seconds=60),
)
visits = app.window_store("visits", Session(timedelta(seconds=9)), retention=kept, aggregate=aggregates.count())
kinds = app.window_store("kinds", Tumbling(seconds=30), retention=kept, aggregate=aggregates.count_distinct())
counts = app.store("counts", key_type=str, value_type=int)


def is_mended() -> bool:
    """Return whether everything works."""
    return os.environ.get("APP_MENDED") == "1"


def say(ctx: Context, *words: Any) -> None:
    """Send a result."""
    ctx.send(out, key=ctx.key, value=list(words))


@sums.on_close
async def summed(ctx: Context, window: Window, total: int) -> None:
    """Hand a sum out."""
    say(ctx, "sum", window.start_ms, total)


@sums.on_emit
async def changed(ctx: Context, window: Window, total: int) -> None:
    """Hand a sum out that isn't final."""
    say(ctx, "changed", window.start_ms, total)


@visits.on_close
async def left(ctx: Context, window: Window, count: int) -> None:
    """Hand a session out."""
    say(ctx, "visit", window.start_ms, window.end_ms, count)


@kinds.on_close
async def different(ctx: Context, window: Window, count: int) -> None:
    """Hand a count out."""
    say(ctx, "kinds", window.start_ms, count)


@app.effect(attempts=1000)
async def ship(call: EffectCall, number: int) -> Order:
    """Fail until it is mended."""
    if not is_mended():
        raise ValueError("nobody ships")
    return Order(number, "shipped")


@app.actor(
    orders,
    stores=[sums, visits, kinds, counts],
    timers=True,
    effects=[ship],
    on_error="park",
    dedupe_by=lambda _, order: str(order.number),
)
async def take(ctx: Context, order: Order) -> None:
    """Do what an order wants."""
    if order.what in ("reminded", "shipped"):
        say(ctx, order.what, order.number)
        return
    counts.set(ctx.key, counts.get(ctx.key, 0) + 1)
    if order.what == "poison" and not is_mended():
        raise ValueError("poison")
    sums.add(ctx.key, order.number)
    visits.add(ctx.key, 1)
    kinds.add(ctx.key, order.number % 3)
    if order.what == "remind":
        ctx.schedule(Order(order.number, "reminded"), after=timedelta(seconds=90), stream_time=True)
    if order.what == "ship":
        ctx.effect(ship, order.number)
    say(ctx, "counted", counts.get(ctx.key, 0), order.number)


@app.join(payments, bills, within=timedelta(seconds=20), how="outer", grace=timedelta(seconds=5))
async def paid(ctx: Context, payment: int | None, bill: int | None) -> None:
    """Hand pairs out, and what is alone."""
    say(ctx, "paid", payment, bill)
