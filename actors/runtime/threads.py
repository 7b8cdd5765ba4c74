"""Blocking calls off the event loop: of stores, which are waited for, and of the user's functions."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar, cast

from actors.runtime.handlers.callables import name_of, refuse_generator

P = ParamSpec("P")
T = TypeVar("T")


async def finish_in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `function` in a thread and wait for its end, however often the caller is cancelled.

    A thread can't be stopped: if the caller went on, the next task of the partition would write to the store beside it.
    """
    work = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([work])
        if not work.cancelled():
            # Nobody is left to hear of it; the store says it again to its next user.
            work.exception()
        raise


class DaemonThreads(Executor):
    """Up to `count` threads that the interpreter doesn't wait for when it ends.

    A thread can't be stopped. `ThreadPoolExecutor` joins its threads at exit, so that a handler that blocks would hold
    up the end of a worker that has stopped, has committed and has left its group.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `fn` as soon as a thread is free."""
        future: Future[T] = Future()
        self._calls.put((future, functools.partial(fn, *args, **kwargs)))
        if not self._idle.acquire(blocking=False) and self._started < self._count:
            threading.Thread(target=self._work, name=f"{self._name}_{self._started}", daemon=True).start()
            self._started += 1
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads as they get free. Never waits; takes no calls afterwards."""
        while cancel_futures:
            try:
                call = self._calls.get_nowait()
            except Empty:
                break
            if call is not None:
                call[0].cancel()
        for _ in range(self._started):
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            future, made = call
            if future.set_running_or_notify_cancel():
                try:
                    result = made()
                except BaseException as error:
                    future.set_exception(for_future(error))
                else:
                    future.set_result(result)
            del call, future, made
            self._idle.release()


def for_future(error: BaseException) -> BaseException:
    """Return a function's error as one that a future takes: as in coroutines, without `StopIteration`."""
    if not isinstance(error, StopIteration | GeneratorExit):
        return error
    # A future of asyncio refuses the one, and would never be done. The other would end the coroutine that awaits it.
    failure = RuntimeError(f"the function raised {type(error).__name__}")
    failure.__cause__ = error
    return failure


def in_threads(count: int, name: str) -> Callable[[Callable[..., T]], Callable[..., Awaitable[T]]]:
    """Return a decorator with which a plain function is awaited and runs in one of `count` threads of their own.

    Not in the event loop's default ones: few as they are, a handler that blocks would hold up commits and takeovers.
    """
    pool = DaemonThreads(count, name)

    def wrap(function: Callable[..., T]) -> Callable[..., Awaitable[T]]:
        @functools.wraps(function)
        async def call(*args: object) -> T:
            context = contextvars.copy_context()
            result: Any = await asyncio.get_running_loop().run_in_executor(
                pool, functools.partial(context.run, function, *args)
            )
            if inspect.isawaitable(result):
                # Nothing of it ran in the thread.
                return cast("T", await result)
            refuse_generator(result, f"the handler {name_of(function)}")
            return cast("T", result)

        return call

    return wrap
