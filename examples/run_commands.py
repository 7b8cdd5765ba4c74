"""Of many identical run commands, run the first and ignore the rest (`faust -A examples.run_commands worker`).

All requests for a command have the same key, so they reach the same partition, and the task that owns it decides. The
decision, the output and the input's offset are committed together: a command runs once even if the worker is killed.
"""

import os
from datetime import timedelta

import faust

from actors import App, Context

app = App("dispatcher", broker=os.environ.get("KAFKA_URL", "kafka://127.0.0.1:9092"))


class RunCommand(faust.Record):
    """A request to run a command."""

    command: str
    args: list[str]


commands = app.topic("raw-data", key_type=str, value_type=RunCommand)
runs = app.topic("runs", key_type=str, value_type=RunCommand)
seen = app.store("run-command-state", key_type=str, value_type=RunCommand, ttl=timedelta(days=7))


@app.actor(commands, stores=[seen])
async def run_once(ctx: Context, command: RunCommand) -> None:
    """Run a command the first time it is asked for."""
    if seen.put_if_absent(ctx.key, command) is None:
        ctx.send(runs, key=ctx.key, value=command)
