"""Records that the client can't read: only they and their partition suffer, by the actor's policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from actors import App, Context, OnError, UndecodableRecordError
from actors.errors import UnreadableRecordError
from actors.ports import InputRecord, Unreadable
from actors.runtime.task import Task
from actors.testing import ActorTestDriver
from actors.testing.log import StoredRecord

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

        self.counts, offer = counts, Task.offer
        monkeypatch.setattr(Task, "offer", lambda task, records: offer(task, [_as_read(one) for one in records]))

    def post(self, driver: ActorTestDriver, *values: str) -> None:
        for value in values:
            driver.post(self.topic, key="a", value=value)
        driver.settle()


def _as_read(record: StoredRecord) -> InputRecord:
    if record.value not in (b"header", b"batch", b"codec"):
        return record
    return Unreadable(
        first_offset=record.offset,
        offset=record.offset,
        reason="it can't be read",
        remedy="Do something about it",
        original=record if record.value == b"header" else None,
        lacks_codec=record.value == b"codec",
    )


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


@CONCURRENCY
def test_a_record_is_parked_with_its_key(monkeypatch: pytest.MonkeyPatch, concurrency: int) -> None:
    world = World(monkeypatch, concurrency=concurrency, on_error="park")
    with ActorTestDriver(world.app) as driver:
        world.post(driver, "1", "header", "3")
        assert world.seen == ["1"]
        assert len(driver.items(world.app.stores["work-parked"])) == 2


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


def _types(_: Sequence[InputRecord]) -> None:
    """Say that an `Unreadable` passes for a record."""


_types([Unreadable(first_offset=0, offset=0, reason="", remedy="")])
