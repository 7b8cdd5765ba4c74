"""How long a worker may believe that it owns what it was given."""

from __future__ import annotations

import asyncio
import gc

import pytest

from actors.errors import NotReadyError
from actors.ports import Identity
from actors.runtime.queries.read_lease import ANSWER_S, SPACING_S, ReadLease

ME, ME_AGAIN, OTHER = Identity("me", 1), Identity("me", 2), Identity("other", 2)


class Coordinator:
    """Answers when it is told to, by its own clock."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.members = {ME}
        self.asked: list[float] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def confirms(self, member: Identity) -> bool:
        self.asked.append(self.now_s)
        await self.may_answer.wait()
        return member in self.members

    def lease(self, *, is_exclusive: bool = True) -> ReadLease:
        spans = {"lasts_s": 10.0, "renew_s": 1.0}
        return ReadLease(self.confirms, **spans, is_exclusive=is_exclusive, now_s=lambda: self.now_s)


async def turns() -> None:
    """Let what runs beside go on."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_it_counts_from_before_the_question_and_ends_early() -> None:
    group = Coordinator()
    lease = group.lease()
    assert not lease.holds(ME, 100.0)
    group.may_answer.clear()
    asking = asyncio.create_task(lease.renew(ME))
    await turns()
    assert group.asked
    group.now_s += 5.0
    group.may_answer.set()
    await asking
    assert lease.holds(ME, group.now_s)
    group.may_answer.clear()
    group.now_s = 108.9
    assert lease.holds(ME, group.now_s)
    group.now_s = 109.1
    assert not lease.holds(ME, group.now_s)
    await lease.close()


async def test_it_goes_on_in_the_next_generation_and_begins_anew_with_another_member_id() -> None:
    group = Coordinator()
    lease = group.lease()
    await lease.renew(ME)
    assert lease.holds(ME, group.now_s)
    assert lease.holds(ME_AGAIN, group.now_s)
    assert not lease.holds(OTHER, group.now_s)
    with pytest.raises(NotReadyError, match="this worker is unknown"):
        await lease.renew(OTHER)
    await lease.close()


async def test_it_is_renewed_beside_while_it_is_used() -> None:
    group = Coordinator()
    lease = group.lease()
    await lease.renew(ME)
    for _ in range(30):
        group.now_s += 0.9
        assert lease.holds(ME, group.now_s)
        await turns()
    assert 10 < len(group.asked) < 20
    group.members.clear()
    group.now_s += 2.0
    assert lease.holds(ME, group.now_s)
    await turns()
    group.now_s += 7.5
    assert not lease.holds(ME, group.now_s)
    await lease.close()


async def test_where_a_place_can_be_taken_each_question_needs_a_later_answer() -> None:
    group = Coordinator()
    lease = group.lease(is_exclusive=False)
    await lease.renew(ME)
    assert lease.holds(ME, group.now_s)
    group.now_s += SPACING_S
    assert not lease.holds(ME, group.now_s)
    waiting = [asyncio.create_task(lease.renew(ME)) for _ in range(20)]
    await asyncio.gather(*waiting)
    assert len(group.asked) == 2
    assert lease.holds(ME, group.now_s)
    await lease.close()


async def test_no_answer_is_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Coordinator()
    lease = group.lease()
    monkeypatch.setattr("actors.runtime.queries.read_lease.ANSWER_S", 0.01)
    assert ANSWER_S > 0.01
    group.may_answer.clear()
    with pytest.raises(NotReadyError, match="doesn't confirm"):
        await lease.renew(ME)
    assert not lease.holds(ME, group.now_s)
    asking = asyncio.create_task(lease.renew(ME))
    await asyncio.sleep(0)
    await lease.close()
    with pytest.raises(NotReadyError):
        await asking


async def test_a_renewal_beside_that_fails_isnt_noise() -> None:
    group = Coordinator()
    lease = group.lease()
    await lease.renew(ME)
    group.members.clear()
    group.now_s += 2.0
    said: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context["message"]))
    assert lease.holds(ME, group.now_s)
    await turns()
    gc.collect()
    assert lease._renewal is None
    assert said == []
    await lease.close()
