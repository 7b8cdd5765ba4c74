"""What a closed client does: every call ends at once, and says why."""

import asyncio
import threading
import time
from typing import Any

import pytest

from actors.coordination import (
    Coordination,
    CoordinationError,
    CoordinationTimeoutError,
    Sharing,
    SyncCoordination,
)
from actors.coordination import messages as m
from actors.coordination.client.client import CLOSE_S
from actors.runtime.clock import SystemClock

DEADLINE_S = 10.0


class Silent:
    """A transport that nobody answers through."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.asked = threading.Event()

    def new_owner(self, name: str) -> str:
        return name

    async def ask(self, name: str, request: m.AnyRequest, timeout_s: float) -> Any:
        self.asked.set()
        await asyncio.sleep(timeout_s)
        raise CoordinationTimeoutError("nobody")

    undo = ask


async def test_a_call_of_a_closed_client_ends_at_once() -> None:
    client = Coordination("127.0.0.1:1", app="x")
    # As after any call: what was seen once isn't asked for again.
    client._asks._counts["x-coordination"] = 8
    await client.close()
    await client.close()
    begin_s = time.monotonic()
    for call in (client.acquire("printer"), client.look("printer"), client.put("node", "x")):
        with pytest.raises(CoordinationError, match="was closed") as caught:
            await call
        assert caught.value.reason == "closed"
    assert time.monotonic() - begin_s < 1.0


async def test_closing_takes_no_longer_than_it_says_though_the_brokers_hang() -> None:
    client = Coordination("127.0.0.1:1", app="x")

    async def hangs() -> None:
        await asyncio.sleep(3600)

    client._asks.close = hangs  # type: ignore[method-assign]
    begin_s = time.monotonic()
    await client.close()
    assert time.monotonic() - begin_s < CLOSE_S + 1.0
    client._closing.cancel()


def test_a_thread_that_waits_is_told_when_another_closes_the_client() -> None:
    transport = Silent()
    sync = SyncCoordination(client=Sharing(transport))
    ended: list[CoordinationError] = []

    def waits() -> None:
        try:
            sync.try_lock("x")
        except CoordinationError as error:
            ended.append(error)

    thread = threading.Thread(target=waits)
    thread.start()
    assert transport.asked.wait(DEADLINE_S)
    begin_s = time.monotonic()
    sync.close()
    sync.close()
    thread.join(DEADLINE_S)
    assert [error.reason for error in ended] == ["closed"]
    assert time.monotonic() - begin_s < DEADLINE_S
    with pytest.raises(CoordinationError, match="make a new one") as caught:
        sync.try_lock("x")
    assert caught.value.reason == "closed"
