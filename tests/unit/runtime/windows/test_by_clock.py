"""Windows by the clock: a message counts when it is handled, whatever its time is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from actors import App, Context, Every, Tumbling, aggregates
from actors.errors import ConfigurationError
from actors.testing import ActorTestDriver

NOON = datetime(2031, 1, 1, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1000)


class World:
    """Counts per minute of the clock and key; the results are in `results`."""

    def __init__(self, emit: Every | None = None, **options: Any) -> None:
        self.app = App("shop", broker="kafka://127.0.0.1:1")
        self.topic = self.app.topic("in", key_type=str, value_type=str)
        self.results: list[tuple[str, int, int]] = []
        self.changes: list[int] = []
        self.counts = self.app.window_store(
            "counts", Tumbling(minutes=1, time="wall"), aggregate=aggregates.count(), emit=emit
        )

        @self.app.actor(self.topic, stores=[self.counts], **options)
        async def count(ctx: Context, _: str) -> None:
            self.counts.add(ctx.key, None)

        @self.counts.on_close
        def close(ctx: Context, window: Any, number: int) -> None:
            self.results.append((ctx.key, (window.start_ms - NOON_MS) // 1000, number))

        if emit is not None:

            @self.counts.on_emit
            def changed(ctx: Context, window: Any, number: int) -> None:
                self.changes.append(number)

    def driver(self) -> ActorTestDriver:
        return ActorTestDriver(self.app, now=NOON)

    def send(self, driver: ActorTestDriver, key: str, at_ms: int = 0) -> None:
        driver.send(self.topic, key=key, value=key, timestamp_ms=at_ms)


def test_a_message_counts_when_it_is_handled_and_windows_close_without_input() -> None:
    world = World()
    with world.driver() as driver:
        driver.advance(10)
        world.send(driver, "a", NOON_MS)
        world.send(driver, "a", 5)
        world.send(driver, "a", NOON_MS + 86_000_000)
        driver.advance(45)
        assert world.results == []
        driver.advance(10)
        assert world.results == [("a", 0, 3)]
        world.send(driver, "a", NOON_MS)
        driver.advance(60)
    assert world.results == [("a", 0, 3), ("a", 60, 1)]


def test_a_takeover_keeps_what_is_open_and_closes_what_ended_meanwhile() -> None:
    world = World()
    with world.driver() as driver:
        world.send(driver, "a")
        driver.crash(keep_disk=False)
        world.send(driver, "a")
        driver.crash(keep_disk=False, down_s=300.0)
        assert world.results == [("a", 0, 2)]
        world.send(driver, "a")
        driver.advance(60)
    assert world.results == [("a", 0, 2), ("a", 300, 1)]


def test_behind_a_hop_it_is_the_same() -> None:
    world = World(by=lambda value: value)
    with world.driver() as driver:
        world.send(driver, "x", NOON_MS)
        driver.advance(61)
    assert world.results == [("x", 0, 1)]


def test_changes_go_by_the_clock_too() -> None:
    world = World(Every(seconds=10))
    with world.driver() as driver:
        world.send(driver, "a")
        driver.advance(11)
        assert world.changes == [1]
        world.send(driver, "a")
        driver.advance(11)
    assert world.changes == [1, 2]


def test_a_store_by_event_time_beside_it_is_refused() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    stores = [
        app.window_store(time, Tumbling(minutes=1, time=time), aggregate=aggregates.count())
        for time in ("wall", "event")
    ]
    with pytest.raises(ConfigurationError, match="stores wall and event"):

        @app.actor(app.topic("in", key_type=str, value_type=str), stores=stores)
        async def work(ctx: Context, value: str) -> None: ...


@pytest.mark.parametrize("option", [{"grace": timedelta(1)}, {"close_when_idle": timedelta(1)}])
def test_what_has_no_meaning_by_the_clock_is_refused(option: dict[str, Any]) -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    with pytest.raises(ConfigurationError, match=next(iter(option))):
        app.window_store("counts", Tumbling(minutes=1, time="wall"), aggregate=aggregates.count(), **option)


def test_late_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="late="):
        World(late="handle")


def test_another_time_is_refused() -> None:
    with pytest.raises(ValueError, match="time='clock'"):
        Tumbling(minutes=1, time="clock")  # type: ignore[arg-type]


def test_the_rows_of_the_other_time_cant_be_read() -> None:
    assert repr(Tumbling(minutes=1, time="wall")) != repr(Tumbling(minutes=1))
