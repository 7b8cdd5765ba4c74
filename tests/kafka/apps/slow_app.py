"""Echoes its messages; some hold the event loop (`block:SECONDS`) or wait (`wait:SECONDS`) first."""

import asyncio
import logging
import os
import signal
import time
from typing import Any

from actors import App, Context
from actors._kafka.consume.assignor import ActorAssignor
from actors.runtime.replicas.standbys import Standbys

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


if "STOP_IN_JOIN" in os.environ:
    assign, stop = ActorAssignor.assign, Standbys.stop

    def assign_and_stop(*arguments: Any) -> Any:
        """Get SIGTERM between the answer to JoinGroup and SyncGroup."""
        signal.raise_signal(signal.SIGTERM)
        return assign(*arguments)

    async def stop_slowly(standbys: Standbys) -> None:
        """Have the stop end after the answer to SyncGroup."""
        await asyncio.sleep(0.3)
        await stop(standbys)

    ActorAssignor.assign, Standbys.stop = assign_and_stop, stop_slowly  # type: ignore[method-assign]


if "THREADED" in os.environ:

    @app.actor(app.topic(f"{NAME}-threaded", key_type=str, value_type=str), threads=True, concurrency=2)
    def block(ctx: Context, seconds: str) -> None:
        """Block a thread."""
        logging.getLogger(__name__).info("blocks a thread for %s s", seconds)
        time.sleep(float(seconds))


@app.actor(source, stores=[last], on_error=os.environ.get("ON_ERROR", "stop"))  # type: ignore[arg-type]
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
