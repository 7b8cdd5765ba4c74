"""`app.running()` without a broker: a start that fails, a second one, and a block that is cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors import App, UsageError
from actors._faust.startup.running import _stop
from actors.errors import BrokerUnavailableError
from dev.kafka import free_port


async def test_a_start_that_fails_raises_its_reason_and_an_app_runs_once(tmp_path: Any) -> None:
    app = App("once", broker=f"kafka://127.0.0.1:{free_port()}", datadir=tmp_path)

    @app.actor(app.topic("a"))
    async def take(ctx: Any, value: Any) -> None: ...

    with pytest.raises(BrokerUnavailableError, match="no broker answers at"):
        async with app.running():
            raise AssertionError("the block of a worker that isn't there")
    with pytest.raises(UsageError, match=r"app once was started already.*once"):
        async with app.running():
            raise AssertionError("the block of a worker that isn't there")


class Stopping:
    """An app whose stop takes until it is let go."""

    def __init__(self) -> None:
        self.may_end, self.ended = asyncio.Event(), False

    async def stop(self) -> None:
        await self.may_end.wait()
        self.ended = True


async def test_a_worker_is_stopped_though_the_block_is_cancelled() -> None:
    app = Stopping()
    stopping = asyncio.create_task(_stop(app))
    for _ in range(3):
        await asyncio.sleep(0)
        stopping.cancel()
    await asyncio.sleep(0)
    assert not stopping.done()
    app.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert app.ended
