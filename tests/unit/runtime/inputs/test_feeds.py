"""Event time through hops, on the test driver."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from actors import App, Context, Tumbling, aggregates
from actors.testing import ActorTestDriver

NOON = datetime(2031, 1, 1, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1000)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_the_last_record_of_a_forwarder_moves_its_readers_time(concurrency: int) -> None:
    app, closed = App("shop", broker="kafka://127.0.0.1:1"), []
    clicks = app.topic("clicks", key_type=str, value_type=str)

    @app.actor(clicks, concurrency=concurrency)
    async def forward(ctx: Context, value: str) -> None:
        ctx.send(moved, key="all", value=value)

    moved = app.topic("moved", key_type=str, value_type=str, writers=[forward])
    tens = app.window_store("tens", Tumbling(seconds=10), aggregate=aggregates.count())

    @app.actor(moved, stores=[tens])
    async def count(ctx: Context, _: str) -> None:
        tens.add(ctx.key, 1)

    @tens.on_close
    def close(ctx: Context, window: object, number: int) -> None:
        closed.append(number)

    with ActorTestDriver(app, now=NOON, partitions=1) as driver:
        for seconds in (1, 2, 12, 13, 31):
            driver.send(clicks, key=f"k{seconds}", value="", timestamp_ms=NOON_MS + seconds * 1_000)
    assert closed == [2, 2]
