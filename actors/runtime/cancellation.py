"""Whose cancellation a `CancelledError` is."""

from __future__ import annotations

import asyncio


def is_cancelled() -> bool:
    """Tell whether somebody cancelled the running task.

    If nobody did, a `CancelledError` that it meets is that of a future which it waited for: a client's, or a handler's.
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
