"""Processes that can be stopped, woken and killed at any await, also in a blocking call; see `ProcessLoop`.

A process is stopped as SIGSTOP does: its callbacks are put aside until it is woken, the world goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

from actors.runtime.virtual_time import complete
from actors.testing.fakes import processes
from actors.testing.fakes.processes import ProcessLoop

T = TypeVar("T")


class ProcessDiedError(BaseException):
    """Unwinds a blocking call of a process that was killed inside it. Nothing may catch it."""


def current_process() -> Process | None:
    """Return the process that the caller runs in, None outside of all."""
    process = processes.current.get()
    return process if isinstance(process, Process) else None


class Process(processes.Process):
    """A simulated process: what runs in it stops, goes on and dies together.

    Attributes:
        on_step: called with the name of every step that the process reaches; it may pause or kill the process.
        blocking_s: gives the duration in seconds of a call in the executor, which is how slow the disk is.
    """

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        super().__init__(loop, name)
        self.on_step: Callable[[str], None] | None = None
        self.blocking_s: Callable[[], float] = float
        self._parked: list[asyncio.Handle] = []
        self._blocking: dict[asyncio.Future[Any], Callable[[], Any]] = {}

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
        self._loop._ready.extend(parked)

    def kill(self, finishes: Callable[[], bool] = bool) -> None:
        """Kill it. `finishes` is asked, per blocking call under way, whether that took place."""
        if self.is_dead:
            return
        super().kill()
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
        super().reap()
        self._parked.clear()

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


class VirtualLoop(ProcessLoop):
    """`ProcessLoop`, whose executor calls take the current process's `blocking_s()`."""

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Call `func` on the loop after the process's `blocking_s()`. Like a thread's, its run can't be cancelled.

        The process is at the step "disk called" before it.
        """
        future: asyncio.Future[T] = self.create_future()
        owner = current_process()

        def work() -> None:
            if owner is not None:
                owner.end_blocking(future)
            complete(future, func, args)

        if owner is not None:
            owner.begin_blocking(future, lambda: func(*args))
            if owner.on_step is not None and owner.is_running:
                owner.on_step("disk called")
        self.call_later(0.0 if owner is None else owner.blocking_s(), work)
        return future
