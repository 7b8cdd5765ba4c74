"""`aggregates.count_distinct()` counts the different values of a window exactly, by a row for each."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from random import Random
from typing import Any

import msgspec
import pytest

from actors import App, Context, Every, Hopping, Session, Sliding, Tumbling, Window, aggregates
from actors._core.aggregates import LONGEST_IDENTITY, identity
from actors.errors import ConfigurationError
from actors.testing import ActorTestDriver

NOON_MS = 1_700_049_600_000
SECOND = timedelta(seconds=1)
KINDS = {"tumbling": Tumbling(seconds=10), "hopping": Hopping(10 * SECOND, 4 * SECOND)}


class Visits:
    """Counts the different visitors of each page."""

    def __init__(self, kind: Any, **options: Any) -> None:
        self.app = app = App("visits", broker="kafka://127.0.0.1:1")
        self.visits = app.topic("visits", key_type=str, value_type=str)
        self.finals = app.topic("finals", key_type=str, value_type=list)
        self.visitors = app.window_store(
            "visitors", kind, grace=SECOND, aggregate=aggregates.count_distinct(), **options
        )
        self.handle = lambda ctx, visitor: self.visitors.add(ctx.key, visitor)

        @app.actor(self.visits, stores=[self.visitors], on_error="skip")
        async def count(ctx: Context, visitor: str) -> None:
            self.handle(ctx, visitor)
            if visitor == "raises":
                raise ValueError("raises")

        self.count = count

        @self.visitors.on_close
        async def send(ctx: Context, window: Window, number: int) -> None:
            ctx.send(self.finals, key=ctx.key, value=[window.start_ms, number])


@pytest.mark.parametrize("crashes", [False, True], ids=["", "crashes"])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_different_values_are_counted_once(kind: Any, crashes: bool) -> None:
    random, visits = Random(1), Visits(kind)
    records = [
        (random.choice("ab"), f"v{random.randrange(9)}", NOON_MS + number * 300 - random.randrange(1_000))
        for number in range(300)
    ]
    seen: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
    for page, visitor, at_ms in records:
        for window in kind.holding(at_ms):
            seen[page, window.start_ms].add(visitor)
    with ActorTestDriver(visits.app) as driver:
        driver.backlog({visits.visits: records}, order=2, settle=not crashes)
        if crashes:
            for number in range(3):
                driver.advance(0.01, settle=False)
                driver.crash(settle=False, keep_disk=number > 0)
        driver.close_windows()
        finals = [((sent.key, sent.value[0]), sent.value[1]) for sent in driver.outputs(visits.finals)]
        assert sorted(finals) == sorted((window, len(visitors)) for window, visitors in seen.items())
        assert driver.late(visits.count) == {"visitors": 0}


def test_add_returns_the_counts_and_what_was_skipped_isnt_counted() -> None:
    visits, changed = Visits(Tumbling(seconds=10)), []
    visits.handle = lambda ctx, visitor: changed.append(visits.visitors.add(ctx.key, visitor))
    with ActorTestDriver(visits.app, partitions=1) as driver:
        for visitor in ("eve", "bob", "eve", "raises", "ada"):
            driver.send(visits.visits, key="a", value=visitor, timestamp_ms=NOON_MS)
        window = Window(NOON_MS, NOON_MS + 10_000)
        assert [row for row in changed if row[0][1] != 3][:3] == [[(window, 1)], [(window, 2)], [(window, 2)]]
        assert driver.windows(visits.visitors, "a") == {window: 3}
        driver.send(visits.visits, key="a", value="x", timestamp_ms=NOON_MS + 11_000)
        driver.send(visits.visits, key="a", value="x", timestamp_ms=NOON_MS)
        assert driver.late(visits.count) == {"visitors": 1}


def test_a_window_that_is_deleted_begins_again() -> None:
    visits = Visits(Tumbling(seconds=10))

    def handle(ctx: Context, visitor: str) -> None:
        if visitor == "delete":
            visits.visitors.delete(ctx.key)
        else:
            visits.visitors.add(ctx.key, visitor)

    visits.handle = handle
    with ActorTestDriver(visits.app, partitions=1) as driver:
        for visitor in ("eve", "bob", "delete", "eve"):
            driver.send(visits.visits, key="a", value=visitor, timestamp_ms=NOON_MS)
        assert list(driver.windows(visits.visitors, "a").values()) == [1]


def test_changes_and_stages_across_keys_have_the_counts() -> None:
    visits = Visits(Tumbling(seconds=10), emit=Every(seconds=1))
    changes: list[int] = []
    visits.visitors.on_emit(lambda ctx, window, number: changes.append(number))
    with ActorTestDriver(visits.app, partitions=1) as driver:
        for number, visitor in enumerate("xyxz"):
            driver.send(visits.visits, key="a", value=visitor, timestamp_ms=NOON_MS + number * 1_500)
        assert changes == [1, 2, 2]


@pytest.mark.parametrize("order", range(3))
def test_different_results_of_all_keys_are_counted(order: int) -> None:
    app = App("visits", broker="kafka://127.0.0.1:1")
    visits = app.topic("visits", key_type=str, value_type=int)
    sums = app.window_store("sums", Tumbling(seconds=10), aggregate=aggregates.sum())
    finals = app.topic("finals", key_type=str, value_type=int)

    @app.actor(visits, stores=[sums])
    async def count(ctx: Context, number: int) -> None:
        sums.add(ctx.key, number)

    numbers = sums.across("numbers", key=lambda key: "all", aggregate=aggregates.count_distinct())

    @numbers.on_close
    async def send(ctx: Context, window: Window, number: int) -> None:
        ctx.send(finals, key=ctx.key, value=number)

    with ActorTestDriver(app) as driver:
        driver.backlog({visits: [(f"k{n}", n % 4, NOON_MS + n) for n in range(50)]}, order=order)
        driver.close_windows()
        assert [sent.value for sent in driver.outputs(finals)] == [4]


def test_values_are_told_apart_by_their_json() -> None:
    class Point(msgspec.Struct):
        x: int

    values = [1, 1.5, "1", None, True, [1], {"a": 1, "b": 2}, Point(1), "x" * 100, "x" * 101, "x" * 31]
    assert len({identity(value) for value in values}) == len(values)
    assert identity({"a": 1, "b": 2}) == identity({"b": 2, "a": 1})
    assert max(len(identity(value)) for value in values) == 1 + LONGEST_IDENTITY


REFUSED = {
    "sliding": (lambda app: window_store(app, Sliding(SECOND)), r"count_distinct\(\) is for Tumbling\(…\) and Hopping"),
    "sessions": (lambda app: window_store(app, Session(SECOND)), "sessions merge, so it needs aggregate=…"),
    "a plain store": (
        lambda app: app.store("s", aggregate=aggregates.count_distinct()),
        r"store s: aggregates.count_distinct\(\) is for window stores",
    ),
    "a table": (
        lambda app: app.table(app.topic("rows", key_type=str, value_type=str)).aggregate(
            "groups", by=str, aggregate=aggregates.count_distinct()
        ),
        "its aggregate= can't take a value out again",
    ),
    "changes": (lambda app: changing(app), r"across far: aggregates.count_distinct\(\) can't take a value out again"),
}


def window_store(app: App, kind: Any) -> Any:
    return app.window_store("s", kind, aggregate=aggregates.count_distinct())


def changing(app: App) -> None:
    store = app.window_store("s", Tumbling(seconds=1), aggregate=aggregates.sum(), emit=Every(seconds=1))

    @app.actor(app.topic("numbers", key_type=str, value_type=int), stores=[store])
    async def count(ctx: Context, number: int) -> None: ...

    store.across("far", key=lambda key: "all", aggregate=aggregates.count_distinct())


@pytest.mark.parametrize(("declare", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cant_count_values_is_refused(declare: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        declare(App("visits", broker="kafka://127.0.0.1:1"))


def test_a_value_without_json_is_an_error() -> None:
    visits = Visits(Tumbling(seconds=10))
    visits.handle = lambda ctx, visitor: visits.visitors.add(ctx.key, object())
    with ActorTestDriver(visits.app, partitions=1) as driver:
        driver.send(visits.visits, key="a", value="x", timestamp_ms=NOON_MS)
        assert driver.windows(visits.visitors, "a") == {}
