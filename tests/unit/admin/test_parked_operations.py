"""`parked retry` and `parked drop`, of one key and of many, against the owner's task on the test driver."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from actors.admin.operation import Answer, Caller
from actors.admin.parked import control
from actors.admin.parked.operations import DropParked, ListParked, RetryParked, ShowParked
from actors.admin.parked.reader import ParkedError, ParkedReader
from actors.errors import UsageError
from actors.ports import TopicPartition
from actors.runtime.commands import CONTROL_HEADER
from actors.testing import ActorTestDriver
from tests.unit.runtime.quarantine.test_parked import World
from tests.unit.runtime.quarantine.test_parked_reader import reader_of


class Shop:
    """An app with parked messages, and operations on it."""

    def __init__(self, driver: ActorTestDriver, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world, self.driver, self.questions = world, driver, list[str]()
        self.is_away = False
        reader, logs = reader_of(driver)
        logs.committed = self.committed  # type: ignore[attr-defined]

        @asynccontextmanager
        async def connect(_: Any) -> AsyncIterator[ParkedReader]:
            yield reader

        monkeypatch.setattr(ParkedReader, "connect", connect)
        monkeypatch.setattr(control, "send_commands", self.send)

    async def send(self, setup: Any, _: Any, addressed: Any) -> list[int]:
        offsets = []
        for each in addressed:
            log = self.driver._cluster.log(each.source)
            order = msgspec.structs.replace(each.command, before=each.least if each.is_exact else log.end)
            offsets.append(log.end)
            headers = [(CONTROL_HEADER, msgspec.json.encode(order))]
            await self.driver._append(each.source.topic, each.key, b"control", headers, each.source.partition, None)
        return offsets

    async def committed(self, source: TopicPartition) -> Any:
        return None if self.is_away else self.driver._cluster.group.committed(source)

    def run(self, operation: Any) -> Answer:
        caller = Caller("ann", self.questions.append)
        answer: Answer = self.driver._run(operation.run(self.driver._setup, caller))
        return answer


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Any:
    world = World()
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.post(driver, "a bad 1", "a 2", "b bad 3", "c 4")
        yield Shop(driver, world, monkeypatch)


def test_a_key_is_retried_up_to_the_first_failure_and_then_whole(shop: Shop) -> None:
    again = shop.run(RetryParked(actor="work", key="a"))
    assert again.failure is not None
    assert "in-0-0 failed again, 2 messages are still parked: HandlerFailedError" in again.failure
    assert (again.content["gone"], again.content["left"]) == ([], ["in-0-0", "in-0-1"])
    shop.world.is_mended = True
    done = shop.run(RetryParked(actor="work", key=b"a", what="message", partition=0))
    assert (done.failure, done.lines[-1]) == (None, "2 handled; nothing of the key is parked any more")
    assert [line["key"] for line in shop.run(ListParked()).content] == ["b"]


def test_the_first_one_or_one_by_id_or_all_are_dropped(shop: Shop) -> None:
    shop.world.post(shop.driver, "a 5", "a 6")
    assert shop.run(DropParked(actor="work", key="a")).lines[-1] == "1 dropped; 3 messages are still parked"
    assert shop.run(DropParked(actor="work", key="a", entry_id="in-0-4")).content["gone"] == ["in-0-4"]
    with pytest.raises(ParkedError, match="nothing parked with id 'in-0-4', but in-0-1, in-0-5"):
        shop.run(DropParked(actor="work", key="a", entry_id="in-0-4"))
    assert shop.run(DropParked(actor="work", key="a", is_all=True)).content["left"] == []
    with pytest.raises(ParkedError, match="nothing parked for key 'a'"):
        shop.run(ShowParked(actor="work", key="a"))


def test_many_keys_are_resolved_at_once(shop: Shop) -> None:
    failed = shop.run(RetryParked(is_all=True))
    assert (failed.failure, len(failed.remarks)) == ("still parked: 2 of 2 keys", 2)
    assert shop.run(DropParked(is_all=True, error="bad 3")).lines == ["dropped: 1 message of 1 key"]
    shop.world.is_mended = True
    assert shop.run(RetryParked(is_all=True, partition=0)).lines == ["handled: 2 messages of 1 key"]
    assert shop.run(RetryParked(is_all=True)).lines == ["handled: nothing of 0 keys"]
    assert shop.questions == ["Drop 1 message of 1 key?"]


def test_an_owner_that_is_away_is_named(shop: Shop) -> None:
    shop.is_away = True
    late = shop.run(DropParked(actor="work", key="a", timeout_s=0.0))
    assert late.failure is not None
    assert late.failure.startswith("no owner of in[0] carried the command out in time")


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        (RetryParked(actor="work"), "name ACTOR and KEY"),
        (RetryParked(actor="work", key="a", error="x"), "leave KEY out"),
        (DropParked(actor="work", key="a", entry_id="x", is_all=True), "--id and --all contradict"),
    ],
    ids=str,
)
def test_options_that_contradict_each_other_are_refused(shop: Shop, operation: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        shop.run(operation)
