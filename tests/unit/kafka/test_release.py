"""Stopping a client ends in time, and cancels nobody who waits for it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from actors._kafka import client
from actors._kafka.client import Consumer, release
from actors._kafka.connection import Connection


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "CLOSE_S", 0.02)


async def stopped(consumer: Consumer) -> None:
    async with asyncio.timeout(2.0):
        await release(consumer)


async def test_connections_that_never_close() -> None:
    consumer = Consumer(Connection(()), "test")
    # As aiokafka's: each call returns the same future, which a call that is cancelled cancels.
    closed = [asyncio.get_running_loop().create_future() for _ in range(2)]
    for node, future in enumerate(closed):
        consumer._client._conns[node, 0] = SimpleNamespace(close=lambda reason, future=future: future)
    await stopped(consumer)
    assert all(future.cancelled() for future in closed)


async def test_a_fetch_that_is_cancelled_before_it_is_tried_again() -> None:
    consumer = Consumer(Connection(()), "test")

    async def cancelled() -> None:
        raise asyncio.CancelledError

    consumer._fetcher = SimpleNamespace(close=cancelled)
    ended = []
    consumer._client._conns[0, 0] = SimpleNamespace(close=lambda reason: ended.append(reason) or asyncio.sleep(0))
    await stopped(consumer)
    assert len(ended) == 1


async def test_who_is_cancelled_while_waiting_is() -> None:
    consumer = Consumer(Connection(()), "test")

    async def hang() -> None:
        await asyncio.Event().wait()

    consumer._fetcher = SimpleNamespace(close=hang)
    releasing = asyncio.create_task(release(consumer))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    releasing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await releasing
