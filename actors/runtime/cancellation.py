"""Whose cancellation a `CancelledError` is, and how tasks are cancelled."""

from __future__ import annotations

import asyncio
from typing import Any


def is_cancelled() -> bool:
    """Tell whether somebody cancelled the running task.

    If nobody did, a `CancelledError` that it meets is that of a future which it waited for: a client's, or a handler's.
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def end(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks, and wait until they have ended."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)
