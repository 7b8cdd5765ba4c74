"""Joins on the test driver: which records match, what is handed out without a match, and what is kept."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from actors import App, ConfigurationError, Context, OnError
from actors._core.windows.join_rows import CHUNK, CHUNK_BYTES, UNMATCHED
from actors.errors import ActorsError
from actors.testing import ActorTestDriver

BEGIN_MS = 1_700_000_000_000
SECOND = timedelta(seconds=1)
LEFT, RIGHT = "left", "right"


class World:
    """An app with one join, which sends the seconds and values that it is called with."""

    def __init__(self, how: str = "outer", *, fails: Any = (), within: Any = 10 * SECOND, **options: Any) -> None:
        self.app = app = App("shop", broker="kafka://127.0.0.1:1")
        self.inputs = {name: app.topic(name, key_type=str, value_type=str) for name in (LEFT, RIGHT)}
        self.results = app.topic("results", key_type=str, value_type=list)
        self.late = app.topic("late", key_type=str, value_type=str)
        self.fails, self.calls = set(fails), 0
        self.results_so_far: list[tuple[Any, ...]] = []
        if options.get("late") == "topic":
            options["late"] = self.late

        @app.join(*self.inputs.values(), within=within, how=how, **options)
        async def joined(ctx: Context, left: str | None, right: str | None) -> None:
            self.calls += 1
            if (left, right) in self.fails:
                raise ValueError("no pair")
            at_s = (ctx.timestamp_ms - BEGIN_MS) / 1000
            ctx.send(self.results, key=ctx.key, value=[left, right, at_s])

        self.joined = joined

    def send(self, driver: ActorTestDriver, side: str, value: str | None, at_s: float, key: str | None = "k") -> None:
        driver.send(self.inputs[side], key=key, value=value, timestamp_ms=BEGIN_MS + int(at_s * 1000))

    def results_of(self, driver: ActorTestDriver) -> list[tuple[Any, ...]]:
        self.results_so_far += [tuple(one.value) for one in driver.outputs(self.results)]
        return self.results_so_far

    def rows(self, driver: ActorTestDriver, prefix: bytes) -> int:
        store = self.app.actors["joined"].windows[0].rows
        return sum(
            row[:1] == prefix for files in driver._disk.files() if files.store == store.name for row in files.data
        )


@pytest.mark.parametrize("how", ["inner", "left", "outer"])
def test_records_match_up_to_the_bound_on_both_sides(how: str) -> None:
    world = World(how, grace=100 * SECOND)
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.send(driver, LEFT, "a", 20)
        for value, at_s in (("x", 9.999), ("y", 10), ("z", 30), ("w", 30.001)):
            world.send(driver, RIGHT, value, at_s)
        assert world.results_of(driver) == [("a", "y", 20), ("a", "z", 30)]


def test_two_spans_are_before_and_after_the_left_record() -> None:
    world = World("inner", within=(2 * SECOND, 5 * SECOND), grace=100 * SECOND)
    with ActorTestDriver(world.app, partitions=1) as driver:
        for value, at_s in (("x", 7.999), ("y", 8), ("z", 15), ("w", 15.001)):
            world.send(driver, RIGHT, value, at_s)
        world.send(driver, LEFT, "a", 10)
        assert world.results_of(driver) == [("a", "y", 10), ("a", "z", 15)]


def test_pairs_come_in_the_order_of_times_and_of_one_time_as_they_came() -> None:
    world = World("inner", grace=100 * SECOND)
    with ActorTestDriver(world.app, partitions=1) as driver:
        for value, at_s in (("c", 8), ("a", 3), ("b", 3), ("c", 8)):
            world.send(driver, RIGHT, value, at_s)
        world.send(driver, LEFT, "l", 5)
        assert world.results_of(driver) == [("l", "a", 5), ("l", "b", 5), ("l", "c", 8), ("l", "c", 8)]


@pytest.mark.parametrize(
    ("how", "expected"),
    [("inner", []), ("left", [("a", None, 0)]), ("outer", [("a", None, 0), (None, "x", 1)])],
)
def test_what_has_no_match_comes_once_when_its_window_is_closed(how: str, expected: list[Any]) -> None:
    world = World(how, grace=5 * SECOND)
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.send(driver, LEFT, "a", 0, key="a")
        world.send(driver, RIGHT, "x", 1, key="x")
        world.send(driver, RIGHT, "end", 15, key="end")
        assert world.results_of(driver) == []
        driver.crash(keep_disk=False)
        world.send(driver, RIGHT, "end", 15.001, key="end")
        assert world.results_of(driver) == expected[:1]
        world.send(driver, RIGHT, "end", 16.001, key="end")
        for keep_disk in (True, False):
            driver.crash(keep_disk=keep_disk)
        assert world.results_of(driver) == expected
        assert world.rows(driver, UNMATCHED) == (3 if how == "outer" else 0)


def test_a_match_takes_the_record_out_of_those_without_one() -> None:
    world = World("outer", grace=5 * SECOND)
    with ActorTestDriver(world.app, partitions=1) as driver:
        for value in ("a", "b"):
            world.send(driver, LEFT, value, 0)
        world.send(driver, RIGHT, "far", 10.001)
        assert world.rows(driver, UNMATCHED) == 3
        world.send(driver, RIGHT, "x", 10)
        assert world.rows(driver, UNMATCHED) == 1
        driver.advance_stream_time(world.joined, BEGIN_MS + 1_000_000)
        assert world.results_of(driver) == [("a", "x", 10), ("b", "x", 10), (None, "far", 10.001)]


def test_what_is_due_comes_though_it_is_matched_meanwhile() -> None:
    """A record of the other input may be in time for its own window, and come when that of its match is closed."""
    world = World("left")
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.send(driver, LEFT, "a", 0)
        world.send(driver, RIGHT, "end", 15, key="end")
        world.send(driver, RIGHT, "x", 8)
        assert world.results_of(driver) == [("a", None, 0), ("a", "x", 8)]


@pytest.mark.parametrize("late", ["drop", "topic"])
@pytest.mark.parametrize("side", [LEFT, RIGHT])
def test_a_record_whose_window_is_closed_is_late(side: str, late: str) -> None:
    world = World("outer", within=(2 * SECOND, 6 * SECOND), grace=SECOND, late=late)
    open_s = 13 if side == LEFT else 17
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.send(driver, LEFT, "end", 20, key="end")
        world.send(driver, side, "in time", open_s)
        world.send(driver, side, "late", open_s - 0.001)
        driver.advance_stream_time(world.joined, BEGIN_MS + 20_001)
        assert [one for one in world.results_of(driver) if "late" in one] == []
        assert [one for one in world.results_of(driver) if "in time" in one] != []
        assert [one.value for one in driver.outputs(world.late)] == (["late"] if late == "topic" else [])
        assert driver._worker is not None
        (task,) = driver._worker.tasks
        assert task.meters.late["joined"].count == 1
        assert task.meters.stream_ms == BEGIN_MS + 20_001


def test_records_without_a_value_are_skipped_and_those_without_a_key_match_nothing() -> None:
    world = World("left")
    with ActorTestDriver(world.app, partitions=1) as driver:
        for side in (LEFT, RIGHT):
            world.send(driver, side, None, 0)
            world.send(driver, side, f"{side} without key", 1, key=None)
        world.send(driver, LEFT, "a", 2)
        assert world.results_of(driver) == [("left without key", None, 1)]
        world.send(driver, LEFT, None, 30)
        assert world.results_of(driver) == [("left without key", None, 1), ("a", None, 2)]


def test_many_records_of_a_key_lie_in_short_rows() -> None:
    world = World("inner", within=1000 * SECOND)
    values = [f"{number:03}".ljust(200, ".") for number in range(50)]
    with ActorTestDriver(world.app, partitions=1) as driver:
        for number, value in enumerate(values):
            driver.post(world.inputs[LEFT], key="k", value=value, timestamp_ms=BEGIN_MS + number)
        driver.settle()
        assert 5 <= world.rows(driver, CHUNK) <= 10
        sizes = [len(raw) for files in driver._disk.files() if files.store == "joined" for raw in files.data.values()]
        assert max(sizes) <= CHUNK_BYTES + 100
        world.send(driver, RIGHT, "x", 1)
        assert [left for left, _, _ in world.results_of(driver)] == values


def test_a_record_longer_than_a_row_is_kept() -> None:
    world = World("inner")
    with ActorTestDriver(world.app, partitions=1) as driver:
        for number in range(3):
            world.send(driver, LEFT, str(number) * (CHUNK_BYTES + 1), number)
        world.send(driver, RIGHT, "x", 1)
        assert [left[:1] for left, _, _ in world.results_of(driver)] == ["0", "1", "2"]


def test_what_nothing_can_match_any_more_is_removed() -> None:
    world = World("outer", grace=5 * SECOND)
    with ActorTestDriver(world.app, partitions=1) as driver:
        for at_s in range(0, 1000, 5):
            world.send(driver, LEFT, "a", at_s)
        driver.crash(keep_disk=False)
        world.send(driver, LEFT, "a", 1005)
        # 25 s, up to a segment of 20 s more, and what is removed with the next removal.
        assert world.rows(driver, CHUNK) <= 4
        assert len(world.results_of(driver)) == 198


@pytest.mark.parametrize("then", ["stop", "skip", "park"])
def test_a_pair_that_fails_concerns_the_record_that_is_handled(then: Any) -> None:
    world = World("inner", fails=[("a", "y")], on_error=then)
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.send(driver, LEFT, "a", 0)
        world.send(driver, RIGHT, "x", 1)
        if then == "stop":
            with pytest.raises(ActorsError, match=r"no pair"):
                world.send(driver, RIGHT, "y", 2)
            world.fails.clear()
            driver.crash()
            assert world.results_of(driver) == [("a", "x", 1), ("a", "y", 2)]
            return
        world.send(driver, RIGHT, "y", 2)
        world.send(driver, LEFT, "b", 3)
        world.fails.clear()
        # Nothing is left of what was skipped; what waits behind a parked record has its turn after it.
        skipped = [("a", "x", 1), ("b", "x", 3)]
        if then == "park":
            assert world.results_of(driver) == [("a", "x", 1)]
            driver.retry_parked(world.joined, "k")
            assert world.results_of(driver) == [("a", "x", 1), ("a", "y", 2), ("b", "x", 3), ("b", "y", 3)]
        else:
            assert world.results_of(driver) == skipped


@pytest.mark.parametrize("then", ["stop", "skip", "park"])
def test_a_record_without_a_match_that_fails_is_skipped_or_stops(then: Any) -> None:
    world = World("left", fails=[("a", None)], on_error=then)
    with ActorTestDriver(world.app, partitions=1) as driver:
        for value in ("a", "b"):
            world.send(driver, LEFT, value, 0)
        if then == "skip":
            world.send(driver, LEFT, "end", 20)
            assert world.results_of(driver) == [("b", None, 0)]
            return
        with pytest.raises(ActorsError, match=r"no pair"):
            world.send(driver, LEFT, "end", 20)
        world.fails.clear()
        driver.crash()
        assert world.results_of(driver) == [("a", None, 0), ("b", None, 0)]


def test_retries_call_a_close_again() -> None:
    world = World("left", fails=[("a", None)], on_error=OnError(retries=3, then="stop"))
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.send(driver, LEFT, "a", 0)
        driver.post(world.inputs[LEFT], key="k", value="end", timestamp_ms=BEGIN_MS + 20_000)
        driver.advance(1.1, settle=False)
        assert world.calls >= 1
        world.fails.clear()
        driver.advance(60)
        assert world.results_of(driver) == [("a", None, 0)]


@pytest.mark.parametrize(
    ("how", "within"), [("left", 11 * SECOND), ("inner", 10 * SECOND), ("left", (10 * SECOND, 9 * SECOND))]
)
def test_another_join_over_the_same_records_is_refused(how: str, within: Any) -> None:
    before, after = World("left"), World(how, within=within)
    with ActorTestDriver(before.app, partitions=1) as driver:
        before.send(driver, LEFT, "a", 0)
        refused = (
            "store joined: .* has records of a join, left, within 0:00:10, and this program would keep .*another name"
        )
        with pytest.raises(ActorsError, match=refused):
            driver.restart(after.app)
        driver.restart(before.app)
        before.send(driver, LEFT, "a", 20)
        assert before.results_of(driver) == [("a", None, 0)]


@pytest.mark.parametrize(("grace_s", "sent"), [(5, [("a", None, 0)]), (50, [])])
def test_the_grace_may_change(grace_s: int, sent: list[Any]) -> None:
    before, after = World("left", grace=10 * SECOND), World("left", grace=grace_s * SECOND)
    with ActorTestDriver(before.app, partitions=1) as driver:
        before.send(driver, LEFT, "a", 0)
        before.send(driver, RIGHT, "end", 16, key="end")
        driver.restart(after.app)
        after.send(driver, RIGHT, "end", 21, key="end")
        assert after.results_of(driver) == sent


def test_many_closes_are_sent_once_though_the_process_dies_among_them() -> None:
    world = World("outer")
    keys = [f"{number:03}" for number in range(250)]
    with ActorTestDriver(world.app, partitions=1) as driver:
        for number, key in enumerate(keys):
            side = (LEFT, RIGHT)[number % 2]
            driver.post(world.inputs[side], key=key, value=key, timestamp_ms=BEGIN_MS)
        driver.settle()
        driver.post(world.inputs[LEFT], key="z", value="z", timestamp_ms=BEGIN_MS + 20_000)
        for number in range(30):
            driver.advance(0.0005 * number, settle=False)
            driver.crash(keep_disk=bool(number % 3), settle=False)
        driver.settle()
        assert sorted(left or right for left, right, _ in world.results_of(driver)) == keys


def test_the_function_may_use_stores_and_be_a_plain_one() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    left, right = (app.topic(name, key_type=str, value_type=int) for name in (LEFT, RIGHT))
    sums = app.store("sums", key_type=str, value_type=int)

    @app.join(left, right, within=SECOND, stores=[sums], name="summed")
    def add(ctx: Context, one: int, other: int) -> None:
        sums.set(ctx.key, sums.get(ctx.key, 0) + one * other)

    with ActorTestDriver(app, partitions=2) as driver:
        for topic, value in ((left, 2), (right, 3), (right, 4)):
            driver.send(topic, key="k", value=value)
        assert driver.items(sums) == {"k": 14}
        shown = driver.items(app.stores["summed"])
        assert sorted(row[:2] for row in shown if row != ("progress",)) == [("left", "k"), ("right", "k")]


def _declare(**options: Any) -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    left, right = app.topic(LEFT, key_type=str), app.topic(RIGHT, key_type=options.pop("right_key", str))
    given = {"within": SECOND, **options}

    @app.join(left, given.pop("right", right), **given)
    async def joined(ctx: Context, left: Any, right: Any) -> None: ...


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"within": timedelta(0)}, "join joined: within=0:00:00 has to be more than 0"),
        ({"within": -SECOND}, "join joined: within=.* has to be more than 0"),
        ({"within": 15}, r"join joined: within=15 has to be a timedelta: write within=timedelta\(seconds=15\)"),
        ({"within": None}, "join joined: give within=, how far apart"),
        ({"within": (timedelta(0), timedelta(0))}, "join joined: within=.*: it has to be a millisecond or longer"),
        ({"within": timedelta(microseconds=1)}, "join joined: within=.*: it has to be a millisecond or longer"),
        ({"within": (SECOND, -SECOND)}, "join joined: within=.* has to be 0 or more"),
        ({"within": (SECOND,)}, "join joined: within=.*: give a timedelta, or two"),
        ({"grace": -SECOND}, "join joined: grace=.* has to be 0 or more"),
        ({"grace": None}, "join joined: grace=None: give a timedelta of 0 or more"),
        ({"how": "right"}, "join joined: how='right': it is one of inner, left, outer"),
        ({"late": "handle"}, 'join joined: late=\'handle\': it is "drop", "warn", "stop", or a topic'),
        ({"right_key": int}, "join joined: the keys of topic left are str .raw., those of topic right int, .*by="),
        ({"right": "payments"}, r"actor joined: its input has to be a topic of app.topic\(...\)"),
        ({"witin": SECOND}, "there is no argument 'witin', did you mean within"),
    ],
    ids=str,
)
def test_bad_declarations(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        _declare(**options)


def test_one_topic_twice_and_a_function_of_two_arguments_are_refused() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    left, right = app.topic(LEFT, key_type=str), app.topic(RIGHT, key_type=str)
    with pytest.raises(ConfigurationError, match="topic left is listed twice"):

        @app.join(left, left, within=SECOND)
        async def itself(ctx: Context, left: Any, right: Any) -> None: ...

    with pytest.raises(ConfigurationError, match=r"can't be called with 3 arguments: .* Write `async def pair\(ctx"):

        @app.join(left, right, within=SECOND)  # type: ignore[arg-type]
        async def pair(ctx: Context, left: Any) -> None: ...


def test_an_input_by_another_key_joins() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    left, right = app.topic(LEFT, key_type=str, value_type=str), app.topic(RIGHT, key_type=int, value_type=str)
    results = app.topic("results", key_type=str, value_type=list)

    @app.join(left, right, within=SECOND, by={right: lambda value: value[0]})
    async def joined(ctx: Context, one: str, other: str) -> None:
        ctx.send(results, key=ctx.key, value=[one, other])

    with ActorTestDriver(app, partitions=3) as driver:
        driver.send(left, key="k", value="one", timestamp_ms=BEGIN_MS)
        driver.send(right, key=17, value="kilo", timestamp_ms=BEGIN_MS)
        assert [(one.key, one.value) for one in driver.outputs(results)] == [("k", ["one", "kilo"])]
