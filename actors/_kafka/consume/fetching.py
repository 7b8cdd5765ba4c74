"""Fetches that name topics by id, so that a consumer gets no record of a topic that was created again.

aiokafka's requests, up to version 11, name topics. A topic that is deleted and created again has the same name, and a
consumer would continue in it at an offset of the former topic. Version 13 names ids (KIP-516), which are never reused.
aiokafka's fetcher builds its request and reads its response; a hook of its client translates both.

Fetches of several partitions share a session (KIP-227): the broker remembers the partitions of the last fetch, a
request names those that changed, and a response has those with news. A session goes on only after a response without
errors. Otherwise, and when a partition gets another start, the next fetch names all partitions, ends the session and
begins one. So a response that is lost costs nothing but that.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from aiokafka.protocol.api import Request
from aiokafka.protocol.fetch import FetchRequest, FetchRequest_v11
from aiokafka.structs import TopicPartition as KafkaPartition

from actors._core.task.topic_ids import show_id
from actors._kafka.client import Consumer, Hook, limits_of
from actors._kafka.codes import OK, error_of
from actors._kafka.protocol import FetchRequest_v13
from actors.errors import ReplacedLogError
from actors.ports import NO_ID, TopicPartition

UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID = 100, 103
GATHER_S, MOST_GATHER_S = 0.00015, 0.1
TRICKLE_BYTES, FEW = 512, 16
"""How long a fetch waits for each of its partitions, and at most, after one that brought fewer bytes for each: a broker
looks at all partitions of a session for each fetch, and answers at once for a lone record. A fetch of fewer partitions
than `FEW` costs less than that wait, which timers round up to milliseconds."""
_NO_SESSION, _LAST_EPOCH = -1, 2**31 - 1
_RENAMED = frozenset((UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID))

_Partition = tuple[uuid.UUID, int]
Lost = Callable[[KafkaPartition, uuid.UUID], None]


@dataclass(slots=True)
class _Response:
    """The part of a response that aiokafka's fetcher reads: the version, and (name, partitions) of each topic."""

    API_VERSION: int
    topics: list[tuple[str, list[tuple[Any, ...]]]]


class _Session(NamedTuple):
    """A fetch session of a broker.

    Attributes:
        number: The session's id, 0 if there is none.
        epoch: The number of the next fetch in it; 0 in one that begins a session.
        partitions: Offset and most bytes of each partition, as fetched last.
    """

    number: int = 0
    epoch: int = 0
    partitions: Mapping[_Partition, tuple[int, int]] = {}

    def restarted(self) -> _Session:
        """Return the session as the next fetch ends it to begin another."""
        return _Session(self.number)


class FetchesById(Hook):
    """The topic ids of the partitions that a consumer fetches; a partition without a known id is fetched by name.

    `lost` is called when a broker doesn't know a partition's topic id any more; then nothing was fetched of it. Fetches
    of many partitions that bring little gather records before the next one.
    """

    def __init__(self, lost: Lost) -> None:
        self._ids: dict[KafkaPartition, uuid.UUID] = {}
        self._sessions: dict[Any, _Session] = {}
        self._is_trickle: dict[Any, bool] = {}
        self._lost = lost

    def set_id(self, partition: KafkaPartition, topic_id: str) -> bool:
        """Fetch the partition of the topic with this id from now on; tell whether the id changed."""
        before = self._ids.pop(partition, None)
        if topic_id not in ("", NO_ID):
            self._ids[partition] = uuid.UUID(topic_id)
        # The partition's end isn't news for the session, but it is for a reader that begins.
        self._sessions = {node: session.restarted() for node, session in self._sessions.items()}
        return before != self._ids.get(partition)

    async def before(self, node: Any, request: Any) -> Any:
        if type(request) is not FetchRequest:
            return request
        count = sum(len(partitions) for _, partitions in request.topics)
        if self._is_trickle.get(node):
            await asyncio.sleep(min(MOST_GATHER_S, GATHER_S * count))
        by_id = _FetchById(request, self._ids, self._sessions.get(node, _Session()))
        self._sessions[node] = by_id.restarted
        return by_id

    def after(self, node: Any, request: Any, response: Any) -> Any:
        if type(request) is not _FetchById or response.API_VERSION < FetchRequest_v13.API_VERSION:
            return response
        if response.error_code != OK and request.session.epoch == 0:
            raise error_of(response.error_code)
        topics = self._by_name(request, response.topics)
        if self._sessions[node] is request.restarted and not _has_error(response):
            self._sessions[node] = request.next_session(response.session_id)
        size = sum(len(partition[-1]) for _, partitions in topics for partition in partitions)
        count = len(request.partitions)
        self._is_trickle[node] = count >= FEW and 0 < size < TRICKLE_BYTES * count
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

    def __init__(self, consumer: Consumer) -> None:
        super().__init__(self._note)
        self._consumer = consumer
        consumer.client.hooks = (self,)
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

    def __init__(self, request: FetchRequest, ids: Mapping[KafkaPartition, uuid.UUID], session: _Session) -> None:
        self._request = request
        self.session = session
        self.restarted = session.restarted()
        self._has_ids = True
        self.partitions: dict[_Partition, tuple[int, int]] = {}
        self.names: dict[uuid.UUID, str] = {}
        for name, partitions in request.topics:
            for number, offset, max_bytes in partitions:
                topic_id = ids.get(KafkaPartition(name, number))
                if topic_id is None:
                    self._has_ids = False
                    return
                self.names[topic_id] = name
                self.partitions[topic_id, number] = offset, max_bytes

    def prepare(self, versions: dict[int, tuple[int, int]]) -> Any:
        """Return the request for a broker of these versions."""
        lowest, highest = versions.get(self.API_KEY, (0, 0))
        if not self._has_ids or not lowest <= FetchRequest_v13.API_VERSION <= highest:
            return self._request.prepare(versions)
        return self.build(FetchRequest_v13)

    def build(self, request_struct_class: Any) -> Any:
        *limits, rack = limits_of(self._request)
        session = self.session
        changed: dict[uuid.UUID, list[Any]] = defaultdict(list)
        forgotten: dict[uuid.UUID, list[int]] = defaultdict(list)
        for (topic_id, number), wanted in self.partitions.items():
            if session.partitions.get((topic_id, number)) != wanted:
                changed[topic_id].append((number, -1, wanted[0], -1, -1, wanted[1], {}))
        for topic_id, number in session.partitions.keys() - self.partitions.keys():
            forgotten[topic_id].append(number)
        # One partition needs no session, and brokers have only so many.
        epoch = session.epoch if session.epoch > 0 or len(self.partitions) > 1 else _NO_SESSION
        return request_struct_class(
            -1,
            *limits,
            session.number,
            epoch,
            [(topic_id, partitions, {}) for topic_id, partitions in changed.items()],
            [(topic_id, numbers, {}) for topic_id, numbers in forgotten.items()],
            rack,
            {},
        )

    def next_session(self, number: int) -> _Session:
        """Return the session of the fetch after this one, from the response's number."""
        if number == 0:
            return _Session()
        return _Session(number, self.session.epoch % _LAST_EPOCH + 1, self.partitions)


def _has_error(response: Any) -> bool:
    """Return whether the session may differ from the broker's."""
    return response.error_code != OK or any(part[1] != OK for topic in response.topics for part in topic[1])
