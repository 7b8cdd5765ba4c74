"""A fake of `actors.ports.TopicLogs` over a simulated cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from actors.errors import BrokerUnavailableError, ReplacedLogError, RestoreError
from actors.ports import LogRecord, TopicFacts, TopicPartition
from actors.testing.fakes.cluster import MemoryKafka
from actors.testing.fakes.direct import DirectNetwork
from actors.testing.fakes.errors import NoAnswerError, OffsetOutOfRangeError, RefusedError, UnknownTopicIdError
from actors.testing.fakes.ports import FakeLogs

MAX_RECORD_BYTES = 1_048_588
RETRY_S = 0.05


class FakeTopicLogs(FakeLogs):
    """`actors.ports.TopicLogs`; what is compacted and how long deletes are kept, the simulated topic says."""

    async def facts(self, topic: str) -> TopicFacts | None:
        try:
            found = await self._network.ask("Metadata", self._cluster.find_topic, topic)
        except (NoAnswerError, RefusedError) as error:
            raise BrokerUnavailableError(f"topic {topic}: {error!r}") from error
        if found is None:
            return None
        log = found.partitions[0]
        return TopicFacts(
            topic,
            found.topic_id,
            len(found.partitions),
            cleanup_policy="compact" if log.is_compacted else "delete",
            delete_retention_ms=log.delete_retention_ms,
            max_record_bytes=MAX_RECORD_BYTES,
        )

    async def follow(
        self, positions: Mapping[TopicPartition, int], topic_ids: Mapping[str, str] | None = None
    ) -> FakeFollowing:
        return FakeFollowing(self._cluster, self._network, positions, self._chunk_records, topic_ids or {})

    async def close(self) -> None:
        """Do nothing: there is no connection."""


class FakeFollowing:
    """`actors.ports.Following`."""

    def __init__(
        self,
        cluster: MemoryKafka,
        network: DirectNetwork,
        positions: Mapping[TopicPartition, int],
        chunk_records: int,
        topic_ids: Mapping[str, str],
    ) -> None:
        self._cluster = cluster
        self._network = network
        self._positions = dict(positions)
        self._chunk_records = chunk_records
        self._ids = {source: topic_ids.get(source.topic, "") for source in positions}

    async def poll(self, timeout_s: float) -> Mapping[TopicPartition, tuple[Sequence[LogRecord], int]]:
        positions = dict(self._positions)
        try:
            found: Mapping[TopicPartition, tuple[Sequence[LogRecord], int]] = await self._network.ask(
                "Fetch", self._fetch, positions, timeout_s
            )
        except OffsetOutOfRangeError as error:
            raise RestoreError(f"the log doesn't have what would be read next any more: {error!r}") from error
        except UnknownTopicIdError as error:
            raise ReplacedLogError(error.partition, "it is another topic's now") from error
        except (NoAnswerError, RefusedError):
            await asyncio.sleep(RETRY_S)
            return {}
        for source, (_, reached) in found.items():
            self._positions[source] = reached
        return found

    def _fetch(self, positions: Mapping[TopicPartition, int], timeout_s: float) -> Any:
        if any(self._cluster.find_topic(source.topic) is None for source in positions):
            raise RefusedError("UnknownTopicOrPartition")
        return self._cluster.poll(positions, self._chunk_records, timeout_s, ids=self._ids)

    async def close(self) -> None:
        """Do nothing: there is no connection."""
