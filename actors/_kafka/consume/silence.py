"""How long the group's coordinator and the leaders of inputs haven't answered a worker's consumer.

aiokafka retries silently, and keeps its assignment until a broker answers. Each request is noted when it is sent, and
forgotten when its answer comes; the rest is unanswered.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from aiokafka.errors import (
    GroupAuthorizationFailedError,
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    NotCoordinatorForGroupError,
    for_code,
)
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.group import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest

from actors._kafka.client import Hook
from actors.ports import TopicPartition

_GROUP = "group"
_OF_GROUP = (HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest)
_NOT_TAKEN = (
    GroupAuthorizationFailedError,
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    NotCoordinatorForGroupError,
)
"""Answers after which it is unknown whether the group still has this member."""


class Silence(Hook):
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

    async def before(self, node: Any, request: Any) -> Any:
        # A join is answered when all members have joined, however long that takes.
        if isinstance(request, HeartbeatRequest):
            self._asked((_GROUP,))
        elif type(request) is FetchRequest:
            self._asked(_partitions(request))
        return request

    def after(self, node: Any, request: Any, response: Any) -> Any:
        if type(request) is FetchRequest:
            # In a session a response has only partitions with news.
            refused = {TopicPartition(topic, part[0]) for topic, parts in response.topics for part in parts if part[1]}
            self._answered(partition for partition in _partitions(request) if partition not in refused)
        elif isinstance(request, _OF_GROUP) and for_code(response.error_code) not in _NOT_TAKEN:
            self._answered((_GROUP,))
        return response

    def failed(self, request: Any, error: BaseException) -> None:
        # A rebalance cancels the fetch, which says nothing about the broker.
        if type(request) is FetchRequest and isinstance(error, asyncio.CancelledError):
            self._answered(_partitions(request))

    def _asked(self, whom: Iterable[Hashable]) -> None:
        now_s = self._now_s()
        for subject in whom:
            self._since_s.setdefault(subject, now_s)

    def _answered(self, whom: Iterable[Hashable]) -> None:
        for subject in whom:
            self._since_s.pop(subject, None)

    def _of(self, whom: Hashable) -> float:
        since_s = self._since_s.get(whom)
        return 0.0 if since_s is None else self._now_s() - since_s


def _partitions(request: FetchRequest) -> list[TopicPartition]:
    return [TopicPartition(topic, part[0]) for topic, parts in request.topics for part in parts]
