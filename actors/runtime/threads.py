"""Blocking store calls off the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def finish_in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `function` in a thread and wait for its end even when cancelled.

    A thread can't be stopped: if the caller went on, the next task of the partition would write to the store beside it.
    """
    work = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        if not work.cancelled():
            # Nobody is left to hear of it; the store says it again to its next user.
            work.exception()
        raise


def in_threads(count: int, name: str) -> Callable[[Callable[..., T]], Callable[..., Awaitable[T]]]:
    """Give what makes a plain function one that can be awaited and runs in one of `count` threads of their own.

    Not in the event loop's default ones: few as they are, a handler that blocks would hold up commits and takeovers.
    """
    pool = ThreadPoolExecutor(count, thread_name_prefix=name)

    def wrap(function: Callable[..., T]) -> Callable[..., Awaitable[T]]:
        @functools.wraps(function)
        async def call(*args: object) -> T:
            context = contextvars.copy_context()
            return await asyncio.get_running_loop().run_in_executor(
                pool, functools.partial(context.run, function, *args)
            )

        return call

    return wrap
