"""`emit=Every(…)`: each window that changed is handed out once an interval, with its last value in it."""

import asyncio
from datetime import timedelta

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from actors import App, Every, Hopping, Session, Sliding, Tumbling, aggregates
from actors.errors import ConfigurationError, UsageError
from actors.testing import ActorTestDriver
from tests.examples import examples

BEGIN_MS = 1_700_000_000_000
EVERY_MS = 8
MS = timedelta(milliseconds=1)
SECOND_MS = 1_000
KINDS = {
    "tumbling": Tumbling(10 * MS),
    "hopping": Hopping(10 * MS, 4 * MS),
    "sliding": Sliding(5 * MS),
    "session": Session(5 * MS),
}
RECORDS = st.tuples(st.sampled_from("ab"), st.integers(-1, 50), st.integers(0, 40) | st.integers(0, 200))
STEPS = st.lists(RECORDS | st.sampled_from(["crash", "lose disk"]), min_size=1, max_size=25)


class Shop:
    """Sends the windows that changed; `seen` has by offset what each message changed."""

    def __init__(self, kind, emit_s, *, closes=False):
        self.app = app = App("shop", broker="kafka://127.0.0.1:1")
        self.orders = app.topic("orders", key_type=str, value_type=int)
        self.changes = app.topic("changes", key_type=str, value_type=list)
        self.sales = app.window_store(
            "sales", kind, grace=3 * MS, aggregate=aggregates.sum(), emit=Every(milliseconds=EVERY_MS)
        )
        self.seen = {}

        @self.sales.on_emit
        async def emit(ctx, window, total):
            await asyncio.sleep(emit_s)
            ctx.send(self.changes, key=ctx.key, value=[ctx.timestamp_ms + 1 - BEGIN_MS, *shown(window), total])

        if closes:

            @self.sales.on_close
            async def close(ctx, window, total):
                ctx.send(self.changes, key=ctx.key, value=["final", *shown(window), total])

        @app.actor(self.orders, stores=[self.sales], on_error="skip")
        async def count(ctx, amount):
            changed = self.sales.add(ctx.key, max(amount, 0))
            if amount < 0:
                raise ValueError("negative")
            self.seen[ctx.offset] = ctx.key, ctx.stream_ms, changed


def shown(window):
    return window.start_ms - BEGIN_MS, window.end_ms - BEGIN_MS


def expected(kind, seen, stream_ms):
    """Return (key, [end of the interval, start, end, total]) in the order in which they are handed out."""
    waiting = {}
    for key, at_ms, changed in (seen[offset] for offset in sorted(seen)):
        end_ms = (at_ms // EVERY_MS + 1) * EVERY_MS
        mine = waiting.setdefault(end_ms, {})
        for window, total in changed:
            if kind == "session":
                for place, (of, other, _) in list(mine.items()):
                    if of == key and window.start_ms <= other.start_ms and other.end_ms <= window.end_ms:
                        del mine[place]
            mine[window.start_ms, key] = key, window, total
    due = sorted(end_ms for end_ms in waiting if end_ms <= stream_ms)
    return [
        (key, [end_ms - BEGIN_MS, *shown(window), total])
        for end_ms in due
        for key, window, total in sorted(waiting[end_ms].values(), key=lambda change: (change[1].end_ms, change[0]))
    ]


@pytest.mark.parametrize("emit_s", [0.0, 0.002])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(40), deadline=None)
@given(steps=STEPS)
@example(steps=[("a", 1, 5), ("a", 1, 2), ("a", 1, 20), "crash", ("a", 1, 100)])
@example(steps=[("a", 1, 0), ("a", 1, 1), ("b", 1, 0), ("a", 1, 8)])  # of two that begin at once, a's ends later
def test_each_change_is_handed_out_once_with_the_last_value_of_its_interval(kind, emit_s, steps):
    shop, stream_ms = Shop(KINDS[kind], emit_s), -1
    with ActorTestDriver(shop.app, partitions=1) as driver:
        for step in steps:
            if isinstance(step, str):
                driver.crash(keep_disk=step == "crash", settle=False)
                continue
            key, amount, at_ms = step
            stream_ms = max(stream_ms, BEGIN_MS + at_ms)
            driver.post(shop.orders, key=key, value=amount, timestamp_ms=BEGIN_MS + at_ms)
            driver.advance(0.001, settle=False)
        driver.settle()
        sent = [(one.key, one.value) for one in driver.outputs(shop.changes)]
        assert sent == expected(kind, shop.seen, stream_ms)


def test_a_window_that_did_not_change_is_not_handed_out_again_and_its_close_comes_apart():
    shop = Shop(Tumbling(seconds=1), 0.0, closes=True)
    with ActorTestDriver(shop.app, partitions=1) as driver:
        for at_ms, amount in ((0, 1), (1, 2), (EVERY_MS, 4), (5 * EVERY_MS, 8), (2 * SECOND_MS, 16)):
            driver.send(shop.orders, key="a", value=amount, timestamp_ms=BEGIN_MS + at_ms)
        driver.advance_stream_time("count", BEGIN_MS + 3 * SECOND_MS)
        assert [one.value for one in driver.outputs(shop.changes)] == [
            [EVERY_MS, 0, SECOND_MS, 3],
            [2 * EVERY_MS, 0, SECOND_MS, 7],
            [6 * EVERY_MS, 0, SECOND_MS, 15],
            ["final", 0, SECOND_MS, 15],
            [2 * SECOND_MS + EVERY_MS, 2 * SECOND_MS, 3 * SECOND_MS, 16],
        ]


class Last:
    """Keeps the last amount of a window; one of 0 deletes it."""

    def __init__(self, *, every_s):
        self.app = app = App("shop", broker="kafka://127.0.0.1:1")
        self.orders = orders = app.topic("orders", key_type=str, value_type=int)
        last = app.window_store("last", Tumbling(minutes=1), value_type=int, emit=Every(seconds=every_s))
        self.emitted = []
        last.on_emit(lambda ctx, window, value: self.emitted.append((ctx.key, value)))

        @app.actor(orders, stores=[last])
        async def keep(ctx, amount):
            if amount:
                last.set(ctx.key, amount)
            else:
                last.delete(ctx.key)


@pytest.mark.parametrize("every_s", [1, 60, 0.1])
def test_a_window_that_is_deleted_is_not_handed_out_though_the_interval_changes(every_s):
    before, after = Last(every_s=1), Last(every_s=every_s)
    with ActorTestDriver(before.app, partitions=1) as driver:
        for key, amount in (("a", 1), ("b", 2)):
            driver.send(before.orders, key=key, value=amount, timestamp_ms=BEGIN_MS)
        driver.restart(after.app)
        driver.send(after.orders, key="a", value=0, timestamp_ms=BEGIN_MS)
        driver.advance_stream_time("keep", BEGIN_MS + 100 * SECOND_MS)
    assert before.emitted + after.emitted == [("b", 2)]


class Visits:
    """Adds amounts up in sessions."""

    def __init__(self, emitted, *, every_s):
        self.app = app = App("shop", broker="kafka://127.0.0.1:1")
        self.orders = orders = app.topic("orders", key_type=str, value_type=int)
        visits = app.window_store(
            "visits", Session(3_000 * MS), aggregate=aggregates.sum(), emit=Every(seconds=every_s)
        )
        visits.on_emit(lambda ctx, window, total: emitted.append((window.start_ms - BEGIN_MS, total)))

        @app.actor(orders, stores=[visits])
        async def count(ctx, amount):
            visits.add(ctx.key, amount)


@pytest.mark.parametrize("intervals_s", [(5, 10), (5, 10, 5), (10, 5, 10)])
@pytest.mark.parametrize("earlier_ms", [0, 100])
def test_a_session_is_handed_out_as_it_is_though_the_interval_changes(earlier_ms, intervals_s):
    emitted = []
    with ActorTestDriver(Visits(emitted, every_s=1).app, partitions=1) as driver:
        for number, every_s in enumerate(intervals_s):
            visits = Visits(emitted, every_s=every_s)
            driver.restart(visits.app)
            at_ms = 2_000 - number * earlier_ms
            driver.send(visits.orders, key="a", value=1, timestamp_ms=BEGIN_MS + at_ms)
        driver.advance_stream_time("count", BEGIN_MS + 60_000)
    assert set(emitted) == {(at_ms, len(intervals_s))}


@pytest.mark.parametrize("emit", ["final", timedelta(seconds=1), Every(hours=48)])
def test_what_is_no_interval_or_too_long_is_refused(emit):
    app = App("shop", broker="kafka://127.0.0.1:1")
    with pytest.raises(ConfigurationError, match="window store sales: emit="):
        app.window_store("sales", Tumbling(seconds=1), emit=emit)


def test_an_interval_of_nothing_is_refused():
    with pytest.raises(ValueError, match="Every"):
        Every(seconds=0)


def test_on_emit_goes_with_emit():
    app = App("shop", broker="kafka://127.0.0.1:1")
    with pytest.raises(UsageError, match="window store plain: on_emit needs emit="):
        app.window_store("plain", Tumbling(seconds=1)).on_emit(print)
    sales = app.window_store("sales", Tumbling(seconds=1), value_type=int, emit=Every(seconds=1))

    @app.actor(app.topic("orders", key_type=str, value_type=int), stores=[sales])
    async def keep(ctx, amount): ...

    with pytest.raises(ConfigurationError, match="actor keep: store sales-changes keeps the windows that change"):
        ActorTestDriver(app).__enter__()
    sales.on_emit(print)
    with pytest.raises(UsageError, match="on_emit is set already"):
        sales.on_emit(print)


HOUR_MS = BEGIN_MS // 3_600_000 * 3_600_000
STEADY = [(number, 3 * number) for number in range(1, 40)]


class Account:
    """Hours, to which messages add as well as the closes of minutes. Amounts of 50 or more are in no minute."""

    def __init__(self, *, every_s=10.0):
        self.app = app = App("accounts", broker="kafka://127.0.0.1:1")
        self.orders = app.topic("orders", key_type=str, value_type=int)
        minutes = app.window_store("minutes", Tumbling(seconds=10), aggregate=aggregates.sum())
        self.hours = hours = app.window_store(
            "hours", Tumbling(hours=1), aggregate=aggregates.sum(), emit=Every(seconds=every_s)
        )
        self.emitted = []

        @hours.on_emit
        async def emit(ctx, window, total):
            self.emitted.append(total)

        @minutes.on_close
        async def close(ctx, window, total):
            hours.add(ctx.key, total)

        @app.actor(self.orders, stores=[minutes, hours])
        async def count(ctx, amount):
            hours.add(ctx.key, amount)
            if amount < 50:
                minutes.add(ctx.key, amount)

    def run(self, driver, steps):
        for amount, at_s in steps:
            driver.post(self.orders, key="a", value=amount, timestamp_ms=HOUR_MS + at_s * SECOND_MS)
        driver.settle()

    def check(self, driver):
        """Compare what was handed out with the store, when all that was in hand is handed out."""
        driver.advance_stream_time("count", HOUR_MS + 3_500 * SECOND_MS)
        (total,) = driver.windows(self.hours, "a").values()
        assert self.emitted[-1] == total
        assert self.emitted == sorted(self.emitted)


@pytest.mark.parametrize("steps", [STEADY, [(37, 1), (79, 25)], [(37, 5), (79, 35), (80, 45), (1, 55), (90, 95)]])
def test_what_is_handed_out_last_has_all_though_closes_and_messages_add_to_one_store(steps):
    account = Account()
    with ActorTestDriver(account.app, partitions=1) as driver:
        account.run(driver, steps)
        driver.crash(keep_disk=False)
        account.check(driver)


@pytest.mark.parametrize(("before_s", "after_s"), [(60, 1), (60, 0.1), (1, 60)])
def test_what_is_handed_out_last_has_all_though_the_interval_changes(before_s, after_s):
    before = Account(every_s=before_s)
    with ActorTestDriver(before.app, partitions=1) as driver:
        before.run(driver, [(1, 1), (2, 2)])
        after = Account(every_s=after_s)
        after.emitted = before.emitted
        driver.restart(after.app)
        after.run(driver, [(4, 5), (8, 8), (16, 9)])
        after.check(driver)


def test_a_balance_that_is_carried_into_the_next_window_is_handed_out_with_what_came_there():
    app = App("balances", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=int)
    balances = app.window_store("balances", Tumbling(seconds=10), value_type=int, emit=Every(seconds=1))
    emitted = []
    balances.on_emit(lambda ctx, window, value: emitted.append((window.start_ms, value)))

    def add(ctx, amount, start_ms):
        balances.set(ctx.key, balances.get(ctx.key, start_ms, 0) + amount, start_ms)

    @balances.on_close
    async def carry(ctx, window, value):
        add(ctx, value, window.end_ms)

    @app.actor(orders, stores=[balances])
    async def count(ctx, amount):
        add(ctx, amount, ctx.timestamp_ms // 10_000 * 10_000)

    with ActorTestDriver(app, partitions=1) as driver:
        for amount, at_s in ((5, 1), (7, 15)):
            driver.post(orders, key="a", value=amount, timestamp_ms=HOUR_MS + at_s * SECOND_MS)
        driver.settle()
        driver.advance_stream_time("count", HOUR_MS + 19 * SECOND_MS)
        assert emitted[-1] == (HOUR_MS + 10 * SECOND_MS, 12)


def test_pairs_and_records_without_a_match_that_are_counted_together():
    """A record without a match is handed out when its window closes, behind pairs of later messages."""
    app = App("shop", broker="kafka://127.0.0.1:1")
    left, right = (app.topic(name, key_type=str, value_type=int) for name in ("left", "right"))
    hours = app.window_store("hours", Tumbling(hours=1), aggregate=aggregates.count(), emit=Every(seconds=1))
    emitted = []
    hours.on_emit(lambda ctx, window, count: emitted.append(count))

    @app.join(left, right, how="left", within=timedelta(seconds=3), stores=[hours])
    async def count(ctx, one, other):
        hours.add(ctx.key, 1)

    with ActorTestDriver(app, partitions=1) as driver:
        for topic, at_ms in ((left, 1_000), (left, 3_500), (right, 6_400)):
            driver.send(topic, key="a", value=1, timestamp_ms=HOUR_MS + at_ms)
        driver.advance_stream_time("count", HOUR_MS + 100 * SECOND_MS)
        assert emitted == [2, 2]


def test_a_session_past_its_retention_is_handed_out_beside_a_later_one_of_the_same_start():
    """The first record is out of reach when later ones make a session that begins as it did, in the same interval."""
    app = App("shop", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=int)
    changes = app.topic("changes", key_type=str, value_type=list)
    sales = app.window_store(
        "sales",
        Session(5 * MS),
        grace=3 * MS,
        retention=8 * MS,
        aggregate=aggregates.sum(),
        emit=Every(milliseconds=EVERY_MS),
    )

    @sales.on_emit
    async def emit(ctx, window, total):
        ctx.send(changes, key=ctx.key, value=[*shown(window), total])

    @app.actor(orders, stores=[sales])
    async def count(ctx, amount):
        sales.add(ctx.key, amount)

    with ActorTestDriver(app, partitions=1) as driver:
        for key, amount, at_ms in (("b", 2, 8), ("a", 1, 0), ("b", 2, 9), ("a", 4, 3), ("a", 8, 0)):
            driver.send(orders, key=key, value=amount, timestamp_ms=BEGIN_MS + at_ms)
        driver.advance_stream_time("count", BEGIN_MS + 20)
        sent = [(one.key, one.value) for one in driver.outputs(changes)]
        assert sorted(sent) == [("a", [0, 0, 1]), ("a", [0, 3, 12]), ("b", [8, 9, 4])]
