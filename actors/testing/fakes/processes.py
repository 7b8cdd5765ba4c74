"""Processes on an event loop in virtual time, which can be killed at any await.

Time is that of `actors.runtime.virtual_time`: a simulated hour takes as long as its events do.

A `Process` is a set of callbacks with something in common: the context variable that says whose they are. Every task,
timer and executor call that is made on behalf of a process carries it. That is enough to kill a process as SIGKILL
does: its callbacks never run again, none of its `finally` blocks either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context, ContextVar
from typing import Any, TypeVar

from actors.runtime.virtual_time import OrderedTimer, VirtualTime, left_loop

T = TypeVar("T")

_CLOSE_ATTEMPTS = 20
_TASKS_BEFORE_SWEEP = 64

current: ContextVar[Process | None] = ContextVar("simulated_process", default=None)
"""The process that the caller runs in, None outside of all."""


class Process:
    """A simulated process: what runs in it dies together.

    Attributes:
        name: for traces.
        is_running: whether its callbacks run.
        is_dead: killed.
    """

    def __init__(self, loop: ProcessLoop, name: str) -> None:
        self.name = name
        self.is_running = True
        self.is_dead = False
        self._is_reaped = False
        self._loop = loop
        self._context = Context()
        self._context.run(current.set, self)
        self._tasks: list[asyncio.Task[Any]] = []

    def __repr__(self) -> str:
        return f"<Process {self.name}>"

    def spawn(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Start a task of this process."""
        task: asyncio.Task[T] = self._loop.create_task(coroutine, name=name, context=self._context.copy())
        return task

    def kill(self) -> None:
        """Kill it. A blocking call under way doesn't take place."""
        self.is_running, self.is_dead = False, True

    def reap(self) -> None:
        """Free the tasks of a dead process, after the loop was closed. Their `finally` blocks run in here."""
        self._is_reaped = True
        # What a `finally` block starts is closed by `create_task`: without a loop it would be garbage that warns.
        with left_loop():
            asyncio._set_running_loop(self._loop)
            for task in self._tasks:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    _close(task.get_coro())
                elif not task.cancelled():
                    # Nobody is left to ask a dead process's task for its error, and asyncio would log it.
                    task.exception()
        self._tasks.clear()

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Keep a task alive: without a reference it would be freed, and run its `finally` blocks."""
        if len(self._tasks) >= _TASKS_BEFORE_SWEEP:
            self._tasks = [kept for kept in self._tasks if not kept.done()]
        self._tasks.append(task)

    def park(self, handle: asyncio.Handle) -> None:
        """Take a callback that comes due while the process doesn't run; it never runs."""


def _close(coroutine: Any) -> None:
    for _ in range(_CLOSE_ATTEMPTS):
        try:
            coroutine.close()
        except RuntimeError:
            # It waits for something in a `finally`: close() again, at that place.
            continue
        except BaseException:
            return
        return


class _Owned(asyncio.Handle):
    __slots__ = ()

    def _run(self) -> None:
        owner: Process | None = self._context.get(current)  # type: ignore[attr-defined]
        if owner is None or owner.is_running:
            super()._run()
        else:
            owner.park(self)


class _Timer(_Owned, OrderedTimer):
    __slots__ = ()


class ProcessLoop(VirtualTime):
    """An event loop in virtual time that knows processes."""

    timer_type = _Timer

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        """Schedule a callback that belongs to the current process."""
        handle = _Owned(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def create_task(self, coro: Any, *, name: Any = None, context: Context | None = None) -> Any:
        """Make a task that belongs to the current process."""
        if self.is_closed():
            coro.close()
        task: asyncio.Task[Any] = super().create_task(coro, name=name, context=context)
        owner = current.get() if context is None else context.get(current)
        if owner is not None:
            owner.adopt(task)
        return task
