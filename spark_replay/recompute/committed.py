"""How far a consumer group is, by the connector's own Kafka client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_replay.errors import BrokerError
from spark_replay.session import first_line
from spark_replay.sources.brokers.topic import client_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TIMEOUTS_MS = {"default.api.timeout.ms": "8000", "request.timeout.ms": "4000"}


class CommittedOffset(NamedTuple):
    """A group's offset of a partition, None if it has none, and the metadata that was committed with it."""

    offset: int | None
    metadata: str = ""


def committed_offsets(
    spark: SparkSession,
    brokers: str,
    group: str,
    topic: str,
    partition_count: int,
    kafka_options: Mapping[str, str],
) -> tuple[CommittedOffset, ...]:
    """Return the committed offset of each partition.

    Raises:
        BrokerError: The brokers don't answer, or refuse.
    """
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    jvm: Any = spark._jvm
    config = jvm.java.util.HashMap()
    for key, value in (_TIMEOUTS_MS | client_options(brokers, kafka_options)).items():
        config.put(key, value)
    kafka = jvm.org.apache.kafka
    try:
        client = kafka.clients.admin.AdminClient.create(config)
        try:
            found = client.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()
            offsets = [found.get(kafka.common.TopicPartition(topic, number)) for number in range(partition_count)]
            return tuple(
                CommittedOffset(None) if found is None else CommittedOffset(int(found.offset()), str(found.metadata()))
                for found in offsets
            )
        finally:
            client.close(jvm.java.time.Duration.ofSeconds(1))
    except Py4JJavaError as error:
        reason = first_line(ValueError(error.java_exception.getMessage() or "no reason given"))
        raise BrokerError(f"the brokers {brokers} did not say how far group {group} is: {reason}") from error
