"""A proxy and a world for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.kafka.wire.proxy import WireProxy
from tests.kafka.wire.world import World


@pytest.fixture
async def proxy(brokers: str) -> AsyncIterator[WireProxy]:
    """A proxy without rules."""
    async with WireProxy(brokers) as running:
        yield running


@pytest.fixture
async def world(brokers: str, proxy: WireProxy) -> AsyncIterator[World]:
    """An actor's topics, and owners that use the proxy."""
    async with World(brokers, proxy) as made:
        yield made
        # What still holds a request would hold the owners' end.
        proxy.calm()
