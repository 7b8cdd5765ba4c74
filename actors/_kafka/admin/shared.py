"""A read that callers share who ask at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class SharedRead:
    """Runs `read` for all callers that wait when it begins; a caller that comes later waits for the next one.

    So a caller never gets an answer that is older than its question.
    """

    def __init__(self, read: Callable[[], Awaitable[None]]) -> None:
        self._read = read
        self._lock = asyncio.Lock()
        self._asked = 0
        self._covered = 0

    async def __call__(self) -> None:
        """Return after a read that began after this call; its errors are those of `read`."""
        self._asked += 1
        ticket = self._asked
        async with self._lock:
            if ticket > self._covered:
                covered = self._asked
                await self._read()
                self._covered = covered
