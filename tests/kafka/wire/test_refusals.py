"""What the broker refuses: a message is blamed only for an answer that says that nothing was appended because of it."""

from __future__ import annotations

import pytest

from actors._core.task.lifecycle import State
from actors.errors import RefusedRecordError
from tests.kafka.helpers import eventually
from tests.kafka.wire.proxy import Action, Api, answered, refused
from tests.kafka.wire.world import Owner, World

INVALID_TIMESTAMP = 32
TOPIC_AUTHORIZATION, GROUP_AUTHORIZATION, TRANSACTIONAL_ID_AUTHORIZATION = 29, 30, 53
BLAMES_THE_MESSAGE = {10: "MESSAGE_TOO_LARGE", 17: "INVALID_TOPIC", 18: "RECORD_LIST", 87: "RECORD"}
POLICY_VIOLATION = 44
BLAMES_NOTHING = (
    *(-1, 2, TOPIC_AUTHORIZATION, 31, INVALID_TIMESTAMP, 35, 42, 43, POLICY_VIOLATION, 45, 47, 48, 49, 53, 56),
    *(76, 89, 999),
)
SOME_OF_THEM = (-1, TOPIC_AUTHORIZATION, INVALID_TIMESTAMP, POLICY_VIOLATION, 999)
REFUSALS = 3
"""How often: the second refusal is that of a commit with one message."""


def refusing(world: World, code: int, *topics: str) -> Action:
    """Answer a produce with a code for each of these topics, and with success for the others."""

    return answered(lambda exchange: exchange.produced({topic: ([0], code) for topic in topics}))


async def one_more(world: World, owner: Owner) -> None:
    """Let the owner have one more input, and wait until it is committed."""
    await world.add_inputs(1)
    owner.feed.allow(None)
    await owner.did(len(world.inputs))


@pytest.mark.parametrize("code", BLAMES_THE_MESSAGE)
async def test_a_partition_stops_in_front_of_a_message_whose_records_the_broker_never_takes(
    world: World, code: int
) -> None:
    owner = await world.sole_owner(2)
    action = refusing(world, code, world.out, world.changelog)
    world.proxy.on(Api.PRODUCE, action, containing=world.out.encode(), times=None)
    owner.feed.allow(None)
    await eventually(lambda: owner.running.state is State.HALTED, what=lambda: repr(owner.task))
    error = owner.running.halted_by
    assert isinstance(error, RefusedRecordError)
    assert error.offset == 0
    assert f"[Error {code}]" in str(error)
    assert any(f"{topic}[0]: " in str(error) for topic in (world.out, world.changelog))
    assert await world.committed() == 0


@pytest.mark.parametrize(
    "codes", [SOME_OF_THEM, pytest.param(BLAMES_NOTHING, marks=pytest.mark.nightly)], ids=["some", "all"]
)
async def test_no_message_is_blamed_for_an_answer_that_leaves_it_open_who_is_to_blame(
    world: World, caplog: pytest.LogCaptureFixture, codes: tuple[int, ...]
) -> None:
    """The worker takes over and tries again, as often as it takes."""
    owner = await world.sole_owner(1)
    for code in codes:
        caplog.clear()
        # The time of an output is its message's.
        topics = [world.changelog] if code == INVALID_TIMESTAMP else [world.out, world.changelog]
        rule = world.proxy.on(
            Api.PRODUCE, refusing(world, code, *topics), containing=world.out.encode(), times=REFUSALS
        )
        await one_more(world, owner)
        assert rule.hits == REFUSALS, f"code {code}"
        if code == TOPIC_AUTHORIZATION:
            assert "isn't allowed Write on topic" in caplog.text
        if code == INVALID_TIMESTAMP:
            assert "clock" in caplog.text
    assert await world.damage(owner) == []


@pytest.mark.parametrize(
    ("api", "code", "says"),
    [
        (Api.TXN_OFFSET_COMMIT, GROUP_AUTHORIZATION, "isn't allowed Read on group"),
        (Api.TXN_OFFSET_COMMIT, TOPIC_AUTHORIZATION, "isn't allowed Read on topic"),
        (Api.END_TXN, TRANSACTIONAL_ID_AUTHORIZATION, "isn't allowed Write on transactional ids"),
        (Api.TXN_OFFSET_COMMIT, TRANSACTIONAL_ID_AUTHORIZATION, "isn't allowed Write on transactional ids"),
    ],
)
async def test_a_permission_that_is_taken_away_stops_nothing_for_good(
    world: World, caplog: pytest.LogCaptureFixture, api: Api, code: int, says: str
) -> None:
    """The partition waits, says what isn't allowed, and goes on when it is again."""
    owner = await world.sole_owner(1)
    rule = world.proxy.on(api, refused(code), client=owner.producer, times=REFUSALS)
    owner.feed.allow(None)
    await rule.was_hit(REFUSALS)
    assert await world.damage(owner) == []
    assert says in caplog.text
    assert owner.running.halted_by is None


async def test_a_timestamp_of_an_output_is_the_messages_own(world: World) -> None:
    """The worker's clock has no part in it: the same message would be refused for ever."""
    world.has_store = False
    owner = await world.sole_owner(2)
    action = refusing(world, INVALID_TIMESTAMP, world.out)
    world.proxy.on(Api.PRODUCE, action, containing=world.out.encode(), times=None)
    owner.feed.allow(None)
    await eventually(lambda: owner.running.state is State.HALTED, what=lambda: repr(owner.task))
    assert isinstance(owner.running.halted_by, RefusedRecordError)
    assert await world.committed() == 0
