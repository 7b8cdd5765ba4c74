"""Parks what it can't handle; APP_MENDED says what it can."""

import os
from typing import Any

from actors import App, Context

NAME = os.environ["APP_NAME"]
MENDED = os.environ.get("APP_MENDED") == "1"
app = App(NAME, broker=os.environ["KAFKA_URL"], worker_secret=os.environ["APP_SECRET"])
orders = app.topic(f"{NAME}-in", key_type=str, value_type=dict)
done = app.topic(f"{NAME}-out", key_type=str, value_type=dict)
counts = app.store("counts", key_type=str, value_type=int)


@app.effect(attempts=1)
async def ship(call: Any, order: str) -> None:
    """Fail until it is mended."""
    if not MENDED:
        raise ValueError(f"nobody ships {order}")


@app.actor(orders, stores=[counts], on_error="park", effects=[ship])
def take_order(ctx: Context, order: dict[str, Any]) -> None:
    """Number the orders of a key."""
    number = counts.get(ctx.key, 0) + 1
    counts.set(ctx.key, number)
    ctx.send(done, key=ctx.key, value={"order": order["name"], "number": number, "id": ctx.message_id})
    if order.get("poison") and not MENDED:
        raise ValueError(f"can't take {order['name']}")
    if order.get("ship"):
        ctx.effect(ship, order["name"])


@app.actor(app.topic(f"{NAME}-plain", key_type=str))
def plain(ctx: Context, value: Any) -> None:
    """Park nothing."""
