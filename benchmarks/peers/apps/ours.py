"""Ours: `faust -A benchmarks.peers.apps.ours worker`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from actors import Context
from benchmarks.peers.apps.base import app, settings
from benchmarks.peers.apps.phases import Handler, Phases


class RunCommand(msgspec.Struct):
    """The typed value of the main job."""

    command: str
    args: list[str]


counting = settings.work == "counter"
value_type: Any = RunCommand if settings.typed else bytes
source = app.topic(settings.source, key_type=bytes, value_type=value_type)
target = app.topic(settings.target, key_type=bytes, value_type=bytes if counting else value_type)
state = app.store("state", key_type=bytes, value_type=int if counting else value_type)


async def count_per_key(ctx: Context, value: Any) -> None:
    """Count the records of each key, and send every running count with the record that led to it."""
    count = (state.get(ctx.key) or 0) + 1
    state.set(ctx.key, count)
    ctx.send(target, key=ctx.key, value=b"%d:%s" % (count, value))


async def pass_first(ctx: Context, value: Any) -> None:
    """Pass on the first record of each key."""
    if state.put_if_absent(ctx.key, value) is None:
        ctx.send(target, key=ctx.key, value=value)


async def replace_each(ctx: Context, value: Any) -> None:
    """Keep the last record of each key, and pass all on."""
    state.set(ctx.key, value)
    ctx.send(target, key=ctx.key, value=value)


WORK = {"counter": count_per_key, "dedupe": pass_first, "table": replace_each}
handler: Handler = WORK[settings.work]
if settings.phases:
    phases = Phases(Path(settings.phases))
    phases.watch()
    handler = phases.handling(handler)
app.actor(source, stores=[state], name="work")(handler)
