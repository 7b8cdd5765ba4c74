"""Answers of brokers while leaders and coordinators move: the commit tries again, and no takeover is needed."""

from __future__ import annotations

import logging

import pytest
from aiokafka.client import ConnectionGroup

from actors._kafka import client
from tests.kafka.wire.proxy import Api, lose_request, refused, swallow_request
from tests.kafka.wire.world import Owner, World

UNKNOWN_TOPIC, LEADER_NOT_AVAILABLE, NOT_LEADER, TIMED_OUT = 3, 5, 6, 7
LOADING, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR = 14, 15, 16
NOT_ENOUGH_REPLICAS, CONCURRENT_TRANSACTIONS = 19, 51
COORDINATOR = (LOADING, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR)
LEADER = (UNKNOWN_TOPIC, LEADER_NOT_AVAILABLE, NOT_LEADER, TIMED_OUT, NOT_ENOUGH_REPLICAS)


async def one_more(world: World, owner: Owner) -> None:
    """Let the owner have one more input, and wait until it is committed."""
    await world.add_inputs(1)
    owner.feed.allow(None)
    await owner.did(len(world.inputs))


def assert_nothing_else_was_said(caplog: pytest.LogCaptureFixture) -> None:
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert not [text for text in said if "retrying" not in text], said


@pytest.mark.parametrize(
    ("api", "codes"),
    [
        (Api.PRODUCE, LEADER),
        (Api.TXN_OFFSET_COMMIT, (*COORDINATOR, CONCURRENT_TRANSACTIONS)),
        (Api.END_TXN, (*COORDINATOR, CONCURRENT_TRANSACTIONS)),
    ],
)
async def test_a_commit_outlives_a_leader_or_coordinator_that_moves(
    world: World, caplog: pytest.LogCaptureFixture, api: Api, codes: tuple[int, ...]
) -> None:
    owner = await world.sole_owner(1)
    caplog.clear()
    for code in codes:
        rule = world.proxy.on(api, refused(code), client=owner.producer)
        await one_more(world, owner)
        assert rule.hits == 1, f"code {code}"
    assert owner.running.epoch == 1, caplog.text
    assert_nothing_else_was_said(caplog)
    assert await world.damage(owner) == []


async def test_a_refused_produce_is_sent_again_although_the_first_broker_that_is_asked_for_leaders_hangs(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "METADATA_S", 0.2)
    owner = await world.sole_owner(1)
    refusal = world.proxy.on(Api.PRODUCE, refused(NOT_LEADER), client=owner.producer)
    hang = world.proxy.on(Api.METADATA, swallow_request, client=owner.producer)
    await one_more(world, owner)
    assert (refusal.hits, hang.hits) == (1, 1)
    assert owner.running.epoch == 1, caplog.text
    assert await world.damage(owner) == []


async def test_a_commit_waits_for_a_coordinator_that_takes_no_connection(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """No request was sent, so none can arrive late."""
    owner = await world.sole_owner(1)
    await one_more(world, owner)
    for (_, group), connection in list(owner.writer.client._conns.items()):
        if group == ConnectionGroup.COORDINATION:
            connection.close()
    refusals = world.proxy.on(Api.API_VERSIONS, lose_request, client=owner.producer, times=3)
    await one_more(world, owner)
    assert refusals.hits == 3
    assert owner.running.epoch == 1, caplog.text
    assert await world.damage(owner) == []
