"""How long the group's coordinator and the leaders of inputs haven't answered a worker's consumer.

aiokafka retries silently, and keeps its assignment until a broker answers. Each request is noted when it is sent, and
forgotten when its answer comes; the rest is unanswered.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    NotCoordinatorForGroupError,
    for_code,
)
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.group import HeartbeatRequest

from actors.ports import TopicPartition

_GROUP = "group"
_NOT_TAKEN = (
    GroupAuthorizationFailedError,
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    NotCoordinatorForGroupError,
)
"""Answers after which it is unknown whether the group still has this member."""


class Silence:
    """Heartbeats and fetches without an answer. Call `forget` for a partition that isn't fetched any more."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._since_s: dict[Hashable, float] = {}

    @property
    def group_s(self) -> float:
        """Seconds since the first unanswered heartbeat, 0 if the coordinator accepted the last one."""
        return self._of(_GROUP)

    def leader_s(self, partition: TopicPartition) -> float:
        """Seconds since the first fetch of the partition without an answer, 0 if the last one was answered."""
        return self._of(partition)

    def forget(self, partition: TopicPartition) -> None:
        """Forget a partition that isn't fetched any more, or is fetched from another offset."""
        self._since_s.pop(partition, None)

    def watch(self, client: AIOKafkaClient, coordinator: Any) -> None:
        """Watch all fetches of a consumer's client and all requests of its coordinator."""
        self._watch_fetches(client)
        self._watch_group(coordinator)

    def _watch_fetches(self, client: AIOKafkaClient) -> None:
        send = client.send

        async def watched(node: Any, request: Any, **options: Any) -> Any:
            if type(request) is not FetchRequest:
                return await send(node, request, **options)
            asked = [TopicPartition(topic, part[0]) for topic, parts in request.topics for part in parts]
            self._asked(asked)
            try:
                response = await send(node, request, **options)
            except asyncio.CancelledError:
                # A rebalance cancels the fetch, which says nothing about the broker.
                self._answered(asked)
                raise
            # In a session a response has only partitions with news.
            refused = {TopicPartition(topic, part[0]) for topic, parts in response.topics for part in parts if part[1]}
            self._answered(partition for partition in asked if partition not in refused)
            return response

        client.send = watched

    def _watch_group(self, coordinator: Any) -> None:
        send = coordinator._send_req

        async def watched(request: Any) -> Any:
            # A join is answered when all members have joined, however long that takes.
            if isinstance(request, HeartbeatRequest):
                self._asked((_GROUP,))
            response = await send(request)
            if for_code(getattr(response, "error_code", 0)) not in _NOT_TAKEN:
                self._answered((_GROUP,))
            return response

        coordinator._send_req = watched

    def _asked(self, whom: Iterable[Hashable]) -> None:
        now_s = self._now_s()
        for one in whom:
            self._since_s.setdefault(one, now_s)

    def _answered(self, whom: Iterable[Hashable]) -> None:
        for one in whom:
            self._since_s.pop(one, None)

    def _of(self, whom: Hashable) -> float:
        since_s = self._since_s.get(whom)
        return 0.0 if since_s is None else self._now_s() - since_s
