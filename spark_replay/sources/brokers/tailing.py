"""The end of a log, read by the connector's own Kafka client until nothing is left at one moment.

The driver reads it, not Spark's tasks: a job takes longer than the time in which the next record comes. Records stay in
the JVM until the consumer has caught up, since to hand one over takes longer than to read a thousand.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from spark_replay.errors import ReadError
from spark_replay.session import java_reason
from spark_replay.sources.brokers.topic import Topic, java_list, java_map
from stores._core.printable import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Record = tuple[int, int, bytes | None, bytes | None, datetime, list[tuple[str, bytes | None]] | None]
"""One record, as `spark_replay.sources.base.RECORDS` has its columns."""

_DEADLINE_S = 60.0
_POLL_MS = 100
_LONGEST_MS = 86_400_000
_MOST_RECORDS = 500_000
_BYTES = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
_SETTINGS = {
    "isolation.level": "read_committed",
    "enable.auto.commit": "false",
    "auto.offset.reset": "none",
    "key.deserializer": _BYTES,
    "value.deserializer": _BYTES,
    "max.poll.records": "5000",
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST_MS = 253_402_300_799_999
"""The end of the year 9999: Python has no later time, and a fold goes by offsets."""


def catch_up(
    spark: SparkSession, client: Mapping[str, str], topic: Topic, numbers: Iterable[int]
) -> tuple[tuple[int, ...], list[Record]]:
    """Read partitions from their ends in `topic` until each has been read to its end at some moment.

    Returns:
        The ends of all partitions, moved to those moments; and the records up to there.

    Raises:
        ReadError: More is written than can be read, or the brokers don't answer.
    """
    jvm: Any = spark._jvm
    with _consumer(jvm, client, f"the end of {topic.name} can't be read") as consumer:
        places = {number: jvm.org.apache.kafka.common.TopicPartition(topic.name, number) for number in numbers}
        consumer.assign(java_list(jvm, places.values()))
        for number, place in places.items():
            consumer.seek(place, topic.ends[number])
        polled, ends = _poll(jvm, consumer, places, topic)
        records = [_record(record) for record in _each(polled)]
    return tuple(ends.get(number, end) for number, end in enumerate(topic.ends)), records


@contextmanager
def keep_out(spark: SparkSession, client: Mapping[str, str], group: str) -> Iterator[None]:
    """Keep workers out of their group during the block: as its only member, with a protocol that isn't theirs.

    Raises:
        ReadError: A worker of the group runs, or the brokers don't answer.
    """
    jvm: Any = spark._jvm
    own = {"group.id": group, "max.poll.interval.ms": str(_LONGEST_MS), "allow.auto.create.topics": "false"}
    with _consumer(jvm, {**client, **own}, f"workers of the group {group} can't be kept out, stop them") as consumer:
        # There is no such topic: a member gets nothing to read.
        consumer.subscribe(java_list(jvm, [group]))
        deadline_s, wait = time.monotonic() + _DEADLINE_S, jvm.java.time.Duration.ofMillis(_POLL_MS)
        while consumer.groupMetadata().generationId() < 0:
            consumer.poll(wait)
            if time.monotonic() > deadline_s:
                raise ReadError(f"group {group} couldn't be joined in {_DEADLINE_S:.0f} s: do its brokers answer?")
        yield


def _poll(jvm: Any, consumer: Any, places: Mapping[int, Any], topic: Topic) -> tuple[list[Any], dict[int, int]]:
    polled: list[Any] = []
    ends: dict[int, int] = {}
    count = 0
    deadline_s, wait = time.monotonic() + _DEADLINE_S, jvm.java.time.Duration.ofMillis(_POLL_MS)
    while len(ends) < len(places):
        records = consumer.poll(wait)
        if records.count():
            polled.append(records)
            count += records.count()
        for number in places.keys() - ends.keys():
            lag = consumer.currentLag(places[number])
            # below this offset all was read before the brokers said that the log ends there
            if lag.isPresent() and lag.getAsLong() == 0:
                ends[number] = consumer.position(places[number])
                consumer.pause(java_list(jvm, [places[number]]))
        if len(ends) < len(places) and (count > _MOST_RECORDS or time.monotonic() > deadline_s):
            left = min(places.keys() - ends.keys())
            raise ReadError(
                f"{topic.name} partition {left}: its end wasn't reached in {_DEADLINE_S:.0f} s and "
                f"{counted(count, 'record')}: it is written to faster than it is read, or its brokers don't answer; "
                "try again when less is written"
            )
    return polled, ends


@contextmanager
def _consumer(jvm: Any, client: Mapping[str, str], failure: str) -> Iterator[Any]:
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    try:
        consumer = jvm.org.apache.kafka.clients.consumer.KafkaConsumer(java_map(jvm, {**client, **_SETTINGS}))
        try:
            yield consumer
        finally:
            consumer.close(jvm.java.time.Duration.ofSeconds(1))
    except Py4JJavaError as error:
        raise ReadError(f"{failure}: {java_reason(error.java_exception)}") from error


def _each(polled: Iterable[Any]) -> Iterator[Any]:
    # py4j's own iteration takes a lost connection for the end
    for batch in polled:
        records = batch.iterator()
        while records.hasNext():
            yield records.next()


def _record(one: Any) -> Record:
    headers = [(str(header.key()), _bytes(header.value())) for header in one.headers().toArray()]
    # as the connector gives it: nothing where there are none
    return (
        int(one.partition()),
        int(one.offset()),
        _bytes(one.key()),
        _bytes(one.value()),
        _EPOCH + timedelta(milliseconds=min(int(one.timestamp()), _LATEST_MS)),
        headers or None,
    )


def _bytes(raw: Any) -> bytes | None:
    return None if raw is None else bytes(raw)
