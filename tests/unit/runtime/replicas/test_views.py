"""Views on a simulated broker, in virtual time: what they hold, how they follow, what they build anew."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from actors import ConfigurationError, UnknownTopicError, ViewClosedError, ViewFailedError, ViewTimeoutError
from actors._core.partitioner import partition_for
from actors._faust.views import copy_stores
from actors.ports import TopicPartition
from actors.runtime.replicas.view_replica import ViewParts, ViewReplicaStores
from actors.runtime.replicas.views import TopicView, ViewCodecs
from actors.testing.fakes.ports import FakeClock
from actors.testing.fakes.views import FakeFollowing, FakeTopicLogs
from stores._core.record import METADATA_HEADER, encode_metadata
from stores.errors import StoreUnavailableError
from tests.sim.fakes.cluster import SimKafka
from tests.sim.fakes.loop import VirtualLoop
from tests.sim.fakes.network import Conditions, Network

HOUR_MS = 3600 * 1000
SECOND = timedelta(seconds=1)


class World:
    """A cluster with the compacted topic `t`, and views of it."""

    def __init__(self, partitions: int = 2, **topic: Any) -> None:
        self.loop = VirtualLoop()
        self.network = Network(Random(0), Conditions(latency_s=(0.0, 0.001)))
        self.cluster = SimKafka("group", marker_s=lambda: 0.0)
        self.cluster.make_topic("t", partitions, **{"is_compacted": True, **topic})
        self.clock = FakeClock()
        self.read: list[int] = []
        self.read_s, self.step_ms = 0.0, 0
        self.happening: Callable[[], object] | None = None
        self.run = self.loop.run_until_complete

    def view(self, folder: Path | None = None, *, margin_ms: int = 0, chunk_records: int = 500) -> TopicView[str, str]:
        world = self

        class Logs(FakeTopicLogs):
            async def read(self, partition: TopicPartition, start: int, end: int, topic_id: str) -> Any:
                async for records, reached in super().read(partition, start, end, topic_id):
                    world.read.append(len(records))
                    await asyncio.sleep(world.read_s)
                    world.clock.wall_offset_ms = world.step_ms
                    happening, world.happening = world.happening, None
                    if happening is not None:
                        happening()
                    yield records, reached

        async def connect() -> ViewParts:
            logs = Logs(self.cluster, self.network, chunk_records=chunk_records)
            return ViewParts(logs, copy_stores("t", folder), self.clock, margin_ms)

        codecs = ViewCodecs(str.encode, bytes.decode, bytes.decode)
        return TopicView(lambda: "t", codecs=lambda: codecs, connect=connect)

    def put(
        self, key: str, value: str | None, *, expires_at_ms: int | None = None, partition: int | None = None
    ) -> int:
        headers = [] if expires_at_ms is None else [(METADATA_HEADER, encode_metadata(1, 1, expires_at_ms))]
        raw = None if value is None else value.encode()
        count = len(self.cluster.topic("t").partitions)
        home = partition_for(key.encode(), count) if partition is None else partition
        return self.cluster.produce(TopicPartition("t", home), [(key.encode(), raw, headers)])


@pytest.fixture(params=["memory", "disk"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "view" if request.param == "disk" else None


@pytest.fixture
def world() -> Iterator[World]:
    made = World(delete_retention_ms=HOUR_MS)
    yield made
    made.loop.close()


# --- what it holds ----------------------------------------------------------------------------------------------------


def test_it_holds_the_last_value_of_each_key_and_follows(world: World, folder: Path | None):
    async def test() -> None:
        for key, value in (("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), ("b", None)):
            world.put(key, value)
        async with world.view(folder) as view:
            assert dict(view.items()) == {"a": "2", "c": "1"}
            assert len(view) == 2
            assert "a" in view
            assert "b" not in view
            assert view.get("b", "none") == "none"
            world.put("b", "3")
            world.put("a", None)
            world.put("a", None)
            await view.caught_up()
            assert list(view.items()) == [("b", "3"), ("c", "1")]
            for number in range(20):
                world.put(f"k{number:02}", str(number))
            await view.caught_up()
            assert [key for key, _ in view.prefix("k0")] == [f"k0{number}" for number in range(10)]
            assert [key for key, _ in view.range("k03", "k06")] == ["k03", "k04", "k05"]
            assert [key for key, _ in view.range("k03", "k06", reverse=True)] == ["k05", "k04", "k03"]
        with pytest.raises(ViewClosedError, match="isn't open"):
            view.get("a")

    world.run(test())


def test_what_isnt_committed_isnt_seen(world: World):
    async def test() -> None:
        transactions = world.cluster.transactions
        epoch = transactions.init_producer_id("p", 60.0)
        home = TopicPartition("t", partition_for(b"a", 2))
        async with world.view() as view:
            for end, seen in ((False, None), (True, "new")):
                world.cluster.produce_in_transaction("p", epoch, home, [(b"a", b"new", [])])
                with pytest.raises(ViewTimeoutError, match="isn't caught up after 2 s"):
                    await view.caught_up(timeout=2 * SECOND)
                assert view.get("a") is None
                transactions.end("p", epoch, commit=end)
                await view.caught_up(timeout=2 * SECOND)
                assert view.get("a") == seen
                epoch = transactions.init_producer_id("p", 60.0)

    world.run(test())


def test_expired_keys_read_as_absent(world: World, folder: Path | None):
    async def test() -> None:
        now_ms = world.clock.wall_ms()
        world.put("a", "1", expires_at_ms=now_ms + 5_000)
        async with world.view(folder) as view:
            world.put("b", "1", expires_at_ms=now_ms + 9_000)
            await view.caught_up()
            assert dict(view.items()) == {"a": "1", "b": "1"}
            await asyncio.sleep(6)
            assert "a" not in view
            assert dict(view.items()) == {"b": "1"}
            gone = await view.wait_for("b", predicate=lambda value: value is None, timeout=10 * SECOND)
            assert gone is None
            assert len(view) == 0

    world.run(test())


def test_a_key_is_found_where_another_partitioner_put_it(world: World):
    async def test() -> None:
        away = 1 - partition_for(b"a", 2)
        world.put("a", "1", partition=away)
        async with world.view() as view:
            assert view.get("a") == "1"
            assert "nobody" not in view

    world.run(test())


# --- while it follows -------------------------------------------------------------------------------------------------


def changes_of(view: TopicView[str, str]) -> list[tuple[str, str | None, str | None]]:
    seen: list[tuple[str, str | None, str | None]] = []
    view.on_change(lambda *change: seen.append(change))
    return seen


def test_a_topic_that_is_made_anew_takes_the_old_ones_place_as_a_whole(world: World, folder: Path | None):
    async def test() -> None:
        for key in ("a", "b", "c"):
            world.put(key, "1")
        async with world.view(folder) as view:
            seen = changes_of(view)
            world.cluster.make_topic("t", 3, is_compacted=True)
            world.put("b", "1")
            world.put("c", "2")
            world.put("d", "1")
            await view.caught_up(timeout=5 * SECOND)
            await asyncio.sleep(1)
            assert dict(view.items()) == {"b": "1", "c": "2", "d": "1"}
            held: dict[str, str | None] = {"a": "1", "b": "1", "c": "1"}
            for key, old, new in seen:
                assert held.get(key) == old
                held[key] = new
            assert held == {"a": None, "b": "1", "c": "2", "d": "1"}
            world.put("a", "9")
            assert await view.wait_for("a", timeout=SECOND) == "9"
            world.cluster.make_topic("t", 2, is_compacted=True)
            for key, value in (("a", "9"), ("b", "1"), ("c", "2"), ("d", "1")):
                world.put(key, value)
            await view.caught_up(timeout=5 * SECOND)
            assert len(view) == 4
        async with world.view(folder) as again:
            assert dict(again.items()) == {"a": "9", "b": "1", "c": "2", "d": "1"}

    world.run(test())


def test_records_of_a_topic_made_anew_are_never_applied_on_top_of_the_old_ones(world: World):
    async def test() -> None:
        world.put("a", "1", partition=0)
        async with world.view() as view:
            world.cluster.recreate_topic("t")
            for key in "cd":
                world.put(key, "1", partition=0)
            for _ in range(2_000):
                assert (held := set(view.items())) in ({("a", "1")}, {("c", "1"), ("d", "1")})
                await asyncio.sleep(0.01)
            assert len(held) == 2

    world.run(test())


def test_a_topic_that_is_gone_for_a_while_keeps_its_content(world: World, caplog):
    async def test() -> None:
        world.put("a", "1")
        async with world.view() as view:
            world.cluster.delete_topic("t")
            await asyncio.sleep(0)
            with caplog.at_level(logging.WARNING):
                await asyncio.sleep(40)
            assert view.get("a") == "1"
            world.cluster.make_topic("t", 2, is_compacted=True)
            world.put("b", "1")
            assert await view.wait_for("b", timeout=30 * SECOND) == "1"
            assert "a" not in view

    world.run(test())
    assert "isn't on the broker" in caplog.text


def test_new_partitions_end_the_view(world: World, tmp_path: Path):
    async def test() -> None:
        world.put("a", "1")
        async with world.view(tmp_path / "v") as view:
            waiting = asyncio.create_task(view.wait_for("nobody"))
            world.cluster.grow_topic("t", 3)
            with pytest.raises(ViewFailedError, match="t has 3 partitions, the view holds 2"):
                await waiting
            with pytest.raises(ViewFailedError, match="3 partitions"):
                view.get("a")
        with pytest.raises(ConfigurationError, match="3 partitions, the view holds 2"):
            await world.view(tmp_path / "v").open()
        async with world.view() as fresh:
            assert fresh.get("a") == "1"

    world.run(test())


def test_a_process_that_stood_still_builds_anew_what_may_have_escaped_it(world: World, folder: Path | None):
    async def test() -> None:
        for key in ("a", "b", "c", "d", "e", "f"):
            world.put(key, "1")
        async with world.view(folder) as view:
            world.network.cut_off.add("")
            for key in ("a", "b"):
                world.put(key, None)
            for key in ("c", "d", "e", "f"):
                world.put(key, "2")
            for log in world.cluster.topic("t").partitions:
                log.compact(world.clock.wall_ms(), log.end)
            await asyncio.sleep(3700)
            for log in world.cluster.topic("t").partitions:
                log.compact(world.clock.wall_ms(), log.end)
            assert "a" in view
            seen = changes_of(view)
            world.network.cut_off.clear()
            await view.caught_up(timeout=60 * SECOND)
            await asyncio.sleep(1)
            assert dict(view.items()) == {"c": "2", "d": "2", "e": "2", "f": "2"}
            assert sorted(seen) == [("a", "1", None), ("b", "1", None), *((k, "1", "2") for k in "cdef")]

    world.run(test())


@pytest.mark.nightly
def test_an_idle_view_stays_current_for_long(world: World, tmp_path: Path, caplog):
    async def test() -> None:
        world.put("a", "1")
        async with world.view(tmp_path / "v") as view:
            await asyncio.sleep(3 * 3600)
            world.put("b", "1")
            assert await view.wait_for("b", timeout=2 * SECOND) == "1"
        world.read.clear()
        for number in range(30):
            world.put(f"k{number}", "1")
        async with world.view(tmp_path / "v"):
            assert sum(world.read) <= 32

    with caplog.at_level(logging.WARNING):
        world.run(test())
    assert "anew" not in caplog.text


def test_a_view_that_is_always_a_little_behind_stays_current(caplog):
    world = World(partitions=1, delete_retention_ms=600_000)

    async def test() -> None:
        transactions, source = world.cluster.transactions, TopicPartition("t", 0)
        async with world.view() as view:
            for number in range(60):
                epoch = transactions.init_producer_id("p", 100.0)
                world.cluster.produce_in_transaction("p", epoch, source, [(b"a", b"%d" % number, [])])
                # Whenever somebody looks, an open transaction is in front of the log's end.
                await asyncio.sleep(20)
                transactions.end("p", epoch, commit=True)
                await asyncio.sleep(0.001)
            await view.caught_up()
            assert view.get("a") == "59"

    with caplog.at_level(logging.WARNING):
        world.run(test())
    world.loop.close()
    assert "anew" not in caplog.text


def test_caught_up_notices_a_new_topic_whose_offsets_go_on(world: World):
    async def test() -> None:
        for key in "abcd":
            world.put(key, "1")
        async with world.view() as view:
            world.cluster.make_topic("t", 2, is_compacted=True)
            for number in range(40):
                world.put(f"k{number}", "1")
            await view.caught_up(timeout=5 * SECOND)
            assert "a" not in view
            assert len(view) == 40

    world.run(test())


def test_lost_requests_lose_nothing(world: World):
    async def test() -> None:
        async with world.view() as view:
            world.network.conditions.odds = {"lost": 0.2, "answer lost": 0.2}
            for number in range(200):
                world.put(f"k{number % 17}", str(number))
                await asyncio.sleep(0.3)
            world.network.conditions.odds = {}
            await view.caught_up(timeout=60 * SECOND)
            assert dict(view.items()) == {f"k{n % 17}": str(n) for n in range(183, 200)}

    world.run(test())


def test_a_disk_that_is_full_for_a_while_loses_nothing(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from stores.rocks import RocksStore

    apply, state = RocksStore.apply, {"is_full": False}

    def refusing(self: Any, writes: Any, position: Any) -> None:
        if state["is_full"]:
            raise StoreUnavailableError("no space left")
        apply(self, writes, position)

    async def test() -> None:
        monkeypatch.setattr(RocksStore, "apply", refusing)
        reopen, reopened = ViewReplicaStores.reopen, []

        async def counted(self: Any, partition: int) -> Any:
            reopened.append(partition)
            return await reopen(self, partition)

        monkeypatch.setattr(ViewReplicaStores, "reopen", counted)
        async with world.view(tmp_path / "v") as view:
            seen = changes_of(view)
            state["is_full"] = True
            world.put("a", "1")
            await asyncio.sleep(20)
            assert "a" not in view
            state["is_full"] = False
            assert await view.wait_for("a", timeout=10 * SECOND) == "1"
            await view.callbacks_done()
            assert seen == [("a", None, "1")]
            assert len(reopened) > 2

    world.run(test())


# --- callbacks and waiting --------------------------------------------------------------------------------------------


def test_callbacks_see_each_change_once_in_order(world: World, caplog):
    async def test() -> None:
        world.put("before", "1")
        async with world.view(chunk_records=3) as view:
            seen, slow = changes_of(view), []

            def broken(key: str, old: str | None, new: str | None) -> None:
                raise ValueError("broken on purpose")

            async def later(key: str, old: str | None, new: str | None) -> None:
                await asyncio.sleep(0.01)
                slow.append((key, old, new))
                assert view.get(key) is not None or new is None

            view.on_change(broken)
            take_away = view.on_change(later)
            for value in ("1", "2", "2", None, None, "3"):
                world.put("a", value)
            await view.caught_up()
            await view.callbacks_done()
            expected = [("a", None, "1"), ("a", "1", "2"), ("a", "2", None), ("a", None, "3")]
            assert seen == expected
            assert slow == expected
            take_away()
            world.put("a", "4")
            await view.caught_up()
            await view.callbacks_done()
            assert slow == expected
            assert seen[-1] == ("a", "3", "4")

    with caplog.at_level(logging.ERROR):
        world.run(test())
    assert caplog.text.count("the callback for key 'a' failed; the view goes on") == 5


def test_what_doesnt_decode_doesnt_stop_the_view(world: World, caplog):
    async def test() -> None:
        async with world.view() as view:
            seen = changes_of(view)
            world.cluster.produce(TopicPartition("t", 0), [(b"bad", b"\xff", []), (None, b"no key", [])])
            world.put("a", "1")
            assert await view.wait_for("a") == "1"
            await view.callbacks_done()
            assert seen == [("a", None, "1")]
            with pytest.raises(UnicodeDecodeError):
                view.get("bad")

    world.run(test())


def test_wait_for_waits_until_it_is_so_or_time_is_over(world: World):
    async def test() -> None:
        async with world.view() as view:
            waiting = asyncio.create_task(view.wait_for("a"))
            fitting = asyncio.create_task(view.wait_for("a", predicate=lambda value: value == "3"))
            await asyncio.sleep(5)
            assert not waiting.done()
            world.put("a", "1")
            assert await waiting == "1"
            await asyncio.sleep(5)
            assert not fitting.done()
            world.put("a", "3")
            assert await fitting == "3"
            with pytest.raises(ViewTimeoutError, match="key 'b' is missing after 3 s"):
                await view.wait_for("b", timeout=3 * SECOND)
            hanging = asyncio.create_task(view.wait_for("b"))
            await asyncio.sleep(1)
        with pytest.raises(ViewClosedError):
            await hanging

    world.run(test())


def test_a_callback_may_close_the_view(world: World):
    async def test() -> None:
        view = world.view()

        async def stop(key: str, old: str | None, new: str | None) -> None:
            seen.append(key)
            await view.close()

        seen: list[str] = []
        view.on_change(stop)
        await view.open()
        world.put("a", "1")
        world.put("a", "2")
        await asyncio.sleep(1)
        assert seen == ["a"]
        await view.callbacks_done()
        assert [task.get_name() for task in asyncio.all_tasks() if "callbacks" in task.get_name()] == []

    world.run(test())


def test_an_unexpected_error_ends_the_view_and_is_said(world: World, monkeypatch: pytest.MonkeyPatch, caplog):
    async def test() -> None:
        async with world.view() as view:

            def broken(*_: Any) -> Any:
                raise RuntimeError("broken on purpose")

            monkeypatch.setattr("actors.runtime.replicas.follower.stored_writes", broken)
            world.put("a", "1")
            with pytest.raises(ViewFailedError, match="broken on purpose"):
                await view.wait_for("a", timeout=10 * SECOND)

    world.run(test())
    assert "the view of t ends" in caplog.text


def test_a_cancellation_that_nobody_asked_for_doesnt_stop_it(world: World, monkeypatch: pytest.MonkeyPatch):
    async def test() -> None:
        async with world.view() as view:
            poll, left = FakeFollowing.poll, [1, 2]

            async def cancelled(self: Any, timeout_s: float) -> Any:
                if left:
                    left.pop()
                    raise asyncio.CancelledError
                return await poll(self, timeout_s)

            monkeypatch.setattr(FakeFollowing, "poll", cancelled)
            await asyncio.sleep(3)
            world.put("a", "1")
            assert await view.wait_for("a", timeout=10 * SECOND) == "1"
            assert left == []

    world.run(test())


def test_it_may_be_closed_twice_and_opened_again(world: World, folder: Path | None):
    async def test() -> None:
        world.put("a", "1")
        view = world.view(folder)
        for _ in range(2):
            await view.open()
            assert view.get("a") == "1"
            await view.close()
            await view.close()

    world.run(test())


# --- what can't be ----------------------------------------------------------------------------------------------------


def test_topics_that_cant_be_a_view_are_refused():
    for options, margin_ms, error, text in (
        ({"is_compacted": False}, 0, ConfigurationError, "cleanup.policy=delete"),
        ({"delete_retention_ms": 100}, 1000, ConfigurationError, "delete.retention.ms=100"),
    ):
        world = World(**options)
        with pytest.raises(error, match=text):
            world.run(world.view(margin_ms=margin_ms).open())
        world.loop.close()
    world = World()
    world.cluster.delete_topic("t")
    with pytest.raises(UnknownTopicError, match="topic t isn't on the broker"):
        world.run(world.view().open())
    world.loop.close()
