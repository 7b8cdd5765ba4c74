"""The app of the run over names. Each input is a number that no other input has; every effect of it says the number.

`tally` keeps the numbers of each key and says how many it has; with TIMERS it rings for some of them later. `copy` has
no state. IMPOSTOR makes it another program, which has another actor for the same input.
"""

import os
import time
from datetime import timedelta
from pathlib import Path

import msgspec

from actors import App, Context
from actors.runtime.clock import SystemClock
from tests.names.checks import RINGS_EVERY

NAME, OUT = os.environ["APP_NAME"], os.environ["OUT"]
STEP, TIMERS = Path(os.environ["STEP_FILE"]), "TIMERS" in os.environ
app = App(
    os.environ.get("APP_ID", NAME),
    broker=os.environ["KAFKA_URL"],
    broker_session_timeout=6.0,
    broker_heartbeat_interval=0.5,
    commit_deadline=timedelta(seconds=3),
)
app.actor_clock = SystemClock(wall_ns=lambda: time.time_ns() + int(STEP.read_text()) * 1_000_000)


class Said(msgspec.Struct):
    """An effect of an input, in the app of a number: `held` inputs of its key are in the state."""

    what: str
    number: int
    held: int
    app: int


source = app.topic(f"{NAME}-in", key_type=str, value_type=int)
plain = app.topic(f"{NAME}-plain", key_type=str, value_type=int)
out = app.topic(OUT, key_type=str, value_type=Said)


def say(ctx: Context, what: str, number: int, held: int = 0) -> None:
    """Say it in the partition of the input."""
    ctx.send(out, key=ctx.key, value=Said(what, number, held, int(NAME.rpartition("-")[2])), partition=ctx.partition)


if "IMPOSTOR" in os.environ:

    @app.actor(source)
    def impostor(ctx: Context, number: int) -> None:
        """Take what isn't meant for it."""

else:
    tallies = app.store("tally", key_type=str, value_type=list[int])

    @app.actor(source, stores=[tallies], timers=TIMERS)
    def tally(ctx: Context, number: int) -> None:
        """Add the number to its key's."""
        if ctx.timer is not None:
            say(ctx, "rang", number)
            return
        held = [*(tallies.get(ctx.key) or []), number]
        tallies.set(ctx.key, held)
        say(ctx, "did", number, len(held))
        if TIMERS and number % RINGS_EVERY == 0:
            ctx.schedule(number, after=timedelta(seconds=2), name=f"{number}-{len(held)}")

    @app.actor(plain)
    def copy(ctx: Context, number: int) -> None:
        """Keep nothing."""
        say(ctx, "did", number)
