"""Runs an app's worker inside of an event loop that another program owns, such as an ASGI server's.

The host keeps its signals, its logging and its HTTP server. Start and stop are those of `faust worker`: the same
checks, the same order, the same deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from faust.cli.base import prepare_app

from actors._core.logs import escaping
from actors._faust.startup.refusal import RefusedStart
from actors.errors import UsageError
from actors.runtime.cancellation import end

logger = escaping(logging.getLogger(__name__))


@contextlib.asynccontextmanager
async def running(app: Any, *, web: bool, on_failure: Callable[[BaseException], None] | None) -> AsyncIterator[None]:
    """Run the app's worker for the time of the block; see `App.running`."""
    if app.started:
        raise UsageError(
            f"app {app.app_id} was started already, and a process runs an app's worker once: enter "
            "app.running() in one lifespan, and start a new process for another run"
        )
    # The module may have been imported before the loop was there.
    app.loop = asyncio.get_running_loop()
    prepare_app(app, None)
    # Without the tracking of `conf`, which warns of a setting that is changed after it was read.
    app.conf._web_enabled = web
    app.in_worker = True
    watch: asyncio.Task[None] | None = None
    try:
        await _start(app)
        watch = asyncio.create_task(_watch(app, on_failure), name="actors failure")
        yield
    finally:
        await end(watch)
        await _stop(app)
    if app.crash_reason is not None:
        raise app.crash_reason


async def _start(app: Any) -> None:
    try:
        await app.start()
    except RefusedStart as refused:
        # The end of a process is the host's to decide.
        raise refused.reason from None


async def _watch(app: Any, on_failure: Callable[[BaseException], None] | None) -> None:
    await app.wait_until_stopped()
    if app.crash_reason is None:
        return
    logger.critical(
        "the worker of app %s has ended, and this process handles no messages any more: restart it. %s",
        app.conf.id,
        app.crash_reason,
    )
    if on_failure is not None:
        on_failure(app.crash_reason)


async def _stop(app: Any) -> None:
    """Stop the worker, also when the caller is cancelled: partitions that aren't handed over wait for a time-out."""
    stopping = asyncio.create_task(app.stop(), name="actors stop")
    cancelled: asyncio.CancelledError | None = None
    while not stopping.done():
        try:
            await asyncio.wait([stopping])
        except asyncio.CancelledError as error:
            cancelled = error
    await stopping
    if cancelled is not None:
        raise cancelled
