"""What the brokers say of a topic before Spark reads it: its partitions and where each begins and ends.

Spark's Kafka source would find the ends by itself, and keep them to itself. A position can only be judged
against ends that are known, and an unknown topic or a silent broker is told in seconds by asking first.
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_replay.errors import BrokerError, UnknownTopicError
from spark_replay.session import first_line

if TYPE_CHECKING:
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession

_CONNECT_TIMEOUT_S = 3.0
_TIMEOUTS_MS = {"default.api.timeout.ms": "8000", "request.timeout.ms": "4000"}
_WORD = (1 << 64) - 1
_UNKNOWN = ("UnknownTopicOrPartitionException", "InvalidTopicException")


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic's partitions, each by its index in the tuples.

    Attributes:
        name: The topic.
        starts: The first offset that the log still holds.
        ends: The offset after the last one that a read-committed reader sees now.
        high_watermarks: The offset after the last one; above `ends` while a transaction is open.
        topic_id: What Kafka gave it when it was made; a topic of the same name made anew has another.
    """

    name: str
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    high_watermarks: tuple[int, ...]
    topic_id: str = ""

    @property
    def partition_count(self) -> int:
        """How many partitions the topic has."""
        return len(self.ends)


def require_reachable(brokers: str) -> None:
    """Check that at least one of the addresses takes a connection, which needs no Spark.

    Raises:
        BrokerError: None does, or one isn't `host:port`.
    """
    reasons = []
    for address in brokers.split(","):
        host, _, port = address.strip().rpartition(":")
        if not host or not port.isdigit():
            raise BrokerError(f"--brokers takes host:port,host:port, not {address!r}")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_S).close()
        except (OSError, OverflowError) as error:
            reasons.append(f"{address.strip()}: {error}")
        else:
            return
    raise BrokerError(f"no broker answers ({'; '.join(reasons)}): is Kafka running, is --brokers right?")


def client_options(brokers: str, kafka_options: Mapping[str, str]) -> dict[str, str]:
    """Give the Kafka client's settings, without Spark's prefix `kafka.`, which an option may have or not."""
    options = {key.removeprefix("kafka."): value for key, value in kafka_options.items()}
    return options | {"bootstrap.servers": brokers}


def describe_topic(spark: SparkSession, brokers: str, name: str, kafka_options: Mapping[str, str]) -> Topic:
    """Ask the brokers for a topic's partitions and offsets, by the connector's own Kafka client.

    Raises:
        BrokerError: They don't answer in 8 s, or refuse.
        UnknownTopicError: They have no such topic.
    """
    from py4j.protocol import Py4JJavaError

    try:
        with_admin = _Admin(spark, _TIMEOUTS_MS | client_options(brokers, kafka_options))
        try:
            return with_admin.describe(name)
        finally:
            with_admin.close()
    except Py4JJavaError as error:
        raise _translated(error, brokers, name) from error


class _Admin:
    def __init__(self, spark: SparkSession, options: Mapping[str, str]) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        config = self._jvm.java.util.HashMap()
        for key, value in options.items():
            config.put(key, value)
        self._kafka: Any = self._jvm.org.apache.kafka
        self._client: Any = self._kafka.clients.admin.AdminClient.create(config)

    def close(self) -> None:
        self._client.close(self._jvm.java.time.Duration.ofSeconds(1))

    def describe(self, name: str) -> Topic:
        names = self._jvm.java.util.ArrayList()
        names.add(name)
        found = self._client.describeTopics(names).allTopicNames().get().get(name)
        count = found.partitions().size()
        specs = self._kafka.clients.admin.OffsetSpec
        isolation = self._kafka.common.IsolationLevel
        return Topic(
            name=name,
            starts=self._offsets(name, count, specs.earliest(), isolation.READ_UNCOMMITTED),
            ends=self._offsets(name, count, specs.latest(), isolation.READ_COMMITTED),
            high_watermarks=self._offsets(name, count, specs.latest(), isolation.READ_UNCOMMITTED),
            topic_id=_uuid(found.topicId()),
        )

    def _offsets(self, name: str, count: int, spec: object, isolation: object) -> tuple[int, ...]:
        asked = self._jvm.java.util.HashMap()
        partitions = [self._kafka.common.TopicPartition(name, number) for number in range(count)]
        for partition in partitions:
            asked.put(partition, spec)
        options = self._kafka.clients.admin.ListOffsetsOptions(isolation)
        answer = self._client.listOffsets(asked, options)
        return tuple(int(answer.partitionResult(partition).get().offset()) for partition in partitions)


def _uuid(topic_id: Any) -> str:
    """Give Kafka's id as the workers write it: Kafka itself prints base64."""
    high, low = topic_id.getMostSignificantBits(), topic_id.getLeastSignificantBits()
    return str(uuid.UUID(int=((high & _WORD) << 64) | (low & _WORD)))


def _translated(error: Py4JJavaError, brokers: str, name: str) -> BrokerError | UnknownTopicError:
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    kind = cause.getClass().getSimpleName()
    if kind in _UNKNOWN:
        return UnknownTopicError(f"{brokers} has no topic {name!r}: is --changelog right?")
    reason = cause.getMessage() or kind
    return BrokerError(f"the brokers {brokers} did not describe topic {name}: {first_line(ValueError(reason))}")
