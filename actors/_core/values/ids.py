"""Ids for what a message leads to: the same whenever it is handled again, whatever the order of its calls.

A handler whose branches run side by side reaches its asks and effects in an order that nobody promises. So an id
depends on what it is for; equal ones of one message are numbered, and are interchangeable.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Protocol


class Numbered(Protocol):
    """A message, which numbers what it leads to: see `actors.runtime.message.context.Context`."""

    def next_id(self, series: str = "") -> str:
        """Return an id for the n-th call of a series."""


def message_id(topic: str, partition: int, offset: int, tag: str) -> str:
    """Return a message's id; `tag` is that of `actors._core.task.topic_ids.TopicIds.message_tag`."""
    return f"{topic}@{tag}-{partition}-{offset}" if tag else f"{topic}-{partition}-{offset}"


def id_of(ctx: Numbered, *parts: str | bytes) -> str:
    """Return an id for what `parts` describe."""
    return ctx.next_id(digest_of(*parts))


def digest_of(*parts: str | bytes, size: int = 16) -> str:
    """Return a digest of `parts` in hexadecimal, `size` bytes long. Where each part ends counts."""
    digest = blake2b(digest_size=size)
    for part in parts:
        raw = part.encode(errors="surrogatepass") if isinstance(part, str) else part
        digest.update(b"%d:" % len(raw) + raw)
    return digest.hexdigest()
