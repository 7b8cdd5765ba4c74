"""The counting app; with `UPLOAD_CRASH_AT` it kills itself with `kill -9` before it uploads the file of that number."""

import itertools
import os
import signal
from pathlib import Path

from actors.snapshots import writer
from actors.snapshots.objects import Objects
from tests.kafka.apps.counter_app import app

__all__ = ["app"]

writer.FLUSH_S = 0.0
if "UPLOAD_CRASH_AT" in os.environ:
    real, numbers = Objects.put, itertools.count(1)

    async def put(self: Objects, file: str, source: Path) -> None:
        """Upload a file, or end the process."""
        if next(numbers) == int(os.environ["UPLOAD_CRASH_AT"]):
            os.kill(os.getpid(), signal.SIGKILL)
        await real(self, file, source)

    Objects.put = put  # type: ignore[method-assign]
