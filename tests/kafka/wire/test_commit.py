"""A commit whose requests or replies get lost, late or twice: nothing is lost, nothing doubled.

Tests with `removed` run with the product as it is, and with one of its rules taken away: then there has to be damage.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from actors._core.task.lifecycle import State
from actors._kafka.produce import writer
from tests.kafka.helpers import eventually, read_all
from tests.kafka.wire import damage
from tests.kafka.wire.damage import Damage, Patch, assert_damage, remove, with_and_without
from tests.kafka.wire.proxy import (
    TRANSACTIONAL,
    TRANSACTIONAL_1,
    Action,
    Api,
    Exchange,
    Hold,
    WireProxy,
    coded,
    lose_reply,
    lose_request,
    refused,
    repeat,
    swallow_reply,
    swallow_request,
)
from tests.kafka.wire.world import World

COORDINATOR_NOT_AVAILABLE = 15
NOT_COORDINATOR = 16
OUT_OF_ORDER_SEQUENCE = 45
INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
INVALID_RECORD = 87
PRODUCER_FENCED = 90


@pytest.fixture
async def small_output(brokers: str, proxy: WireProxy) -> AsyncIterator[World]:
    """A world whose output takes small batches only, so that no chain gets long."""
    async with World(brokers, proxy, output={"max.message.bytes": "100"}) as made:
        yield made
        proxy.calm()


async def test_without_a_fault_the_audit_finds_nothing(world: World) -> None:
    owner = await world.sole_owner(6)
    owner.feed.allow(None)
    assert await world.damage(owner) == []


# --- produce ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [OUT_OF_ORDER_SEQUENCE, INVALID_RECORD])
@with_and_without(damage.produce_unchecked)
async def test_a_transaction_with_a_failed_produce_is_never_committed(
    world: World, monkeypatch: Patch, removed: Damage | None, code: int
) -> None:
    """Neither when the records are to blame, nor when it isn't known why."""
    remove(removed, monkeypatch, world)
    owner = await world.sole_owner(4)

    rule = world.proxy.on(Api.PRODUCE, refused(code), client=owner.producer, containing=world.out.encode())
    owner.feed.allow(None)
    await rule.was_hit()
    assert_damage(await world.damage(owner, expected=removed is not None), removed)


@with_and_without(damage.produce_unchecked)
async def test_a_record_that_the_broker_refuses_is_not_passed_over(
    small_output: World, monkeypatch: Patch, removed: Damage | None
) -> None:
    """The broker's own refusal, of a batch that is too large: the partition stops in front of its record."""
    world = small_output
    remove(removed, monkeypatch, world)
    owner = await world.sole_owner(30)
    owner.feed.allow(None)
    if removed is None:
        await eventually(lambda: owner.running.state is State.HALTED, what=repr(owner.task))
    else:
        await eventually(lambda: world.is_done([owner]))
    committed = await world.committed()
    found = world.broken_links(await read_all(world.brokers, world.out), committed)
    assert committed > 0
    assert (committed < 30) == (removed is None)
    assert_damage(found, removed)


# --- requests and replies that get lost -------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1], ids=["takeover", "commit"])
@pytest.mark.parametrize("fault", [pytest.param(lose_request, marks=pytest.mark.nightly), lose_reply, repeat])
@pytest.mark.parametrize("api", [*TRANSACTIONAL, Api.PRODUCE])
async def test_any_request_of_a_transaction_may_get_lost(world: World, api: Api, fault: Action, number: int) -> None:
    await world.add_inputs(3)
    owner = world.owner("a", (await world.member()).identity)
    rule = world.proxy.on(api, fault, client=owner.producer, skip=number)
    await owner.start()
    await rule.was_hit()
    assert await world.damage(owner) == []


@pytest.mark.parametrize("fault", [pytest.param(lose_request, marks=pytest.mark.nightly), lose_reply, repeat])
@pytest.mark.parametrize(
    "api", [Api.FIND_COORDINATOR, Api.METADATA, Api.INIT_PRODUCER_ID, Api.HEARTBEAT, Api.OFFSET_FETCH, Api.LIST_OFFSETS]
)
async def test_any_question_of_a_takeover_may_get_lost(world: World, api: Api, fault: Action) -> None:
    await world.add_inputs(3)
    owner = world.owner("a", (await world.member()).identity)
    # The connection to the group's coordinator is there from the start, so that METADATA can be lost after it.
    rule = world.proxy.on(api, fault, client="a-", skip=1 if api is Api.METADATA else 0)
    await owner.start()
    await rule.was_hit()
    assert await world.damage(owner) == []


@with_and_without(damage.unknown_is_aborted)
@pytest.mark.parametrize("fault", [lose_reply, coded(PRODUCER_FENCED), coded(INVALID_PRODUCER_EPOCH)])
async def test_a_commit_whose_answer_is_lost_is_found_committed(
    world: World, monkeypatch: Patch, fault: Action, removed: Damage | None
) -> None:
    """Fenced is unknown as well: a commit that went through may say it."""
    remove(removed, monkeypatch, world)
    owner = await world.sole_owner(3)
    rule = world.proxy.on(Api.END_TXN, fault, client=owner.producer, skip=1)
    owner.feed.allow(None)
    await rule.was_hit()
    assert_damage(await world.damage(owner, expected=removed is not None), removed)


@with_and_without(damage.unknown_is_committed)
@pytest.mark.parametrize("api", TRANSACTIONAL)
async def test_a_commit_that_is_lost_is_done_again(
    world: World, monkeypatch: Patch, caplog: pytest.LogCaptureFixture, api: Api, removed: Damage | None
) -> None:
    remove(removed, monkeypatch, world)
    owner = await world.sole_owner(3)
    rule = world.proxy.on(api, lose_request, client=owner.producer, skip=1)
    owner.feed.allow(None)
    await rule.was_hit()
    assert_damage(await world.damage(owner, expected=removed is not None), removed)
    if removed is None:
        assert f"{api.name.title().replace('_', '')}Request: KafkaConnectionError" in caplog.text


@pytest.mark.parametrize("fault", [pytest.param(swallow_request, marks=pytest.mark.nightly), swallow_reply])
@pytest.mark.parametrize("api", [Api.END_TXN, Api.TXN_OFFSET_COMMIT, Api.PRODUCE])
async def test_a_commit_without_any_answer_ends_with_its_deadline(world: World, api: Api, fault: Action) -> None:
    world.commit_deadline_s = 0.5
    owner = await world.sole_owner(3)
    rule = world.proxy.on(api, fault, client=owner.producer, skip=1)
    owner.feed.allow(None)
    await rule.was_hit()
    assert await world.damage(owner) == []


@pytest.mark.parametrize("code", [COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, INVALID_TXN_STATE])
@pytest.mark.parametrize("api", TRANSACTIONAL)
async def test_an_answer_that_says_no_of_a_request_that_was_done(world: World, api: Api, code: int) -> None:
    """As when a coordinator moves: what it did last it may deny."""
    owner = await world.sole_owner(3)
    rule = world.proxy.on(api, coded(code), client=owner.producer, skip=1)
    owner.feed.allow(None)
    await rule.was_hit()
    assert await world.damage(owner) == []


# --- requests that arrive late ----------------------------------------------------------------------------------------


class Late:
    """Holds the first request of an API until the middle of the transaction after the next that ends."""

    def __init__(self, api: Api) -> None:
        self.code: int | None = None
        self._api = api
        self._hold = Hold()
        self._is_held = self._ended = False

    async def __call__(self, exchange: Exchange) -> bytes | None:
        if not self._is_held:
            self._is_held = exchange.api == self._api
            return await (self._hold(exchange) if self._is_held else exchange.ask())
        if exchange.api == Api.PRODUCE and self._ended and self.code is None:
            # Its transaction has the offset and its partitions by now, and no records yet.
            self.code = await self._hold.deliver()
        self._ended = self._ended or exchange.api == Api.END_TXN
        return await exchange.ask()


@with_and_without(damage.requests_sent_again)
@pytest.mark.parametrize(
    ("version", "api"),
    [*(("version 1", api) for api in TRANSACTIONAL_1), *(("version 2", api) for api in TRANSACTIONAL)],
)
async def test_a_late_request_is_no_part_of_the_next_transaction(
    world: World, monkeypatch: Patch, version: str, api: Api, removed: Damage | None
) -> None:
    """The client's connection ends, the request reaches the broker when the next transaction is half done.

    In transactions of version 2 the broker refuses it by its epoch, even if the client sent it again.
    """
    if version == "version 1":
        monkeypatch.setattr(writer, "_VERSION_2", 99)
    remove(removed, monkeypatch, world)
    owner = await world.sole_owner(2)
    # An old broker has no other version.
    is_version_1 = not getattr(owner.writer, "_is_version_2", False)
    late = Late(api)
    world.proxy.on(None, late, client=owner.producer, times=None)
    owner.feed.allow(None)
    await eventually(lambda: late.code is not None, what="the late request reached the broker")
    assert (late.code == 0) == (is_version_1 and removed is not None), (
        f"the broker's answer to the late request: {late.code}"
    )
    # To add a partition or the group once more does no harm by itself.
    harms = is_version_1 and removed is not None and api in (Api.END_TXN, Api.TXN_OFFSET_COMMIT)
    found = await world.damage(owner, expected=harms)
    assert bool(found) == harms, found


async def test_a_late_produce_appends_nothing(world: World) -> None:
    owner = await world.sole_owner(3)
    hold = Hold()
    rule = world.proxy.on(Api.PRODUCE, hold, client=owner.producer, skip=1)
    owner.feed.allow(2)
    await rule.was_hit()
    await owner.did(2)
    await hold.deliver()
    owner.feed.allow(None)
    assert await world.damage(owner) == []
