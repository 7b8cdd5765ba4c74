"""The app of a row, whose looks are counted and timed, or left out, as `LOOKS` in the environment says."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any

from actors.runtime.looks import Looks
from benchmarks.backlog.app import app as app
from benchmarks.peers.apps.base import settings

_count, _cpu_s, _look = 0, 0.0, Looks.look
_file = os.open(f"{settings.folder}.looks", os.O_CREAT | os.O_WRONLY)


@coroutine
def _timed(look: Coroutine[Any, Any, Any]) -> Generator[Any, None, Any]:
    """Take the CPU time of a look's own steps, without what its requests cost the client's tasks."""
    global _count, _cpu_s
    steps = look.__await__()
    try:
        while True:
            began_s = time.thread_time()
            try:
                future = steps.send(None)
            except StopIteration as end:
                return end.value
            finally:
                _cpu_s += time.thread_time() - began_s
            yield future
    finally:
        steps.close()
        _count += 1
        os.pwrite(_file, f"{_count:20} {_cpu_s:20.6f}".encode(), 0)


async def _timed_look(self: Looks) -> Any:
    return await _timed(_look(self))


async def _no_looks(self: Looks) -> None:
    await asyncio.Event().wait()


if os.environ["LOOKS"] == "with":
    Looks.look = _timed_look  # type: ignore[method-assign]
else:
    Looks.run = _no_looks  # type: ignore[method-assign]
