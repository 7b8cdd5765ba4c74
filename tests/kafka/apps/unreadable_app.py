"""Actors whose inputs have what can't be read, what has no key, and what is in the wrong partition."""

import os
from typing import Any

import aiokafka.codec

from actors import App, Context

for _codec in ("has_snappy", "has_lz4", "has_zstd"):
    # Whatever is installed where the tests run.
    setattr(aiokafka.codec, _codec, lambda: False)

NAME = os.environ["APP_NAME"]
app = App(NAME, broker=os.environ["KAFKA_URL"])
out = app.topic(f"{NAME}-out", key_type=str, value_type=str)
packed = app.topic(f"{NAME}-packed-view", key_type=str, value_type=str)
view = app.view(packed)


def declare(name: str, *, is_stateless: bool = False, **options: Any) -> None:
    """Make an actor that says what it handles."""
    store = app.store(f"{name}-seen", key_type=str, value_type=str)

    async def handle(ctx: Context, value: str) -> None:
        if value == "read the view":
            view.get("a")
        if not is_stateless:
            store.set(ctx.key, value)
        ctx.send(out, key=name, value=f"{name} {ctx.partition} {ctx.key} {value}")

    source = app.topic(f"{NAME}-{name}", key_type=str, value_type=str)
    app.actor(source, name=name, stores=[] if is_stateless else [store], **options)(handle)


declare("stopping")
declare("skipping", on_error="skip")
declare("packed", on_error="skip")
declare("keyless", is_stateless=True)
declare("misplaced")
declare("viewing")
