"""What becomes of windows when a program changes, an `on_close` fails, a process dies among closes."""

from datetime import timedelta

import pytest

from actors import App, OnError, Session, Sliding, Tumbling, aggregates
from actors.errors import ActorsError, ConfigurationError
from actors.testing import ActorTestDriver

BEGIN_MS = 1_700_000_000_000
SECOND = timedelta(seconds=1)
YEAR_S = 366 * 86_400


class Shop:
    """An app with one window store whose closes are sent to a topic."""

    def __init__(self, kind, *, closes=True, fails=(), timers=False, name="sales", **options):
        self.app = app = App("shop", broker="kafka://127.0.0.1:1")
        self.orders = orders = app.topic("orders", key_type=str, value_type=int)
        self.finals = finals = app.topic("finals", key_type=str, value_type=list)
        actor = {key: options.pop(key) for key in ("on_error",) if key in options}
        self.sales = sales = app.window_store(name, kind, aggregate=aggregates.sum(), **options)
        if closes:

            @sales.on_close
            async def closed(ctx, window, total):
                if ctx.key in fails:
                    raise ValueError("no final")
                start_s, end_s = (window.start_ms - BEGIN_MS) // 1000, (window.end_ms - BEGIN_MS) // 1000
                ctx.send(finals, key=ctx.key, value=[start_s, end_s, total])

        @app.actor(orders, stores=[sales], timers=timers, **actor)
        async def count(ctx, amount):
            sales.add(ctx.key, amount)
            if timers and ctx.timer is None:
                ctx.schedule(amount, after=timedelta(seconds=5))

    def order(self, driver, key, amount, at_s, *, settle=True):
        driver.post(self.orders, key=key, value=amount, timestamp_ms=BEGIN_MS + at_s * 1000)
        if settle:
            driver.settle()

    def sent(self, driver):
        return [(one.key, *one.value) for one in driver.outputs(self.finals)]


@pytest.mark.parametrize("kind", [Tumbling(seconds=10), Session(5 * SECOND), Sliding(10 * SECOND)])
def test_a_store_that_gets_on_close_later_closes_what_it_holds(kind):
    before = Shop(kind, closes=False)
    with ActorTestDriver(before.app, partitions=1) as driver:
        before.order(driver, "a", 1, 10)
        after = Shop(kind)
        driver.restart(after.app)
        driver.crash(keep_disk=False)
        after.order(driver, "b", 1, 100)
        assert [key for key, *_ in after.sent(driver)] == ["a"]


@pytest.mark.parametrize("other", [Tumbling(seconds=20), Session(10 * SECOND), Sliding(10 * SECOND)])
def test_other_windows_than_those_held_are_refused(other):
    before = Shop(Tumbling(seconds=10))
    with ActorTestDriver(before.app, partitions=1) as driver:
        before.order(driver, "a", 1, 10)
        refused = "has windows of Tumbling.0:00:10. of the aggregate sum, and this program would keep .* there: run the"
        with pytest.raises(ActorsError, match=refused):
            driver.restart(Shop(other).app)
        driver.restart(before.app)
        before.order(driver, "a", 2, 11)
        before.order(driver, "a", 1, 100)
        assert before.sent(driver) == [("a", 10, 20, 3)]


def test_a_longer_grace_opens_no_window_that_was_closed():
    before = Shop(Tumbling(seconds=10))
    with ActorTestDriver(before.app, partitions=1) as driver:
        before.order(driver, "a", 1, 0)
        before.order(driver, "a", 1, 25)
        after = Shop(Tumbling(seconds=10), grace=20 * SECOND)
        driver.restart(after.app)
        for at_s in (1, 22, 26, 60):
            after.order(driver, "a", 10, at_s)
            driver.crash(keep_disk=False)
        assert after.sent(driver) == [("a", 0, 10, 1), ("a", 20, 30, 21)]
        assert driver.items(after.sales.rows)["a", BEGIN_MS, BEGIN_MS + 10_000] == 1


def test_a_shorter_grace_closes_at_once_what_is_older():
    before = Shop(Session(5 * SECOND), grace=20 * SECOND)
    with ActorTestDriver(before.app, partitions=1) as driver:
        before.order(driver, "a", 1, 0)
        before.order(driver, "b", 1, 10)
        after = Shop(Session(5 * SECOND))
        driver.restart(after.app)
        after.order(driver, "b", 1, 40)
        assert after.sent(driver) == [("a", 0, 0, 1), ("b", 10, 10, 1)]


@pytest.mark.parametrize("kind", [Tumbling(seconds=10), Session(5 * SECOND)])
def test_many_closes_are_sent_once_though_the_process_dies_among_them(kind):
    shop = Shop(kind)
    keys = [f"{number:03}" for number in range(250)]
    with ActorTestDriver(shop.app, partitions=1) as driver:
        for key in keys:
            shop.order(driver, key, 1, -YEAR_S, settle=False)
        driver.settle()
        shop.order(driver, "z", 1, 0, settle=False)
        for number in range(30):
            driver.advance(0.0005 * number, settle=False)
            driver.crash(keep_disk=bool(number % 3), settle=False)
        driver.settle()
        assert sorted(key for key, *_ in shop.sent(driver)) == keys


def test_stream_time_does_not_go_back_with_a_process():
    shop = Shop(Tumbling(seconds=10), closes=False)
    with ActorTestDriver(shop.app, partitions=1) as driver:
        shop.order(driver, "a", 1, 0)
        shop.order(driver, "b", 1, 30)
        driver.crash(keep_disk=False)
        shop.order(driver, "a", 1, 5)
        held = {key: value for key, value in driver.items(shop.sales.rows).items() if key[0] == "a"}
        assert list(held.values()) == [1]


@pytest.mark.parametrize("policy", ["stop", "park"])
def test_a_close_that_fails_stops_with_its_key_and_window(policy):
    shop = Shop(Tumbling(seconds=10), fails={"bad"}, on_error=policy)
    with ActorTestDriver(shop.app, partitions=1) as driver:
        for key in ("bad", "good"):
            shop.order(driver, key, 1, 0)
        window = f"the close of the window {BEGIN_MS} to {BEGIN_MS + 10_000} of store sales"
        with pytest.raises(ActorsError, match=f"{window}.*ValueError: no final") as failed:
            shop.order(driver, "x", 1, 100)
        assert "bad" in str(failed.value)
        assert failed.value.internal is not None
        mended = Shop(Tumbling(seconds=10), on_error=policy)
        driver.restart(mended.app)
        assert mended.sent(driver) == [("bad", 0, 10, 1), ("good", 0, 10, 1)]


def test_a_close_that_fails_is_skipped_once():
    shop = Shop(Tumbling(seconds=10), fails={"bad"}, on_error=OnError(then="skip", dead_letters=True))
    with ActorTestDriver(shop.app, partitions=1) as driver:
        for key in ("bad", "good"):
            shop.order(driver, key, 1, 0)
        shop.order(driver, "x", 1, 100)
        driver.crash(keep_disk=False)
        assert shop.sent(driver) == [("good", 0, 10, 1)]
        (letter,) = driver.dead_letters()
        assert letter.key == "bad"


def test_a_timer_belongs_to_stream_time_though_its_clock_is_ahead():
    shop = Shop(Session(5 * SECOND), timers=True)
    with ActorTestDriver(shop.app, partitions=1) as driver:
        shop.order(driver, "a", 1, 0)
        driver.advance(10)
        shop.order(driver, "a", 1, 1)
        driver.advance(10)
        shop.order(driver, "b", 1, 100)
        assert shop.sent(driver) == [("a", 0, 1, 4)]


def test_what_is_past_its_retention_leaves_the_disk_and_stays_away():
    shop = Shop(Tumbling(seconds=10), retention=10 * SECOND)
    with ActorTestDriver(shop.app, partitions=1) as driver:
        for at_s in range(0, 200, 10):
            shop.order(driver, "a", 1, at_s)
        before = driver.items(shop.sales.rows)
        driver.crash(keep_disk=False)
        shop.order(driver, "a", 1, 190)
        assert len(before) < 6
        assert len(driver.items(shop.sales.rows)) < 6
        assert len(shop.sent(driver)) == 19


def test_sliding_windows_are_kept_for_two_lengths():
    with pytest.raises(ConfigurationError, match="needed for 0:00:20, twice their length and grace"):
        Shop(Sliding(10 * SECOND), retention=19 * SECOND)
