"""Whose cancellation a `CancelledError` is: the current task's, or that of something the task waited for.

aiokafka cancels its own futures when a connection dies, and a handler may wait for a future that somebody cancels. In
both cases the task is to go on.
"""

from __future__ import annotations

import asyncio


def is_cancelled() -> bool:
    """Tell whether somebody asked the current task to end. Outside of a task every cancellation counts."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
