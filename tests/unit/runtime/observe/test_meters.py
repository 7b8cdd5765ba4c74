"""What a worker counts, and the status of it, on the test driver."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from actors import App, Context, HandlerFailedError, OnError
from actors.errors import FencedError, MigratedError, OutcomeUnknownError, RestoreError
from actors.ports import TopicPartition
from actors.runtime.meters import Histogram, TaskMeters
from actors.runtime.observe import status
from actors.runtime.observe.status import TaskStatus, WorkerStatus, measured
from actors.runtime.state.restore import Restorer
from actors.testing import ActorTestDriver
from actors.testing.driving import DiskStore
from actors.web.metrics import PREFIX, families
from stores.memory import MemoryStore
from stores.rocks import FIGURES, RocksStore
from tests.logs import Clock, Log
from tests.unit.runtime.task.test_restore import CHANGELOG, RECORDS


class World:
    """An app whose handler counts, sends what it got, and fails for "bad" until it is mended."""

    def __init__(self, **options: Any) -> None:
        self.app = App("shop", broker="kafka://127.0.0.1:1")
        self.topic = self.app.topic("in", key_type=str, value_type=str)
        self.done = self.app.topic("done", key_type=str, value_type=str)
        counts = self.app.store("counts", key_type=str, value_type=int)
        self.waits = False
        self.is_mended = False

        @self.app.actor(self.topic, stores=[counts], **options)
        async def work(ctx: Context, value: str) -> None:
            counts.set(ctx.key, counts.get(ctx.key, 0) + 1)
            if value == "twice":
                ctx.send(self.done, key=ctx.key, value=value)
            ctx.send(self.done, key=ctx.key, value=value)
            if value == "bad" and not self.is_mended:
                raise ValueError(value)
            if self.waits:
                await asyncio.sleep(3600)


def seen(driver: ActorTestDriver) -> WorkerStatus:
    """Return the status of the driver's worker."""
    worker = driver._worker
    assert worker is not None
    tasks = sorted(worker.tasks, key=lambda task: (task.spec.name, task.partition))
    fields = measured(worker.meters, tasks)
    return WorkerStatus(app="shop", worker="w", address="", at_ms=1, partitions=worker.partitions, **fields)


@pytest.fixture(params=[1, 3])
def driver(request: pytest.FixtureRequest) -> Iterator[tuple[World, ActorTestDriver]]:
    world = World(concurrency=request.param, on_error=OnError(then="park"))
    with ActorTestDriver(world.app, partitions=1) as driver:
        yield world, driver


def task_of(driver: ActorTestDriver) -> TaskStatus:
    async def look() -> WorkerStatus:
        # Effects look at the loop's clock.
        return seen(driver)

    (task,) = driver._run(look()).tasks
    return task


def test_what_is_committed_is_counted(driver: tuple[World, ActorTestDriver]):
    world, run = driver
    for number in range(40):
        run.post(world.topic, key=f"k{number % 7}", value="twice" if number == 3 else "x")
    run.settle()
    task = task_of(run)
    assert (task.records, task.outputs, task.committed_offset, task.lag) == (40, 41, 40, 0)
    assert 7 <= task.writes <= 40
    assert task.commits.count >= 1
    assert task.last_commit_ms is not None
    assert (task.takeovers, task.state, task.epoch, task.overlay_bytes, task.fences) == (1, "running", 1, 0, {})
    assert task.restores.count == len(task.stores) == 2


def test_records_are_counted_once_when_they_are_handled_again(driver: tuple[World, ActorTestDriver]):
    world, run = driver
    run.send(world.topic, key="a", value="1")
    run.send(world.topic, key="b", value="1")
    (before,) = run._worker.tasks  # type: ignore[union-attr]
    before.reinitialize("a test wants it")
    run.advance(1)
    run.send(world.topic, key="a", value="2")
    task = task_of(run)
    assert (task.records, task.takeovers, task.epoch, task.fences) == (3, 2, 2, {"restore": 1})


def test_parked_messages_are_counted_where_they_come_and_go(driver: tuple[World, ActorTestDriver]):
    world, run = driver
    assert seen(run).parked == {"work": 0}
    for value in ("bad", "2", "3"):
        run.send(world.topic, key="a", value=value)
    assert seen(run).parked == {"work": 3}
    world.is_mended = True
    told = msgspec.json.encode({"actor": "work", "what": "message", "command": "retry"})
    run.send(world.topic, key="a", value="control", headers={"fa-control": told})
    assert seen(run).parked == {"work": 0}
    assert task_of(run).records == 4


def test_a_look_at_what_is_parked_has_an_end():
    world = World(on_error=OnError(then="park"))
    with ActorTestDriver(world.app) as run:
        for _ in range(1_100):
            run.post(world.topic, key="a", value="bad")
        run.settle()
        assert seen(run).parked == {"work": 1_000}


@pytest.mark.parametrize("concurrency", [1, 3])
def test_parked_effects_are_counted_also_after_a_crash(concurrency: int):
    app = App("shop", broker="kafka://127.0.0.1:1")
    topic = app.topic("in", key_type=str, value_type=str)

    @app.effect(attempts=1)
    async def ship(call: Any, what: str) -> None:
        if what == "bad":
            raise ValueError(what)

    @app.actor(topic, effects=[ship], concurrency=concurrency)
    async def work(ctx: Context, value: str) -> None:
        ctx.effect(ship, value)

    with ActorTestDriver(app, partitions=1, effects={ship: ship}) as run:
        assert task_of(run).parked_effects == 0
        for key, value in (("a", "bad"), ("b", "good"), ("c", "bad"), ("a", "behind")):
            run.send(topic, key=key, value=value)
        assert task_of(run).parked_effects == 2
        run.crash(keep_disk=False)
        run.advance(1)
        assert (task_of(run).takeovers, task_of(run).parked_effects, task_of(run).parked) == (1, 2, None)
        told = msgspec.json.encode({"actor": "work", "what": "effect", "command": "drop"})
        run.send(topic, key="a", value="control", headers={"fa-control": told})
        assert task_of(run).parked_effects == 1
    plain = World()
    with ActorTestDriver(plain.app, partitions=1) as run:
        run.send(plain.topic, key="a", value="1")
        assert task_of(run).parked_effects is None


def test_what_is_in_hand_is_shown():
    world = World()
    with ActorTestDriver(world.app, partitions=1) as driver:
        driver.send(world.topic, key="a", value="1")
        world.waits = True
        for key in ("a", "b", "c"):
            driver.post(world.topic, key=key, value="1")
        driver.advance(1, settle=False)
        task = task_of(driver)
        assert (task.committed_offset, task.end_offset, task.lag, task.records) == (1, 4, 3, 1)
        assert task.overlay_bytes > 0


def test_a_partition_that_stands_still_says_why():
    world = World(on_error="stop")
    with ActorTestDriver(world.app, partitions=1) as driver:
        driver.send(world.topic, key="a", value="1")
        driver.post(world.topic, key="a", value="2")
        driver.post(world.topic, key="a", value="bad")
        driver.post(world.topic, key="a", value="3")
        driver.advance(1, settle=False)
        task = task_of(driver)
        assert (task.state, task.records, task.committed_offset, task.lag) == ("halted", 2, 2, 2)
        assert "offset 2 key 'a'" in (task.reason or "")
        driver.post(world.topic, key="a", value="4")
        (halted,) = driver._worker.tasks  # type: ignore[union-attr]
        assert halted.meters.end_offsets.get("in", 0) < 5
        driver.advance(61, settle=False)
        assert halted.meters.end_offsets["in"] == 5


def test_each_input_has_its_own_offsets_and_lag():
    app = App("shop", broker="kafka://127.0.0.1:1")
    left, right = (app.topic(name, key_type=str, value_type=str) for name in ("left", "right"))

    @app.actor(left, right)
    async def join(ctx: Context, value: str) -> None:
        if value == "bad":
            raise ValueError(value)

    with ActorTestDriver(app, partitions=1) as driver:
        for _ in range(3):
            driver.send(left, key="a", value="x")
        for value in ("x", "bad", "x"):
            driver.post(right, key="a", value=value)
        with pytest.raises(HandlerFailedError):
            driver.settle()
        (task,) = (status := seen(driver)).tasks
        found = [(one.topic, one.committed_offset, one.end_offset, one.lag) for one in task.inputs]
        assert found == [("left", 3, 3, 0), ("right", 1, 3, 2)]
        assert task.lag == 2
    samples = {
        (sample.name.removeprefix(PREFIX), sample.labels["topic"]): sample.value
        for family in families(status)
        for sample in family.samples
        if "topic" in sample.labels
    }
    assert samples == {
        (name, topic): float(value)
        for topic, *values in found
        for name, value in zip(("committed_offset", "end_offset", "consumer_lag_records"), values, strict=True)
    }


def test_a_marker_at_the_inputs_end_is_nothing_that_waits():
    """What an actor sends comes in transactions, whose markers take offsets too."""
    app = App("shop", broker="kafka://127.0.0.1:1")
    first, second = app.topic("first", key_type=str, value_type=str), app.topic("second", key_type=str, value_type=str)

    @app.actor(first)
    async def pass_on(ctx: Context, value: str) -> None:
        ctx.tell("end", ctx.key, value)

    @app.actor(second, name="end")
    async def end(ctx: Context, value: str) -> None:
        """Take it."""

    with ActorTestDriver(app, partitions=1) as driver:
        driver.send(first, key="a", value="1")
        driver.send(first, key="a", value="2")
        driver.advance(1)
        last, _ = seen(driver).tasks
        assert (last.actor, last.records, last.lag) == ("end", 2, 0)
        assert last.end_offset == last.committed_offset == 4


def test_a_picture_can_be_encoded():
    world = World()
    with ActorTestDriver(world.app, partitions=2) as driver:
        driver.send(world.topic, key="a", value="1")
        found = seen(driver)
        assert msgspec.json.decode(msgspec.json.encode(found), type=WorkerStatus) == found
        assert [task.partition for task in found.tasks] == [0, 1]


def test_a_restore_tells_how_far_it_is():
    """The meter is looked at between two chunks of the changelog."""
    meters, looks = TaskMeters(), []
    meter = meters.restore_begins("s", 5)

    class Watched(Log):
        async def read(self, partition: TopicPartition, start: int, end: int, topic_id: str) -> Any:
            async for records, next_offset in super().read(partition, start, end, topic_id):
                looks.append(replace(meter))
                yield records, next_offset
                looks.append(replace(meter))

    asyncio.run(
        Restorer(Watched(RECORDS), Clock(), clock_skew_margin_ms=1000).restore(MemoryStore(), CHANGELOG, 1, meter)
    )
    assert (looks[0].start, looks[0].position, looks[0].records) == (0, 0, 0)
    assert looks[-1].position == looks[-1].end == meter.end > 0
    assert looks[-1].records == meter.records == len(RECORDS)
    meters.restore_ended(meter, 2.0)
    assert (meters.restored_records, meters.restoring, meters.restores.total) == (len(RECORDS), [], 2.0)


def test_what_a_takeover_makes_doubtful_isnt_known_any_more():
    meters = TaskMeters(parked=3, parked_effects=2)
    meters.looked("in", 5, 9)
    assert (meters.parked, meters.parked_effects) == (None, None)
    assert (meters.committed_offsets, meters.end_offsets) == ({"in": 5}, {"in": 9})


def test_histogram_counts_each_time_in_the_bucket_below_its_bound():
    found = Histogram((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 1.0, 7.0):
        found.observe(seconds)
    assert (found.counts, found.total) == ([2, 2, 1], pytest.approx(8.65))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (FencedError("x"), "fenced"),
        (OutcomeUnknownError("x"), "outcome_unknown"),
        (MigratedError("x"), "migrated"),
        (RestoreError("x"), "restore"),
        (OSError("x"), "store"),
    ],
)
def test_fences_are_told_apart(error: Exception, reason: str):
    meters = TaskMeters()
    meters.fenced(error)
    assert meters.fences == {reason: 1}


def test_rocksdb_gives_its_figures(tmp_path: Any):
    store = RocksStore.open(tmp_path / "db")
    try:
        assert store.figures().keys() == set(FIGURES)
        assert store.figures()["block-cache-capacity"] > 0
        assert store.figures()["cur-size-all-mem-tables"] > 0
    finally:
        store.close()


def test_the_keys_of_small_stores_are_counted_when_they_changed(monkeypatch: pytest.MonkeyPatch):
    app = App("shop", broker="kafka://127.0.0.1:1")
    topic = app.topic("in", key_type=str, value_type=str)
    store = app.store("held", key_type=str, value_type=str)

    @app.actor(topic, stores=[store])
    async def work(ctx: Context, value: str) -> None:
        store.set(ctx.key, value)

    scans: list[str] = []
    scan = DiskStore.scan

    def counting(self: DiskStore, *args: Any, **options: Any) -> Any:
        scans.append("scan")
        return scan(self, *args, **options)

    with ActorTestDriver(app, partitions=1) as driver:
        monkeypatch.setattr(DiskStore, "estimated_keys", lambda _: 2_553)
        monkeypatch.setattr(DiskStore, "scan", counting)
        for key in ("a", "b", "a"):
            driver.send(topic, key=key, value="x")
        (held,) = task_of(driver).stores
        assert (held.keys, held.keys_exact) == (2, True)
        count = len(scans)
        (held,) = task_of(driver).stores
        assert (held.keys, held.keys_exact, len(scans)) == (2, True, count)
        driver.send(topic, key="c", value="x")
        (held,) = task_of(driver).stores
        assert (held.keys, held.keys_exact) == (3, True)
        monkeypatch.setattr(status, "COUNT_LIMIT", 3)
        driver.send(topic, key="d", value="x")
        (held,) = task_of(driver).stores
        assert (held.keys, held.keys_exact) == (2_553, False)
