"""The partition's time: it never goes back, whoever owns the partition and whatever the clocks say."""

from __future__ import annotations

from typing import Any

import pytest

from actors import App, Context
from actors._core.task.commit import CommitMark, parse_mark
from actors.testing import ActorTestDriver
from actors.testing.fakes.ports import FakeClock


@pytest.mark.parametrize("concurrency", [1, 4])
def test_time_does_not_go_back_on_a_worker_whose_clock_is_behind(
    concurrency: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("time", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=str)
    told: list[int] = []
    clock: dict[str, int] = {"behind_ms": 0}

    @app.actor(orders, concurrency=concurrency)
    async def order(ctx: Context, _: str) -> None:
        told.append(ctx.now_ms)
        clock["behind_ms"] += clock.get("steps_ms", 0)
        told.append(ctx.now_ms)

    wall_ms: Any = FakeClock.wall_ms
    monkeypatch.setattr(FakeClock, "wall_ms", lambda self: wall_ms(self) - clock["behind_ms"])
    with ActorTestDriver(app, partitions=1) as driver:
        driver.send(orders, key="a", value="x")
        clock["behind_ms"] = 50_000
        driver.crash(keep_disk=False)
        driver.send(orders, key="a", value="x")
        assert "the clock of an earlier owner was" in caplog.text
        # The clock is set back while a handler runs, too.
        clock["steps_ms"] = 1_000
        driver.advance(120)
        for _ in range(2):
            driver.send(orders, key="a", value="x")
    assert told == sorted(told)
    assert told[-1] - told[0] > 60_000


def test_a_mark_carries_the_time() -> None:
    mark = CommitMark(3, 14, "abc", "AQ==", now_ms=1_700_000_000_000)
    assert mark.encode() == "3;14;abc~,0.1700000000000;AQ=="
    assert parse_mark(mark.encode()) == mark
    assert parse_mark("3;14;abc~,0;AQ==") == CommitMark(3, 14, "abc", "AQ==")
    assert parse_mark("3;14;abc~,0.x") == CommitMark(3, 14, "abc")
    assert parse_mark("3;14;abc") is None
