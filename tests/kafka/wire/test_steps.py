"""Each answer that a broker may give at each step of a commit: nothing is lost, and it is clear who has to act.

A broker that only asks for time is asked again within the same commit. After any other answer the task takes over
again, and finds out what was committed.
"""

from __future__ import annotations

import pytest

from actors._kafka.produce import writer
from tests.kafka.wire.proxy import TRANSACTIONAL, TRANSACTIONAL_1, Api, refused
from tests.kafka.wire.world import World

INVALID_PRODUCER_EPOCH = 47
ASKS_FOR_TIME = {
    14: "COORDINATOR_LOAD_IN_PROGRESS",
    15: "COORDINATOR_NOT_AVAILABLE",
    16: "NOT_COORDINATOR",
    51: "CONCURRENT_TRANSACTIONS",
}
ASKS_FOR_A_TAKEOVER = {
    22: "ILLEGAL_GENERATION",
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


@pytest.mark.parametrize(("version", "api"), STEPS, ids=[f"{version}-{api.name}" for version, api in STEPS])
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
