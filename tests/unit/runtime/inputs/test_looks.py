"""What event time costs: no look where no task follows another one, no transaction at rest, and little delay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from actors import App, Context, Tumbling, aggregates
from actors._core.group.members import TaskId
from actors._core.partitioner import MURMUR2
from actors._core.task.commit import CommitMark, parse_mark
from actors.ports import TopicPartition
from actors.runtime.inputs.task_time import TaskTime
from actors.testing import ActorTestDriver, machine
from actors.testing.fakes.ports import FakeGroupView

NOON = datetime(2031, 1, 1, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1000)
KEYS = ("a", "b", "c", "d")


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """For how many offsets and ends each look asked."""
    sizes: list[int] = []
    look = FakeGroupView.look

    async def ask(self: Any, commits: Collection[Any], ends: Collection[Any], topics: Any) -> Any:
        sizes.append(len(commits) + len(ends))
        return await look(self, commits, ends, topics)

    monkeypatch.setattr(FakeGroupView, "look", ask)
    return sizes


class Clicks:
    """An app with a topic of clicks, and windows of 10 s over some input."""

    def __init__(self) -> None:
        self.app = App("shop", broker="kafka://127.0.0.1:1")
        self.clicks = self.app.topic("clicks", key_type=str, value_type=str)
        self.views = self.app.topic("views", key_type=str, value_type=str)
        self.closed: list[int] = []

    def windows(self, *topics: Any, span_s: int = 10, on_close: Callable[[Any], object] = bool, **options: Any) -> None:
        tens = self.app.window_store("tens", Tumbling(seconds=span_s), aggregate=aggregates.count())

        @self.app.actor(*topics, stores=[tens], name="count", **options)
        async def count(ctx: Context, _: str) -> None:
            tens.add(ctx.key, 1)

        @tens.on_close
        def close(ctx: Context, window: Any, number: int) -> None:
            self.closed.append(number)
            on_close(window)

    def send_all(self, driver: ActorTestDriver) -> None:
        for seconds in range(40):
            for topic in self.inputs(driver):
                driver.post(topic, key=KEYS[seconds % 4], value="", timestamp_ms=NOON_MS + seconds * 1_000)
        driver.settle()

    def inputs(self, driver: ActorTestDriver) -> list[Any]:
        topics = {topic for spec in driver._specs for topic in spec.topics}
        return [topic for topic in (self.clicks, self.views) if topic.get_topic_name() in topics]


def windows_of_one_input(world: Clicks) -> None:
    world.windows(world.clicks)


def timers(world: Clicks) -> None:
    @world.app.actor(world.clicks, timers=True)
    async def remind(ctx: Context, value: str) -> None:
        if ctx.timer is None:
            ctx.schedule(value, after=timedelta(seconds=5), stream_time=True)


def actors_that_nothing_goes_by(world: Clicks) -> None:
    @world.app.actor(world.clicks)
    async def forward(ctx: Context, value: str) -> None:
        ctx.send(moved, key="all", value=value)

    moved = world.app.topic("moved", key_type=str, value_type=str, writers=[forward])

    @world.app.actor(moved)
    async def follow(ctx: Context, value: str) -> None: ...


@pytest.mark.parametrize("declare", [windows_of_one_input, timers, actors_that_nothing_goes_by])
def test_nothing_is_asked_where_no_task_follows_another_one(
    declare: Callable[[Clicks], None], looks: list[int]
) -> None:
    world = Clicks()
    declare(world)
    with ActorTestDriver(world.app, now=NOON) as driver:
        world.send_all(driver)
        driver.advance(60)
    assert looks == []


def test_two_inputs_of_one_task_are_looked_at_while_one_is_behind(looks: list[int]) -> None:
    world = Clicks()
    world.windows(world.clicks, world.views)
    with ActorTestDriver(world.app, now=NOON) as driver:
        driver.send(world.clicks, key="a", value="", timestamp_ms=NOON_MS + 60_000)
        assert looks
        world.send_all(driver)
        looks.clear()
        driver.advance(60)
    assert looks == []


def test_topics_with_writers_are_looked_at(looks: list[int]) -> None:
    world = Clicks()
    world.windows(world.clicks, by=lambda _: "all")
    with ActorTestDriver(world.app, now=NOON) as driver:
        world.send_all(driver)
    assert world.closed == [10, 10, 10]
    assert looks


def test_a_committed_time_is_decoded_once_for_all_tasks(looks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = Counter[int]()

    def count(metadata: str | None) -> CommitMark | None:
        decoded[len(looks)] += 1
        return parse_mark(metadata)

    monkeypatch.setattr("actors.runtime.looks.parse_mark", count)
    world = Clicks()
    world.windows(world.clicks, by=lambda _: "all")
    with ActorTestDriver(world.app, now=NOON, partitions=4) as driver:
        world.send_all(driver)
    assert world.closed == [10, 10, 10]
    assert max(decoded.values()) == 4


@pytest.mark.parametrize("options", [{}, {"order": "time"}], ids=["", "ordered"])
@pytest.mark.parametrize("concurrency", [1, 3])
def test_at_rest_nothing_is_committed(options: dict[str, Any], concurrency: int, looks: list[int]) -> None:
    world, commits = Clicks(), []

    @world.app.actor(world.clicks, concurrency=concurrency)
    async def forward(ctx: Context, value: str) -> None:
        ctx.send(moved, key="all", value=value)

    moved = world.app.topic("moved", key_type=str, value_type=str, writers=[forward])
    world.windows(moved, world.views, **options)
    with ActorTestDriver(world.app, now=NOON) as driver:
        driver._cluster.transactions.on_decision.append(commits.append)
        world.send_all(driver)
        # Times that moved with the last look are committed once more.
        driver.advance(60)
        assert commits
        commits.clear()
        looks.clear()
        for _ in range(10):
            driver.advance(60)
        assert looks
    assert commits == []


def test_a_source_has_the_time_of_its_latest_record() -> None:
    world = Clicks()
    world.windows(world.clicks, world.views)
    with ActorTestDriver(world.app, now=NOON, partitions=1) as driver:
        for seconds, time_ms in ((5, 5_000), (9, 9_000), (7, 9_000)):
            driver.post(world.clicks, key="a", value="", timestamp_ms=NOON_MS + seconds * 1_000)
            driver.settle()
            assert foremost(driver) == (TopicPartition("clicks", 0), NOON_MS + time_ms)


def foremost(driver: ActorTestDriver) -> tuple[TopicPartition | None, int]:
    task = driver._worker.task_of(TaskId("count", 0))  # type: ignore[union-attr]
    time: TaskTime = task.time  # type: ignore[assignment, union-attr]
    return time.foremost


STEP_S = 0.1
HOMES = [next(key for key in map(str, range(99)) if MURMUR2.home(key.encode(), 3) == home) for home in range(3)]


@pytest.mark.parametrize("begin_s", [0.0, 0.23])
@pytest.mark.parametrize(("seldom", "most_s"), [(1, 0.6), (17, 3.0), (47, 3.0)], ids=["steady", "1.7 s", "4.7 s"])
def test_a_result_behind_a_hop_comes_soon(
    seldom: int, most_s: float, begin_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One partition has a record for each `seldom` of the others. The time is virtual, of looks and silences alone."""
    world, delays_s = Clicks(), list[float]()

    def closed(window: Any) -> None:
        delays_s.append(driver.now_s - first_s - (window.end_ms - NOON_MS) / 1_000)

    world.windows(world.clicks, span_s=1, by=lambda key: key, on_close=closed)
    # The driver has no silence otherwise.
    feeds_of = machine.replace

    def replaced(of: Any, **changes: Any) -> Any:
        return feeds_of(of, **{name: change for name, change in changes.items() if name != "idle_after_s"})

    monkeypatch.setattr(machine, "replace", replaced)
    with ActorTestDriver(world.app, now=NOON, partitions=3) as driver:
        driver.advance(begin_s, settle=False)
        first_s = driver.now_s
        for step in range(150):
            at_ms = NOON_MS + round(step * STEP_S * 1_000)
            for home, key in enumerate(HOMES):
                if home or step % seldom == 0:
                    driver.post(world.clicks, key=key, value=key, timestamp_ms=at_ms)
            driver.advance(STEP_S, settle=False)
    assert len(delays_s) > 25
    assert 0.0 < max(delays_s) <= most_s
