"""Fetches that name topics by id, so that a consumer gets no record of a topic that was created again.

aiokafka's requests, up to version 11, name topics. A topic that is deleted and created again has the same name, and a
consumer would continue in it at an offset of the former topic. Version 13 names ids (KIP-516), which are never reused.
aiokafka's fetcher builds its request and reads its response; the client's `send` translates both.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.api import Request
from aiokafka.protocol.fetch import FetchRequest, FetchRequest_v11
from aiokafka.structs import TopicPartition as KafkaPartition

from actors._core.task.topic_ids import show_id
from actors._kafka.protocol import FetchRequest_v13
from actors.errors import ReplacedLogError
from actors.ports import NO_ID, TopicPartition

UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID = 100, 103
GATHER_S, MOST_GATHER_S = 0.00015, 0.1
TRICKLE_BYTES = 512
"""How long a fetch waits for each of its partitions, and at most, after one that brought fewer bytes for each: without
a fetch session a broker looks at all partitions, and a lone record would be answered at once."""
_RENAMED = frozenset((UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID))

Lost = Callable[[KafkaPartition, uuid.UUID], None]


@dataclass(slots=True)
class _Response:
    """The part of a response that aiokafka's fetcher reads: the version, and (name, partitions) of each topic."""

    API_VERSION: int
    topics: list[tuple[str, list[tuple[Any, ...]]]]


class FetchesById:
    """The topic ids of the partitions that a consumer fetches; a partition without a known id is fetched by name.

    `lost` is called when a broker doesn't know a partition's topic id any more; then nothing was fetched of it. Fetches
    of many partitions that bring little gather records before the next one.
    """

    def __init__(self, client: AIOKafkaClient, lost: Lost) -> None:
        self._ids: dict[KafkaPartition, uuid.UUID] = {}
        self._is_trickle: dict[Any, bool] = {}
        self._lost = lost
        self._send = client.send
        client.send = self._send_by_id

    def set_id(self, partition: KafkaPartition, topic_id: str) -> bool:
        """Fetch the partition of the topic with this id from now on; tell whether the id changed."""
        before = self._ids.pop(partition, None)
        if topic_id not in ("", NO_ID):
            self._ids[partition] = uuid.UUID(topic_id)
        return before != self._ids.get(partition)

    async def _send_by_id(self, node: Any, request: Any, **options: Any) -> Any:
        if type(request) is not FetchRequest:
            return await self._send(node, request, **options)
        by_id = _FetchById(request, self._ids)
        count = sum(len(partitions) for _, partitions in request.topics)
        if self._is_trickle.get(node):
            await asyncio.sleep(min(MOST_GATHER_S, GATHER_S * count))
        response = await self._send(node, by_id, **options)
        if response.API_VERSION < FetchRequest_v13.API_VERSION:
            return response
        topics = self._by_name(by_id, response.topics)
        size = sum(len(partition[-1]) for _, partitions in topics for partition in partitions)
        self._is_trickle[node] = 0 < size < TRICKLE_BYTES * count
        return _Response(response.API_VERSION, topics)

    def _by_name(self, request: _FetchById, topics: Sequence[Any]) -> list[tuple[str, list[tuple[Any, ...]]]]:
        """Return the answer in the form of version 11, without partitions of other ids than those asked for."""
        found = []
        for topic_id, partitions, _ in topics:
            name, kept = request.names[topic_id], []
            for number, code, high, stable, start, aborted, replica, records, _ in partitions:
                partition = KafkaPartition(name, number)
                if self._ids.get(partition) != topic_id:
                    continue
                if code in _RENAMED:
                    self._lost(partition, topic_id)
                    continue
                ends = [(producer, first) for producer, first, _ in aborted or ()]
                kept.append((number, code, high, stable, start, ends, replica, records or b""))
            found.append((name, kept))
        return found


class LogsById(FetchesById):
    """The ids of the logs that a consumer without a group reads."""

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        super().__init__(consumer._client, self._note)
        self._consumer = consumer
        self._replaced: ReplacedLogError | None = None

    def check(self) -> None:
        """Check that every log still belongs to the topic with its id.

        Raises:
            ReplacedLogError: one doesn't, or the broker doesn't know its topic yet.
        """
        if self._replaced is not None:
            raise self._replaced

    def _note(self, partition: KafkaPartition, topic_id: uuid.UUID) -> None:
        self._consumer.pause(partition)
        reason = f"the broker knows no topic with the id {show_id(str(topic_id))} any more, or not yet"
        self._replaced = ReplacedLogError(TopicPartition(*partition), reason)


class _FetchById(Request[FetchRequest_v11 | FetchRequest_v13]):  # type: ignore[misc]
    """A fetch that names topic ids if the broker supports that, and topics' names otherwise."""

    API_KEY = FetchRequest.API_KEY

    def __init__(self, request: FetchRequest, ids: dict[KafkaPartition, uuid.UUID]) -> None:
        self._request = request
        self.names: dict[uuid.UUID, str] = {}
        self._topics: dict[uuid.UUID, list[tuple[Any, ...]]] | None = {}
        for name, partitions in request.topics:
            for number, offset, max_bytes in partitions:
                topic_id = ids.get(KafkaPartition(name, number))
                if topic_id is None:
                    self._topics = None
                    return
                self.names[topic_id] = name
                self._topics.setdefault(topic_id, []).append((number, -1, offset, -1, -1, max_bytes, {}))

    def prepare(self, versions: dict[int, tuple[int, int]]) -> Any:
        """Return the request for a broker of these versions."""
        lowest, highest = versions.get(self.API_KEY, (0, 0))
        if self._topics is None or not lowest <= FetchRequest_v13.API_VERSION <= highest:
            return self._request.prepare(versions)
        return self.build(FetchRequest_v13)

    def build(self, request_struct_class: Any) -> Any:
        """Return the request in version 13. There is no fetch session: each request names all partitions."""
        asked, topics = self._request, self._topics or {}
        return request_struct_class(
            -1,
            asked._max_wait_ms,
            asked._min_bytes,
            asked._max_bytes,
            asked._isolation_level,
            0,
            -1,
            [(topic_id, partitions, {}) for topic_id, partitions in topics.items()],
            [],
            asked._rack_id,
            {},
        )
