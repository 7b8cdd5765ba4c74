"""Threads for the user's functions: as many as allowed, and none that the end of the process waits for."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from actors.runtime.threads import DaemonThreads

BLOCKED = """
import asyncio, time
from actors.runtime.threads import in_threads

async def main():
    running = asyncio.ensure_future(in_threads(2, "handler")(time.sleep)(60))
    await asyncio.sleep(0.1)
    running.cancel()

asyncio.run(main())
"""


def test_the_interpreter_does_not_wait_for_a_function_that_blocks() -> None:
    began_s = time.monotonic()
    subprocess.run([sys.executable, "-c", BLOCKED], check=True, timeout=55)
    assert time.monotonic() - began_s < 50


def test_calls_share_the_threads_and_give_results_and_errors() -> None:
    threads, gate = DaemonThreads(2, "t"), threading.Event()
    blocked = [threads.submit(gate.wait, 30) for _ in range(2)]
    waiting, given_up = threads.submit(threading.current_thread), threads.submit(int, "1")
    assert given_up.cancel()
    gate.set()
    assert [future.result(30) for future in blocked] == [True, True]
    assert waiting.result(30).name in ("t_0", "t_1")
    with pytest.raises(ValueError, match="invalid literal"):
        threads.submit(int, "x").result(30)
    assert threads._started == 2
    gate.clear()
    entered = threading.Semaphore(0)

    def hold() -> bool:
        entered.release()
        return gate.wait(30)

    running = [threads.submit(hold) for _ in range(2)]
    assert all(entered.acquire(timeout=30) for _ in running)
    left = threads.submit(int, "1")
    threads.shutdown(wait=False, cancel_futures=True)
    gate.set()
    assert left.cancelled()
    assert [future.result(30) for future in running] == [True, True]
