"""What a worker's status says of window stores: what is declared, and about when the oldest open window began."""

from __future__ import annotations

from datetime import timedelta

import pytest

from actors import App, Context, Hopping, Session, Sliding, Tumbling, Window, aggregates
from actors.runtime.observe.status import WindowStatus
from actors.testing import ActorTestDriver
from tests.unit.runtime.observe.test_meters import seen

# A multiple of the windows' sizes.
BEGIN_MS = 1_700_006_400_000
SECOND = timedelta(seconds=1)


class Shop:
    """An app with one window store; `ms` are milliseconds behind `BEGIN_MS`."""

    def __init__(self, kind, *, closes: bool = True, grace: timedelta = 2 * SECOND) -> None:
        self.app = App("shop", broker="kafka://127.0.0.1:1")
        self.orders = self.app.topic("orders", key_type=str, value_type=int)
        self.store = store = self.app.window_store("sales", kind, grace=grace, aggregate=aggregates.sum())
        if closes:

            @store.on_close
            async def closed(ctx: Context, window: Window, total: int) -> None: ...

        @self.app.actor(self.orders, stores=[store])
        async def count(ctx: Context, amount: int) -> None:
            store.add(ctx.key, amount)

    def order(self, driver: ActorTestDriver, key: str, at_ms: int) -> None:
        driver.send(self.orders, key=key, value=1, timestamp_ms=BEGIN_MS + at_ms)

    @staticmethod
    def oldest_ms(driver: ActorTestDriver) -> int | None:
        ((found,),) = (task.windows for task in seen(driver).tasks)
        return None if found.oldest_open_ms is None else found.oldest_open_ms - BEGIN_MS


def test_what_is_declared_is_told() -> None:
    shop = Shop(Tumbling(seconds=10), grace=1.5 * SECOND)
    with ActorTestDriver(shop.app, partitions=1) as driver:
        expected = WindowStatus(
            name="sales", windows="Tumbling(0:00:10)", grace_ms=1_500, retention_ms=86_400_000, oldest_open_ms=None
        )
        (task,) = seen(driver).tasks
        assert (task.windows, task.stream_ms, task.late) == ([expected], None, {"sales": 0})


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize(("kind", "steps"), [
    # A window is open until 2 s after its end: its start, by what was ordered when.
    (Tumbling(seconds=10), [("a", 25_000, 20_000), ("b", 31_999, 20_000), ("b", 32_000, 30_000)]),
    (Hopping(10 * SECOND, 5 * SECOND), [("a", 27_000, 20_000), ("b", 31_999, 20_000), ("b", 32_000, 25_000)]),
])  # fmt: skip
def test_of_tumbling_and_hopping_windows_it_is_the_first_that_takes_messages(kind, steps, closes) -> None:
    shop = Shop(kind, closes=closes)
    with ActorTestDriver(shop.app, partitions=1) as driver:
        for key, at_ms, oldest_ms in steps:
            shop.order(driver, key, at_ms)
            assert shop.oldest_ms(driver) == oldest_ms, (key, at_ms)
        driver.crash(keep_disk=False)
        assert shop.oldest_ms(driver) == steps[-1][2]


@pytest.mark.parametrize("kind", [Session(5 * SECOND), Sliding(5 * SECOND)])
def test_of_others_it_is_that_whose_close_is_next(kind) -> None:
    shop, begun_ms = Shop(kind), 0 if isinstance(kind, Session) else -5_000
    with ActorTestDriver(shop.app, partitions=1) as driver:
        shop.order(driver, "a", 20_000)
        shop.order(driver, "b", 22_000)
        assert shop.oldest_ms(driver) == 20_000 + begun_ms
        shop.order(driver, "c", 28_000)
        assert shop.oldest_ms(driver) == (22_000 if isinstance(kind, Session) else 28_000 - 5_000)
    without = Shop(kind, closes=False)
    with ActorTestDriver(without.app, partitions=1) as driver:
        without.order(driver, "a", 20_000)
        assert without.oldest_ms(driver) is None


def test_windows_that_a_longer_grace_doesnt_open_again_are_not_open() -> None:
    before = Shop(Tumbling(seconds=10))
    with ActorTestDriver(before.app, partitions=1) as driver:
        before.order(driver, "a", 15_000)
        before.order(driver, "a", 32_000)
        after = Shop(Tumbling(seconds=10), grace=60 * SECOND)
        driver.restart(after.app)
        after.order(driver, "a", 33_000)
        assert after.oldest_ms(driver) == 30_000
