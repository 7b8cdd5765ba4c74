"""A writer whose first broker is away asks another one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import ClusterAuthorizationFailedError, NodeNotReadyError

from actors._kafka.connection import Connection
from actors._kafka.produce.ordered import OrderedWriter


class Brokers:
    """Stands for the client: brokers are asked in turn, and the first ones aren't there."""

    def __init__(self, away: int, code: int = 0) -> None:
        self.away, self.code, self.asked = away, code, 0

    def get_random_node(self) -> int:
        """Name the next one."""
        self.asked += 1
        return self.asked

    async def send(self, node: int, request: Any) -> Any:
        """Answer if it is there."""
        if node <= self.away:
            raise NodeNotReadyError
        return SimpleNamespace(error_code=self.code, producer_id=5, producer_epoch=0)


def writer(brokers: Brokers) -> OrderedWriter:
    made = OrderedWriter(
        connection=Connection(("127.0.0.1:1",)),
        group="g",
        batch_bytes=lambda topic: 1000,
        compression=None,
        commit_deadline_s=1.0,
    )
    client: Any = brokers
    made._client = client
    return made


async def test_another_broker_is_asked() -> None:
    brokers = Brokers(away=2)
    assert await writer(brokers)._init(None) == (5, 0)
    assert brokers.asked == 3


async def test_a_refusal_is_not_asked_for_again() -> None:
    with pytest.raises(ClusterAuthorizationFailedError):
        await writer(Brokers(away=0, code=31))._init(None)
