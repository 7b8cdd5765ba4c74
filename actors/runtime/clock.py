"""The clock of the machine."""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """Time and waiting, as `actors.ports.Clock` wants them."""

    monotonic = staticmethod(time.monotonic)

    @staticmethod
    def wall_ms() -> int:
        """Give Unix milliseconds."""
        return time.time_ns() // 1_000_000

    @staticmethod
    async def sleep(seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)
