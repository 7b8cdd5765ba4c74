"""A close that adds to windows of another store: results of results are the same however stream time moves."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from actors import App, Context, Every, Hopping, OnError, Session, Sliding, Tumbling, Window, aggregates
from actors._core.windows.kinds import Windows
from actors.runtime.windows import task_windows
from actors.testing import ActorTestDriver
from tests.examples import examples

BEGIN_MS = 1_700_049_600_000
"""Noon, where an hour begins."""
MINUTE_S, HOUR_S, DAY_S = 60, 3_600, 86_400


class Rollups:
    """Sums of amounts by minute, of minutes by hour, and of hours by day; each close is sent."""

    def __init__(self, *, grace_s: int = 0, listed: str = "mhd", first: str = "minutes") -> None:
        self.app = app = App("rollups", broker="kafka://127.0.0.1:1", max_time_ahead=timedelta(days=3650))
        self.amounts = app.topic("amounts", key_type=str, value_type=int)
        self.sums = app.topic("sums", key_type=str, value_type=list)
        grace, kept = timedelta(seconds=grace_s), timedelta(days=2)
        kinds = {"minutes": Tumbling(minutes=1), "visits": Session(timedelta(minutes=1))}
        minutes = app.window_store(first, kinds[first], grace=grace, retention=kept, aggregate=aggregates.sum())
        hours = app.window_store("hours", Tumbling(hours=1), grace=grace, retention=kept, aggregate=aggregates.sum())
        days = app.window_store("days", Tumbling(days=1), grace=grace, retention=kept, aggregate=aggregates.sum())
        stores = dict(zip("mhd", (minutes, hours, days), strict=True))
        above = {minutes: hours, hours: days}

        for store in stores.values():

            async def closed(ctx: Context, window: Window, total: int, store: object = store) -> None:
                if store in above:
                    assert above[store].add(ctx.key, total), f"{store} {window}: too late for {above[store]}"
                ctx.send(self.sums, key=ctx.key, value=[repr(store), window.start_ms, window.end_ms, total])

            store.on_close(closed)

        @app.actor(self.amounts, stores=[stores[letter] for letter in listed])
        async def add(ctx: Context, amount: int) -> None:
            minutes.add(ctx.key, amount)

    def post(self, driver: ActorTestDriver, key: str, amount: int, at_s: int) -> None:
        driver.post(self.amounts, key=key, value=amount, timestamp_ms=BEGIN_MS + at_s * 1000)

    def closed(self, driver: ActorTestDriver) -> dict[str, list[tuple[str, int, int, int]]]:
        """Give (key, start and end in seconds, total) of each close, in order, by store."""
        found: dict[str, list[tuple[str, int, int, int]]] = defaultdict(list)
        for one in driver.outputs(self.sums):
            store, start_ms, end_ms, total = one.value
            name = store.split()[1].rstrip(":")
            found[name].append((one.key, (start_ms - BEGIN_MS) // 1000, (end_ms - BEGIN_MS) // 1000, total))
        return found


def summed(records: list[tuple[str, int, int]], size_s: int, begin_s: int = 0) -> list[tuple[str, int, int, int]]:
    """Give (key, start, end, total) of all windows of a size but the last ones, in order of their ends."""
    totals: dict[tuple[int, str], int] = defaultdict(int)
    for key, amount, at_s in records:
        totals[(at_s - begin_s) // size_s, key] += amount
    return [
        (key, number * size_s + begin_s, (number + 1) * size_s + begin_s, total)
        for (number, key), total in sorted(totals.items())
    ]


@pytest.mark.parametrize("listed", ["mhd", "dhm", "hmd"])
@pytest.mark.parametrize("grace_s", [0, 30])
def test_each_sum_is_in_the_sum_above_it_though_time_jumps_over_all(listed: str, grace_s: int) -> None:
    app = Rollups(grace_s=grace_s, listed=listed)
    records = [(key, 1, at_s) for at_s in range(0, 3 * HOUR_S, 20) for key in "ab"]
    with ActorTestDriver(app.app, partitions=1) as driver:
        for record in records:
            app.post(driver, *record)
        app.post(driver, "end", 0, 3 * DAY_S)
        driver.settle()
        found = app.closed(driver)
        assert found["minutes"] == summed(records, MINUTE_S)
        assert found["hours"] == summed(records, HOUR_S)
        # It is noon: the day has begun 12 hours ago.
        assert found["days"] == summed(records, DAY_S, -12 * HOUR_S)


def test_sums_are_the_same_though_the_process_dies_among_closes() -> None:
    app = Rollups()
    records = [(f"{number:02}", 1, at_s) for at_s in range(0, 2 * HOUR_S, 300) for number in range(10)]
    with ActorTestDriver(app.app, partitions=1) as driver:
        for record in records:
            app.post(driver, *record)
        driver.settle()
        app.post(driver, "end", 0, 3 * DAY_S)
        for number in range(30):
            driver.advance(0.0005 * number, settle=False)
            driver.crash(keep_disk=bool(number % 3), settle=False)
        driver.settle()
        found = app.closed(driver)
        assert sorted(found["minutes"]) == sorted(summed(records, MINUTE_S))
        assert found["hours"] == summed(records, HOUR_S)
        assert found["days"] == summed(records, DAY_S, -12 * HOUR_S)


def test_a_sum_that_is_new_when_its_hour_is_over_comes_in_its_place_among_the_keys() -> None:
    app = Rollups()
    records = [("b", 1, 10), ("a", 2, HOUR_S - 10), ("b", 4, HOUR_S - 5), ("end", 0, HOUR_S + 60)]
    with ActorTestDriver(app.app, partitions=1) as driver:
        for record in records:
            app.post(driver, *record)
            driver.settle()
        # The hour of "a" is made by its last minute, which is over when the hour is.
        assert app.closed(driver)["hours"] == [("a", 0, HOUR_S, 2), ("b", 0, HOUR_S, 5)]


def test_sessions_are_summed_by_hour_in_the_hour_of_their_end() -> None:
    app = Rollups(first="visits", listed="hmd")
    with ActorTestDriver(app.app, partitions=1) as driver:
        for at_s in (10, 50, 3_000, 3_580, 3_610, 3_660, 5_000):
            app.post(driver, "a", 1, at_s)
        app.post(driver, "end", 0, DAY_S)
        driver.settle()
        found = app.closed(driver)
        assert found["visits"] == [
            ("a", 10, 50, 2),
            ("a", 3_000, 3_000, 1),
            ("a", 3_580, 3_660, 3),
            ("a", 5_000, 5_000, 1),
        ]
        assert found["hours"] == [("a", 0, 3_600, 3), ("a", 3_600, 7_200, 4)]


@pytest.mark.parametrize("retries", [0, 2])
def test_a_close_that_fails_after_it_added_to_shorter_windows_is_given_up_once(retries: int) -> None:
    """What it added is taken back, so nothing comes before it."""
    app = App("halves", broker="kafka://127.0.0.1:1")
    amounts = app.topic("amounts", key_type=str, value_type=int)
    sums = app.topic("sums", key_type=str, value_type=int)
    hours = app.window_store("hours", Tumbling(hours=1), aggregate=aggregates.sum())
    minutes = app.window_store("minutes", Tumbling(minutes=1), aggregate=aggregates.sum())
    attempts: list[str] = []

    @hours.on_close
    async def hour_closed(ctx: Context, window: Window, total: int) -> None:
        minutes.add(ctx.key, total)
        attempts.append(ctx.key)
        if ctx.key == "bad":
            raise ValueError("no minute for it")

    @minutes.on_close
    async def minute_closed(ctx: Context, window: Window, total: int) -> None:
        ctx.send(sums, key=ctx.key, value=total)

    policy = OnError(retries=retries, then="skip", dead_letters=True)

    @app.actor(amounts, stores=[hours, minutes], on_error=policy)
    async def add(ctx: Context, amount: int) -> None:
        hours.add(ctx.key, amount)

    with ActorTestDriver(app, partitions=1) as driver:
        for key, at_s in (("bad", 10), ("good", 20), ("end", 2 * HOUR_S)):
            driver.post(amounts, key=key, value=1, timestamp_ms=BEGIN_MS + at_s * 1000)
        driver.advance(60)
        assert attempts == ["bad"] * (retries + 1) + ["good"]
        assert [letter.key for letter in driver.dead_letters()] == ["bad"]
        assert [sent.key for sent in driver.outputs(sums)] == ["good"]


STEPS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(1, 9), st.integers(0, 900) | st.integers(0, 20_000))
    | st.sampled_from(["crash", "lose disk"]),
    max_size=30,
)


@settings(max_examples=examples(60), deadline=None)
@given(steps=STEPS, settles=st.booleans())
def test_the_sums_above_are_those_of_the_closes_below(steps: list[object], settles: bool) -> None:
    app = Rollups(grace_s=5)
    with ActorTestDriver(app.app, partitions=1) as driver:
        for step in steps:
            if isinstance(step, str):
                driver.crash(keep_disk=step == "crash", settle=settles)
                continue
            app.post(driver, *step)
            if settles:
                driver.settle()
        app.post(driver, "end", 0, 10 * DAY_S)
        driver.settle()
        found = app.closed(driver)
        for below, above, size_s, begin_s in (("minutes", "hours", HOUR_S, 0), ("hours", "days", DAY_S, -12 * HOUR_S)):
            inner = [(key, total, end_s - 1) for key, _, end_s, total in found[below]]
            assert found[above] == summed(inner, size_s, begin_s)
            assert all(one[2] <= other[2] for one, other in pairwise(found[below]))


def test_a_close_finds_what_was_kept_at_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the time that was reached the hour is past its retention, and nothing is called for its own close."""
    monkeypatch.setattr(task_windows, "CLOSES_AT_ONCE", 1)
    app = App("rollups", broker="kafka://127.0.0.1:1", max_time_ahead=timedelta(days=2))
    amounts = app.topic("amounts", key_type=str, value_type=int)
    sums = app.topic("sums", key_type=str, value_type=int)
    minutes = app.window_store("minutes", Tumbling(minutes=1), aggregate=aggregates.sum())
    hours = app.window_store("hours", Tumbling(hours=1), retention=timedelta(hours=1), aggregate=aggregates.sum())
    tried: set[Window] = set()

    @minutes.on_close
    async def closed(ctx: Context, window: Window, total: int) -> None:
        if window not in tried:
            tried.add(window)
            raise ValueError("not yet: what is handled is committed until the retry")
        [(_, so_far)] = hours.add(ctx.key, total)
        ctx.send(sums, key=ctx.key, value=so_far)

    @app.actor(amounts, stores=[minutes, hours], on_error=OnError(retries=1, then="stop"))
    async def add(ctx: Context, amount: int) -> None:
        minutes.add(ctx.key, amount)

    with ActorTestDriver(app, partitions=1) as driver:
        for minute in range(5):
            driver.post(amounts, key="a", value=1, timestamp_ms=BEGIN_MS + minute * MINUTE_S * 1000)
        driver.post(amounts, key="b", value=1, timestamp_ms=BEGIN_MS + DAY_S * 1000)
        driver.advance(60)
        assert [one.value for one in driver.outputs(sums)] == [1, 2, 3, 4, 5]


class Backward:
    """Adds what closes to windows that close no later, its own among them; `closed` has all calls."""

    def __init__(self, kinds: list[Windows], *, key: str | None = None) -> None:
        self.app = app = App("backward", broker="kafka://127.0.0.1:1")
        self.amounts = app.topic("amounts", key_type=str, value_type=int)
        # The driver looks for a window at each place of the retention.
        retention = timedelta(seconds=1)
        options = {"aggregate": aggregates.sum(), "emit": Every(milliseconds=10), "retention": retention}
        stores = [app.window_store(f"store{number}", kind, **options) for number, kind in enumerate(kinds)]
        self.first, self.closed, self.emitted = stores[0], [], []

        for store, after in zip(stores, [*stores[1:], stores[0]], strict=True):

            async def close(ctx: Context, window: Window, total: int, store: Any = store, after: Any = after) -> None:
                found = (ctx.key, repr(store), *window)
                assert found not in self.closed, "called twice"
                self.closed.append(found)
                after.add(key or ctx.key, 100)

            async def emit(ctx: Context, window: Window, total: int, store: Any = store) -> None:
                found = (ctx.timestamp_ms, ctx.key, repr(store), *window)
                assert found not in self.emitted, "handed out twice in an interval"
                self.emitted.append(found)
                store.add(ctx.key, 100)

            store.on_close(close)
            store.on_emit(emit)

        @app.actor(self.amounts, stores=stores)
        async def add(ctx: Context, amount: int) -> None:
            stores[0].add(ctx.key, amount)


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("name", ["tumbling", "hopping", "sliding", "session"])
def test_a_window_is_closed_once_though_its_close_adds_to_windows_of_its_own_time(name: str, number: int) -> None:
    ms = timedelta(milliseconds=1)
    kinds = {"tumbling": Tumbling(10 * ms), "hopping": Hopping(10 * ms, 5 * ms), "sliding": Sliding(10 * ms)}
    app = Backward([kinds.get(name, Session(5 * ms))] * number)
    with ActorTestDriver(app.app, partitions=1) as driver:
        for at_ms in (0, 3, 7, 24, 60, 300):
            for key in "ab":
                driver.send(app.amounts, key=key, value=1, timestamp_ms=BEGIN_MS + at_ms)
        assert len(app.closed) > 4


def test_a_close_adds_nothing_to_a_window_whose_close_was_handled() -> None:
    ms = timedelta(milliseconds=1)
    app = Backward([Tumbling(10 * ms)], key="a")
    with ActorTestDriver(app.app, partitions=1) as driver:
        for key in "ab":
            driver.send(app.amounts, key=key, value=1, timestamp_ms=BEGIN_MS)
        driver.advance_stream_time("add", BEGIN_MS + 10)
        assert app.closed == [(key, repr(app.first), BEGIN_MS, BEGIN_MS + 10) for key in "ab"]
        # The interval was over before the window was.
        assert driver.windows(app.first, "a") == {(BEGIN_MS, BEGIN_MS + 10): 1 + 100}
