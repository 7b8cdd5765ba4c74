"""What becomes of windows when grace, retention or functions change with a restart."""

import asyncio
from datetime import timedelta

import pytest

from actors import App, HandlerFailedError, Session, Sliding, Tumbling, aggregates
from actors.testing import ActorTestDriver
from tests.unit.runtime.windows.test_changes import BEGIN_MS, SECOND, Shop

HOUR_S = 3600
KINDS = [Tumbling(seconds=10), Session(5 * SECOND), Sliding(10 * SECOND)]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_each_window_closes_once_with_all_of_it_when_grace_and_retention_become_shorter(kind):
    """The closes come in the order of the windows' ends, also among those that came before the change."""
    before = Shop(kind, grace=100 * SECOND, retention=130 * SECOND)
    with ActorTestDriver(before.app, partitions=1) as driver:
        for key, amount, at_s in (("a", 1, 0), ("b", 2, 30), ("a", 4, 3)):
            before.order(driver, key, amount, at_s)
        after = Shop(kind, retention=20 * SECOND)
        driver.restart(after.app)
        driver.crash(keep_disk=False)
        for key, amount, at_s in (("c", 8, 31), ("c", 16, 120), ("d", 32, 400)):
            after.order(driver, key, amount, at_s)
        closed = after.sent(driver)
        ends = [end_s for _, _, end_s, _ in closed]
        assert ends == sorted(ends)
        assert len({(key, start_s) for key, start_s, *_ in closed}) == len(closed)
        totals = {key: max(total for of, *_, total in closed if of == key) for key in "abc"}
        assert totals == {"a": 5, "b": 2, "c": 16}


class Rollups:
    """Visits, whose closes add to hours, with settings that a restart may change."""

    def __init__(self, kind, *, grace, hours_grace=None, fails_at="", **hours_options):
        self.app = app = App("rollups", broker="kafka://127.0.0.1:1")
        self.orders = orders = app.topic("orders", key_type=str, value_type=int)
        self.finals = finals = app.topic("finals", key_type=str, value_type=list)
        self.rolled_up, self.added = [], {}
        visits = app.window_store("visits", kind, grace=grace, aggregate=aggregates.sum())
        hours_grace = grace + 10 * SECOND if hours_grace is None else hours_grace
        hours = app.window_store(
            "hours", Tumbling(hours=1), grace=hours_grace, aggregate=aggregates.sum(), **hours_options
        )

        @app.actor(orders, stores=[visits, hours])
        async def count(ctx, amount):
            visits.add(ctx.key, amount)

        @visits.on_close
        async def roll_up(ctx, window, total):
            await asyncio.sleep(0.001)
            if ctx.key == fails_at:
                raise ValueError("it fails here")
            self.rolled_up.append(ctx.key)
            self.added[ctx.key] = bool(hours.add(ctx.key, total))

        @hours.on_close
        async def tell(ctx, window, total):
            ctx.send(finals, key=ctx.key, value=[(window.start_ms - NOON_MS) // 1000, total])

    def order(self, driver, amount, at_s, *, key="a", settle=True):
        driver.post(self.orders, key=key, value=amount, timestamp_ms=NOON_MS + at_s * 1000)
        if settle:
            driver.settle()

    def sent(self, driver):
        return [tuple(one.value) for one in driver.outputs(self.finals) if one.key == "a"]


NOON_MS = BEGIN_MS // 3_600_000 * 3_600_000


@pytest.mark.parametrize("kind", [Tumbling(seconds=10), Session(5 * SECOND)], ids=str)
def test_an_hour_has_all_that_closes_add_to_it_though_the_grace_becomes_shorter(kind):
    before = Rollups(kind, grace=1000 * SECOND)
    with ActorTestDriver(before.app, partitions=1) as driver:
        for amount, at_s in ((100, 0), (7, HOUR_S - 15)):
            before.order(driver, amount, at_s)
        after = Rollups(kind, grace=timedelta(0))
        driver.restart(after.app)
        after.order(driver, 1, HOUR_S + 20)
        after.order(driver, 1, 3 * HOUR_S, key="end")
        assert after.sent(driver)[0] == (0, 107)


@pytest.mark.parametrize("kind", [Tumbling(seconds=10), Session(5 * SECOND)], ids=str)
def test_an_hour_has_what_closes_in_hand_add_though_the_grace_becomes_longer(kind):
    """They were due by the former grace, and so was the hour, which they come before."""
    before = Rollups(kind, grace=timedelta(0))
    with ActorTestDriver(before.app, partitions=1) as driver:
        for number in range(300):
            before.order(driver, 1, HOUR_S - 15, key=f"{number}", settle=False)
        before.order(driver, 5, HOUR_S - 15)
        before.order(driver, 1, 2 * HOUR_S, key="end", settle=False)
        driver.advance(0.2, settle=False)
        assert before.rolled_up
        assert "a" not in before.rolled_up
        after = Rollups(kind, grace=1000 * SECOND)
        driver.restart(after.app)
        after.order(driver, 1, 4 * HOUR_S, key="end")
        assert after.rolled_up[0] != "0"
        assert after.sent(driver) == [(0, 5)]


@pytest.mark.parametrize("hours_grace", [timedelta(0), 1010 * SECOND], ids=str)
@pytest.mark.parametrize("keep_disk", [True, False])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_close_adds_nothing_to_what_is_past_its_retention_when_grace_and_retention_become_shorter(
    kind, keep_disk, hours_grace
):
    """An hour that a close adds to is there for its own close, also if the worker ends between the two."""
    shorter = {"grace": timedelta(0), "hours_grace": timedelta(0), "retention": HOUR_S * SECOND}
    before = Rollups(kind, grace=1000 * SECOND, hours_grace=hours_grace, retention=HOUR_S * SECOND + hours_grace)
    with ActorTestDriver(before.app, partitions=1) as driver:
        for number in range(20):
            before.order(driver, 1, HOUR_S - 15, key=f"{number:02}", settle=False)
        before.order(driver, 7, HOUR_S + 500, key="end")
        stopping, after = Rollups(kind, fails_at="10", **shorter), Rollups(kind, **shorter)
        with pytest.raises(HandlerFailedError, match="it fails here"):
            driver.restart(stopping.app)
        assert len(stopping.rolled_up) == 10
        driver.restart(after.app)
        driver.crash(keep_disk=keep_disk)
        after.order(driver, 1, 3 * HOUR_S, key="end")
        added = {key for key, was_open in (stopping.added | after.added).items() if was_open}
        sent = [(one.key, *one.value) for one in driver.outputs(after.finals)]
        assert sorted(sent) == [*((key, 0, 1) for key in sorted(added - {"end"})), ("end", HOUR_S, 7)]
        assert ("00" in added) is (hours_grace > timedelta(0))


class Late:
    """One window store, and where late messages go: "topic", or a choice of `late=`."""

    def __init__(self, kind, late, **options):
        self.app = app = App("late", broker="kafka://127.0.0.1:1")
        self.orders = orders = app.topic("orders", key_type=str, value_type=int)
        self.told = app.topic("told", key_type=str, value_type=bool)
        self.late = app.topic("late", key_type=str, value_type=int)
        sales = app.window_store("sales", kind, aggregate=aggregates.sum(), **options)

        @app.actor(orders, stores=[sales], late=self.late if late == "topic" else late)
        async def count(ctx, amount):
            ctx.send(self.told, key=ctx.key, value=ctx.late)
            assert bool(sales.add(ctx.key, amount)) is not ctx.late

    def order(self, driver, amount, at_s):
        driver.send(self.orders, key="a", value=amount, timestamp_ms=BEGIN_MS + at_s * 1000)


@pytest.mark.parametrize("late", ["topic", "handle", "drop"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_what_belongs_to_windows_that_a_shorter_grace_closed_is_late(kind, late):
    before = Late(kind, late)
    with ActorTestDriver(before.app, partitions=1) as driver:
        before.order(driver, 1, 0)
        before.order(driver, 2, 100)
        after = Late(kind, late, grace=HOUR_S * SECOND)
        driver.restart(after.app)
        driver.crash(keep_disk=False)
        for amount, at_s in ((3, 1), (4, 50), (5, 104), (6, 101), (7, 102)):
            after.order(driver, amount, at_s)
        assert [one.value for one in driver.outputs(after.late)] == ([3, 4] if late == "topic" else [])
        calls = 2 + 3 + 2 * (late == "handle")
        told = [one.value for one in driver.outputs(after.told)]
        assert (len(told), sum(told)) == (calls, 2 * (late == "handle"))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_what_a_message_reads_past_retention_does_not_depend_on_closes_that_wait(kind):
    """One process settles after each message, the other one has all of them before the first close."""
    found = []
    for settles in (True, False):
        app = App("readers", broker="kafka://127.0.0.1:1")
        orders = app.topic("orders", key_type=str, value_type=int)
        told = app.topic("told", key_type=str, value_type=list)
        sales = app.window_store("sales", kind, aggregate=aggregates.sum(), retention=20 * SECOND)

        @app.actor(orders, stores=[sales])
        async def count(ctx, amount, *, sales=sales, told=told):
            sales.add(ctx.key, amount)
            read = [[window.start_ms, total] for window, total in sales.fetch("a")]
            read += [[window.start_ms, total] for _, window, total in sales.fetch_all()]
            ctx.send(told, key=ctx.key, value=[*read, sales.get("a", BEGIN_MS)])

        @sales.on_close
        async def close(ctx, window, total): ...

        with ActorTestDriver(app, partitions=1) as driver:
            for amount, at_s in ((1, 0), (2, 1), (4, 100), (8, 101), (16, 200), (32, 201)):
                driver.post(orders, key="a", value=amount, timestamp_ms=BEGIN_MS + at_s * 1000)
                if settles:
                    driver.settle()
            driver.settle()
            found.append([one.value for one in driver.outputs(told)])
    assert found[0] == found[1]


@pytest.mark.parametrize("keep_disk", [True, False])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_new_on_close_is_not_called_for_what_is_past_its_retention(kind, keep_disk):
    """Other windows of its list aren't."""
    before = Shop(kind, closes=False, retention=320 * SECOND)
    with ActorTestDriver(before.app, partitions=1) as driver:
        for amount, at_s in ((1, 0), (2, 7), (4, 12), (8, 324)):
            before.order(driver, "a", amount, at_s)
        after = Shop(kind, retention=320 * SECOND)
        driver.restart(after.app)
        driver.crash(keep_disk=keep_disk)
        after.order(driver, "b", 1, 800)
        starts = [start_s for key, start_s, *_ in after.sent(driver) if key == "a"]
        assert starts == {Tumbling: [10, 320], Session: [7, 324], Sliding: [7, 314]}[type(kind)]
