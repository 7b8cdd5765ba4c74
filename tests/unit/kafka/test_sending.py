"""Appending to leaders of which one is away: the others of a transaction don't wait for it for long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from actors._kafka.produce import sending
from actors._kafka.produce.batches import pack
from actors._kafka.produce.failures import PartsFailedError
from actors._kafka.produce.sending import Sequences, append
from actors.ports import TopicPartition

HERE, AWAY, BUSY = (TopicPartition("out", number) for number in range(3))
NOT_LEADER, CONCURRENT_TRANSACTIONS = 6, 51


class Leaders:
    """Stands for the client: each partition has a leader; the first takes what it gets, the third never does."""

    cluster = SimpleNamespace(leader_for_partition=lambda partition: partition.partition)
    request_timeout_ms = 40_000

    def __init__(self, refusals: float) -> None:
        self.left = refusals

    def force_metadata_update(self) -> None:
        """Nothing is learned."""

    async def send(self, leader: int, request: Any) -> Any:
        """Answer for the leader's partition."""
        code = 0
        if leader == AWAY.partition and self.left:
            self.left -= 1
            code = NOT_LEADER
        elif leader == BUSY.partition:
            code = CONCURRENT_TRANSACTIONS
        return SimpleNamespace(topics=[("out", [(leader, code, 7, -1, 0, [], None, {})], {})])


async def appended(leaders: Leaders, *partitions: TopicPartition) -> dict[TopicPartition, int]:
    packed = {part: pack([(b"k", b"v", [], 1)], 1000, 0) for part in partitions}
    client: Any = leaders
    return await append(
        client, Sequences(1, 0), packed, transactional_id="id", is_version_2=True, tell=lambda codes: None
    )


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "AWAY_S", 0.02)


async def test_a_leader_that_comes_back_is_waited_for() -> None:
    assert await appended(Leaders(2), HERE, AWAY) == {HERE: 8, AWAY: 8}


async def test_a_leader_that_stays_away_fails_what_is_for_it_alone() -> None:
    with pytest.raises(PartsFailedError) as raised:
        await appended(Leaders(float("inf")), HERE, AWAY)
    assert list(raised.value.errors) == [AWAY]
    assert raised.value.may_be_late


async def test_what_a_busy_leader_has_not_taken_yet_does_not_fail_with_what_is_for_one_that_is_away() -> None:
    with pytest.raises(PartsFailedError) as raised:
        await appended(Leaders(float("inf")), HERE, BUSY, AWAY)
    assert list(raised.value.errors) == [AWAY]


async def test_a_leader_that_stays_busy_fails_what_is_for_it_alone() -> None:
    with pytest.raises(PartsFailedError) as raised:
        await appended(Leaders(0), HERE, BUSY)
    assert list(raised.value.errors) == [BUSY]


async def test_a_leader_that_all_wait_for_is_waited_for() -> None:
    leaders = Leaders(50)
    assert await appended(leaders, AWAY) == {AWAY: 8}
    assert leaders.left == 0
