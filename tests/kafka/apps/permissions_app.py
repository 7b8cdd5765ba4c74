"""Three actors that count and echo, one for each thing that may become of a message that fails."""

import os
import ssl
from typing import Any

import faust

from actors import App, Context

NAME = os.environ["APP_NAME"]
app = App(
    NAME,
    broker=os.environ["KAFKA_URL"],
    broker_credentials=faust.SASLCredentials(
        username=os.environ["BROKER_USER"],
        password=os.environ["BROKER_PASSWORD"],
        mechanism="SCRAM-SHA-512",
        ssl_context=ssl.create_default_context(cafile=os.environ["BROKER_CA"]),
    ),
    broker_commit_interval=0.05,
    broker_session_timeout=6.0,
    broker_heartbeat_interval=0.5,
)


def make(then: Any) -> None:
    """Declare one."""
    counts = app.store(f"{then}-counts", key_type=str, value_type=int)
    echo = app.topic(f"{NAME}-{then}-out", key_type=str, value_type=str)

    @app.actor(app.topic(f"{NAME}-{then}-in", key_type=str, value_type=str), stores=[counts], name=then, on_error=then)
    async def count(ctx: Context, value: str) -> None:
        number = counts.get(ctx.key, 0) + 1
        counts.set(ctx.key, number)
        ctx.send(echo, key=ctx.key, value=f"{number}:{value}")


for policy in ("stop", "skip", "park"):
    make(policy)
