"""The main job, and an actor whose input strangers may write to, behind a web server with tokens."""

import os
from typing import Any

import msgspec

from actors import App, Context

NAME = os.environ["APP_NAME"]
app = App(
    NAME,
    broker=os.environ["KAFKA_URL"],
    web_port=int(os.environ["WEB_PORT"]),
    query_tokens=[os.environ["READER"]],
    admin_tokens=[os.environ["ADMIN"]],
    broker_session_timeout=10.0,
    broker_heartbeat_interval=1.0,
)
commands = app.topic(f"{NAME}-in", key_type=bytes, value_type=bytes)
runs = app.topic(f"{NAME}-out", key_type=bytes, value_type=bytes)
seen = app.store("seen", key_type=bytes, value_type=bytes)
letters = app.topic(f"{NAME}-letters", key_type=str, value_type=dict)
texts = app.store("texts", key_type=str, value_type=str)


@app.actor(commands, stores=[seen], on_error="park")
async def run_once(ctx: Context, command: bytes) -> None:
    """Forward a command the first time."""
    if seen.put_if_absent(ctx.key, command) is None:
        ctx.send(runs, key=ctx.key, value=command)


@app.actor(letters, stores=[texts], on_error="park")
async def keep(ctx: Context, letter: dict[str, Any]) -> None:
    """Keep a text; some can't be kept."""
    if letter.get("poison"):
        raise ValueError(f"a poisoned letter of {ctx.key}")
    texts.set(ctx.key, msgspec.convert(letter["text"], str))
