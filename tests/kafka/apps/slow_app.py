"""Echoes its messages; some hold the event loop (`block:SECONDS`) or wait (`wait:SECONDS`) first."""

import asyncio
import logging
import os
import time
from typing import Any

from actors import App, Context

NAME = os.environ["APP_NAME"]
options: dict[str, Any] = {}
if "INSTANCE_ID" in os.environ:
    options["consumer_group_instance_id"] = os.environ["INSTANCE_ID"]

app = App(
    NAME,
    broker=os.environ["KAFKA_URL"],
    broker_session_timeout=float(os.environ.get("SESSION_S", "6")),
    broker_heartbeat_interval=0.5,
    **options,
)
source = app.topic(f"{NAME}-in", key_type=str, value_type=str)
echo = app.topic(f"{NAME}-out", key_type=str, value_type=str)
last = app.store("last", key_type=str, value_type=str)


if "THREADED" in os.environ:

    @app.actor(app.topic(f"{NAME}-threaded", key_type=str, value_type=str), threads=True, concurrency=2)
    def block(ctx: Context, seconds: str) -> None:
        """Block a thread."""
        logging.getLogger(__name__).info("blocks a thread for %s s", seconds)
        time.sleep(float(seconds))


@app.actor(source, stores=[last])
async def repeat(ctx: Context, value: str) -> None:
    """Echo a message."""
    kind, _, seconds = value.partition(":")
    if kind == "block":
        time.sleep(float(seconds))  # noqa: ASYNC251  this is what is reported
    elif kind == "wait":
        logging.getLogger(__name__).info("waits %s s", seconds)
        await asyncio.sleep(float(seconds))
    last.set(ctx.key, value)
    ctx.send(echo, key=ctx.key, value=value)
