"""Records that the consumer fetched from another position than the takeover ended at are never handled.

Tests with `removed` run with the product as it is, and with one of its rules taken away: then there has to be damage.
"""

from __future__ import annotations

from actors._core.task.lifecycle import State
from tests.kafka.helpers import eventually
from tests.kafka.wire import damage
from tests.kafka.wire.damage import Damage, Patch, assert_damage, remove, with_and_without
from tests.kafka.wire.node import Node
from tests.kafka.wire.proxy import Api, Gate, lose_request
from tests.kafka.wire.world import World


async def test_nothing_is_fetched_before_the_takeover_says_from_where(world: World) -> None:
    """The consumer doesn't ask the group for an offset, which might be another one than the takeover ends at."""
    await world.add_inputs(3)
    async with Node(world, "a") as first:
        await first.did(3)
    await world.add_inputs(3)
    gate = Gate()
    takes_over = world.proxy.on(Api.HEARTBEAT, gate, client="b-control")
    with (
        world.proxy.watching(Api.HEARTBEAT, "b-actors") as beats,
        world.proxy.watching(Api.FETCH, "b-actors") as reads,
        world.proxy.watching(Api.OFFSET_FETCH, "b-actors") as asked,
    ):
        async with Node(world, "b") as second:
            await takes_over.was_hit()
            # Paused, it doesn't fetch: some heartbeats' time is what it has to do it in.
            await eventually(lambda: reads.seen >= 2 or beats.seen >= 2, what="the consumer is at work")
            assert (reads.seen, asked.seen) == (0, 0)
            gate.open()
            await second.did(6)
            assert second.failures == []
    assert await world.damage() == []


@with_and_without(damage.resumed_without_seek)
async def test_a_fetch_that_was_under_way_is_not_handled_after_a_takeover(
    world: World, monkeypatch: Patch, removed: Damage | None
) -> None:
    """The reply to a fetch from before an unknown outcome arrives when the task has begun anew, further back."""
    remove(removed, monkeypatch, world)
    await world.add_inputs(3)
    async with Node(world, "a") as node:
        await node.did(3)
        gate = Gate(replies=True)
        ahead = (4).to_bytes(8, "big")
        reads_ahead = world.proxy.on(Api.FETCH, gate, client="a-actors", containing=ahead)
        lost = world.proxy.on(Api.END_TXN, lose_request, client=node.producer)
        await world.add_inputs(1)
        await lost.was_hit()
        await reads_ahead.was_hit()
        await world.add_inputs(1)
        await eventually(lambda: node.task and (node.task.epoch, node.task.state) == (2, State.RUNNING))
        gate.open()
        await node.did(5)
        assert node.failures == []
    assert_damage(await world.damage(), removed)
