"""Two workers with the same transactional id, as with a copied data folder: they fence each other, and do no harm."""

from __future__ import annotations

import asyncio

import pytest

from tests.kafka.wire.proxy import WireProxy
from tests.kafka.wire.world import Owner, World

ROUNDS = 3


async def one_more(world: World, owner: Owner) -> None:
    """Let the owner have one more input, and wait until it is committed."""
    await world.add_inputs(1)
    owner.feed.allow(None)
    await owner.did(len(world.inputs))


async def test_nothing_is_lost_or_doubled_while_two_workers_fence_each_other(
    brokers: str, proxy: WireProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """Each has a partition of its own; the errors say what happened, and what to do."""
    async with World(brokers, proxy) as one, World(brokers, proxy) as two:
        two.transactional_id = one.transactional_id = f"{one.name}-actors-5f1d"
        first, second = await one.sole_owner(1), await two.sole_owner(1)
        for _ in range(ROUNDS):
            for world, owner in ((one, first), (two, second)):
                epoch = owner.running.epoch
                await one_more(world, owner)
                assert owner.running.epoch > epoch, f"{world.name} wasn't fenced"
        await asyncio.gather(*(one_more(world, owner) for world, owner in ((one, first), (two, second))))
        assert [await one.damage(first), await two.damage(second)] == [[], []]
        proxy.calm()
    said = [record.getMessage() for record in caplog.records]
    fenced = [text for text in said if f"another process uses transactional id {one.transactional_id}" in text]
    assert fenced, said
    for part in ("the data folder /data/copy", "Stop one of the workers", "delete worker.json", "datadir of its own"):
        assert part in fenced[0]
