"""Counts payments by their order, which isn't their key, and echoes each with its timestamp and headers."""

import json
import os
from typing import Any

from actors import App, Context, OnError
from actors._faust import inputs

inputs.PURGE_S = 0.2
NAME = os.environ["APP_NAME"]
app = App(NAME, broker=os.environ["KAFKA_URL"], broker_session_timeout=6.0, broker_heartbeat_interval=0.5)
payments = app.topic(f"{NAME}-payments", key_type=str)
out = app.topic(f"{NAME}-out", key_type=str, value_type=str)
counts = app.store("counts", value_type=int)


def order_of(payment: dict[str, Any]) -> str | None:
    """Return a payment's order; raise for what is none."""
    order: str | None = payment["order"]
    return order


on_error = "park" if "PARKS" in os.environ else OnError(then="skip", dead_letters=True)


@app.actor(payments, by=order_of, stores=[counts], on_error=on_error)
async def add_up(ctx: Context, payment: dict[str, Any]) -> None:
    """Count a payment."""
    count = counts.get(ctx.key, 0) + 1
    counts.set(ctx.key, count)
    ctx.send(out, key=ctx.key, value=json.dumps([count, payment["number"]]), headers=ctx.headers)
