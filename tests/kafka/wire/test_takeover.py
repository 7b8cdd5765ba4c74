"""Takeovers that race: with a moving coordinator, with another owner, with a zombie, with an open transaction.

Tests with `removed` run with the product as it is, and with one of its rules taken away: then there has to be damage.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from actors._core.task.lifecycle import State
from tests.kafka.helpers import eventually, producing, read_all
from tests.kafka.wire import damage
from tests.kafka.wire.damage import Damage, Patch, assert_damage, remove, with_and_without
from tests.kafka.wire.proxy import Api, Exchange, Gate, Hold, answered, forward, lose_request, swallow_request
from tests.kafka.wire.world import PROGRESS_S, World

COORDINATOR_LOAD_IN_PROGRESS = 14
COORDINATOR_NOT_AVAILABLE = 15
NOT_COORDINATOR = 16
CONCURRENT_TRANSACTIONS = 51
NO_ERROR = 0
DEAD_S = 5.0


# --- the committed offset ---------------------------------------------------------------------------------------------


def no_offset(code: int, topics: Any = ()) -> Any:
    """What a coordinator answers that has no offsets to give, with the error beside the topics, not in them."""

    return answered(lambda exchange: exchange.answer(0, list(topics), code, {}))


@pytest.mark.parametrize(
    ("code", "has_store"),
    [
        (COORDINATOR_LOAD_IN_PROGRESS, True),
        (COORDINATOR_NOT_AVAILABLE, True),
        (NOT_COORDINATOR, True),
        (NOT_COORDINATOR, False),
        (NO_ERROR, False),
    ],
)
@with_and_without(damage.top_level_unchecked)
async def test_a_coordinator_that_moves_is_not_taken_for_no_offset(
    world: World, monkeypatch: Patch, removed: Damage | None, code: int, has_store: bool
) -> None:
    """Without an error the partition is simply missing in the answer. Without state nothing contradicts the mistake."""
    remove(removed, monkeypatch, world)
    world.has_store = has_store
    first = await world.sole_owner(4)
    first.feed.allow(None)
    await first.did(4)
    await first.stop()
    await world.add_inputs(2)
    second = world.owner("b", (await world.member()).identity)
    rule = world.proxy.on(Api.OFFSET_FETCH, no_offset(code), client="b-control", times=3)
    await second.start()
    await rule.was_hit(1 if removed else 3)
    assert_damage(await world.damage(second, expected=removed is not None), removed)


@with_and_without(damage.top_level_unchecked)
async def test_a_coordinator_that_denies_with_the_partition_in_its_answer(
    world: World, monkeypatch: Patch, removed: Damage | None
) -> None:
    """Offset -1 beside an error isn't "none" either."""
    remove(removed, monkeypatch, world)
    first = await world.sole_owner(4)
    first.feed.allow(None)
    await first.did(4)
    await first.stop()
    second = world.owner("b", (await world.member()).identity)
    denial = no_offset(NOT_COORDINATOR, [(world.input, [(0, -1, -1, "", 0, {})], {})])
    rule = world.proxy.on(Api.OFFSET_FETCH, denial, client="b-control", times=3)
    await second.start()
    await rule.was_hit(1 if removed else 3)
    assert_damage(await world.damage(second, expected=removed is not None), removed)


# --- other owners -----------------------------------------------------------------------------------------------------


@with_and_without(damage.decided_by_the_offset)
async def test_another_owner_commits_the_same_offset_with_other_state(
    world: World, monkeypatch: Patch, removed: Damage | None
) -> None:
    """A's commit gets lost; before A looks, B handles the same input and comes to another result."""
    remove(removed, monkeypatch, world)
    world.transaction_timeout_ms = 2000
    member = await world.member()
    await world.add_inputs(5)
    a = await world.owner("a", member.identity).start(limit=0)
    await a.runs()
    gate = Gate()
    world.proxy.on(Api.END_TXN, lose_request, client=a.producer)
    looks = world.proxy.on(Api.INIT_PRODUCER_ID, gate, client=a.producer)
    a.feed.allow(1)
    await looks.was_hit()
    b = await world.owner("b", member.identity).start(limit=1)
    await b.did(1)
    await b.stop()
    gate.open()
    a.feed.allow(None)
    assert_damage(await world.damage(a, expected=removed is not None), removed)


@with_and_without(damage.committed_as_nobody)
async def test_a_zombie_emits_nothing(world: World, monkeypatch: Patch, removed: Damage | None) -> None:
    """A is a member when it takes over, and none any more when its first commit reaches the coordinator."""
    remove(removed, monkeypatch, world)
    await world.add_inputs(4)
    before = await world.member()
    gate = Gate()
    claims = world.proxy.on(Api.TXN_OFFSET_COMMIT, gate, client="a-")
    zombie = await world.owner("a", before.identity).start(limit=0)
    await claims.was_hit()
    await before.leave()
    owner = await world.owner("b", (await world.member()).identity).start(limit=2)
    await owner.did(2)
    gate.open()
    await eventually(lambda: zombie.running.state in (State.CLOSED, State.RUNNING), deadline_s=PROGRESS_S)
    assert_damage(await world.emitted_by("a"), removed)
    assert zombie.running.failure is None
    if removed is None:
        owner.feed.allow(None)
        assert await world.damage(owner) == []


@with_and_without(damage.records_before_offsets)
async def test_a_worker_that_lost_its_partition_appends_nothing(
    world: World, monkeypatch: Patch, removed: Damage | None
) -> None:
    """Its offsets are refused first. What it appended would hold back the new owner's restore until it is aborted."""
    remove(removed, monkeypatch, world)
    await world.add_inputs(4)
    before = await world.member()
    former = await world.owner("a", before.identity).start(limit=1)
    await former.did(1)
    await before.leave()
    identity = (await world.member()).identity
    former.feed.allow(2)
    await eventually(lambda: former.running.state is State.CLOSED, deadline_s=PROGRESS_S, what=repr(former.task))
    appended = await read_all(world.brokers, world.changelog, isolation="read_uncommitted")
    assert_damage([f"{record.value!r} is appended" for record in appended if record.value.endswith(b"1a")], removed)
    owner = await world.owner("b", identity).start()
    assert await world.damage(owner) == []


@pytest.mark.parametrize(
    ("api", "removed"),
    [
        (Api.END_TXN, None),
        (Api.PRODUCE, None),
        pytest.param(Api.END_TXN, damage.unstable_offsets, marks=pytest.mark.nightly),
        pytest.param(Api.PRODUCE, damage.bounds_before_the_offset, marks=pytest.mark.nightly),
    ],
)
async def test_a_takeover_waits_for_a_former_owners_open_transaction(
    world: World, monkeypatch: Patch, api: Api, removed: Damage | None
) -> None:
    """A's offsets were taken before the group changed, and its transaction ends when B has begun to take over."""
    remove(removed, monkeypatch, world)
    await world.add_inputs(4)
    member = await world.member()
    a = await world.owner("a", member.identity).start(limit=0)
    await a.runs()
    gate = Gate()
    held = world.proxy.on(api, gate, client=a.producer)
    a.feed.allow(1)
    await held.was_hit()
    b = world.owner("b", member.identity)
    looks = world.proxy.on(Api.OFFSET_FETCH, forward, client="b-control", times=None)
    await b.start(limit=0)
    reads_unstable = removed is damage.unstable_offsets
    await looks.was_hit(1 if reads_unstable else 2)
    if reads_unstable:
        await eventually(lambda: b.running.state not in (State.FENCING, State.CONFIRMING, State.LOOKING))
    gate.open()
    await a.stop()
    if removed is None:
        await b.runs()
    b.feed.allow(None)
    assert_damage(await world.damage(b, expected=removed is not None), removed)


async def assert_quick_takeover(world: World, removed: Damage | None) -> None:
    """Another worker takes over without waiting for a time-out of what the dead one left, and nothing is damaged."""
    began_s = time.monotonic()
    owner = await world.owner("b", (await world.member("b")).identity).start(limit=0)
    await owner.runs()
    took_s = time.monotonic() - began_s
    assert_damage([] if took_s < DEAD_S else [f"the takeover took {took_s:.1f} s"], removed)
    owner.feed.allow(None)
    assert await world.damage(owner) == []


@with_and_without(damage.transactions_of_the_dead_left_open)
async def test_a_dead_owners_transaction_is_ended_at_once(
    world: World, monkeypatch: Patch, removed: Damage | None
) -> None:
    """Its time-out is 13 s."""
    remove(removed, monkeypatch, world)
    await world.add_inputs(4)
    before = await world.member()
    dead = await world.owner("a", before.identity).start(limit=0)
    await dead.runs()
    ends = world.proxy.on(Api.END_TXN, swallow_request, client=dead.producer)
    dead.feed.allow(1)
    await ends.was_hit()
    # It is killed: nothing of it reaches the broker any more.
    world.proxy.on(None, lose_request, client="a-", times=None)
    await before.leave()
    await assert_quick_takeover(world, removed)


@with_and_without(damage.open_claims_unawaited)
async def test_a_dead_owners_claim_is_ended_at_once(world: World, monkeypatch: Patch, removed: Damage | None) -> None:
    """Its id is nowhere but in the record of the open claim, and the registry's readers wait for that: for 13 s."""
    remove(removed, monkeypatch, world)
    await world.add_inputs(4)
    before = await world.member()
    claims = world.proxy.on(Api.END_TXN, swallow_request, client="a-")
    await world.owner("a", before.identity).start()
    await claims.was_hit()
    world.proxy.on(None, lose_request, client="a-", times=None)
    await before.leave()
    await assert_quick_takeover(world, removed)


@with_and_without(damage.unnamed_left_open)
async def test_an_owner_that_died_before_its_claim_is_found(
    world: World, monkeypatch: Patch, removed: Damage | None
) -> None:
    """Its offsets are pending, and the registry names the owner before it, which lives."""
    remove(removed, monkeypatch, world)
    await world.add_inputs(4)
    former = await world.member("a")
    owner = await world.owner("a", former.identity).start(limit=1)
    await owner.did(1)
    await owner.stop()
    short = await world.member("c")
    claims = world.proxy.on(Api.PRODUCE, swallow_request, client="c-")
    await world.owner("c", short.identity).start()
    await claims.was_hit()
    world.proxy.on(None, lose_request, client="c-", times=None)
    await short.leave()
    await assert_quick_takeover(world, removed)


@with_and_without(damage.end_of_the_living)
async def test_a_living_owner_ends_its_transaction_itself(
    world: World, monkeypatch: Patch, removed: Damage | None
) -> None:
    """Its commit goes through while another worker waits for the offset to become stable."""
    remove(removed, monkeypatch, world)
    await world.add_inputs(4)
    member = await world.member()
    living = await world.owner("a", member.identity).start(limit=0)
    await living.runs()
    gate, epoch = Gate(), living.running.epoch
    ends = world.proxy.on(Api.END_TXN, gate, client=living.producer)
    living.feed.allow(1)
    await ends.was_hit()
    owner = world.owner("b", member.identity)
    looks = world.proxy.on(Api.OFFSET_FETCH, forward, client="b-control", times=None)
    await owner.start(limit=0)
    await looks.was_hit(2)
    gate.open()
    await living.did(1)
    found = [] if living.running.epoch == epoch else ["the commit failed: another worker ended its transaction"]
    assert_damage(found, removed)
    await living.stop()
    if removed is None:
        owner.feed.allow(None)
        assert await world.damage(owner) == []


@with_and_without(damage.doubt_left_to_tasks)
async def test_a_living_worker_whose_tasks_left_ends_what_they_left_open(
    world: World, monkeypatch: Patch, removed: Damage | None
) -> None:
    """Its last commit got no answer, and it has no task that would take over again."""
    remove(removed, monkeypatch, world)
    await world.add_inputs(4)
    member = await world.member()
    living = await world.owner("a", member.identity).start(limit=0)
    await living.runs()
    is_stopping = asyncio.Event()

    async def lose_request_then(exchange: Exchange) -> None:
        await is_stopping.wait()
        await lose_request(exchange)

    ends = world.proxy.on(Api.END_TXN, lose_request_then, client=living.producer)
    living.feed.allow(1)
    await ends.was_hit()
    living.running.request_stop()
    is_stopping.set()
    await eventually(lambda: living.running.state is State.CLOSED, deadline_s=PROGRESS_S, what=repr(living.task))
    await assert_quick_takeover(world, removed)


@with_and_without(damage.ended_by_the_forgotten)
async def test_a_zombie_lets_its_successor_of_the_same_id_be(
    world: World, monkeypatch: Patch, removed: Damage | None
) -> None:
    """It stood still in a commit, and the group has forgotten it; its data folder's new process has the id now."""
    remove(removed, monkeypatch, world)
    world.transactional_id = f"{world.name}:worker:w-same"
    world.commit_deadline_s = 8.0
    await world.add_inputs(2)
    before, member = await world.member(), await world.member()
    await eventually(lambda: before.identity.generation == member.identity.generation, deadline_s=PROGRESS_S)
    zombie = await world.owner("a", before.identity).start(limit=0)
    await zombie.runs()
    ends = world.proxy.on(Api.END_TXN, swallow_request, client=zombie.producer)
    zombie.feed.allow(None)
    await ends.was_hit()
    generation = member.identity.generation
    await before.leave()
    await eventually(lambda: member.identity.generation > generation, deadline_s=PROGRESS_S)
    owner = await world.owner("b", member.identity).start(limit=1)
    await owner.did(1)
    # The successor is in the middle of a transaction when the zombie goes on.
    gate, epoch = Gate(), owner.running.epoch
    ends = world.proxy.on(Api.END_TXN, gate, client=owner.producer)
    owner.feed.allow(2)
    await ends.was_hit()
    assert zombie.running.state is not State.CLOSED
    await eventually(lambda: zombie.running.state is State.CLOSED, deadline_s=PROGRESS_S, what=repr(zombie.task))
    gate.open()
    await owner.did(2)
    assert_damage([] if owner.running.epoch == epoch else ["the successor was fenced"], removed)
    assert await world.damage(owner) == []


@with_and_without(damage.fenced_is_migrated)
async def test_fenced_is_no_proof_of_another_owner(world: World, monkeypatch: Patch, removed: Damage | None) -> None:
    """A request that a dead process sent to start a producer reaches the broker late. Nobody is there but the owner."""
    remove(removed, monkeypatch, world)
    await world.add_inputs(4)
    member = await world.member()
    hold = Hold()
    fences = world.proxy.on(Api.INIT_PRODUCER_ID, hold, client="a-")
    dead = await world.owner("a", member.identity).start(limit=0)
    await fences.was_hit()
    await dead.stop()
    owner = await world.owner("a", member.identity).start(limit=2)
    await owner.did(2)
    epoch = owner.running.epoch

    async def arrived() -> bool:
        # The broker may still be ending the transaction whose records are read already, and refuses until then.
        code = await hold.deliver()
        assert code in (NO_ERROR, CONCURRENT_TRANSACTIONS)
        return code == NO_ERROR

    await eventually(arrived)
    owner.feed.allow(None)
    assert_damage(await world.damage(owner, expected=removed is not None), removed)
    assert removed or owner.running.epoch > epoch


@pytest.mark.parametrize(
    "api",
    [Api.INIT_PRODUCER_ID, Api.HEARTBEAT, Api.OFFSET_FETCH, pytest.param(Api.END_TXN, marks=pytest.mark.nightly)],
)
async def test_a_takeover_that_is_overtaken_gives_way(world: World, api: Api) -> None:
    """A stands still in its takeover while B, of the same member, takes over and works; then A goes on."""
    await world.add_inputs(4)
    member = await world.member()
    gate = Gate()
    # The heartbeat after the fence is the second.
    stands = world.proxy.on(api, gate, client="a-", skip=1 if api is Api.HEARTBEAT else 0)
    a = await world.owner("a", member.identity).start(limit=0)
    await stands.was_hit()
    b = await world.owner("b", member.identity).start(limit=2)
    await b.did(2)
    gate.open()
    await a.runs()
    await b.stop()
    a.feed.allow(None)
    assert await world.damage(a) == []


# --- restore ----------------------------------------------------------------------------------------------------------


@with_and_without(damage.restored_to_the_last_stable_offset)
async def test_a_restore_waits_for_an_open_transaction_of_another(
    world: World, monkeypatch: Patch, removed: Damage | None
) -> None:
    """Committed records lie behind another's open transaction in the changelog: they are part of the state."""
    remove(removed, monkeypatch, world)
    first = await world.sole_owner(4)
    async with producing(world.brokers, transactional_id=f"{world.name}-other") as other:
        await other.begin_transaction()
        await (await other.send(world.changelog, b"never", b"other", partition=0))
        first.feed.allow(None)
        await first.did(4)
        await first.stop()
        await world.add_inputs(2)
        second = world.owner("b", (await world.member()).identity)
        with world.proxy.watching(Api.FETCH, "b-restore") as fetches:
            await second.start(limit=0)
            if removed is None:
                await eventually(lambda: second.running.state is State.RESTORING, deadline_s=PROGRESS_S)
                seen = fetches.seen
                await eventually(lambda: fetches.seen >= seen + 2, deadline_s=PROGRESS_S, what="the restore waits")
                assert second.running.state is State.RESTORING
            else:
                await second.runs()
        await other.abort_transaction()
    await second.runs()
    second.feed.allow(None)
    assert_damage(await world.damage(second, expected=removed is not None), removed)
