"""Streams of a store's changes on a simulated broker, in virtual time: nothing is lost, and the slow are cut."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from random import Random
from typing import Any

import pytest

from actors import App, Context
from actors._core.partitioner import MURMUR2, partition_for
from actors._core.values.rows import encode_span, place_row, rows_prefix, span_key
from actors.ports import TopicPartition
from actors.testing.fakes.ports import FakeClock
from actors.testing.fakes.views import FakeTopicLogs
from actors.web.events import broadcast as broadcasts
from actors.web.events.broadcast import Broadcast
from actors.web.events.followers import MAX_WAITING_BYTES, EventStream
from actors.web.events.positions import StreamPosition
from actors.web.events.routes import Broadcasts
from actors.web.problems import Problem
from actors.web.queries.coding import StoreCoding
from stores._core.record import METADATA_HEADER, encode_metadata
from tests.sim.fakes.cluster import SimKafka
from tests.sim.fakes.loop import VirtualLoop
from tests.sim.fakes.network import Conditions, Network

HOUR_MS, MARGIN_MS = 3600 * 1000, 60_000
TOPIC, PARTITIONS = "changelog", 2


def make_coding() -> StoreCoding:
    app = App("broadcasts", broker="kafka://127.0.0.1:1")
    words = app.store("words", key_type=str, value_type=str)

    @app.actor(app.topic("in", key_type=str, value_type=str), stores=[words])
    async def talk(ctx: Context, word: str) -> None: ...

    return StoreCoding(words)


CODING = make_coding()


class World:
    """A cluster with a changelog, and broadcasts of it."""

    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.network = Network(Random(0), Conditions(latency_s=(0.0, 0.001)))
        self.cluster = SimKafka("group", marker_s=lambda: 0.0)
        self.cluster.make_topic(TOPIC, PARTITIONS, is_compacted=True, delete_retention_ms=HOUR_MS)
        self.clock = FakeClock()
        self.connections = 0
        self.broadcasts: list[Broadcast] = []

    def broadcast(self) -> Broadcast:
        async def connect() -> FakeTopicLogs:
            self.connections += 1
            return FakeTopicLogs(self.cluster, self.network, chunk_records=7)

        self.broadcasts.append(Broadcast(TOPIC, CODING, connect, self.clock, MARGIN_MS))
        return self.broadcasts[-1]

    def put(self, key: str, value: str | None, *, expires_at_ms: int = 0) -> int:
        headers = [(METADATA_HEADER, encode_metadata(1, 1, expires_at_ms))]
        source = TopicPartition(TOPIC, partition_for(key.encode(), PARTITIONS))
        raw = None if value is None else value.encode()
        return self.cluster.produce(source, [(key.encode(), raw, headers)])

    def run(self, test: Callable[[], Awaitable[None]]) -> None:
        async def in_time() -> None:
            async with asyncio.timeout(600):
                await test()
                for broadcast in self.broadcasts:
                    await broadcast.close()

        self.loop.run_until_complete(in_time())


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.loop.close()


class Reader:
    """What a client reads of a stream."""

    def __init__(self, broadcast: Broadcast, follower: EventStream) -> None:
        self._broadcast, self._follower = broadcast, follower
        self._chunks: AsyncIterator[bytes] = follower.chunks()
        self._blocks: list[str] = []
        self.last_id = ""

    async def event(self) -> tuple[str, Any]:
        """Give the next event."""
        while True:
            while not self._blocks:
                self._blocks = (await anext(self._chunks)).decode().split("\n\n")[:-1]
            fields = dict(line.split(": ", 1) for line in self._blocks.pop(0).split("\n"))
            self.last_id = fields.get("id", self.last_id)
            if "data" in fields:
                return fields["event"], json.loads(fields["data"])

    async def values(self, count: int) -> list[tuple[str, Any]]:
        """Give the keys and values of the next changes."""
        found = []
        for _ in range(count):
            kind, change = await self.event()
            assert kind == "change", change
            found.append((change["key"], change["value"]))
        return found

    def leave(self) -> None:
        """Hang up."""
        self._broadcast.leave(self._follower)


async def follow(broadcast: Broadcast, key: str | None = None, position: str | None = None, **options: Any) -> Reader:
    raw = None if key is None else key.encode()
    at = None if position is None else StreamPosition.parse(position)
    home = lambda count: None if raw is None else MURMUR2.home(raw, count)  # noqa: E731
    return Reader(broadcast, await broadcast.follow(raw, home, at, **options))


def test_a_follower_gets_what_is_committed_of_its_key_from_now_on(world: World) -> None:
    async def test() -> None:
        world.put("a", "before")
        broadcast = world.broadcast()
        reader = await follow(broadcast, "a")
        assert (await reader.event())[0] == "position"
        for key, value in (("a", "1"), ("b", "1"), ("a", "2"), ("a", None)):
            world.put(key, value, expires_at_ms=5_000 if value == "2" else 0)
        kind, change = await reader.event()
        assert (kind, change["key"], change["value"], change["deleted"]) == ("change", "a", "1", False)
        assert (await reader.event())[1]["expires_at_ms"] == 5_000
        assert (await reader.event())[1]["deleted"] is True
        await broadcast.close()
        assert (await reader.event())[0] == "closed"

    world.run(test)


def test_all_followers_share_one_connection(world: World) -> None:
    async def test() -> None:
        broadcast = world.broadcast()
        readers = [await follow(broadcast, f"k{number % 10}") for number in range(100)]
        everything = await follow(broadcast)
        for reader in (*readers, everything):
            await reader.event()
        for number in range(10):
            world.put(f"k{number}", "x")
        for number, reader in enumerate(readers):
            assert await reader.values(1) == [(f"k{number % 10}", "x")]
        assert sorted(await everything.values(10)) == [(f"k{number}", "x") for number in range(10)]
        assert world.connections == 1
        await broadcast.close()

    world.run(test)


@pytest.mark.parametrize("key", [None, "k3"])
def test_a_client_that_comes_again_misses_nothing(world: World, key: str | None) -> None:
    """It hangs up in the middle of things, and comes to another worker, again and again."""

    async def test() -> None:
        chance, got, last_id, sent = Random(1), [], None, []

        async def write() -> None:
            for number in range(300):
                name = f"k{number % 7}"
                world.put(name, str(number))
                if key in (None, name):
                    sent.append((name, str(number)))
                await asyncio.sleep(chance.random() / 100)

        reader = await follow(world.broadcast(), key)
        await reader.event()
        writing = asyncio.create_task(write())
        while not writing.done() or len(got) < len(sent):
            for _ in range(chance.randrange(1, 30)):
                if len(got) < len(sent):
                    got += await reader.values(1)
                else:
                    await asyncio.sleep(0.001)
            reader.leave()
            last_id = reader.last_id
            await asyncio.sleep(chance.random() / 10)
            broadcast = world.broadcast()
            reader = await follow(broadcast, key, last_id)
            assert (await reader.event())[0] == "position"
        in_order = sorted(got, key=lambda pair: int(pair[1]))
        assert in_order == sent
        await writing

    world.run(test)


def test_what_becomes_visible_late_is_followed_too(world: World) -> None:
    """A transaction that is open when a client begins to follow is committed afterwards."""

    async def test() -> None:
        transactions = world.cluster.transactions
        epoch = transactions.init_producer_id("writer", 60.0)
        source = TopicPartition(TOPIC, partition_for(b"a", PARTITIONS))
        world.cluster.produce_in_transaction("writer", epoch, source, [(b"a", b"late", [])])
        reader = await follow(world.broadcast(), "a")
        await reader.event()
        transactions.end("writer", epoch, commit=True)
        assert await reader.values(1) == [("a", "late")]

    world.run(test)


def test_a_position_of_a_query_is_a_place_to_begin(world: World) -> None:
    async def test() -> None:
        partition = partition_for(b"a", PARTITIONS)
        offsets = [world.put("a", str(number)) for number in range(5)]
        broadcast = world.broadcast()
        reader = await follow(broadcast, "a", f"{partition}:{offsets[3]}")
        assert (await reader.event())[0] == "position"
        assert await reader.values(2) == [("a", "3"), ("a", "4")]
        # The owner's answer may be ahead of the broadcast.
        ahead = await follow(broadcast, "a", f"{partition}:{offsets[4] + 1}")
        await ahead.event()
        world.put("a", "5")
        assert await ahead.values(1) == [("a", "5")]

    world.run(test)


@pytest.mark.parametrize("what", ["other log", "ahead", "too old"])
def test_a_position_that_is_lost_resets_the_client(world: World, what: str) -> None:
    async def test() -> None:
        partition = partition_for(b"a", PARTITIONS)
        world.put("a", "1")
        broadcast = world.broadcast()
        reader = await follow(broadcast, "a")
        await reader.event()
        offsets, _, rest = reader.last_id.partition("@")
        position = {
            "other log": f"{offsets}@00000000.{rest.partition('.')[2]}",
            "ahead": f"{partition}:1000",
            "too old": f"{offsets}@{rest.partition('.')[0]}.{(world.clock.wall_ms() - HOUR_MS) // 1000}",
        }[what]
        again = await follow(broadcast, "a", position)
        kind, content = await again.event()
        assert kind == "reset"
        assert "read the state again" in content["reason"]
        world.put("a", "2")
        assert await again.values(1) == [("a", "2")]

    world.run(test)


def test_a_slow_client_is_cut_and_can_resume_while_others_go_on(world: World) -> None:
    async def test() -> None:
        broadcast = world.broadcast()
        slow, quick = await follow(broadcast), await follow(broadcast)
        await slow.event()
        await quick.event()
        text = "x" * 10_000
        count = 2 * MAX_WAITING_BYTES // len(text)
        for number in range(count):
            world.put("a", f"{number} {text}")
            assert (await quick.values(1))[0][1] == f"{number} {text}"
        kind, content = await slow.event()
        assert kind == "cut"
        assert "reads too slowly" in content["reason"]
        assert broadcast.followers == 2
        slow.leave()
        assert broadcast.followers == 1
        resumed = await follow(broadcast, None, slow.last_id)
        await resumed.event()
        assert [value.split()[0] for _, value in await resumed.values(count)] == [str(n) for n in range(count)]

    world.run(test)


def test_a_client_whose_share_is_taken_is_cut(world: World) -> None:
    async def test() -> None:
        def take(size: int) -> None:
            if size > 1_000:
                raise Problem(503, "busy", "", "")

        broadcast = world.broadcast()
        reader = await follow(broadcast, "a", take=take)
        await reader.event()
        world.put("a", "x" * 2_000)
        assert (await reader.event())[0] == "cut"

    world.run(test)


def test_a_client_is_told_of_time_while_nothing_changes(world: World) -> None:
    async def test() -> None:
        broadcast = world.broadcast()
        reader = await follow(broadcast, "a")
        await reader.event()
        before = reader.last_id
        partition = partition_for(b"a", PARTITIONS)
        other = next(key for key in "bcdefgh" if partition_for(key.encode(), PARTITIONS) == partition)
        world.put(other, "1")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(20):
                await reader.event()
        assert reader.last_id.partition("@")[0] != before.partition("@")[0]

    world.run(test)


def test_a_changelog_that_is_made_again_ends_its_streams(world: World) -> None:
    async def test() -> None:
        broadcast = world.broadcast()
        reader = await follow(broadcast, "a")
        await reader.event()
        world.cluster.delete_topic(TOPIC)
        world.cluster.make_topic(TOPIC, PARTITIONS, is_compacted=True)
        assert (await reader.event())[0] == "cut"
        again = await follow(broadcast, "a", reader.last_id)
        assert (await again.event())[0] == "reset"
        world.put("a", "1")
        assert await again.values(1) == [("a", "1")]

    world.run(test)


def test_there_is_a_limit_of_followers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr(broadcasts, "MAX_FOLLOWERS", 2)
        broadcast = world.broadcast()
        readers = [await follow(broadcast, "a"), await follow(broadcast)]
        with pytest.raises(Problem, match="2 clients follow words"):
            await follow(broadcast, "a")
        readers[0].leave()
        await follow(broadcast, "a")

    world.run(test)


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "1", "1:", ":1", "1:2,", "1:2,1:3", "-1:2", "1:-2", "1:99999999999999999999", "1:2@", "1:2@a"),
        *("1:2@!.1", "1:9300000000000000000", "1:2\n", "\u0661:\u0662", "0:1," * 3_000),
    ],
)
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(Problem, match="is no position"):
        StreamPosition.parse(text)


def test_a_position_of_other_partitions_is_refused(world: World) -> None:
    async def test() -> None:
        with pytest.raises(Problem, match="names partitions other than"):
            await follow(world.broadcast(), "a", "7:1")

    world.run(test)


def test_positions_are_read_back() -> None:
    position = StreamPosition({0: 5, 11: 7}, "1c2d3e4f", 1_700_000_000)
    assert StreamPosition.parse(str(position)) == position
    assert StreamPosition.parse("3:1841") == StreamPosition({3: 1841})


def test_of_rows_below_a_key_each_is_an_event_and_their_count_is_none(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App("broadcasts", broker="kafka://127.0.0.1:1")
    lines = app.list_store("lines", key_type=str, value_type=str)

    @app.actor(app.topic("in", key_type=str, value_type=str), stores=[lines])
    async def talk(ctx: Context, word: str) -> None: ...

    def append(key: str, place: int) -> None:
        raw, headers = key.encode(), [(METADATA_HEADER, encode_metadata(1, 1))]
        rows = [
            (rows_prefix(raw) + place_row(place), f"{key} {place}".encode(), headers),
            (span_key(raw), encode_span(0, place + 1), headers),
        ]
        world.cluster.produce(TopicPartition(TOPIC, partition_for(raw, PARTITIONS)), rows)

    async def test() -> None:
        async def connect(_: Broadcasts) -> FakeTopicLogs:
            return FakeTopicLogs(world.cluster, world.network, chunk_records=7)

        monkeypatch.setattr(Broadcasts, "_connect", connect)
        broadcasts = Broadcasts(app)
        monkeypatch.setattr("actors.web.events.routes.changelog_topic", lambda app, name: TOPIC)
        room, whole = Reader(*await broadcasts.follow("lines", "room")), Reader(*await broadcasts.follow("lines", None))
        assert [(await reader.event())[0] for reader in (room, whole)] == ["position", "position"]
        for key, place in (("room", 0), ("hall", 0), ("room", 1)):
            append(key, place)
        assert await room.values(2) == [(["room", 0], "room 0"), (["room", 1], "room 1")]
        assert sorted(await whole.values(3)) == [
            (["hall", 0], "hall 0"),
            (["room", 0], "room 0"),
            (["room", 1], "room 1"),
        ]
        append("room", 2)
        again = Reader(*await broadcasts.follow("lines", "room", position=room.last_id))
        assert (await again.event())[0] == "position"
        assert await again.values(1) == [(["room", 2], "room 2")]
        await broadcasts.close()

    world.run(test)
