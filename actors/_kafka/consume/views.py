"""What a view needs of real brokers: `actors.ports.TopicLogs`."""

from __future__ import annotations

from collections.abc import Mapping

from actors._kafka.admin.control import ControlPlane
from actors._kafka.admin.topics import Topics
from actors._kafka.connection import Connection
from actors._kafka.consume.following import KafkaFollowing
from actors._kafka.consume.logs import KafkaLogs
from actors.ports import TopicFacts, TopicPartition

FETCH_BYTES = 1024 * 1024


class KafkaTopicLogs(KafkaLogs):
    """`actors.ports.TopicLogs` over brokers. Made by `open`."""

    def __init__(self, connection: Connection, control: ControlPlane, *, role: str = "view") -> None:
        super().__init__(connection, control)
        self._role = role
        self._topics = Topics(connection, control)
        self._facts: TopicFacts | None = None

    @classmethod
    async def open(cls, connection: Connection) -> KafkaTopicLogs:
        """Connect.

        Raises:
            BrokerUnavailableError: no broker of the list answers.
        """
        return cls(connection, await ControlPlane.open(connection, ""))

    async def facts(self, topic: str) -> TopicFacts | None:
        """See `actors.ports.TopicLogs.facts`. The settings are asked for once for each topic id and partition count."""
        found = (await self._topics.existing([topic])).get(topic)
        if found is None:
            return None
        known, identity = self._facts, (topic, str(found.topic_id), found.partitions)
        if known is not None and (known.topic, known.topic_id, known.partitions) == identity:
            return known
        config = (await self._topics.configs([topic]))[topic]
        self._facts = TopicFacts(
            *identity,
            cleanup_policy=config["cleanup.policy"],
            delete_retention_ms=int(config["delete.retention.ms"]),
            max_record_bytes=int(config["max.message.bytes"]),
        )
        return self._facts

    async def follow(
        self, positions: Mapping[TopicPartition, int], topic_ids: Mapping[str, str] | None = None
    ) -> KafkaFollowing:
        """See `actors.ports.TopicLogs.follow`."""
        return await KafkaFollowing.open(
            self._connection, positions, topic_ids or {}, role=self._role, fetch_bytes=FETCH_BYTES
        )

    async def close(self) -> None:
        """See `actors.ports.TopicLogs.close`."""
        await self._control.close()
