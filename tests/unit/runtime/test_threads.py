"""Work in threads, whose callers may be cancelled."""

import asyncio
import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from actors.runtime.threads import finish_in_thread


@pytest.fixture
def unhandled() -> Iterator[list[dict[str, Any]]]:
    reports: list[dict[str, Any]] = []
    yield reports
    assert reports == []


@pytest.mark.parametrize("cancels", [1, 2, 3])
async def test_the_caller_waits_for_the_thread_however_often_it_is_cancelled(
    cancels: int, unhandled: list[dict[str, Any]]
) -> None:
    """The next task of a partition would open the store beside it, and nobody would hear of an error."""
    loop, began, goes_on, ended = asyncio.get_running_loop(), threading.Event(), threading.Event(), threading.Event()
    loop.set_exception_handler(lambda _, about: unhandled.append(about))

    def work() -> None:
        began.set()
        assert goes_on.wait(10)
        ended.set()
        raise ValueError("the store is open")

    caller = asyncio.create_task(finish_in_thread(work))
    await asyncio.to_thread(began.wait, 10)
    for _ in range(cancels):
        caller.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    is_waiting = not caller.done()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert (is_waiting, ended.is_set()) == (True, True)
    await asyncio.to_thread(gc.collect)
