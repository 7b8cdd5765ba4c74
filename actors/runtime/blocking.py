"""Says who keeps the event loop from running, while it happens.

Heartbeats, fetches and commits of the whole worker share one event loop with the handlers. A handler that computes or
waits without `await` stops them all, and after a session the group gives the partitions away. A thread sees that the
loop's tick is late and looks at what the loop's thread is doing; nothing is measured per message.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from actors._core.logs import escaping

logger = escaping(logging.getLogger(__name__))

TICK_S = 0.25
_PACKAGE = str(Path(__file__).resolve().parents[1])


class LoopWatch:
    """Watches the event loop that it is started in, until `stop`.

    `on_overlong` is called, in the watching thread, with the asyncio task that has held the loop for a whole session,
    and with the session's seconds: once for each such time.
    """

    def __init__(
        self,
        *,
        warn_after_s: float,
        session_timeout_s: float,
        on_overlong: Callable[[asyncio.Task[Any] | None, float], None] = lambda task, session_s: None,
    ) -> None:
        self._warn_after_s = warn_after_s
        self._session_timeout_s = session_timeout_s
        self._on_overlong = on_overlong
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._ticked_s = self._ticked_cpu_s = 0.0
        self._said: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="actors loop watch", daemon=True)

    def start(self) -> None:
        """Begin to watch the running loop."""
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._ticked_s, self._ticked_cpu_s = time.monotonic(), time.process_time()
        self._timer = self._loop.call_later(TICK_S, self._tick)
        self._thread.start()

    def stop(self) -> None:
        """End. May be called twice, and without a start."""
        self._ended.set()
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        now_s = time.monotonic()
        held_s, self._ticked_s, self._ticked_cpu_s = now_s - self._ticked_s - TICK_S, now_s, time.process_time()
        said, self._said = self._said, None
        if said is not None or held_s >= self._warn_after_s:
            logger.warning("the event loop runs again: it was held for %.1f s by %s", held_s, said or "native code")
        if self._loop is not None and not self._ended.is_set():
            self._timer = self._loop.call_later(TICK_S, self._tick)

    def _watch(self) -> None:
        remind_s, looks, is_overlong = self._warn_after_s, 0, False
        while not self._ended.wait(TICK_S):
            held_s = time.monotonic() - self._ticked_s - TICK_S
            looks = looks + 1 if held_s >= 0.0 else 0
            if held_s < self._session_timeout_s:
                is_overlong = False
            elif not is_overlong:
                # A process that was stopped meanwhile neither looked nor computed.
                ran_s = max(looks * TICK_S, time.process_time() - self._ticked_cpu_s)
                is_overlong = ran_s >= self._session_timeout_s / 2
                if is_overlong and self._loop is not None:
                    self._on_overlong(asyncio.current_task(self._loop), self._session_timeout_s)
            if held_s < self._warn_after_s:
                remind_s = self._warn_after_s
            elif held_s >= remind_s:
                remind_s = held_s * 2
                self._said = self._culprit()
                logger.warning(
                    "%s has held the event loop for %.1f s. No heartbeat goes out meanwhile: after "
                    "broker_session_timeout=%g s the group gives this worker's partitions away. Await what takes long, "
                    "or hand it to a thread (await asyncio.to_thread(...))",
                    self._said,
                    held_s,
                    self._session_timeout_s,
                )

    def _culprit(self) -> str:
        task = None if self._loop is None else asyncio.current_task(self._loop)
        frame = sys._current_frames().get(self._loop_thread)
        who = "a callback" if task is None else task.get_name()
        return who if frame is None else f"{who}, in {_place(frame)}"


def _place(innermost: FrameType) -> str:
    """Name the function that our code called last: the handler; else the innermost one."""
    frame: FrameType | None = innermost
    called = innermost
    while frame is not None and not frame.f_code.co_filename.startswith(_PACKAGE):
        called, frame = frame, frame.f_back
    shown = called if frame is not None else innermost
    return f"{shown.f_code.co_name} ({shown.f_code.co_filename}:{shown.f_lineno})"
