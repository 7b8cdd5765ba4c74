"""Workers that the group went on without: another worker had their partition meanwhile, and they don't know.

Tests with `removed` run with the product as it is, and with one of its rules taken away: then there has to be damage.
"""

from __future__ import annotations

from tests.kafka.helpers import eventually
from tests.kafka.wire import damage
from tests.kafka.wire.damage import Damage, Patch, assert_damage, remove, with_and_without
from tests.kafka.wire.node import Node
from tests.kafka.wire.proxy import Api, Gate
from tests.kafka.wire.world import World


@with_and_without(damage.missed_generation_unnoticed)
async def test_a_worker_that_missed_a_generation_drops_its_tasks(
    world: World, monkeypatch: Patch, removed: Damage | None
) -> None:
    """A static member stays in the group when it joins too late, and the leader doesn't hear what it has."""
    remove(removed, monkeypatch, world)
    await world.add_inputs(3)
    async with Node(world, "z", instance_id="z", session_ms=30_000, rebalance_ms=3000) as late:
        await late.did(3)
        gate = Gate()
        joins = world.proxy.on(Api.JOIN_GROUP, gate, client="z-actors")
        async with Node(world, "b", rebalance_ms=3000) as other:
            await joins.was_hit()
            await world.add_inputs(3)
            await other.did(6)
        gate.open()
        await world.add_inputs(2)
        await late.did(8)
    assert_damage(await world.damage(), removed)


@with_and_without(damage.forgotten_keeps_its_tasks)
async def test_a_worker_that_the_group_has_forgotten_drops_its_tasks(
    world: World, monkeypatch: Patch, removed: Damage | None
) -> None:
    """Its session ends while nothing of it reaches the brokers, and it has nothing to commit until it is back."""
    remove(removed, monkeypatch, world)
    await world.add_inputs(3)
    async with Node(world, "a", rebalance_ms=3000) as late:
        await late.did(3)
        generation, silence, stale = late.generation, Gate(), Gate()
        beats = world.proxy.on(Api.HEARTBEAT, silence, client="a-actors", times=None)
        reads = world.proxy.on(Api.FETCH, stale, client="a-actors", times=None)
        await beats.was_hit()
        await reads.was_hit()
        async with Node(world, "b", rebalance_ms=3000) as other:
            await world.add_inputs(3)
            await other.did(6)
        silence.open()
        await eventually(lambda: late.generation > generation, what="the worker is a member again")
        stale.open()
        await world.add_inputs(2)
        await late.did(8)
    assert_damage(await world.damage(), removed)
