"""Whose cancellation a `CancelledError` is, and how tasks are cancelled."""

from __future__ import annotations

import asyncio
from typing import Any


class GivenBack(asyncio.CancelledError):
    """The end of a message that isn't handled any more because its task ends: it is the next owner's."""


def is_cancelled() -> bool:
    """Return whether the running task was cancelled.

    If it wasn't, a `CancelledError` in it is that of a future which it waited for: a client's, or a handler's.
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def running_task() -> asyncio.Task[Any] | None:
    """Return the running task; None outside of a task, also where there is no event loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def is_closed(error: BaseException, running: asyncio.Task[Any] | None) -> bool:
    """Return whether an error is the end of a coroutine of the task `running`, which somebody closes.

    A `GeneratorExit` is that only if it comes while the task doesn't run: else what was awaited raised it.
    """
    return isinstance(error, GeneratorExit) and (running is None or running is not running_task())


async def end(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks, and wait until they have ended."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)
