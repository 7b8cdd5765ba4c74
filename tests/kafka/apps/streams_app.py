"""Windows of three kinds, joins of streams and tables, and an aggregate over a table, in one app."""

import os
from collections.abc import Awaitable, Callable
from datetime import timedelta

from actors import Context, Hopping, Session, Sliding, Window, aggregates
from tests.kafka.apps.quick import NAME, quick_app

# Two apps may read the same topics.
INPUTS = os.environ.get("INPUTS", NAME)
app = quick_app()
clicks = app.topic(f"{INPUTS}-clicks", key_type=str, value_type=int)
late = app.topic(f"{NAME}-late", key_type=str, value_type=int)
finals = app.topic(f"{NAME}-finals", key_type=str, value_type=list)
hops = app.window_store(
    "hops",
    Hopping(timedelta(seconds=6), timedelta(seconds=2)),
    grace=timedelta(seconds=1),
    aggregate=aggregates.sum(),
)
near = app.window_store("near", Sliding(timedelta(seconds=2)), grace=timedelta(seconds=5), aggregate=aggregates.sum())
visits = app.window_store(
    "visits", Session(timedelta(seconds=1)), grace=timedelta(seconds=1), aggregate=aggregates.sum()
)


@app.actor(clicks, stores=[hops, near, visits], late=late)
async def count(ctx: Context, number: int) -> None:
    """Add a number to its windows."""
    for store in (hops, near, visits):
        store.add(ctx.key, number)


def send_finals_of(kind: str) -> Callable[[Context, Window, int], Awaitable[None]]:
    """Return what sends the finals of a window store."""

    async def closed(ctx: Context, window: Window, total: int) -> None:
        ctx.send(finals, key=ctx.key, value=[kind, *window, total])

    return closed


for store in (hops, near, visits):
    store.on_close(send_finals_of(store.name))


ones = app.topic(f"{INPUTS}-ones", key_type=str, value_type=int)
others = app.topic(f"{INPUTS}-others", key_type=str, value_type=int)
pairs = app.topic(f"{NAME}-pairs", key_type=str, value_type=list)


@app.join(ones, others, within=timedelta(seconds=2), how="outer", grace=timedelta(seconds=60))
async def paired(ctx: Context, one: int | None, other: int | None) -> None:
    """Send a pair."""
    ctx.send(pairs, key=ctx.key, value=[one, other])


orders = app.table(app.topic(f"{INPUTS}-orders", key_type=str, value_type=list), name="orders")
customers = app.table(app.topic(f"{INPUTS}-customers", key_type=str, value_type=int), name="customers")
invoices = app.topic(f"{NAME}-invoices", key_type=str, value_type=list)
totals = app.topic(f"{NAME}-totals", key_type=str, value_type=int)


async def send_total(ctx: Context, total: int | None) -> None:
    """Send a group's sum."""
    ctx.send(totals, key=ctx.key, value=total)


total = orders.aggregate(
    "total", by=lambda order: order[0], of=lambda order: order[1], aggregate=aggregates.sum(), on_change=send_total
)


@app.join(orders, customers, on=lambda order: order[0])
async def invoiced(ctx: Context, order: list | None, customer: int | None) -> None:
    """Send an invoice, or its end."""
    ctx.send(invoices, key=ctx.key, value=None if order is None else [order[1], order[0], customer])


left, right = (
    app.table(app.topic(f"{INPUTS}-{side}", key_type=str, value_type=int), name=side) for side in ("left", "right")
)
merged = app.topic(f"{NAME}-merged", key_type=str, value_type=list)


@app.join(left, right, how="outer")
async def both(ctx: Context, of_left: int | None, of_right: int | None) -> None:
    """Send a result, or the end of one."""
    ctx.send(merged, key=ctx.key, value=None if of_left is of_right is None else [of_left, of_right])


hits = app.topic(f"{INPUTS}-hits", key_type=str, value_type=int)
sums = app.topic(f"{NAME}-sums", key_type=str, value_type=list)
side_by_side = app.window_store(
    "side-by-side",
    Hopping(timedelta(seconds=6), timedelta(seconds=2)),
    grace=timedelta(hours=1),
    aggregate=aggregates.sum(),
)


@app.actor(hits, stores=[side_by_side], concurrency=8)
async def add_up(ctx: Context, number: int) -> None:
    """Send each change."""
    for window, result in side_by_side.add(ctx.key, number):
        ctx.send(sums, key=ctx.key, value=[*window, result])
