"""An app whose brokers want TLS and a password: an actor, a view, and the lock service."""

import os
import ssl

import faust

from actors import App, Context
from actors.coordination.service import coordination

NAME = os.environ["APP_NAME"]

app = App(
    NAME,
    broker=os.environ["KAFKA_URL"],
    broker_credentials=faust.SASLCredentials(
        username=os.environ["BROKER_USER"],
        password=os.environ["BROKER_PASSWORD"],
        ssl_context=ssl.create_default_context(cafile=os.environ["BROKER_CA"]),
    ),
    broker_commit_interval=0.05,
)
words = app.topic(f"{NAME}-in", key_type=str, value_type=str)
echo = app.topic(f"{NAME}-out", key_type=str, value_type=str)
counts = app.store("counts", key_type=str, value_type=int)
Coordinator = coordination(app, partitions=1)
view = app.view(counts, in_memory=True)


@app.actor(words, stores=[counts])
async def count(ctx: Context, word: str) -> None:
    """Count the key's words."""
    number = (counts.get(ctx.key) or 0) + 1
    counts.set(ctx.key, number)
    ctx.send(echo, key=ctx.key, value=str(number))
