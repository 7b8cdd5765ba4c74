"""A topic as the brokers describe it before Spark reads it: its partitions and where each begins and ends.

Spark's Kafka source would find the ends by itself, and keep them to itself. A position can only be judged
against ends that are known, and an unknown topic or a silent broker is told in seconds by asking first.
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_replay.errors import BrokerError, ToolMissingError, UnknownTopicError
from spark_replay.jars import connector, require_match
from spark_replay.session import java_reason

if TYPE_CHECKING:
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession

_CONNECT_TIMEOUT_S = 3.0
_TIMEOUTS_MS = {"default.api.timeout.ms": "8000", "request.timeout.ms": "4000"}
_LATE = ("TimeoutException", "DisconnectException")
_PROVIDER = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_WORD = (1 << 64) - 1
_UNKNOWN = ("UnknownTopicOrPartitionException", "InvalidTopicException")


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets of a partition, from `start` to before `end`, that were read at one go.

    Attributes:
        start: The first offset.
        end: The offset after the last one.
        exact: Whether every committed record between them was there when they were read. If not, compaction may have
            taken a record whose key was written again before the span was read.
        whole: Whether the log ended at `end` when the span was read, so that such a later record is in the span too.
        merged: Whether these are several spans put together.
    """

    start: int
    end: int
    exact: bool
    whole: bool = True
    merged: bool = False


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic's partitions, each by its index in the tuples.

    Attributes:
        name: The topic.
        starts: The first offset that the source still holds.
        ends: The offset after the last one that a read-committed reader sees now.
        high_watermarks: The offset after the last one; above `ends` while a transaction is open.
        topic_id: What Kafka gave it when it was made; a topic of the same name re-created has another.
        spans: Of each partition what was read at one go, in order and without gaps, from its start to its end.
        joints: Where an archive and Kafka are joined, the first offset that is read from Kafka; else nothing.
        deletes: Whether it is compacted and also deletes old records, as changelogs of window stores do, or may do so.
    """

    name: str
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    high_watermarks: tuple[int, ...]
    topic_id: str = ""
    spans: tuple[tuple[Span, ...], ...] = ()
    joints: tuple[int, ...] = ()
    deletes: bool = False

    @property
    def partition_count(self) -> int:
        """The number of partitions of the topic."""
        return len(self.ends)

    @property
    def exact(self) -> tuple[bool, ...]:
        """By partition whether compaction has taken nothing of what is read of it."""
        return tuple(all(span.exact for span in spans) for spans in self.spans or ((),) * self.partition_count)

    @property
    def complete(self) -> tuple[bool, ...]:
        """By partition whether what is read of it has every record that was ever committed."""
        return tuple(start == 0 and exact for start, exact in zip(self.starts, self.exact, strict=True))


@dataclass(frozen=True, slots=True)
class Retention:
    """The records that may be removed: `compacted` ones by key, if they are older than `min_compaction_lag_ms`.

    Tombstones are removed `delete_retention_ms` after compaction came to them. `deletes` says that old records of a
    compacted topic go too, whatever their key.
    """

    compacted: bool
    min_compaction_lag_ms: int
    delete_retention_ms: int = 86_400_000
    deletes: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """A topic's settings, by Kafka's names: all that apply, and those that were made for it."""

    effective: Mapping[str, str]
    own: Mapping[str, str]
    replication_factor: int


class CommittedOffset(NamedTuple):
    """A group's offset of a partition, None if it has none, and the metadata that was committed with it."""

    offset: int | None
    metadata: str = ""


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
    """Return the Kafka client's settings, without Spark's prefix `kafka.`, which an option may have or not."""
    options = {key.removeprefix("kafka."): value for key, value in kafka_options.items()}
    return options | {"bootstrap.servers": brokers}


@contextmanager
def asking(spark: SparkSession, brokers: str, kafka_options: Mapping[str, str], what: str) -> Iterator[Admin]:
    """Ask brokers about `what`, by the connector's own Kafka client; each question has 8 s if no option says otherwise.

    Raises:
        BrokerError: They don't answer, or refuse.
        UnknownTopicError: They have no such topic.
        ToolMissingError: The session has no Kafka client.
    """
    from py4j.protocol import Py4JJavaError

    options = _TIMEOUTS_MS | client_options(brokers, kafka_options)
    try:
        admin = Admin(spark, options)
        try:
            yield admin
        finally:
            admin.close()
    except Py4JJavaError as error:
        raise _translated(error, brokers, what, options) from error


class Admin:
    """Kafka's own admin client in Spark's JVM. Make one with `asking`."""

    def __init__(self, spark: SparkSession, options: Mapping[str, str]) -> None:
        from py4j.java_gateway import JavaPackage  # type: ignore[import-untyped]

        jvm: Any = spark._jvm
        self._jvm = jvm
        self._kafka: Any = self._jvm.org.apache.kafka
        client = self._kafka.clients.admin.AdminClient
        if isinstance(client, JavaPackage):
            raise ToolMissingError(
                f"this Spark session has no Kafka connector: start it with spark_replay.spark_session(), or give it "
                f"the jars of {connector()} by --spark-option spark.jars=…, or to spark-submit by --jars"
            )
        require_match(_connector_jar(jvm), spark.version)
        self._client: Any = client.create(java_map(jvm, options))

    def close(self) -> None:
        """Disconnect."""
        self._client.close(self._jvm.java.time.Duration.ofSeconds(1))

    def describe(self, name: str) -> Topic:
        """Return a topic's partitions and offsets."""
        description = self._description(name)
        count = description.partitions().size()
        specs = self._kafka.clients.admin.OffsetSpec
        isolation = self._kafka.common.IsolationLevel
        # a start asked for after the ends may lie above them
        starts = self._offsets(name, count, specs.earliest(), isolation.READ_UNCOMMITTED)
        ends = self._offsets(name, count, specs.latest(), isolation.READ_COMMITTED)
        retention = self.retention(name)
        exact = not retention.compacted
        return Topic(
            name=name,
            starts=starts,
            ends=ends,
            high_watermarks=self._offsets(name, count, specs.latest(), isolation.READ_UNCOMMITTED),
            topic_id=_uuid(description.topicId()),
            spans=tuple((Span(start, end, exact),) for start, end in zip(starts, ends, strict=True)),
            deletes=retention.deletes,
        )

    def settings(self, name: str) -> Settings:
        """Return a topic's settings."""
        entries = list(self._jvm.java.util.ArrayList(self._config(name).entries()))
        return Settings(
            effective={str(entry.name()): str(entry.value()) for entry in entries},
            own={
                str(entry.name()): str(entry.value())
                for entry in entries
                if entry.source().toString() == "DYNAMIC_TOPIC_CONFIG"
            },
            replication_factor=self._description(name).partitions().get(0).replicas().size(),
        )

    def make(self, name: str, partitions: int, replication_factor: int, settings: Mapping[str, str]) -> None:
        """Make a topic with settings of its own."""
        new = self._kafka.clients.admin.NewTopic(name, partitions, replication_factor)
        new = new.configs(java_map(self._jvm, settings))
        self._client.createTopics(java_list(self._jvm, [new])).all().get()

    def names(self) -> tuple[str, ...]:
        """Return the names of all topics, internal ones left out."""
        return tuple(str(name) for name in self._client.listTopics().names().get())

    def offsets_at(self, topic: Topic, timestamp_ms: int) -> tuple[int, ...]:
        """Return each partition's first offset that is of `timestamp_ms` (Unix) or later, its end if none is.

        Aborted records and the ends of transactions count too.
        """
        spec = self._kafka.clients.admin.OffsetSpec.forTimestamp(timestamp_ms)
        isolation = self._kafka.common.IsolationLevel.READ_UNCOMMITTED
        offsets = self._offsets(topic.name, topic.partition_count, spec, isolation)
        # Kafka says -1 where no record is that late
        return tuple(end if at < 0 else min(at, end) for at, end in zip(offsets, topic.ends, strict=True))

    def committed(self, group: str, topics: Iterable[Topic]) -> list[tuple[CommittedOffset, ...]]:
        """Return a group's committed offset of each partition of each topic, all of one moment."""
        offsets = self._client.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()

        def of(name: str, partition: int) -> CommittedOffset:
            committed = offsets.get(self._kafka.common.TopicPartition(name, partition))
            return (
                CommittedOffset(None)
                if committed is None
                else CommittedOffset(committed.offset(), str(committed.metadata()))
            )

        return [tuple(of(topic.name, number) for number in range(topic.partition_count)) for topic in topics]

    def retention(self, name: str) -> Retention:
        """Return what a topic's settings allow to be removed; the worst case if they may not be read."""
        from py4j.protocol import Py4JJavaError

        try:
            settings = self._config(name)
        except Py4JJavaError:
            return Retention(compacted=True, min_compaction_lag_ms=0, deletes=True)
        policy = str(settings.get("cleanup.policy").value())
        return Retention(
            compacted="compact" in policy,
            min_compaction_lag_ms=int(settings.get("min.compaction.lag.ms").value()),
            delete_retention_ms=int(settings.get("delete.retention.ms").value()),
            deletes="compact" in policy and "delete" in policy,
        )

    def _description(self, name: str) -> Any:
        return self._client.describeTopics(java_list(self._jvm, [name])).allTopicNames().get().get(name)

    def _config(self, name: str) -> Any:
        configs = self._kafka.common.config
        resource = configs.ConfigResource(getattr(configs, "ConfigResource$Type").TOPIC, name)
        return self._client.describeConfigs(java_list(self._jvm, [resource])).all().get().get(resource)

    def _offsets(self, name: str, count: int, spec: object, isolation: object) -> tuple[int, ...]:
        partitions = [self._kafka.common.TopicPartition(name, number) for number in range(count)]
        options = self._kafka.clients.admin.ListOffsetsOptions(isolation)
        answer = self._client.listOffsets(java_map(self._jvm, dict.fromkeys(partitions, spec)), options)
        return tuple(int(answer.partitionResult(partition).get().offset()) for partition in partitions)


def java_map(jvm: Any, values: Mapping[Any, object]) -> Any:
    """Return a map of Java."""
    copy = jvm.java.util.HashMap()
    for key, value in values.items():
        copy.put(key, value)
    return copy


def java_list(jvm: Any, values: Iterable[object]) -> Any:
    """Return a list of Java."""
    copy = jvm.java.util.ArrayList()
    for value in values:
        copy.add(value)
    return copy


def _connector_jar(jvm: Any) -> str:
    """Return the path of the jar that Spark's JVM has the connector from; empty if it isn't from a file."""
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    origin = loader.loadClass(_PROVIDER).getProtectionDomain().getCodeSource()
    return str(origin.getLocation().getPath()) if origin is not None else ""


def _uuid(topic_id: Any) -> str:
    """Return Kafka's id as the workers write it: Kafka itself prints base64."""
    high, low = topic_id.getMostSignificantBits(), topic_id.getLeastSignificantBits()
    return str(uuid.UUID(int=((high & _WORD) << 64) | (low & _WORD)))


def _translated(
    error: Py4JJavaError, brokers: str, what: str, options: Mapping[str, str]
) -> BrokerError | UnknownTopicError:
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    kind = cause.getClass().getSimpleName()
    if kind in _UNKNOWN:
        return UnknownTopicError(f"{brokers} has no {what}: is its name right?")
    reason = java_reason(cause)
    if kind in _LATE:
        limits = " and ".join(f"{name}={options[name]}" for name in _TIMEOUTS_MS)
        reason += f" (with {limits}; for slow brokers raise both by --kafka-option)"
    return BrokerError(f"the brokers {brokers} did not describe {what}: {reason}")
