"""Calls that are limited over all workers: each writes a line when it begins and one when it ends."""

import asyncio
import json
import os
import time
from datetime import timedelta
from pathlib import Path

from actors import Context, EffectCall, limits
from tests.kafka.apps.quick import NAME, quick_app

FOLDER = Path(os.environ["EFFECTS_FOLDER"])
TIMEOUT = timedelta(seconds=float(os.environ.get("TIMEOUT_S", "2")))
limits.WAIT = timedelta(seconds=3)
app = quick_app()
orders = app.topic(f"{NAME}-orders", key_type=str, value_type=str)
done = app.topic(f"{NAME}-done", key_type=str, value_type=str)


def write(what: str, tenant: str, id: str) -> None:
    """Append a line, whole or not at all."""
    line = {"what": what, "tenant": tenant, "id": id, "pid": os.getpid(), "at_s": time.time()}
    file = os.open(FOLDER / "lines", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, json.dumps(line).encode() + b"\n")
    os.close(file)


@app.effect(limit=2, rate="10/s", per=lambda tenant: tenant, timeout=TIMEOUT)
async def post(call: EffectCall, tenant: str) -> str:
    """Take a while."""
    write("begun", tenant, call.idempotency_key)
    await asyncio.sleep(float(os.environ.get("TAKES_S", "0.1")))
    write("ended", tenant, call.idempotency_key)
    return f"done {tenant}"


@app.actor(orders, effects=[post])
async def place(ctx: Context, order: str) -> None:
    """Make the call, and send that it was made."""
    if order.startswith("done "):
        ctx.send(done, key=ctx.key, value=order)
    else:
        ctx.effect(post, order)
