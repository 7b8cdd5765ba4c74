"""An event loop in virtual time, and processes on it that can be stopped, woken and killed at any await.

Time is that of `actors.replay.virtual_time`: a simulated hour takes as long as its events do.

A `Process` is a set of callbacks with something in common: the context variable that says whose they are. Every task,
timer and executor call that is made on behalf of a process carries it. That is enough to stop a process as SIGSTOP
does (its callbacks are put aside until it is woken, the world goes on) and to kill it as SIGKILL does (its callbacks
never run again, none of its `finally` blocks either).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

from actors.replay.virtual_time import OrderedTimer, VirtualTime, complete

T = TypeVar("T")

_CLOSE_ATTEMPTS = 20
_TASKS_BEFORE_SWEEP = 64

_process: ContextVar[Process | None] = ContextVar("simulated_process", default=None)


class ProcessDiedError(BaseException):
    """Unwinds a blocking call of a process that was killed inside it. Nothing may catch it."""


def current_process() -> Process | None:
    """Return the process that the caller runs in, None outside of all."""
    return _process.get()


class Process:
    """A simulated process: what runs in it stops, goes on and dies together.

    Attributes:
        name: for traces.
        on_step: called with the name of every step that the process reaches; it may pause or kill the process.
        blocking_s: gives the duration in seconds of a call in the executor, which is how slow the disk is.
        is_running: neither paused nor dead.
        is_dead: killed.
    """

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        self.name = name
        self.on_step: Callable[[str], None] | None = None
        self.blocking_s: Callable[[], float] = float
        self.is_running = True
        self.is_dead = False
        self._is_reaped = False
        self._loop = loop
        self._context = Context()
        self._context.run(_process.set, self)
        self._tasks: list[asyncio.Task[Any]] = []
        self._parked: list[asyncio.Handle] = []
        self._blocking: dict[asyncio.Future[Any], Callable[[], Any]] = {}

    def __repr__(self) -> str:
        return f"<Process {self.name}>"

    def spawn(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Start a task of this process."""
        task: asyncio.Task[T] = self._loop.create_task(coroutine, name=name, context=self._context.copy())
        return task

    async def reach(self, step: str) -> None:
        """Note a step; returns later, or never, if the process is paused or killed here."""
        if self.on_step is not None and self.is_running:
            self.on_step(step)
        if not self.is_running and not self._is_reaped:
            await asyncio.sleep(0)

    def reach_now(self, step: str) -> None:
        """Note a step of blocking code.

        Raises:
            ProcessDiedError: the process was killed here.
        """
        if self.on_step is not None and self.is_running:
            self.on_step(step)
        if self.is_dead and not self._is_reaped:
            raise ProcessDiedError(self.name)

    def pause(self) -> None:
        """Stop it as SIGSTOP does: what comes due waits for `resume`."""
        if not self.is_dead:
            self.is_running = False

    def resume(self) -> None:
        """Wake it up: all that came due meanwhile runs now, in the order in which it came."""
        if self.is_dead or self.is_running:
            return
        self.is_running = True
        parked, self._parked = self._parked, []
        self._loop.run_parked(parked)

    def kill(self, finishes: Callable[[], bool] = bool) -> None:
        """Kill it. `finishes` is asked, per blocking call under way, whether that took place."""
        if self.is_dead:
            return
        self.is_running, self.is_dead = False, True
        self._parked.clear()
        blocking, self._blocking = self._blocking, {}
        for function in blocking.values():
            if finishes():
                # Not dead for the time of the call: it is what the process was still doing.
                self.is_dead = False
                with contextlib.suppress(Exception):
                    function()
                self.is_dead = True

    def reap(self) -> None:
        """Free the tasks of a dead process, after the loop was closed. Their `finally` blocks run in here."""
        self._is_reaped = True
        # What a `finally` block starts is closed by `create_task`: without a loop it would be garbage that warns.
        asyncio._set_running_loop(self._loop)
        try:
            for task in self._tasks:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    _close(task.get_coro())
        finally:
            asyncio._set_running_loop(None)
        self._tasks.clear()
        self._parked.clear()

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Keep a task alive: without a reference it would be freed, and run its `finally` blocks."""
        if len(self._tasks) >= _TASKS_BEFORE_SWEEP:
            self._tasks = [kept for kept in self._tasks if not kept.done()]
        self._tasks.append(task)

    def park(self, handle: asyncio.Handle) -> None:
        """Put a callback aside until the process is woken, or for good if it is dead."""
        if not self.is_dead:
            self._parked.append(handle)

    def begin_blocking(self, future: asyncio.Future[Any], function: Callable[[], Any]) -> None:
        """Note a call in the executor."""
        self._blocking[future] = function

    def end_blocking(self, future: asyncio.Future[Any]) -> None:
        """Note its end."""
        self._blocking.pop(future, None)


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


class _Handle(asyncio.Handle):
    __slots__ = ("_owner",)

    def __init__(self, callback: Callable[..., Any], args: Any, loop: VirtualLoop, context: Context | None) -> None:
        context = copy_context() if context is None else context
        super().__init__(callback, args, loop, context)
        self._owner = context.get(_process)

    def _run(self) -> None:
        owner = self._owner
        if owner is None or owner.is_running:
            super()._run()
        else:
            owner.park(self)


class _Timer(OrderedTimer):
    __slots__ = ("_owner",)

    def __init__(
        self,
        when: float,
        callback: Callable[..., Any],
        args: Any,
        loop: VirtualTime,
        context: Context | None,
        number: int,
    ) -> None:
        context = copy_context() if context is None else context
        super().__init__(when, callback, args, loop, context, number)
        self._owner = context.get(_process)

    def _run(self) -> None:
        owner = self._owner
        if owner is None or owner.is_running:
            super()._run()
        else:
            owner.park(self)


class VirtualLoop(VirtualTime):
    """An event loop in virtual time that knows processes.

    `run_in_executor` calls the function on the loop, after the current process's `blocking_s()`.
    """

    timer_type = _Timer

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        """See `asyncio.AbstractEventLoop.call_soon`."""
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def create_task(self, coro: Any, *, name: Any = None, context: Context | None = None) -> Any:
        """See `asyncio.AbstractEventLoop.create_task`."""
        if self.is_closed():
            coro.close()
        task: asyncio.Task[Any] = super().create_task(coro, name=name, context=context)
        owner = _process.get() if context is None else context.get(_process)
        if owner is not None:
            owner.adopt(task)
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Call `func` on the loop after the process's `blocking_s()`. Like a thread's, its run can't be cancelled.

        The process is at the step "disk called" before it.
        """
        future: asyncio.Future[T] = self.create_future()
        owner = _process.get()

        def work() -> None:
            if owner is not None:
                owner.end_blocking(future)
            complete(future, func, args, (ProcessDiedError,))

        if owner is not None:
            owner.begin_blocking(future, lambda: func(*args))
            if owner.on_step is not None and owner.is_running:
                owner.on_step("disk called")
        self.call_later(0.0 if owner is None else owner.blocking_s(), work)
        return future

    def run_parked(self, handles: list[asyncio.Handle]) -> None:
        """Run callbacks that were put aside."""
        self._ready.extend(handles)
