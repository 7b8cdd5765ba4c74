"""Remembers commands in stores of each kind, for the commands of the command line to look at."""

import os
from datetime import timedelta
from typing import Any

import faust

from actors import App, Context
from actors.runtime.handlers import expiry

# What has expired stays for the commands to see.
expiry.LEAST_REST_S = 3600.0
NAME = os.environ["APP_NAME"]
options: dict[str, Any] = {}
if "APP_WEB_PORT" in os.environ:
    options["web_port"] = int(os.environ["APP_WEB_PORT"])

app = App(NAME, broker=os.environ["KAFKA_URL"], **options)


class Command(faust.Record):
    """A command to remember."""

    command: str
    args: list[str]


commands = app.topic(f"{NAME}-in", key_type=str, value_type=Command)
seen = app.store("seen", key_type=str, value_type=Command, ttl=timedelta(days=7))
brief = app.store("brief", key_type=str, value_type=str, ttl=timedelta(milliseconds=1))
newest = app.store("newest", key_type=str, value_type=str, placement="task")
unused = app.store("unused")


@app.actor(commands, stores=[seen, brief, newest])
async def remember(ctx: Context, command: Command) -> None:
    """Keep the key's first command, and the partition's newest key."""
    if seen.put_if_absent(ctx.key, command) is None:
        brief.set(ctx.key, "gone in a moment")
    newest.set("newest", ctx.key)
