"""A client that cancels a future of its own, on which a task of ours waits: nobody wanted that task to end."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from actors import App, Context
from actors._kafka.connection import broker_errors
from actors.errors import BrokerUnavailableError
from actors.testing import ActorTestDriver
from actors.testing.fakes.ports import FakeWriter


async def wait_for(future: asyncio.Future[None]) -> None:
    with broker_errors("asking"):
        await future


async def test_a_cancelled_future_of_the_client_is_a_broker_that_is_away() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(wait_for(future))
    await asyncio.sleep(0)
    future.cancel()
    with pytest.raises(BrokerUnavailableError, match="asking: the client gave the request up"):
        await task


async def test_a_cancelled_task_stays_cancelled() -> None:
    task = asyncio.create_task(wait_for(asyncio.get_running_loop().create_future()))
    await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_a_deadline_stays_a_deadline() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await wait_for(asyncio.get_running_loop().create_future())


def test_a_task_takes_over_again(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("given-up", broker="kafka://127.0.0.1:9")
    topic = app.topic("in", key_type=str, value_type=str)
    done = app.topic("done", key_type=str, value_type=str)

    @app.actor(topic)
    async def work(ctx: Context, value: str) -> None:
        ctx.send(done, key=ctx.key, value=value)

    fence, given_up = FakeWriter.fence, []

    async def fence_or_give_up(log: FakeWriter) -> None:
        if not given_up:
            given_up.append(log)
            raise asyncio.CancelledError
        await fence(log)

    monkeypatch.setattr(FakeWriter, "fence", fence_or_give_up)
    with ActorTestDriver(app) as driver:
        driver.post(topic, key="a", value="b")
        driver.settle()
        assert given_up
        assert [(sent.key, sent.value) for sent in driver.outputs(done)] == [("a", "b")]
