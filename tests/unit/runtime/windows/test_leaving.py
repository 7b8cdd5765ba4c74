"""A task that ends with closes in hand: none is lost, though its last commit says what has expired."""

import asyncio
from datetime import timedelta

import pytest

from actors import App, Every, HandlerFailedError, Hopping, Session, Sliding, Tumbling, aggregates
from actors._core.task.pauses import Pause
from actors.testing import ActorTestDriver
from tests.unit.runtime.leaving import leave

BEGIN_MS = 1_700_000_000_000
MINUTE, HOUR, HOUR_MS = timedelta(minutes=1), timedelta(hours=1), 3_600_000
KEYS = 40
CLOSE_S = 0.02
WINDOWS = {
    "tumbling": Tumbling(minutes=1),
    "hopping": Hopping(MINUTE, MINUTE / 2),
    "session": Session(MINUTE),
    "sliding": Sliding(MINUTE),
    "emitted": Tumbling(minutes=1),
}
ENDS = {"hopping": 2}
"""Of a kind that has more of them than one, the windows of a record."""


class Shop:
    """One record of each key, and a slow function that is called for its windows, or for the record without a match."""

    def __init__(self, kind, *, fails=None):
        self.fails = fails
        self.app = app = App("shop", broker="kafka://127.0.0.1:1")
        self.orders, self.payments = (app.topic(name, key_type=str, value_type=int) for name in ("orders", "payments"))
        self.called = 0
        self.finals = app.topic("finals", key_type=str, value_type=str)
        {"join": self._join, "one and many": self._one_many}.get(kind, self._windows)(kind)

    async def _final(self, ctx, window, _):
        await asyncio.sleep(CLOSE_S)
        self.called += 1
        if ctx.key == self.fails:
            raise ValueError("no close")
        ctx.send(self.finals, key=ctx.key, value=str(window))

    def _windows(self, kind):
        emits = {"emit": Every(minutes=1)} if kind == "emitted" else {}
        store = self.app.window_store("minutes", WINDOWS[kind], aggregate=aggregates.sum(), retention=HOUR, **emits)
        (store.on_emit if emits else store.on_close)(self._final)

        @self.app.actor(self.orders, stores=[store])
        async def count(ctx, amount):
            store.add(ctx.key, amount)

    def _join(self, _):
        @self.app.join(self.orders, self.payments, within=MINUTE, how="left")
        async def joined(ctx, left, right):
            await self._final(ctx, left, right)

    def _one_many(self, _):
        @self.app.join(one=self.orders, many=self.payments, retention=MINUTE, how="left")
        async def joined(ctx, one, many):
            await self._final(ctx, one, many)

    def fill(self, driver):
        """Let all that is to be closed be due, and much later, so that all of it is past its retention."""
        for number in range(KEYS):
            driver.post(self.orders, key=f"{number:02}", value=1, timestamp_ms=BEGIN_MS)
        driver.settle()
        for topic in (self.orders, self.payments):
            driver.post(topic, key="end", value=1, timestamp_ms=BEGIN_MS + 20 * HOUR_MS)


@pytest.mark.parametrize("keep_disk", [True, False])
@pytest.mark.parametrize("kind", [*WINDOWS, "join", "one and many"])
def test_no_close_is_lost_or_doubled_where_workers_leave_with_closes_in_hand(kind, keep_disk):
    shop = Shop(kind)
    with ActorTestDriver(shop.app, partitions=1) as driver:
        shop.fill(driver)
        driver.advance(5 * CLOSE_S, settle=False)
        for _ in range(3):
            leave(driver, keep_disk=keep_disk, settle=False)
            driver.advance(5 * CLOSE_S, settle=False)
        assert 0 < shop.called < KEYS, "closes were in hand"
        driver.settle()
        finals = [one.key for one in driver.outputs(shop.finals) if one.key != "end"]
        assert sorted(finals) == sorted(ENDS.get(kind, 1) * [f"{number:02}" for number in range(KEYS)])


def test_closes_that_a_pause_holds_up_are_not_lost_where_the_worker_leaves_meanwhile():
    shop = Shop("tumbling")
    with ActorTestDriver(shop.app, partitions=1) as driver:
        shop.fill(driver)
        driver.advance(5 * CLOSE_S, settle=False)
        (task,) = driver._worker.tasks
        task.pause(Pause(actor="count", partition=None, is_paused=True, at_ms=0, by="ops"))
        driver.advance(1, settle=False)
        assert 0 < shop.called < KEYS, "closes were in hand"
        leave(driver)
        finals = [one.key for one in driver.outputs(shop.finals)]
        assert finals == [f"{number:02}" for number in range(KEYS)]


def test_a_close_that_stops_the_partition_and_those_behind_it_come_when_its_function_is_mended():
    shop = Shop("tumbling", fails="05")
    with ActorTestDriver(shop.app, partitions=1) as driver:
        shop.fill(driver)
        with pytest.raises(HandlerFailedError):
            driver.settle()
        shop.fails = None
        leave(driver)
        finals = [one.key for one in driver.outputs(shop.finals)]
        assert finals == [f"{number:02}" for number in range(KEYS)]
