"""The two worlds of the contract, and a topic in each."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.contract.worlds import FakeWorld, RealWorld, World
from tests.kafka.helpers import unique


@pytest.fixture(params=["fake", "real"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    opened = FakeWorld() if request.param == "fake" else await RealWorld.open(request.getfixturevalue("brokers"))
    try:
        yield opened
    finally:
        await opened.close()


@pytest.fixture
async def topic(world: World) -> str:
    name = unique("log")
    await world.make_topic(name)
    return name
