"""Videos of gigabytes, of which Kafka gets references (`faust -A examples.large_values worker`)."""

import hashlib
import os
from typing import Any

import msgspec
import obstore
from obstore.store import from_url

from actors import App, Context

app = App("videos", broker=os.environ.get("KAFKA_URL", "kafka://127.0.0.1:9092"))
STORE: Any = from_url(os.environ.get("PAYLOADS", "memory:///"))


class Payload(msgspec.Struct, frozen=True):
    """A reference to bytes in object storage, by their digest."""

    sha256: str


async def put(content: bytes) -> Payload:
    """Store bytes, before the record that refers to them is sent."""
    digest = hashlib.sha256(content).hexdigest()
    await obstore.put_async(STORE, digest, content)
    return Payload(digest)


async def get(payload: Payload) -> bytes:
    """Return the bytes, and check that they are those that were stored."""
    content = bytes(await (await obstore.get_async(STORE, payload.sha256)).bytes_async())
    if hashlib.sha256(content).hexdigest() != payload.sha256:
        raise ValueError(f"the payload {payload.sha256} is damaged")
    return content


uploads = app.topic("uploads", key_type=str, value_type=Payload)
lengths = app.topic("lengths", key_type=str, value_type=int)


@app.actor(uploads)
async def measure(ctx: Context, payload: Payload) -> None:
    """Send the length of an upload."""
    ctx.send(lengths, key=ctx.key, value=len(await get(payload)))
