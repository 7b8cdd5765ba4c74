"""An event loop in virtual time: its clock jumps to the next timer when nothing is ready.

Given the same callbacks the loop runs them in the same order: no threads, no selector, no real time.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from typing import Any, TypeVar

from actors.runtime.threads import for_future

T = TypeVar("T")

MAX_IDLE_TURNS = 200_000
"""A loop that turns so often without any time passing is stuck."""
_SLOW_TURNS = 1_000


class StuckError(RuntimeError):
    """The loop can't go on: nothing is left to happen, or it spins without time passing."""


class OrderedTimer(asyncio.TimerHandle):
    """A timer; of two for one time the older goes first."""

    __slots__ = ("_number",)

    def __init__(
        self,
        when: float,
        callback: Callable[..., Any],
        args: Any,
        loop: VirtualTime,
        context: Context | None,
        number: int,
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self._number = number

    def __lt__(self, other: Any) -> bool:
        return (self._when, self._number) < (other._when, other._number)  # type: ignore[attr-defined]


@contextmanager
def left_loop() -> Iterator[None]:
    """Leave the event loop and the task that the caller is on, if any; return to both at the end."""
    outer = asyncio._get_running_loop()
    task = None if outer is None else asyncio.current_task(outer)
    if outer is not None and task is not None:
        # since Python 3.14 the current task is the thread's, whichever loop it is of
        asyncio.tasks._leave_task(outer, task)
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(outer)
        if outer is not None and task is not None:
            asyncio.tasks._enter_task(outer, task)


class VirtualTime(asyncio.BaseEventLoop):
    """An event loop whose time passes only when there is nothing to do. `time()` begins at 0.

    `run_in_executor` calls the function on the loop. Sockets, signals and subprocesses aren't supported.
    """

    timer_type: type[OrderedTimer] = OrderedTimer
    _ready: Any
    _scheduled: Any

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._idle_turns = 0
        self._timers = 0
        # What BaseEventLoop asks for events, and how exactly it takes a timer to be due.
        self._selector = self
        self._clock_resolution = 1e-7

    def time(self) -> float:
        """Return the virtual seconds since the loop was made."""
        return self._now_s

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end; the loop that the caller may be on, as a notebook is, stands still."""
        with left_loop():
            return self.run_until_complete(coroutine)

    def end(self) -> None:
        """Close the loop, after the turn in which async generators are closed that were left before their end."""
        with suppress(StuckError):
            self.run(asyncio.sleep(0))
        self.close()

    def select(self, timeout: float | None) -> tuple[()]:
        """Let the time to the next timer pass.

        Raises:
            StuckError: nothing is left to happen, or the loop spins.
        """
        if timeout is None:
            raise StuckError("nothing is left to happen: everything waits for something that never comes")
        if timeout > 0:
            self._now_s += timeout
            self._idle_turns = 0
        else:
            self._idle_turns += 1
            if self._idle_turns > MAX_IDLE_TURNS:
                raise StuckError(f"the loop spins at {self._now_s:.3f} s")
            if not self._idle_turns % _SLOW_TURNS:
                # A wait that is shorter than the resolution ends without time having come to its end.
                self._now_s += self._clock_resolution
        return ()

    def _process_events(self, event_list: Any) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nothing sleeps that would have to be woken."""

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        """Schedule a callback; of two timers for one time the older goes first."""
        self._timers += 1
        timer = self.timer_type(when, callback, args, self, context, self._timers)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Call `func` on the loop, at its next turn."""
        future: asyncio.Future[T] = self.create_future()
        self.call_later(0.0, complete, future, func, args)
        return future


def complete(future: asyncio.Future[T], func: Callable[..., T], args: Any) -> None:
    """Complete a future with what `func` returns or raises."""
    try:
        result = func(*args)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        if not future.done():
            future.set_exception(for_future(error))
            future.exception()
    else:
        if not future.done():
            future.set_result(result)
