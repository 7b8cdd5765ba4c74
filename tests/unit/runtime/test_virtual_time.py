"""The loop of the test driver and of replays."""

from __future__ import annotations

import asyncio

from actors.runtime.virtual_time import VirtualTime


def test_time_comes_to_the_end_of_the_shortest_waits() -> None:
    loop = VirtualTime()

    async def wait(turns: int) -> None:
        until_s = loop.time() + 5e-8
        for _ in range(turns):
            await asyncio.sleep(0)
        while (left_s := until_s - loop.time()) > 0.0:  # noqa: ASYNC110  the wait itself is what is tested
            await asyncio.sleep(left_s)

    async def wait_side_by_side() -> None:
        await asyncio.gather(*(wait(turns) for turns in range(4)))

    try:
        loop.run(wait_side_by_side())
    finally:
        loop.end()
