"""Many windows that close at once: records have their turns between closes, and nothing is lost or said twice."""

import asyncio
import math
from datetime import timedelta
from itertools import pairwise

import pytest

from actors import App, Session, Tumbling, aggregates
from actors.runtime.message.internal_messages import DueMessages, InternalMessage, InternalRecord, Punctuator
from actors.runtime.virtual_time import VirtualTime
from actors.runtime.windows import task_windows
from actors.testing import ActorTestDriver

BEGIN_MS = 1_700_000_000_000
MINUTE_MS = 60_000
KEYS = 40
CLOSE_S = 0.002
"""How long a close takes here: longer than the turn that closes have after a short record."""
KINDS = {"tumbling": Tumbling(minutes=1), "session": Session(timedelta(minutes=1))}


class Shop:
    """Counts by minute; `log` has what was called, in order."""

    def __init__(self, kind, *, record_s=0.0, close_s=CLOSE_S):
        self.app = app = App("shop", broker="kafka://127.0.0.1:1")
        self.orders = app.topic("orders", key_type=str, value_type=int)
        self.finals = app.topic("finals", key_type=str, value_type=int)
        self.late = app.topic("late", key_type=str, value_type=int)
        self.minutes = app.window_store("minutes", KINDS[kind], aggregate=aggregates.sum())
        self.log = []

        @self.minutes.on_close
        async def close(ctx, window, total):
            await asyncio.sleep(close_s)
            self.log.append(ctx.key)
            ctx.send(self.finals, key=ctx.key, value=total)

        @app.actor(self.orders, stores=[self.minutes], late=self.late)
        async def count(ctx, amount):
            await asyncio.sleep(record_s)
            self.log.append("record")
            self.minutes.add(ctx.key, amount)

    def fill(self, driver):
        """Open a window of each key, in the order of their numbers."""
        for number in range(KEYS):
            driver.post(self.orders, key=f"{number:02}", value=1, timestamp_ms=BEGIN_MS + number)
        driver.settle()
        self.log.clear()

    def order(self, driver, key, *, after_ms):
        driver.post(self.orders, key=key, value=100, timestamp_ms=BEGIN_MS + after_ms)

    def closed(self, driver):
        return [(one.key, one.value) for one in driver.outputs(self.finals)]


ONCE = [(f"{number:02}", 1) for number in range(KEYS)]


@pytest.mark.parametrize("kind", KINDS)
def test_records_have_their_turns_between_closes_and_change_no_window_that_waits_for_its_close(kind):
    shop = Shop(kind)
    with ActorTestDriver(shop.app, partitions=1) as driver:
        shop.fill(driver)
        shop.order(driver, "new", after_ms=10 * MINUTE_MS)
        driver.advance(5 * CLOSE_S, settle=False)
        # Its window is the last one whose close comes.
        shop.order(driver, f"{KEYS - 1:02}", after_ms=KEYS)
        shop.order(driver, "new", after_ms=10 * MINUTE_MS)
        driver.settle()
        assert shop.closed(driver) == ONCE
        assert [(one.key, one.value) for one in driver.outputs(shop.late)] == [(f"{KEYS - 1:02}", 100)]
    # The first record has moved stream time, and the last one came before most closes.
    assert shop.log[0] == "record"
    assert shop.log.index("record", 1) < 10


@pytest.mark.parametrize("keeps_disk", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_closes_go_on_where_they_were_after_a_crash_in_between(kind, keeps_disk):
    shop = Shop(kind)
    with ActorTestDriver(shop.app, partitions=1) as driver:
        shop.fill(driver)
        shop.order(driver, "new", after_ms=10 * MINUTE_MS)
        for _ in range(3):
            driver.advance(0.15, settle=False)
            driver.crash(keep_disk=keeps_disk, settle=False)
        assert len(shop.log) > KEYS
        driver.settle()
        assert shop.closed(driver) == ONCE


@pytest.mark.parametrize(("record_s", "closes"), [(0.0, 1), (0.005, 2), (0.05, 4)])
def test_closes_have_as_long_as_the_records_before_them_but_no_more_than_input_can_wait(record_s, closes):
    shop = Shop("tumbling", record_s=record_s, close_s=0.003)
    with ActorTestDriver(shop.app, partitions=1) as driver:
        shop.fill(driver)
        for number in range(5):
            shop.order(driver, "new", after_ms=10 * MINUTE_MS + number)
            driver.advance(0.001, settle=False)
        driver.settle()
    shown = "".join("r" if one == "record" else "." for one in shop.log)
    assert shown.startswith(4 * ("r" + closes * ".") + "r.")
    assert shown.count(".") == KEYS


class Source(Punctuator):
    """A punctuator that has so many messages, two at a time."""

    def __init__(self, name, count):
        self.name, self.left = name, count

    def wait_s(self):
        return 0.0 if self.left else math.inf

    def take(self):
        count = min(2, self.left)
        self.left -= count
        return [InternalMessage(InternalRecord(0, 0, None, None), bool, bool, self.name)] * count


def test_a_punctuator_that_has_always_more_does_not_keep_the_others_from_their_turn():
    due = DueMessages([Source("a", 1000), Source("b", 2)])
    found = []
    while "b" not in found:
        assert due.take()
        found.append(next(iter(due)).what)
    assert found == ["a", "a", "b"]
    assert due.wait_s() == 0.0
    assert due.is_busy


def test_nothing_is_taken_while_messages_wait():
    source = Source("a", 3)
    due = DueMessages([source])
    assert due.take()
    next(iter(due))
    assert due.take()
    assert source.left == 1
    assert [message.what for message in due] == ["a"]
    assert due.take()
    assert [message.what for message in due] == ["a"]
    assert not due.take()
    assert due.wait_s() == math.inf


class Noting:
    """A log that only says that something is logged."""

    def __init__(self, note):
        self._note = note

    def append(self, _):
        self._note()


def test_the_event_loop_has_iterations_of_its_own_between_closes(monkeypatch):
    """A fetch takes several: were turns of all tasks in each, records would wait long for the network."""
    monkeypatch.setattr(task_windows, "CLOSES_AT_ONCE", 1)
    iterations, select = [0], VirtualTime.select

    def counting(loop, timeout):
        iterations[0] += 1
        return select(loop, timeout)

    monkeypatch.setattr(VirtualTime, "select", counting)
    shop = Shop("tumbling", close_s=0)
    at = []
    with ActorTestDriver(shop.app, partitions=1) as driver:
        shop.fill(driver)
        shop.log = Noting(lambda: at.append(iterations[0]))
        shop.order(driver, "99", after_ms=2 * MINUTE_MS)
        driver.settle()
        assert shop.closed(driver) == ONCE
    assert min(later - earlier for earlier, later in pairwise(at[2:])) >= 4
