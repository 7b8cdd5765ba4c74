"""What a takeover does and says while an open transaction of somebody else holds it back."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from actors.errors import BrokerUnavailableError, UnstableOffsetError
from actors.ports import Committed, OwnerRecord, TopicPartition
from actors.runtime.message.failures import REMIND_S
from actors.runtime.task.former_owners import SAY_S, settled_offset, settled_owner

SOURCE = TopicPartition("in", 3)
LOOKS_LONG = 100_000


def owner(member_id: str, worker: str = "w7", transactional_id: str = "shop:worker:w7") -> OwnerRecord:
    return OwnerRecord("count", 3, 1, worker, "", 0, transactional_id=transactional_id, member_id=member_id)


class World:
    """Group, registry, log and clock: a transaction is open until `ends` says otherwise."""

    topic = "shop-actors-owners"

    def __init__(self, *members: str, ends: Callable[[World], bool]) -> None:
        self.members, self.ends = members, ends
        self.now_s = 0.0
        self.claims: list[OwnerRecord] = []
        self.ended: list[str] = []
        self.told: list[str] = []
        self.left: set[str] = set()
        self.asked: list[str] = []
        self.read_while_open = False

    def monotonic(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        assert self.now_s < LOOKS_LONG

    async def knows(self, member_id: str) -> bool:
        return member_id in self.members

    async def left_open(self, own_id: str) -> set[str]:
        self.asked.append(own_id)
        return self.left

    async def stable_offset(self, source: TopicPartition) -> Committed | None:
        if self.ends(self):
            return Committed(7, "")
        raise UnstableOffsetError("open")

    async def open_claims(self) -> list[OwnerRecord] | None:
        return None if self.ends(self) else self.claims

    async def latest(self, actor: str, partition: int) -> OwnerRecord | None:
        self.read_while_open = not self.ends(self)
        return None

    async def end_transaction_of(self, transactional_id: str) -> None:
        self.ended.append(transactional_id)

    async def offset(self, last: OwnerRecord | None) -> Committed | None:
        world: Any = self
        own = "shop:worker:w1"
        return await settled_offset(world, world, world, SOURCE, last, own_id=own, tell=self.told.append)

    async def owner(self) -> OwnerRecord | None:
        world: Any = self
        return await settled_owner(world, world, world, world, "count", 3, tell=self.told.append)


def after(seconds: float) -> Callable[[World], bool]:
    return lambda world: world.now_s >= seconds


async def test_a_short_wait_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    world = World("m", ends=after(SAY_S - 1))
    assert await world.offset(owner("m")) == Committed(7, "")
    assert caplog.messages == []
    assert len(world.asked) == 3, "after 1, 2 and 4 s"
    assert set(world.told) == {"", "the end of an open transaction that holds back the group's offset"}
    assert world.told[-1] == ""


async def test_a_wait_for_a_living_owner_names_it_and_is_repeated_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World("m", ends=after(SAY_S + REMIND_S + 1))
    await world.offset(owner("m"))
    assert len(caplog.messages) == 2
    for text in caplog.messages:
        assert text.startswith("in[3]: waiting for the end of an open transaction that holds back the group's offset")
        assert "worker w7, transactional id shop:worker:w7: the group has that member" in text
        assert "BROKER describe --transactional-id shop:worker:w7` shows" in text
        assert "abort --topic __consumer_offsets --partition N --start-offset OFFSET" in text
    assert " for 5 s now" in caplog.messages[0]
    assert world.ended == []


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (None, "no worker that the registry names, so another program has it"),
        (owner("gone"), r"names (those of shop:worker:w7 are ended), so another program has it"),
        (owner("gone", transactional_id=""), "no worker that the registry names, so another program has it"),
    ],
)
async def test_a_wait_for_another_program_says_how_it_is_found(
    caplog: pytest.LogCaptureFixture, last: OwnerRecord | None, said: str
) -> None:
    world = World("m", ends=after(SAY_S + 1))
    with caplog.at_level(logging.INFO):
        await world.offset(last)
    assert caplog.text.count("ending the transaction of shop:worker:w7") == len(set(world.ended)) <= 1
    (warning,) = (one.getMessage() for one in caplog.records if one.levelno == logging.WARNING)
    assert said in warning
    assert "BROKER list` names the open ones" in warning


async def test_the_registry_is_not_read_before_claims_are_over(caplog: pytest.LogCaptureFixture) -> None:
    world = World("m", ends=after(SAY_S + 1))
    world.claims = [owner("m"), owner("m", "w8", "shop:worker:w8")]
    await world.owner()
    assert not world.read_while_open
    (text,) = caplog.messages
    assert text.startswith("shop-actors-owners[0]: waiting for the end of an open transaction that holds back the lead")
    assert "worker w7, transactional id shop:worker:w7, worker w8, transactional id shop:worker:w8: the group" in text
    assert "abort --topic shop-actors-owners --partition 0 --start-offset OFFSET" in text
    assert world.told[-1] == ""


async def test_claims_of_the_dead_are_ended_and_those_of_the_living_are_not() -> None:
    world = World("m", ends=lambda world: bool(world.ended))
    world.claims = [owner("m"), owner("gone", "w8", "shop:worker:w8")]
    await world.owner()
    assert world.ended == ["shop:worker:w8"]


async def test_a_transaction_whose_worker_the_registry_never_named_is_ended() -> None:
    world = World("m", ends=lambda world: bool(world.ended))
    world.left = {"shop:worker:w9"}
    await world.offset(owner("m"))
    assert world.ended == ["shop:worker:w9"]
    assert world.asked == ["shop:worker:w1"]
    assert world.now_s == pytest.approx(1.0)


async def test_nobody_is_asked_during_a_short_wait() -> None:
    world = World("m", ends=after(0.5))
    await world.offset(owner("m"))
    assert world.asked == []


async def test_a_worker_that_joined_anew_is_alive_whatever_its_former_claims_say() -> None:
    world = World("new", ends=after(SAY_S - 1))
    world.claims = [owner("former"), owner("new")]
    await world.owner()
    assert world.ended == []


async def test_a_wait_ends_with_the_takeover() -> None:
    class Away(World):
        async def end_transaction_of(self, transactional_id: str) -> None:
            raise BrokerUnavailableError("no answer")

    world = Away(ends=lambda _: bool(world.told))
    with pytest.raises(BrokerUnavailableError, match="no answer"):
        await world.offset(owner("gone"))
    assert world.told == [""]
