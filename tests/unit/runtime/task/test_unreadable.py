"""Records that the client can't read: only they and their partition suffer, by the actor's policy."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from actors import App, Context, OnError, UndecodableRecordError
from actors._core.task.lifecycle import State
from actors._core.task.takeover import LogBounds
from actors._kafka.admin.owners import KafkaOwners, encode_owner
from actors.errors import UnreadableLogError, UnreadableRecordError
from actors.ports import InputRecord, OwnerRecord, RefusedRecord, TopicPartition
from actors.runtime.task.context import Inbox
from actors.testing import ActorTestDriver
from actors.testing.fakes.log import StoredRecord
from actors.testing.fakes.ports import FakeLogs
from actors.testing.fakes.views import FakeFollowing
from tests.unit.runtime.replicas.test_standbys import LOG, ONE, ZERO, standby
from tests.unit.runtime.replicas.test_standbys import World as Standbys

CONCURRENCY = pytest.mark.parametrize("concurrency", [1, 4])


class World:
    """An actor of which the values "header", "batch" and "codec" reach it as the client gives what it can't read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.app = App("shop", broker="kafka://127.0.0.1:1")
        self.topic = self.app.topic("in", key_type=str, value_type=str)
        self.letters = self.app.topic("shop-dead-letters", key_type=bytes, value_type=bytes)
        self.seen: list[str] = []
        counts = self.app.store("counts", key_type=str, value_type=int)

        @self.app.actor(self.topic, stores=[counts], **options)
        async def work(ctx: Context, value: str) -> None:
            counts.set(ctx.key, counts.get(ctx.key, 0) + 1)
            self.seen.append(value)

        self.counts, put = counts, Inbox.put
        monkeypatch.setattr(
            Inbox, "put", lambda inbox, index, records: put(inbox, index, [_as_read(one) for one in records])
        )

    def post(self, driver: ActorTestDriver, *values: str) -> None:
        for value in values:
            driver.post(self.topic, key="a", value=value)
        driver.settle()


def _as_read(record: StoredRecord) -> InputRecord:
    if record.value not in (b"header", b"batch", b"codec"):
        return record
    original = record if record.value == b"header" else None
    key = None if original is None else original.key
    error = UnreadableRecordError("it can't be read", topic="", partition=-1, offset=record.offset, key=key)
    error.remedy = "Do something about it"
    return RefusedRecord(offset=record.offset, error=error, original=original, stops=record.value == b"codec")


@CONCURRENCY
@pytest.mark.parametrize("what", ["header", "batch", "codec"])
def test_the_partition_stops_in_front_of_it(monkeypatch: pytest.MonkeyPatch, what: str, concurrency: int) -> None:
    world = World(monkeypatch, concurrency=concurrency)
    with ActorTestDriver(world.app) as driver:
        with pytest.raises(UnreadableRecordError, match=r"it can't be read.*Do something about it") as caught:
            world.post(driver, "1", what, "3")
        assert isinstance(caught.value, UndecodableRecordError)
        assert caught.value.offset == 1
        assert caught.value.key == (b"a" if what == "header" else None)
        assert driver.get(world.counts, "a") in ((1,) if concurrency == 1 else (1, 2))


@CONCURRENCY
@pytest.mark.parametrize("what", ["header", "batch"])
def test_it_is_skipped_and_buried(monkeypatch: pytest.MonkeyPatch, what: str, concurrency: int) -> None:
    world = World(monkeypatch, concurrency=concurrency, on_error=OnError(then="skip", dead_letters=True))
    with ActorTestDriver(world.app) as driver:
        world.post(driver, "1", what, "3")
        assert world.seen == ["1", "3"]
        [letter] = driver.outputs(world.letters)
        assert (letter.key, letter.value) == ((b"a", b"header") if what == "header" else (None, None))
        assert b"it can't be read" in dict(letter.headers)["fa-error"]


def test_a_record_whose_key_can_be_read_keeps_its_place_among_those_of_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    World(monkeypatch)
    app = App("lanes", broker="kafka://127.0.0.1:1")
    topic = app.topic("in", key_type=str, value_type=str)
    seen: list[tuple[str | None, str]] = []

    @app.actor(topic, concurrency=4, on_error="park")
    async def work(ctx: Context, value: str) -> None:
        if ctx.key is None:
            await asyncio.sleep(1.0)
        seen.append((ctx.key, value))

    with ActorTestDriver(app, partitions=1) as driver:
        driver.post(topic, value="slow")
        driver.post(topic, key="a", value="header")
        driver.post(topic, key="a", value="behind")
        driver.settle()
        assert seen == [(None, "slow")]
        assert len(driver.parked("work", "a")) == 2


@CONCURRENCY
def test_a_record_is_parked_with_its_key(monkeypatch: pytest.MonkeyPatch, concurrency: int) -> None:
    world = World(monkeypatch, concurrency=concurrency, on_error="park")
    with ActorTestDriver(world.app) as driver:
        world.post(driver, "1", "header", "3")
        assert world.seen == ["1"]
        assert len(driver.items(world.app.stores["work-parked"])) == 2


@CONCURRENCY
def test_a_record_behind_a_parked_one_of_its_key_is_parked_with_its_own_error(
    monkeypatch: pytest.MonkeyPatch, concurrency: int
) -> None:
    world = World(monkeypatch, concurrency=concurrency, on_error="park")
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.post(driver, "header", "2", "header")
        errors = [message.error for message in driver.parked("work", "a")]
        assert [error is not None and "it can't be read" in error for error in errors] == [True, False, True]


@CONCURRENCY
@pytest.mark.parametrize(("policy", "what"), [("park", "batch"), ("park", "codec"), ("skip", "codec")])
def test_what_no_policy_can_pass_over_stops_the_partition(
    monkeypatch: pytest.MonkeyPatch, policy: Any, what: str, concurrency: int
) -> None:
    world = World(monkeypatch, concurrency=concurrency, on_error=policy)
    with ActorTestDriver(world.app) as driver, pytest.raises(UnreadableRecordError):
        world.post(driver, "1", what, "3")


def test_it_isnt_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, on_error=OnError(then="skip", retries=5))
    with ActorTestDriver(world.app) as driver:
        world.post(driver, "1", "header", "3")
        assert driver.now_s < 1


# --- logs that state is made of ---------------------------------------------------------------------------------------


def unreadable_log(source: TopicPartition, next_offset: int = 1) -> UnreadableLogError:
    return UnreadableLogError(f"{source}: the records are damaged", source=source, next_offset=next_offset)


def test_a_changelog_that_cannot_be_read_stops_its_partition_only(monkeypatch: pytest.MonkeyPatch) -> None:
    world, read = World(monkeypatch), FakeLogs.read

    async def damaged(logs: FakeLogs, partition: TopicPartition, start: int, end: int, topic_id: str = "") -> Any:
        if partition == ("shop--counts-changelog", 0):
            raise unreadable_log(partition)
        async for chunk in read(logs, partition, start, end, topic_id):
            yield chunk

    with ActorTestDriver(world.app, partitions=2) as driver:
        for number in range(10):
            driver.send(world.topic, key=f"k{number}", value="1")
        monkeypatch.setattr(FakeLogs, "read", damaged)
        driver.crash(keep_disk=False, settle=False)
        driver.advance(60, settle=False)
        tasks = {task.partition: task for task in driver._worker.tasks}
        assert tasks[0].state is State.REFUSED
        assert "shop--counts-changelog[0]: the records are damaged" in str(tasks[0].halted_by)
        assert tasks[1].state is State.RUNNING


async def test_the_registry_of_owners_is_read_on_behind_them() -> None:
    class Logs:
        async def bounds(self, _: TopicPartition) -> LogBounds:
            return LogBounds(0, 5)

        async def read(self, source: TopicPartition, start: int, end: int) -> Any:
            if start < 3:
                yield [owner(start)], start + 1
                raise unreadable_log(source, 3)
            yield [owner(start)], end

    def owner(offset: int) -> StoredRecord:
        made = OwnerRecord(actor=f"a{offset}", partition=0, epoch=1, worker="w", address="", at_ms=0)
        sent = encode_owner("owners", made)
        return SimpleNamespace(offset=offset, key=sent.key, value=sent.value)  # type: ignore[return-value]

    owners = KafkaOwners("owners", Logs())  # type: ignore[arg-type]
    assert [record.actor for record in await owners.all()] == ["a0", "a3"]


def test_copies_of_other_partitions_are_followed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    world, poll = Standbys(), FakeFollowing.poll
    damaged = [True]

    async def polled(following: FakeFollowing, timeout_s: float) -> Any:
        found = await poll(following, timeout_s)
        zero = TopicPartition(LOG, 0)
        if damaged and zero in found:
            raise unreadable_log(zero)
        return found

    monkeypatch.setattr(FakeFollowing, "poll", polled)

    async def test() -> None:
        world.fill(10)
        world.fill(10, 1)
        world.copies.assign(standby(ZERO, ONE))
        await world.until(lambda: world.position(1) == world.end(1))
        world.fill(5, 1)
        await world.until(lambda: world.position(1) == world.end(1))
        damaged.clear()
        await world.until(lambda: world.position() == world.end())

    world.run(test())
    world.loop.close()
