"""Each answer that a broker may give at each step of a commit: nothing is lost, and it is clear who has to act.

A broker that only asks for time is asked again within the same commit. After any other answer the task takes over
again, and finds out what was committed.
"""

from __future__ import annotations

import re

import pytest

from actors._kafka.produce import writer
from tests.kafka.helpers import eventually
from tests.kafka.wire.proxy import TRANSACTIONAL, TRANSACTIONAL_1, Action, Api, refused, swallow_request
from tests.kafka.wire.world import World

NOT_LEADER = 6
NOT_COORDINATOR = 16
ILLEGAL_GENERATION = 22
INVALID_PRODUCER_EPOCH = 47
CONCURRENT_TRANSACTIONS = 51
UNKNOWN_PRODUCER_ID = 59
PRODUCER_FENCED = 90
ASKS_FOR_TIME = {
    14: "COORDINATOR_LOAD_IN_PROGRESS",
    15: "COORDINATOR_NOT_AVAILABLE",
    16: "NOT_COORDINATOR",
    51: "CONCURRENT_TRANSACTIONS",
}
ASKS_FOR_A_TAKEOVER = {
    ILLEGAL_GENERATION: "ILLEGAL_GENERATION",
    INVALID_PRODUCER_EPOCH: "INVALID_PRODUCER_EPOCH",
    59: "UNKNOWN_PRODUCER_ID",
    88: "UNSTABLE_OFFSET_COMMIT",
    90: "PRODUCER_FENCED",
}
OF_COORDINATORS_ONLY = (14, 15, 16)
STEPS = [
    *(("version 2", api) for api in (*TRANSACTIONAL, Api.PRODUCE, Api.INIT_PRODUCER_ID)),
    *(("version 1", api) for api in (*TRANSACTIONAL_1, Api.PRODUCE)),
]
"""Brokers with version 1 are old by now: their steps are nightly."""


@pytest.mark.parametrize(
    ("version", "api"),
    [
        pytest.param(version, api, id=f"{version}-{api.name}", marks=[pytest.mark.nightly] * (version == "version 1"))
        for version, api in STEPS
    ],
)
async def test_an_answer_at_a_step_of_a_commit(
    world: World, monkeypatch: pytest.MonkeyPatch, version: str, api: Api
) -> None:
    if version == "version 1":
        monkeypatch.setattr(writer, "_VERSION_2", 99)
    owner = await world.sole_owner(1)
    owner.feed.allow(None)
    await owner.did(1)
    for code in (*ASKS_FOR_TIME, *ASKS_FOR_A_TAKEOVER):
        if api is Api.PRODUCE and code in OF_COORDINATORS_ONLY:
            continue
        epoch, rule = owner.running.epoch, world.proxy.on(api, refused(code), client=owner.producer)
        if api is Api.INIT_PRODUCER_ID:
            # It is the first request of the takeover that this leads to.
            world.proxy.on(Api.END_TXN, refused(INVALID_PRODUCER_EPOCH), client=owner.producer)
        await world.add_inputs(1)
        owner.feed.allow(None)
        await owner.did(len(world.inputs))
        takes_over = code in ASKS_FOR_A_TAKEOVER or api is Api.INIT_PRODUCER_ID
        assert (rule.hits, owner.running.epoch > epoch) == (1, takes_over), f"code {code}"
        assert owner.running.halted_by is None
    assert await world.damage(owner) == []


@pytest.mark.parametrize(
    ("api", "fault", "word", "place"),
    [
        (Api.END_TXN, refused(CONCURRENT_TRANSACTIONS), "EndTxnRequest: ConcurrentTransactions", "coordinator of ID"),
        (Api.TXN_OFFSET_COMMIT, refused(NOT_COORDINATOR), "CommitRequest: NotCoordinator", "coordinator of GROUP"),
        (Api.PRODUCE, refused(NOT_LEADER), "ProduceRequest: NotLeader", "leader of "),
        (Api.END_TXN, swallow_request, "EndTxnRequest: no answer", "coordinator of ID"),
        (Api.PRODUCE, swallow_request, "ProduceRequest: no answer", "leaders of "),
    ],
)
async def test_a_commit_that_ends_with_its_deadline_says_the_brokers_last_word(
    world: World, caplog: pytest.LogCaptureFixture, api: Api, fault: Action, word: str, place: str
) -> None:
    world.commit_deadline_s = 0.5
    owner = await world.sole_owner(1)
    world.proxy.on(api, fault, client=owner.producer, times=None)
    owner.feed.allow(None)
    text = await said(caplog, "the brokers didn't finish it within 0.5 s; the last word is ", word)
    world.proxy.calm()
    place = place.replace("ID", world.id_of("a")).replace("GROUP", world.group)
    assert f"commit of {world.id_of('a')}: " in text
    assert f"({place}" in text
    assert re.search(r"broker \d+[,)]|no answer \(leaders", text), text
    assert "Nothing is lost: the task takes over again. If it happens again and again, see whether that broker" in text
    assert await world.damage(owner) == []


@pytest.mark.parametrize(
    ("api", "code", "word", "what_to_do"),
    [
        (Api.END_TXN, PRODUCER_FENCED, "PRODUCER_FENCED (90)", "Stop one of the workers"),
        (Api.PRODUCE, PRODUCER_FENCED, "PRODUCER_FENCED (90)", "Stop one of the workers"),
        (Api.END_TXN, INVALID_PRODUCER_EPOCH, "EndTxnRequest: InvalidProducerEpoch", "Stop one of the workers"),
        (Api.END_TXN, UNKNOWN_PRODUCER_ID, "EndTxnRequest: UnknownProducerId", "look for the transactional id in that"),
        (Api.TXN_OFFSET_COMMIT, ILLEGAL_GENERATION, "CommitRequest: IllegalGeneration", "look for handlers that block"),
    ],
)
async def test_an_answer_that_ends_a_commit_says_what_where_and_what_to_do(
    world: World, caplog: pytest.LogCaptureFixture, api: Api, code: int, word: str, what_to_do: str
) -> None:
    owner = await world.sole_owner(1)
    world.proxy.on(api, refused(code), client=owner.producer)
    owner.feed.allow(None)
    text = await said(caplog, f"commit of {world.id_of('a')}: ", word)
    place = world.group if api is Api.TXN_OFFSET_COMMIT else world.id_of("a")
    assert re.search(rf"\(coordinator of {place}, broker \d+\)|\(leader of {world.name}-", text), text
    assert "Nothing is lost: the task takes over again" in text
    assert "If it happens again and again, " in text
    assert what_to_do in text
    assert await world.damage(owner) == []


async def said(caplog: pytest.LogCaptureFixture, *parts: str) -> str:
    """Wait for a line of the log that has all of these in it, and return it."""

    def found() -> list[str]:
        return [text for text in caplog.messages if all(part in text for part in parts)]

    await eventually(lambda: bool(found()), what=lambda: f"{parts} in {caplog.messages}")
    return found()[0]
