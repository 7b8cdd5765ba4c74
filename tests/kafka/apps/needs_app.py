"""An app with the features that it is told to have, each of which needs permissions of its own."""

import os
import ssl
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

import faust

from actors import App, Context, EffectCall

FEATURES = ("store", "park", "timers", "effects", "dedupe", "ask", "publish", "view", "by", "cron")


def make(  # noqa: C901  a branch for each feature
    name: str, features: Collection[str], **options: Any
) -> App:
    """Make it. A message is sent on as it came, once all that the features do with it is done."""
    app = App(name, broker_commit_interval=0.05, **options)
    inputs = app.topic(f"{name}-in", key_type=str, value_type=str)
    outputs = app.topic(f"{name}-out", key_type=str, value_type=str)
    asked = app.topic(f"{name}-asked", key_type=str, value_type=str) if "ask" in features else None
    models = app.topic(f"{name}-models", key_type=str, value_type=int) if "publish" in features else None
    seen = app.topic(f"{name}-seen", key_type=str, value_type=str) if "view" in features else None
    counts = app.store("counts", key_type=str, value_type=int, publish=models) if "store" in features else None
    view = None if seen is None else app.view(seen, in_memory=True)
    keyed = app.topic(f"{name}-keyed", key_type=str, value_type=str) if "by" in features else None
    effects = []

    if "effects" in features:

        @app.effect()
        async def post(call: EffectCall) -> None:
            """Do nothing."""

        effects = [post]

    if asked is not None:

        @app.actor(asked)
        async def answer(ctx: Context, value: str) -> str:
            """Give it back."""
            return value

    @app.actor(
        inputs,
        stores=[] if counts is None else [counts],
        timers="timers" in features,
        effects=effects,
        dedupe_by="id" if "dedupe" in features else None,
        on_error="park" if "park" in features else "stop",
        # While it waits for an answer its partition goes on.
        concurrency=4 if "ask" in features else 1,
    )
    async def work(ctx: Context, value: str) -> None:
        """Do what the features are for."""
        if value == "bad":
            raise ValueError(value)
        if counts is not None:
            counts.set(ctx.key, (counts.get(ctx.key) or 0) + 1)
        if view is not None:
            view.get("a")
        if "timers" in features and value == "first":
            ctx.schedule("later", after=timedelta(milliseconds=1))
        for effect in effects:
            ctx.effect(effect)
        if asked is not None:
            value = await ctx.ask(answer, ctx.key, value)
        ctx.send(outputs, key=ctx.key, value=value)

    if "cron" in features:

        @app.cron("0 0 1 1 *")
        async def report(ctx: Context, at: datetime) -> None:
            """Do nothing."""

    if keyed is not None:

        @app.actor(keyed, by=lambda value: value)
        async def forward(ctx: Context, value: str) -> None:
            """Send it on by its new key."""
            ctx.send(outputs, key=ctx.key, value=value)

    return app


if "APP_NAME" in os.environ:
    app = make(
        os.environ["APP_NAME"],
        os.environ["FEATURES"].split(","),
        broker=os.environ["KAFKA_URL"],
        create_topics=os.environ["CREATE_TOPICS"] == "yes",
        broker_credentials=faust.SASLCredentials(
            username=os.environ["BROKER_USER"],
            password=os.environ["BROKER_PASSWORD"],
            mechanism="PLAIN",
            ssl_context=ssl.create_default_context(cafile=os.environ["BROKER_CA"]),
        ),
    )
