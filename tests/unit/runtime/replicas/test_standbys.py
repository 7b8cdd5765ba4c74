"""Copies on a simulated broker, in virtual time: what they hold, when they stop, what they build anew."""

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from actors._core.group.assign import TaskId
from actors._core.group.placement import Copies
from actors._core.task.takeover import LogBounds, LostChangelog
from actors.ports import Snapshots, TopicPartition
from actors.runtime.replicas import follower
from actors.runtime.replicas import standbys as module
from actors.runtime.replicas.standbys import Role, Standbys, StandbyStore
from actors.runtime.state import restore
from actors.runtime.state.restore import Changelog, Restorer
from actors.runtime.state.stores import StoreCache
from actors.runtime.task.lost_changelog import StandbyChecks
from actors.testing.fakes.ports import FakeClock, FakeGroupView
from actors.testing.fakes.views import FakeTopicLogs
from stores._core.record import METADATA_HEADER, encode_metadata
from stores.memory import MemoryStore
from tests.sim.fakes.cluster import SimKafka
from tests.sim.fakes.loop import VirtualLoop
from tests.sim.fakes.network import Conditions, Network

HOUR_MS = 3600 * 1000
LOG = "app--counts-changelog"
ZERO, ONE = TaskId("count", 0), TaskId("count", 1)


class Spec:
    """As much of an actor as copies look at."""

    name, topics, windows = "count", ("in",), ()

    def __init__(self, changelog: Changelog) -> None:
        class Store:
            name = "counts"

        self.stores = (Store(),)
        self.changelogs = {"counts": changelog}


class World:
    """A cluster with a changelog, and the copies of one worker."""

    def __init__(self, partitions: int = 2) -> None:
        self.loop = VirtualLoop()
        self.network = Network(Random(0), Conditions(latency_s=(0.0, 0.001)))
        self.cluster = SimKafka("group", marker_s=lambda: 0.0)
        self.cluster.make_topic(LOG, partitions, is_compacted=True, delete_retention_ms=HOUR_MS)
        self.clock = FakeClock()
        self.disk: dict[tuple[str, int], MemoryStore] = {}
        self.cache = StoreCache(self.open, lambda store, partition: None)
        self.owned: set[int] = set()
        self.asked: list[float] = []
        self.follows = 0
        self.copies = self.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        async def whole() -> None:
            self.copies.start()
            try:
                await work
            finally:
                await self.copies.stop()

        return self.loop.run_until_complete(whole())

    def open(self, store: str, partition: int) -> MemoryStore:
        return self.disk.setdefault((store, partition), MemoryStore())

    def start(self, snapshots: Snapshots | None = None, lost: LostChangelog = LostChangelog.STOP) -> Standbys:
        world, topic = self, self.cluster.topic(LOG)

        class Logs(FakeTopicLogs):
            async def follow(self, positions: Any, topic_ids: Any) -> Any:
                world.follows += 1
                return await super().follow(positions, topic_ids)

        logs = Logs(self.cluster, self.network, chunk_records=50)
        restorer = Restorer(logs, self.clock, clock_skew_margin_ms=1000, snapshots=snapshots, lost=lost)
        self.restorer = restorer
        changelog = Changelog("counts", LOG, topic.topic_id, HOUR_MS, 1_000_000, len(topic.partitions))
        return Standbys(
            [Spec(changelog)],  # type: ignore[list-item]
            logs=logs,
            stores=self.cache,
            clock=self.clock,
            clock_skew_margin_ms=1000,
            acceptable_lag=100,
            task_is_free=lambda task: task.partition not in self.owned,
            is_working=lambda: False,
            ask_for_rebalance=lambda: self.asked.append(self.clock.monotonic()),
            checks=StandbyChecks(FakeGroupView(self.cluster, self.network), restorer),
        )

    def put(self, key: str, value: str | None, partition: int = 0, *, epoch: int = 1) -> int:
        log = TopicPartition(LOG, partition)
        metadata = encode_metadata(epoch, self.cluster.topic(LOG).partitions[partition].end)
        return self.cluster.produce(
            log, [(key.encode(), None if value is None else value.encode(), [(METADATA_HEADER, metadata)])]
        )

    def fill(self, count: int, partition: int = 0) -> None:
        for number in range(count):
            self.put(f"k{number}", "1", partition)

    def compact(self) -> None:
        for log in self.cluster.topic(LOG).partitions:
            log.compact(self.clock.wall_ms(), log.end)

    def lose(self, end: int) -> None:
        """Have the log lose its tail, as in an unclean leader election."""
        log = self.cluster.topic(LOG).partitions[0]
        log._records, log.end = [record for record in log._records if record.offset < end], end

    def end(self, partition: int = 0) -> int:
        return self.cluster.topic(LOG).partitions[partition].end

    def content(self, partition: int = 0) -> dict[str, str]:
        return {key.decode(): raw[25:].decode() for key, raw in self.disk["counts", partition].scan()}

    def position(self, partition: int = 0) -> int:
        store = self.disk.get(("counts", partition))
        position = None if store is None else store.position()
        return -1 if position is None else position.changelog_offset

    async def until(self, condition: Any, seconds: float = 60.0) -> None:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110  virtual time
                await asyncio.sleep(0.01)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.loop.close()


def standby(*tasks: TaskId) -> Copies:
    return Copies(standbys=frozenset(tasks))


def warm_up(*tasks: TaskId) -> Copies:
    return Copies(warm_ups=frozenset(tasks), acceptable_lag=100)


def test_a_copy_is_what_a_restore_would_make_and_goes_on(world: World) -> None:
    async def test() -> None:
        world.fill(300)
        world.put("k3", None)
        world.copies.assign(standby(ZERO))
        await world.until(lambda: world.position() == world.end())
        world.put("k4", "2", epoch=3)
        world.put("other", "1", partition=1)
        await world.until(lambda: world.position() == world.end())
        assert len(world.content()) == 299
        assert world.content()["k4"] == "2"
        assert ("counts", 1) not in world.disk
        logs = FakeTopicLogs(world.cluster, world.network, chunk_records=50)
        restorer = Restorer(logs, world.clock, clock_skew_margin_ms=1000)
        changelog = world.copies._specs["count"].changelogs["counts"]
        restored = await restorer.restore(MemoryStore(), changelog, 0)
        assert dict(restored.store.scan()) == dict(world.disk["counts", 0].scan())
        kept = world.disk["counts", 0].position()
        assert kept is not None
        assert (
            (kept.epoch, kept.source_offset) == (restored.position.epoch, restored.position.source_offset) == (3, 302)
        )

    world.run(test())


def test_it_says_what_it_lacks_and_since_when(world: World) -> None:
    async def test() -> None:
        world.fill(10)
        world.copies.assign(standby(ZERO))
        await world.until(lambda: world.copies.lags().get(ZERO) == 0)
        await world.until(lambda: world.copies.stores_of("count", 0) is not None)
        (state,) = world.copies.copies
        assert (state.actor, state.store, state.partition, state.role) == ("count", "counts", 0, Role.STANDBY)
        assert (state.position, state.lag) == (10, 0)
        assert state.current_ms is not None
        assert 0 <= world.clock.wall_ms() - state.looked_ms < 2500
        assert world.copies.assigned() == {"count": {"standby": 1, "warm-up": 0}}
        await asyncio.sleep(5)
        found = world.copies.stores_of("count", 0)
        assert found is not None
        assert world.clock.wall_ms() - found[1] < 2500
        world.network.cut_off.add("")
        await asyncio.sleep(30)
        found = world.copies.stores_of("count", 0)
        assert found is not None, "it still has what it had"
        assert world.clock.wall_ms() - found[1] >= 29_000
        assert world.copies.lags() == {}, "nobody knows what it lacks"
        (state,) = world.copies.copies
        assert state.lag is None
        assert 25_000 < world.clock.wall_ms() - state.looked_ms < 33_000
        world.network.cut_off.clear()
        world.put("new", "1")
        await world.until(lambda: world.content().get("new") == "1")

    world.run(test())


def test_nothing_is_written_that_isnt_committed(world: World) -> None:
    async def test() -> None:
        world.copies.assign(standby(ZERO))
        transactions, home = world.cluster.transactions, TopicPartition(LOG, 0)
        epoch = transactions.init_producer_id("p", 60.0)
        world.cluster.produce_in_transaction("p", epoch, home, [(b"a", b"no", [])])
        await asyncio.sleep(5)
        assert world.copies.lags() == {ZERO: 1}
        transactions.end("p", epoch, commit=False)
        world.put("b", "yes")
        await world.until(lambda: world.content() == {"b": "yes"})

    world.run(test())


@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize("lost", [LostChangelog.STOP, LostChangelog.RESTORE, LostChangelog.REBUILD])
def test_a_copy_of_what_the_log_lost_is_kept_until_it_may_be_rebuilt(
    world: World, caplog: pytest.LogCaptureFixture, lost: LostChangelog, grows: bool
) -> None:
    async def test() -> None:
        world.fill(20)
        world.copies.assign(standby(ZERO))
        await world.until(lambda: world.position() == 20)
        before = world.content()
        await world.copies.stop()
        world.lose(10)
        for number in range(20 if grows else 5):
            world.put(f"new{number}", "1", epoch=2)
        world.copies = world.start(lost=lost)
        world.copies.assign(standby(ZERO))
        world.copies.start()
        if lost is LostChangelog.REBUILD:
            await world.until(lambda: world.position() == world.end())
            assert world.content() == {
                **{f"k{number}": "1" for number in range(10)},
                **{f"new{number}": "1" for number in range(20 if grows else 5)},
            }
            return
        await asyncio.sleep(20)
        assert world.content() == before
        assert world.copies.stores_of("count", 0) is None
        assert 'lost_changelog="rebuild"' in caplog.text

    world.run(test())


def test_from_let_go_on_nothing_is_written(world: World) -> None:
    async def test() -> None:
        world.fill(500)
        world.copies.assign(standby(ZERO, ONE))
        await world.until(lambda: world.position() > 0)
        world.copies.assign(standby(ONE))
        await world.copies.release("count", 0)
        stopped = world.position()
        assert stopped < 500
        world.put("b", "1", partition=1)
        await world.until(lambda: world.content(1) == {"b": "1"})
        await asyncio.sleep(5)
        assert world.position() == stopped

    world.run(test())


def test_let_go_waits_for_what_happens_in_a_thread(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []

    async def slow(function: Any, *args: Any) -> Any:
        steps.append("begins")
        await asyncio.sleep(3)
        steps.append("ends")
        return function(*args)

    async def test() -> None:
        world.fill(10)
        world.copies.assign(standby(ZERO))
        await world.until(lambda: world.position() == 10)
        monkeypatch.setattr(module, "finish_in_thread", slow)
        world.cluster.topic(LOG).partitions[0].delete_before(10)
        world.disk["counts", 0].apply([], _at(world, 3))
        world.copies.assign(Copies())
        await asyncio.sleep(1)
        world.copies.assign(standby(ZERO))
        await world.until(lambda: steps == ["begins"])
        await world.copies.release("count", 0)
        assert steps == ["begins", "ends"]

    world.run(test())


def _at(world: World, offset: int) -> Any:
    position = world.disk["counts", 0].position()
    assert position is not None
    return replace(position, changelog_offset=offset)


def test_a_partition_whose_task_hasnt_ended_is_left_alone(world: World) -> None:
    async def test() -> None:
        world.fill(10)
        world.fill(10, partition=1)
        world.owned.add(0)
        world.copies.assign(standby(ZERO, ONE))
        await world.until(lambda: world.position(1) == 10)
        await asyncio.sleep(5)
        assert ("counts", 0) not in world.disk
        world.owned.clear()
        await world.until(lambda: world.position() == 10)

    world.run(test())


def test_copies_that_remain_are_followed_through_a_rebalance(world: World) -> None:
    async def test() -> None:
        world.fill(10)
        world.copies.assign(standby(ZERO))
        await world.until(lambda: world.position() == 10)
        before = world.follows
        for role in (warm_up, standby, standby):
            world.copies.assign(role(ZERO))
            world.put("a", "1")
            await world.until(lambda: world.position() == world.end())
        assert world.follows == before

    world.run(test())


def test_restores_go_first(world: World) -> None:
    async def test() -> None:
        world.fill(500)
        world.restorer._reading = 1
        world.copies.assign(standby(ZERO))
        await asyncio.sleep(5)
        assert world.position() <= 0
        world.restorer._reading = 0
        await world.until(lambda: world.position() == 500)

    world.run(test())


async def miss_a_delete(world: World) -> None:
    """Follow up to the end, lose the brokers, and have k3 deleted and k4 written meanwhile."""
    world.fill(10)
    world.copies.assign(standby(ZERO))
    await world.until(lambda: world.copies.stores_of("count", 0) is not None)
    world.network.cut_off.add("")
    await asyncio.sleep(5)
    world.put("k3", None)
    world.put("k4", "2")


@pytest.mark.parametrize("how", ["long away", "log begins later"])
def test_what_may_lack_deletes_is_built_anew(world: World, how: str, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        await miss_a_delete(world)
        world.put("k5", "2")
        world.compact()
        if how == "long away":
            await asyncio.sleep(3700)
            world.compact()
        else:
            await asyncio.sleep(100)
            world.cluster.topic(LOG).partitions[0].delete_before(11)
        world.network.cut_off.clear()
        await world.until(lambda: world.content().get("k5") == "2" and world.position() == world.end())
        assert "k3" not in world.content()

    with caplog.at_level(logging.WARNING):
        world.run(test())
    assert "rebuilding the copy" in caplog.text


@pytest.mark.nightly
def test_an_idle_copy_stays_current_and_its_disk_learns_it(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        world.fill(10)
        world.copies.assign(standby(ZERO))
        await asyncio.sleep(3 * 3600)
        position = world.disk["counts", 0].position()
        assert position is not None
        assert world.clock.wall_ms() - position.wall_time_ms < 70_000
        world.put("k3", None)
        await world.until(lambda: "k3" not in world.content())

    with caplog.at_level(logging.WARNING):
        world.run(test())
    assert "anew" not in caplog.text


def test_an_old_copy_of_an_idle_log_is_followed_on(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        world.fill(10)
        world.copies.assign(standby(ZERO))
        await world.until(lambda: world.position() == 10)
        world.copies.assign(Copies())
        await asyncio.sleep(3 * 3600)
        world.copies.assign(standby(ZERO))
        world.put("k3", None)
        await world.until(lambda: "k3" not in world.content())

    with caplog.at_level(logging.WARNING):
        world.run(test())
    assert "anew" not in caplog.text


def test_a_warm_up_asks_for_a_rebalance_once_it_is_warm(world: World) -> None:
    async def test() -> None:
        world.fill(1_000)
        world.fill(50, partition=1)
        world.network.cut_off.add("")
        world.copies.assign(warm_up(ZERO, ONE))
        await asyncio.sleep(20)
        assert world.asked == []
        world.network.cut_off.clear()
        await world.until(lambda: len(world.asked) == 1)
        assert all(lag <= 100 for lag in world.copies.lags().values())
        world.copies.assign(standby(ZERO))
        await asyncio.sleep(300)
        assert len(world.asked) == 1

    world.run(test())


def test_asking_in_vain_gets_seldom(world: World) -> None:
    async def test() -> None:
        world.fill(10)
        world.copies.assign(warm_up(ZERO))
        for asked in range(1, 10):
            await world.until(lambda asked=asked: len(world.asked) == asked, 70)
            world.copies.assign(warm_up(ZERO))

    world.run(test())
    pauses = [later - earlier for earlier, later in zip(world.asked, world.asked[1:], strict=False)]
    assert pauses[0] >= 5
    assert pauses[-1] >= 60


def test_a_leader_with_a_smaller_limit_isnt_asked_in_vain(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A log of which the copy lacks some all the time: within its own limit, not within the leader's."""

    async def test() -> None:
        transactions, home = world.cluster.transactions, TopicPartition(LOG, 0)
        epoch = transactions.init_producer_id("p", 1e9)
        world.cluster.produce_in_transaction("p", epoch, home, [(b"open", b"1", [])] * 50)
        for _ in range(10):
            world.copies.assign(replace(warm_up(ZERO), acceptable_lag=10))
            await asyncio.sleep(30)
        assert world.copies.lags() == {ZERO: 50}
        assert world.asked == []
        transactions.end("p", epoch, commit=True)
        await world.until(lambda: len(world.asked) == 1)

    world.run(test())
    assert caplog.text.count("the group's leader has acceptable_recovery_lag=10, this worker 100") == 1


def test_a_warm_copy_asks_for_nothing_right_after_a_rebalance(world: World) -> None:
    """Of many members that get warm one after the other each would stop the group."""

    async def test() -> None:
        world.fill(10)
        for _ in range(20):
            world.copies.assign(warm_up(ZERO))
            await asyncio.sleep(4)
        assert world.asked == []
        await world.until(lambda: len(world.asked) == 1, 3)

    world.run(test())


def test_standbys_ask_for_nothing(world: World) -> None:
    async def test() -> None:
        world.fill(10)
        world.copies.assign(standby(ZERO))
        await asyncio.sleep(60)
        assert world.asked == []

    world.run(test())


def test_lost_requests_lose_nothing(world: World) -> None:
    async def test() -> None:
        world.copies.assign(standby(ZERO, ONE))
        world.network.conditions.odds = {"lost": 0.2, "answer lost": 0.2}
        for number in range(200):
            world.put(f"k{number % 17}", str(number))
            await asyncio.sleep(0.3)
        world.network.conditions.odds = {}
        await world.until(lambda: world.content() == {f"k{n % 17}": str(n) for n in range(183, 200)})

    world.run(test())


def test_the_tests_see_a_copy_that_doesnt_look_at_its_age(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (restore, follower):
        monkeypatch.setattr(place, "why_not_followed", lambda *args, **kwargs: None)
    monkeypatch.setattr(StandbyStore, "is_too_old", lambda *_: False)

    async def test() -> None:
        await miss_a_delete(world)
        world.compact()
        await asyncio.sleep(3700)
        world.compact()
        world.network.cut_off.clear()
        await world.until(lambda: world.content().get("k4") == "2")
        assert "k3" in world.content()

    world.run(test())


def test_bounds_are_asked_for_in_measure(world: World) -> None:
    """One look a second, whatever comes."""
    asked: list[float] = []
    bounds = FakeTopicLogs.bounds

    async def counted(self: Any, partition: TopicPartition) -> LogBounds:
        asked.append(world.clock.monotonic())
        return await bounds(self, partition)

    async def test() -> None:
        world.copies.assign(standby(ZERO))
        for number in range(1_000):
            world.put(f"k{number}", "1")
            await asyncio.sleep(0.01)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeTopicLogs, "bounds", counted)
        world.run(test())
    assert 8 <= len(asked) <= 14


def test_a_long_read_is_loaded_and_then_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONG_READ", 100)
    seen: list[str] = []
    for name in ("load", "settle"):
        monkeypatch.setattr(MemoryStore, name, _noted(getattr(MemoryStore, name), name, seen))

    async def test() -> None:
        world.fill(1_000)
        world.network.conditions = Conditions(latency_s=(0.2, 0.3))
        world.copies.assign(standby(ZERO))
        await world.until(lambda: world.position() > 100)
        assert world.copies.stores_of("count", 0) is None, "readers would wait long"
        await world.until(lambda: world.copies.stores_of("count", 0) is not None)
        world.put("a", "1")
        await world.until(lambda: world.position() == world.end())
        assert len(world.content()) == 1_001

    world.run(test())
    steps = [name for place, name in enumerate(seen) if not place or seen[place - 1] != name]
    assert steps == ["load", "settle"]


def _noted(method: Any, name: str, seen: list[str]) -> Any:
    def call(self: MemoryStore, *args: Any) -> Any:
        seen.append(name)
        return method(self, *args)

    return call


def test_a_bulk_load_that_nobody_wants_any_more_is_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONG_READ", 100)
    seen: list[str] = []
    monkeypatch.setattr(MemoryStore, "settle", _noted(MemoryStore.settle, "settle", seen))

    async def test() -> None:
        world.fill(2_000)
        world.network.conditions = Conditions(latency_s=(0.2, 0.3))
        world.copies.assign(standby(ZERO))
        await world.until(lambda: world.position() > 100)
        world.copies.assign(Copies())
        await world.until(lambda: seen == ["settle"])
        assert world.position() < 2_000

    world.run(test())
