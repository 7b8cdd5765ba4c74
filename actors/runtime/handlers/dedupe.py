"""The idempotent consumer: a message whose id was seen before is skipped.

The id is written with what the message writes and sends, in one commit. So an id that is there means that they are
there too, and a handler that raises leaves no id behind. An id counts for its key: the messages of a key are
handled one after the other, also where those of other keys overlap.

What an actor sends to itself, by a timer or as an effect's result, comes once by itself and may have the content of the
message that led to it: no id is looked for there.

    key      4 bytes length of the message's raw key, big-endian, the raw key, the id
    value    empty
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from actors._core.keys import sized
from actors._core.logs import text_of
from actors.errors import UsageError
from actors.runtime.message.context import Context
from actors.runtime.message.store import Store

Handler = Callable[[Context, Any], Awaitable[Any]]
Identify = Callable[[Context, Any], str | bytes | None]
_SEEN = b""


def by_header(name: str) -> Identify:
    """Return the function that takes the id from a record's header of that name, None where it has none."""

    def identify(ctx: Context, _: Any) -> bytes | None:
        return next((raw for header, raw in ctx.headers if header == name), None)

    return identify


def deduplicated(handler: Handler, store: Store[Any, Any], identify: Identify) -> Handler:
    """Return a handler that skips messages with an id that `store` has; one without an id is always handled."""

    async def handle(ctx: Context, message: Any) -> Any:
        # Only what the actor sent to itself has an id of its own; a parked input that is retried has none.
        found = None if getattr(ctx._record, "id", None) else identify(ctx, message)
        if found is None:
            return await handler(ctx, message)
        raw = found.encode() if isinstance(found, str) else found
        if not isinstance(raw, bytes):
            raise UsageError(
                f"dedupe_by gave {text_of(found, repr)}: an id is text or bytes, None for a message that has none"
            )
        if store.put_if_absent(sized(ctx._raw_key) + raw, _SEEN) is not None:
            return None
        return await handler(ctx, message)

    handle.__name__ = handle.__qualname__ = getattr(handler, "__name__", "handle")
    return handle
