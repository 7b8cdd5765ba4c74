"""Sets a timer for each message, on a machine whose wall clock is off by what a file says in milliseconds."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

from actors import App, Context
from actors.runtime.clock import SystemClock

NAME, STEP = os.environ["APP_NAME"], Path(os.environ["STEP_FILE"])
app = App(
    NAME,
    broker=os.environ["KAFKA_URL"],
    broker_session_timeout=6.0,
    broker_heartbeat_interval=0.5,
    # A process that is killed and comes back is the same member: nobody waits for its session to end.
    consumer_group_instance_id="one",
)
app.actor_clock = SystemClock(wall_ns=lambda: time.time_ns() + int(STEP.read_text()) * 1_000_000)
inputs = app.topic(f"{NAME}-in", key_type=str, value_type=str)
outputs = app.topic(f"{NAME}-out", key_type=str, value_type=str)


@app.actor(inputs, timers=True)
async def remind(ctx: Context, value: str) -> None:
    """Send it on a second later."""
    if ctx.timer is None:
        ctx.schedule(value, after=timedelta(seconds=1))
    else:
        ctx.send(outputs, key=ctx.key, value=value)
