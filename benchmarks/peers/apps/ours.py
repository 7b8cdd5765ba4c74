"""Ours: `faust -A benchmarks.peers.apps.ours worker`."""

from __future__ import annotations

from typing import Any

import msgspec

from actors import App, Context
from benchmarks.peers.apps.settings import Settings

settings = Settings.read()
app = App(
    settings.app,
    broker=";".join(f"kafka://{address}" for address in settings.brokers.split(",")),
    processing_guarantee="exactly_once" if settings.exactly_once else "at_least_once",
    broker_commit_interval=settings.commit_s,
    broker_session_timeout=settings.session_s,
    broker_heartbeat_interval=min(1.0, settings.session_s / 3),
    consumer_group_instance_id=settings.instance or None,
)


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
app.actor(source, stores=[state], name="work")(WORK[settings.work])
