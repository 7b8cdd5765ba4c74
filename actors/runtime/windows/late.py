"""A handler behind stream time: each record moves that on, and what is too late for all windows goes elsewhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from actors.runtime.message.context import Context
from actors.runtime.message.failures import late_record
from actors.runtime.message.internal_messages import InternalRecord
from actors.runtime.windows.closes import TimedStore

Handler = Callable[[Context, Any], Awaitable[Any]]


def divert(ctx: Context, value: Any, late: Any, stores: str) -> None:
    """Do with a late message, which is counted, what `late=` says; `stores` it is too late for.

    Raises:
        LateRecordError: its partition has to stop in front of it.
    """
    if late == "stop":
        raise late_record(ctx, ctx._working("late").actor, stores, ctx._working("late").windows.stream_ms)
    if isinstance(late, str) and isinstance(ctx._record, InternalRecord):
        ctx._record.is_dropped = True
    if not isinstance(late, str):
        late(ctx, value)


def windowed(handler: Handler, late: Any, stores: Sequence[TimedStore]) -> Handler:
    """Return a handler of an actor with window stores: stream time moves on first, and late messages go elsewhere."""
    if not stores:
        return handler
    if late == "handle":

        def handle(ctx: Context, value: Any) -> Awaitable[Any]:
            ctx._working("windows").windows.arrived(ctx)
            return handler(ctx, value)

        return handle

    names = ", ".join(store.name for store in stores if not store.is_part)

    def handle_in_time(ctx: Context, value: Any) -> Awaitable[Any]:
        windows = ctx._working("windows").windows
        windows.arrived(ctx)
        if not windows.is_late(ctx):
            return handler(ctx, value)
        windows.count_late(ctx, is_warned=late == "warn")
        divert(ctx, value, late, names)
        return _handled()

    return handle_in_time


async def _handled() -> None:
    """Return what can be awaited in the place of a handler that isn't called."""
