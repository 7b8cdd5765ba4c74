"""Joins of one with many on the test driver: which pairs are called, when a `one` ends, and what is late."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from actors import App, ConfigurationError, Context, OnError
from actors._core.windows.join_rows import CHUNK, CHUNK_BYTES, ONES, UNMATCHED
from actors.errors import ActorsError
from actors.testing import ActorTestDriver
from stores._core.record import METADATA_BYTES

BEGIN_MS = 1_700_000_000_000
SECOND = timedelta(seconds=1)


class World:
    """An app with auctions and bids, which sends what its join is called with; values are [name, end in seconds]."""

    def __init__(self, how: str = "left", *, fails: Any = (), by: bool = False, **options: Any) -> None:
        self.app = app = App("shop", broker="kafka://127.0.0.1:1")
        self.auctions = app.topic("auctions", key_type=str, value_type=list)
        self.bids = app.topic("bids", key_type=str, value_type=str)
        self.results = app.topic("results", key_type=str, value_type=list)
        self.late = app.topic("late", key_type=str, value_type=bytes)
        self.fails = set(fails)
        if options.get("late") == "topic":
            options["late"] = self.late
        if by:
            options["by"] = {self.bids: lambda bid: bid[0], self.auctions: lambda auction: auction[0][0]}
        options.setdefault("until", lambda auction: None if auction[1] is None else BEGIN_MS + int(auction[1] * 1000))

        @app.join(one=self.auctions, many=self.bids, how=how, **options)
        async def sell(ctx: Context, auction: list[Any], bid: str | None) -> None:
            if (auction[0], bid) in self.fails:
                raise ValueError("no pair")
            at_s = (ctx.timestamp_ms - BEGIN_MS) / 1000
            ctx.send(self.results, key=ctx.key, value=[auction[0], bid, at_s])

        self.sell = sell

    def auction(
        self, driver: ActorTestDriver, name: str | None, end_s: float | None, at_s: float, key: Any = "k"
    ) -> None:
        value = None if name is None else [name, end_s]
        driver.send(self.auctions, key=key, value=value, timestamp_ms=BEGIN_MS + int(at_s * 1000))

    def bid(self, driver: ActorTestDriver, name: str | None, at_s: float, key: Any = "k", **options: Any) -> None:
        driver.send(self.bids, key=key, value=name, timestamp_ms=BEGIN_MS + int(at_s * 1000), **options)

    def pass_time(self, driver: ActorTestDriver, to_s: float) -> None:
        driver.advance_stream_time(self.sell, BEGIN_MS + int(to_s * 1000))

    def results_of(self, driver: ActorTestDriver) -> list[tuple[Any, ...]]:
        return [tuple(one.value) for one in driver.outputs(self.results)]

    def rows(self, driver: ActorTestDriver) -> Counter[bytes]:
        kinds = (CHUNK, ONES, UNMATCHED)
        rows = [row[:1] for files in driver._disk.files() if files.store == "sell" for row in files.data]
        return Counter(row for row in rows if row in kinds)


@pytest.mark.parametrize("how", ["inner", "left"])
def test_whichever_comes_first_waits_and_each_of_many_is_called(how: str) -> None:
    world = World(how)
    with ActorTestDriver(world.app, partitions=1) as driver:
        for name, at_s in (("c", 3), ("a", 1)):
            world.bid(driver, name, at_s)
        assert world.results_of(driver) == []
        driver.crash(keep_disk=False)
        world.auction(driver, "A", 10, 2)
        world.bid(driver, "d", 9.999)
        assert world.results_of(driver) == [("A", "a", 2), ("A", "c", 3), ("A", "d", 9.999)]
        world.pass_time(driver, 9.999)
        assert world.rows(driver)[ONES] == 1
        # The entry by which what waited is removed at the latest stays.
        world.pass_time(driver, 10)
        assert world.rows(driver) == {UNMATCHED: 1}
        world.pass_time(driver, 2 * 86_400 + 10)
        assert (world.results_of(driver), world.rows(driver)) == ([], {})


def test_without_any_of_many_one_is_called_at_its_end() -> None:
    world = World(grace=2 * SECOND)
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.auction(driver, "A", 10, 0)
        world.auction(driver, "B", 5, 1, key="b")
        world.pass_time(driver, 11.999)
        assert world.results_of(driver) == [("B", None, 4.999)]
        for keep_disk in (False, True):
            driver.crash(keep_disk=keep_disk)
        world.pass_time(driver, 12)
        driver.crash(keep_disk=False)
        assert world.results_of(driver) == [("A", None, 9.999)]


def test_an_inner_join_has_no_call_at_the_end() -> None:
    world = World("inner")
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.auction(driver, "A", 10, 0)
        driver.close_windows()
        assert (world.results_of(driver), world.rows(driver)) == ([], {})


def test_without_an_end_one_is_kept_for_its_retention() -> None:
    world = World(until=None, retention=10 * SECOND)
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.auction(driver, "A", None, 5)
        world.bid(driver, "a", 14.999)
        world.bid(driver, "b", 15)
        assert world.results_of(driver) == [("A", "a", 14.999)]


def test_of_many_waits_for_its_retention() -> None:
    world = World(retention=10 * SECOND)
    with ActorTestDriver(world.app, partitions=1) as driver:
        for name, at_s in (("a", 4.999), ("b", 5), ("c", 6)):
            world.bid(driver, name, at_s)
        world.auction(driver, "A", 100, 15)
        world.bid(driver, "d", 4.999)
        assert world.results_of(driver) == [("A", "b", 15), ("A", "c", 15)]
        world.pass_time(driver, 50)
        assert world.rows(driver) == {ONES: 1, UNMATCHED: 1}
        assert driver.late(world.sell) == {"sell": 2}


@pytest.mark.parametrize("waits", [False, True])
def test_of_many_at_or_beyond_the_end_waits_for_another_one_and_is_late_in_the_end(waits: bool) -> None:
    world = World(late="topic", retention=10 * SECOND, grace=20 * SECOND)
    with ActorTestDriver(world.app, partitions=1) as driver:
        if not waits:
            world.auction(driver, "A", 10, 0)
        for name, at_s in (("a", 9.999), ("b", 10), ("c", 21)):
            world.bid(driver, name, at_s, headers=[("h", name.encode())])
        if waits:
            world.auction(driver, "A", 10, 0)
        assert world.results_of(driver) == [("A", "a", 9.999)]
        world.auction(driver, "B", 40, 20.001)
        assert world.results_of(driver) == [("B", "c", 21)]
        assert driver.late(world.sell) == {"sell": 0}
        for keep_disk in (True, False):
            driver.crash(keep_disk=keep_disk)
        world.pass_time(driver, 60)
        late = [(one.key, one.value, one.headers, one.timestamp_ms - BEGIN_MS) for one in driver.outputs(world.late)]
        assert late == [("k", b"b", [("h", b"b")], 10_000)]
        assert driver.late(world.sell) == {"sell": 1}
        assert world.rows(driver)[CHUNK] == 0


def test_late_stop_halts_in_front_of_what_comes_late_and_warns_of_what_has_waited() -> None:
    world = World(late="stop", retention=SECOND)
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.bid(driver, "b", 10)
        world.pass_time(driver, 20)
        assert driver.late(world.sell) == {"sell": 1}
        with pytest.raises(ActorsError, match="is too late for join sell"):
            world.bid(driver, "c", 10)


def test_one_that_comes_when_its_end_is_past_is_late() -> None:
    world = World(grace=2 * SECOND, late="topic", retention=SECOND)
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.pass_time(driver, 12)
        world.auction(driver, "A", 10, 0)
        world.bid(driver, "a", 0)
        world.auction(driver, "B", 10.001, 0)
        world.bid(driver, "b", 0)
        assert world.results_of(driver) == [("B", "b", 0)]
        assert driver.late(world.sell) == {"sell": 2}
        assert [one.value for one in driver.outputs(world.late)] == [b'["A",10]', b"a"]


def test_an_end_before_its_own_time_takes_those_before_it() -> None:
    world = World()
    with ActorTestDriver(world.app, partitions=1) as driver:
        for name, at_s in (("a", 1), ("b", 2)):
            world.bid(driver, name, at_s)
        world.auction(driver, "A", 2, 5)
        world.auction(driver, "B", 2, 5, key="b")
        assert world.results_of(driver) == [("A", "a", 5)]
        driver.close_windows()
        assert world.results_of(driver) == [("B", None, 5)]


def test_a_later_one_replaces_and_moves_the_end() -> None:
    world = World()
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.auction(driver, "A", 10, 0)
        world.bid(driver, "a", 1)
        world.auction(driver, "B", 20, 2)
        # One that is earlier was replaced before it came.
        world.auction(driver, "C", 30, 1)
        world.bid(driver, "b", 15)
        assert world.results_of(driver) == [("A", "a", 1), ("B", "b", 15)]
        assert world.rows(driver)[UNMATCHED] == world.rows(driver)[ONES] == 1
        # It was matched, though not the value that it has now.
        world.auction(driver, "D", 25, 16)
        driver.close_windows()
        assert (world.results_of(driver), world.rows(driver)) == ([], {})


def test_a_null_value_removes_one_and_is_skipped_of_many() -> None:
    world = World()
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.auction(driver, "A", 10, 2)
        world.bid(driver, None, 3)
        world.auction(driver, None, None, 1)
        world.bid(driver, "a", 4)
        world.auction(driver, None, None, 5)
        world.bid(driver, "b", 6)
        assert world.results_of(driver) == [("A", "a", 4)]
        driver.close_windows()
        assert (world.results_of(driver), world.rows(driver)) == ([], {})


def test_without_a_key_nothing_matches() -> None:
    world = World()
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.bid(driver, "a", 1, key=None)
        world.auction(driver, "A", 10, 2, key=None)
        assert world.results_of(driver) == [("A", None, 2)]


@pytest.mark.parametrize("order", range(5))
def test_a_key_may_have_one_after_the_other(order: int) -> None:
    """A `one` that ends before the next one begins isn't replaced by it, whatever has been read by then."""
    world = World(retention=15 * SECOND)
    ones = [["A", 10, 0], ["B", 30, 20], ["C", 50, 40], ["D", 52, 51]]
    bids = {"a": 9, "b": 15, "c": 22, "d": 41}
    with ActorTestDriver(world.app, partitions=1) as driver:
        driver.backlog(
            {
                world.auctions: [("k", [name, end_s], BEGIN_MS + at_s * 1000) for name, end_s, at_s in ones],
                world.bids: [("k", name, BEGIN_MS + at_s * 1000) for name, at_s in bids.items()],
            },
            order=order,
        )
        driver.close_windows()
        wanted = {("A", "a", 9), ("B", "b", 20), ("B", "c", 22), ("C", "d", 41), ("D", None, 51.999)}
        assert set(world.results_of(driver)) == wanted
        assert world.rows(driver) == {}


def test_many_that_wait_are_in_chunks() -> None:
    world = World(retention=10 * SECOND)
    with ActorTestDriver(world.app, partitions=1) as driver:
        size, count = CHUNK_BYTES // 3, 12
        times = [*range(4_994, 4_999), *range(5_000, 5_000 + count - 5)]
        rows = [("k", chr(97 + number) * size, BEGIN_MS + at_ms) for number, at_ms in enumerate(times)]
        driver.backlog({world.bids: rows, world.auctions: [("o", ["O", 1], BEGIN_MS)]})
        assert world.rows(driver)[CHUNK] > 3
        world.auction(driver, "A", 100, 15)
        wanted = [("A", chr(97 + number) * size, 15) for number in range(5, count)]
        assert world.results_of(driver)[-len(wanted) :] == wanted
        assert world.rows(driver)[CHUNK] > 1
        world.pass_time(driver, 50)
        assert world.rows(driver)[CHUNK] == 0
        assert driver.late(world.sell) == {"sell": 5}


def test_a_pair_that_fails_leaves_nothing_of_its_record() -> None:
    world = World(fails=[("A", "b")], on_error=OnError(then="skip"))
    with ActorTestDriver(world.app, partitions=1) as driver:
        for name in ("a", "b"):
            world.bid(driver, name, 1)
        world.auction(driver, "A", 10, 2)
        world.auction(driver, "B", 10, 3)
        assert world.results_of(driver) == [("B", "a", 3), ("B", "b", 3)]


def test_what_until_may_return() -> None:
    for wrong in ("soon", 1.5, True, -1, 1 << 63):
        world = World(until=lambda _, wrong=wrong: wrong)
        with ActorTestDriver(world.app, partitions=1) as driver, pytest.raises(ActorsError, match="until= returned"):
            world.auction(driver, "A", 10, 0)


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("by", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_results_dont_depend_on_the_order_of_arrival(how: str, by: bool, seed: int) -> None:
    """One for each key, many before and behind it, and crashes, beside what all records by time say."""
    random = Random(f"{how} {by} {seed}")
    auctions = [
        (f"{chr(97 + number)}", random.randrange(60), random.choice([None, *range(-5, 30)])) for number in range(20)
    ]
    bids = [(f"{random.choice('abcdefghijklmnopqrstuvwxyz')}", random.randrange(100)) for _ in range(150)]
    wanted = Counter[tuple[Any, ...]]()
    for key, at, lasts in auctions:
        end = at + (10 if lasts is None else lasts)
        own = [(name, time) for name, time in bids if name == key and at - 10 <= time < end]
        wanted += Counter((key, name, max(at, time)) for name, time in own)
        if how == "left" and not own:
            wanted[key, None, max(end - 0.001, at)] += 1
    world = World(how, by=by, retention=10 * SECOND)
    rows = {
        world.auctions: [
            (key, [key, None if lasts is None else at + lasts], BEGIN_MS + at * 1000)
            for key, at, lasts in sorted(auctions, key=lambda auction: auction[1])
        ],
        world.bids: [(key, key, BEGIN_MS + at * 1000) for key, at in sorted(bids, key=lambda bid: bid[1])],
    }
    with ActorTestDriver(world.app, partitions=3) as driver:
        driver.backlog(rows, order=seed, settle=False)
        for _ in range(random.randrange(4)):
            driver.advance(random.random() / 20, settle=False)
            driver.crash(settle=False, keep_disk=random.random() < 0.5)
        driver.settle()
        driver.close_windows()
        assert Counter(world.results_of(driver)) == wanted
        assert world.rows(driver) == {}


@pytest.mark.parametrize("seed", range(6))
def test_in_the_order_of_time_each_is_called_with_the_one_of_its_time(seed: int) -> None:
    random = Random(seed)
    times = random.sample(range(100), 60)
    auctions = sorted((at, random.choice("abc"), random.randrange(1, 12)) for at in times[:20])
    bids = sorted((at, random.choice("abc")) for at in times[20:])
    world = World(by=True, retention=10 * SECOND, order="time")
    rows = {
        world.auctions: [(key, [f"{key}{at}", at + lasts], BEGIN_MS + at * 1000) for at, key, lasts in auctions],
        world.bids: [(key, f"{key}{at}", BEGIN_MS + at * 1000) for at, key in bids],
    }
    with ActorTestDriver(world.app, partitions=2) as driver:
        driver.backlog(rows, order=seed)
        driver.close_windows()
        assert Counter(world.results_of(driver)) == Counter(_as_of(auctions, bids))


def _as_of(auctions: list[Any], bids: list[Any]) -> list[tuple[Any, ...]]:
    """Return the results for the `one` that is the latest of its key at each time."""
    results, open_ones, waiting = [], dict[str, Any](), list[Any]()
    for at in range(200):
        for key, one in list(open_ones.items()):
            if one["end"] <= at:
                results += [] if one["is_matched"] else [(one["name"], None, one["end"] - 0.001)]
                del open_ones[key]
        for _, key, lasts in (auction for auction in auctions if auction[0] == at):
            own = [bid for bid in waiting if bid[1] == key and bid[0] >= at - 10]
            waiting = [bid for bid in waiting if bid not in own]
            was_matched = key in open_ones and open_ones[key]["is_matched"]
            open_ones[key] = {"name": f"{key}{at}", "end": at + lasts, "is_matched": was_matched or bool(own)}
            results += [(f"{key}{at}", f"{key}{time}", at) for time, _ in own]
        for _, key in (bid for bid in bids if bid[0] == at):
            if key in open_ones:
                open_ones[key]["is_matched"] = True
                results.append((open_ones[key]["name"], f"{key}{at}", at))
            else:
                waiting.append((at, key))
    return results


@pytest.mark.parametrize("grace_s", [0, 20])
def test_another_grace_moves_the_closes_that_wait(grace_s: int) -> None:
    world, other = World(grace=10 * SECOND), World(grace=grace_s * SECOND)
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.auction(driver, "A", 10, 0)
        world.bid(driver, "x", 15, key="other")
        assert world.results_of(driver) == []
        driver.restart(other.app)
        if grace_s:
            other.bid(driver, "a", 9)
            other.pass_time(driver, 29.999)
            assert other.results_of(driver) == [("A", "a", 9)]
        else:
            assert other.results_of(driver) == [("A", None, 9.999)]


def test_a_longer_grace_opens_none_that_is_closed() -> None:
    world, other = World(), World(grace=20 * SECOND)
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.auction(driver, "A", 10, 0)
        world.bid(driver, "x", 30, key="other")
        driver.restart(other.app)
        other.bid(driver, "a", 9)
        other.auction(driver, "B", 11, 5)
        assert world.results_of(driver) == [("A", None, 9.999)]
        assert driver.late(other.sell) == {"sell": 1}


def test_a_parked_one_is_called_with_what_has_waited_once_it_is_retried() -> None:
    world = World(fails=[("A", "a")], on_error=OnError(then="park"))
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.bid(driver, "a", 1)
        world.auction(driver, "A", 10, 2)
        world.bid(driver, "b", 3)
        assert world.results_of(driver) == []
        world.fails.clear()
        driver.crash(keep_disk=False)
        driver.retry_parked(world.sell, "k")
        assert sorted(world.results_of(driver)) == [("A", "a", 2), ("A", "b", 3)]


def test_crashes_call_each_pair_once() -> None:
    world = World()
    with ActorTestDriver(world.app, partitions=2) as driver:
        rows = [(f"k{number % 9}", f"b{number}", BEGIN_MS + number) for number in range(100)]
        auctions = [(f"k{number}", [f"A{number}", 1], BEGIN_MS + 50) for number in range(10)]
        driver.backlog({world.bids: rows, world.auctions: auctions}, order=1, settle=False)
        for _ in range(3):
            driver.advance(0.02, settle=False)
            driver.crash(settle=False)
        driver.settle()
        driver.close_windows()
        wanted = {(f"A{number % 9}", f"b{number}", max(number, 50) / 1000) for number in range(100)}
        assert sorted(world.results_of(driver), key=str) == sorted({*wanted, ("A9", None, 0.999)}, key=str)
        assert world.rows(driver) == {}


def test_rows_are_shown_with_what_they_hold() -> None:
    world = World(retention=10 * SECOND, grace=20 * SECOND)
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.auction(driver, "A", 10, 5)
        world.bid(driver, "a", 11)
        decoder = world.app.decoder("sell")
        rows = {
            decoder.key_json(row): decoder.value_json(raw[METADATA_BYTES:], row)
            for files in driver._disk.files()
            if files.store == "sell"
            for row, raw in files.data.items()
        }
    end_ms = BEGIN_MS + 10_000
    (wait,) = (key for key in rows if key.startswith('["unmatched", "right", "k", '))
    assert rows == {
        '["progress"]': f'{{"stream_ms": {end_ms + 1_000}}}',
        '["one", "k"]': f'[[{end_ms - 5_000}, {end_ms}, ["A", 10]]]',
        f'["unmatched", "left", "k", {end_ms - 1}]': "null",
        '["right", "k", 0]': f'[[{end_ms + 1_000}, "a"]]',
        wait: "null",
    }


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"until": None}, "give until="),
    ({"until": 5}, "can't be called"),
    ({"until": lambda: 5}, "can't be called with one argument"),
    ({"how": "outer"}, '"inner" or "left"'),
    ({"retention": timedelta(0)}, "retention"),
    ({"retention": 5}, "has to be a timedelta"),
    ({"grace": -SECOND}, "grace"),
    ({"late": "handle"}, "late="),
    ({"within": SECOND}, "within="),
    ({"on": "field"}, "on="),
    ({"order": "offset"}, 'it is "time"'),
]


@pytest.mark.parametrize(("options", "match"), WRONG)
def test_what_cant_be_meant_is_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        World(**options)


@pytest.mark.parametrize("missing", ["one", "many"])
def test_both_topics_have_to_be_given(missing: str) -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    topics = {name: app.topic(name, key_type=str, value_type=str) for name in ("one", "many") if name != missing}
    with pytest.raises(ConfigurationError, match="has to be a topic"):

        @app.join(**topics, retention=SECOND)
        async def joined(ctx: Context, one: str, many: str) -> None: ...


def test_until_is_for_one_and_many() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    topics = [app.topic(name, key_type=str, value_type=str) for name in ("left", "right")]
    with pytest.raises(ConfigurationError, match=r"until= is for app\.join"):

        @app.join(*topics, within=SECOND, until=lambda value: 5)
        async def joined(ctx: Context, left: str, right: str) -> None: ...


def test_rows_of_another_join_are_refused() -> None:
    world, other = World(retention=10 * SECOND), World(retention=20 * SECOND)
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.auction(driver, "A", 10, 0)
        with pytest.raises(ConfigurationError, match="of one with many, left, retention 0:00:10"):
            driver.restart(other.app)
