"""Rows that can't be read when a close takes them: the partition stops with a remedy, whatever `on_error` says."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from actors import App, Context, Every, OnError, Tumbling, Window, aggregates
from actors.errors import ActorsError, RecordError
from actors.runtime.message.outputs import RECORD_OVERHEAD_BYTES
from actors.testing import ActorTestDriver
from stores._core.record import METADATA_BYTES

BEGIN_MS = 1_700_000_000_000
SECOND = timedelta(seconds=1)


class World:
    """A join and windows whose changes are handed out, each an actor that sends what it is called with."""

    def __init__(self, on_error: Any, *, fails: Any = ()) -> None:
        self.app = app = App("shop", broker="kafka://127.0.0.1:1")
        self.called: list[Any] = []
        self.fails = set(fails)
        self.left, self.right, self.orders = (
            app.topic(name, key_type=str, value_type=int) for name in ("left", "right", "orders")
        )
        self.tens = app.window_store("tens", Tumbling(seconds=10), aggregate=aggregates.sum(), emit=Every(seconds=1))

        @app.join(self.left, self.right, within=SECOND, how="left", on_error=on_error)
        async def paired(ctx: Context, one: int, other: int | None) -> None:
            self.take(ctx.key)

        @app.actor(self.orders, stores=[self.tens], on_error=on_error)
        async def count(ctx: Context, amount: int) -> None:
            self.tens.add(ctx.key, amount)

        @self.tens.on_emit
        async def changed(ctx: Context, window: Window, total: int) -> None:
            self.take(ctx.key)

    def take(self, key: str) -> None:
        self.called.append(key)
        if key in self.fails:
            raise ValueError("no call")

    def damage(self, driver: ActorTestDriver, store: str, letter: bytes) -> None:
        """Make the committed rows of a store with that letter unreadable."""
        files = next(one for one in driver._disk.files() if one.store == store)
        rows = [row for row in files.data if row[:1] == letter]
        assert rows
        for row in rows:
            files.data[row] = files.data[row][:METADATA_BYTES] + b"?\xc1"


@pytest.mark.parametrize("on_error", ["stop", "skip", "park", OnError(retries=2, then="skip")], ids=str)
@pytest.mark.parametrize(("store", "letter"), [("paired", b"j"), ("tens-changes", b"e")])
def test_a_damaged_row_of_a_close_stops_its_partition_with_a_remedy(store: str, letter: bytes, on_error: Any) -> None:
    world = World(on_error)
    topic = world.left if store == "paired" else world.orders
    with ActorTestDriver(world.app, partitions=1) as driver:
        driver.send(topic, key="a", value=1, timestamp_ms=BEGIN_MS)
        world.damage(driver, store, letter)
        driver.crash()
        with pytest.raises(ActorsError, match=f"a row of store {store} can't be read.* delete the partition's folder"):
            driver.send(topic, key="b", value=1, timestamp_ms=BEGIN_MS + 60_000)
        assert world.called == []
        # The changelog has the row as it was.
        driver.crash(keep_disk=False)
        assert world.called == ["a"]


@pytest.mark.parametrize("on_error", [pytest.param("skip", marks=pytest.mark.nightly), "park"])
def test_a_key_so_long_that_its_close_could_not_be_noted_is_refused_when_it_comes(
    on_error: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    clicks = app.topic("clicks", key_type=str, value_type=int)
    tens = app.window_store("tens", Tumbling(seconds=10), aggregate=aggregates.count())
    closed, sizes = [], range(1_048_588 - 400, 1_048_588, 20)

    @app.actor(clicks, stores=[tens], on_error=on_error)
    async def count(ctx: Context, number: int) -> None:
        tens.add(ctx.key, number)

    @tens.on_close
    async def done(ctx: Context, window: Window, total: int) -> None:
        closed.append(len(ctx.key))

    with ActorTestDriver(app, partitions=1) as driver:
        for size in sizes:
            driver.send(clicks, key="k" * size, value=1, timestamp_ms=BEGIN_MS)
        driver.send(clicks, key="z", value=1, timestamp_ms=BEGIN_MS + 600_000)
        driver.crash(keep_disk=False)
    # Those that fit close, and the others are refused one by one.
    assert closed == [size for size in sizes if size <= closed[-1]]
    assert 0 < len(closed) < len(sizes)
    assert "doesn't fit into the topic's max.message.bytes" in caplog.text


@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_a_close_that_cant_be_noted_stops_its_partition_and_not_the_worker(on_error: Any) -> None:
    def make(*, closes: bool) -> tuple[App, Any]:
        app = App("shop", broker="kafka://127.0.0.1:1")
        clicks = app.topic("clicks", key_type=str, value_type=int)
        tens = app.window_store("tens", Tumbling(seconds=10), aggregate=aggregates.count())

        @app.actor(clicks, stores=[tens], on_error=on_error)
        async def count(ctx: Context, number: int) -> None:
            tens.add(ctx.key, number)

        if closes:
            tens.on_close(lambda ctx, window, total: None)
        return app, clicks

    (before, clicks), (after, _) = make(closes=False), make(closes=True)
    with ActorTestDriver(before, partitions=1) as driver:
        # It fits into its own row, and not into the one that says how far closes have come.
        driver.send(clicks, key="k" * (1_048_588 - RECORD_OVERHEAD_BYTES - 40), value=1, timestamp_ms=BEGIN_MS)
        driver.send(clicks, key="z", value=1, timestamp_ms=BEGIN_MS + 60_000)
        with pytest.raises(RecordError, match=r"max\.message\.bytes"):
            driver.restart(after)
