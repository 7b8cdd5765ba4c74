"""How requests reach the simulated cluster: at once. `tests/sim` has a network that loses, delays and repeats them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from actors.testing.fakes.errors import NoAnswerError, RefusedError

T = TypeVar("T")


class DirectNetwork:
    """A network without delays and faults."""

    async def ask(self, request: str, function: Callable[..., Any], *args: Any) -> Any:
        """Have the cluster run `function(*args)`, and return what it returns; a future is waited for.

        Raises:
            RefusedError: the broker's answer.
            NoAnswerError: none came.
        """
        # Others may act while a request is on its way, and while its answer is.
        await asyncio.sleep(0)
        try:
            result = function(*args)
            result = await result if isinstance(result, asyncio.Future) else result
        except RefusedError:
            await asyncio.sleep(0)
            raise
        await asyncio.sleep(0)
        return result


async def retried(ask: Callable[[], Awaitable[T]], *, retry_s: float, deadline_s: float) -> T:
    """Ask again after a retriable refusal or no answer, until the loop's time is `deadline_s`.

    Raises:
        RefusedError, NoAnswerError: the last one.
    """
    loop = asyncio.get_running_loop()
    while True:
        try:
            return await ask()
        except RefusedError as error:
            if not error.is_retriable or loop.time() >= deadline_s:
                raise
        except NoAnswerError:
            if loop.time() >= deadline_s:
                raise
        await asyncio.sleep(retry_s)
