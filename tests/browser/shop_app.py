"""A shop that parks what it can't take until a file says that it is mended; with timers, effects and locks."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from actors import App, Context
from actors.coordination import coordination

NAME = os.environ["APP_NAME"]
MENDED = Path(os.environ["MENDED_FILE"])
app = App(
    NAME,
    broker=os.environ["KAFKA_URL"],
    web_port=int(os.environ["WEB_PORT"]),
    broker_session_timeout=6.0,
    broker_heartbeat_interval=0.5,
    query_tokens="a-token-to-look-with",
    admin_tokens="a-token-to-act-with",
)
orders = app.topic(f"{NAME}-in", key_type=str, value_type=dict)
counts = app.store("counts", key_type=str, value_type=int)
coordination(app)


@app.effect(attempts=1)
def ship(call: Any, order: str) -> None:
    """Fail until it is mended."""
    if not MENDED.exists():
        raise ValueError(f"nobody ships {order}")


@app.actor(orders, stores=[counts], on_error="park", effects=[ship], timers=True)
def take_order(ctx: Context, order: dict[str, Any]) -> None:
    """Count the orders of a key."""
    if order.get("poison") and not MENDED.exists():
        raise ValueError(f"can't take {order['name']}")
    counts.set(ctx.key, counts.get(ctx.key, 0) + 1)
    if order.get("ship"):
        ctx.effect(ship, order["name"])
    if order.get("later"):
        ctx.schedule({"name": "later"}, after=timedelta(hours=1))
