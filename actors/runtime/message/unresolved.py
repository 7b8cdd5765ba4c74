"""Waits for schemas that keys and values need, and that aren't in this process yet."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from actors.errors import UnresolvedSchemaError

T = TypeVar("T")
FIRST_LOOK_S, LONGEST_LOOK_S = 0.001, 0.1
"""How soon a task that waits looks again, doubled each time: a registry answers in milliseconds, or is down."""


async def resolved(attempt: Callable[[], Any], *, is_patient: bool = True) -> Any:
    """Return what a function returns, plain or async, calling it again when the schema that it lacks is here.

    Raises:
        UnresolvedSchemaError: the registry doesn't answer, and `is_patient` is false.
    """
    while True:
        try:
            result = attempt()
            return await result if inspect.isawaitable(result) else result
        except UnresolvedSchemaError as error:
            unresolved = error
        while not await unresolved.fetch():
            if not is_patient:
                raise unresolved


async def await_schema(error: UnresolvedSchemaError, wait: Callable[[float], Awaitable[None]]) -> None:
    """Return when the registry has answered, for as long as it takes.

    Args:
        error: names the schema.
        wait: lets so many seconds pass; what it raises ends the wait.
    """
    look_s = FIRST_LOOK_S
    while True:
        fetching = asyncio.ensure_future(error.fetch())
        try:
            while not fetching.done():
                await wait(look_s)
                look_s = min(2 * look_s, LONGEST_LOOK_S)
        finally:
            fetching.cancel()
        if fetching.result():
            return


def resolved_now(attempt: Callable[[], T]) -> T:
    """Return what a function returns, outside of event loops: for tools, which can't do anything else meanwhile.

    Raises:
        UnresolvedSchemaError: the registry doesn't answer.
    """
    while True:
        try:
            return attempt()
        except UnresolvedSchemaError as error:
            unresolved = error
        with ThreadPoolExecutor(1) as threads:
            # A loop that runs in this thread goes on afterwards.
            if not threads.submit(asyncio.run, _fetch(unresolved)).result():
                raise unresolved


async def _fetch(error: UnresolvedSchemaError) -> bool:
    return await error.fetch()
