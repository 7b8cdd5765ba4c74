"""Writes a changelog's state into a new, empty changelog: on another cluster, or with other partitions.

The write metadata of the new records is no owner's: epoch 0 and input offset 0, whose meaning is "of no input", and
the expiry as it was. The offsets of the former input say nothing of the new one. A worker's takeover takes such a
state for one that no committed offset contradicts, so a fresh group begins where its settings say; and the first
owner's own writes have write metadata again by which an operator's reset is noticed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812

from spark_replay.errors import PlacementError, ReadError, TargetError, UnknownTopicError
from spark_replay.fold.placement import home_partition
from spark_replay.fold.windows import newest_windows
from spark_replay.snapshot.snapshot import kept_writes
from spark_replay.sources.brokers.topic import Settings, Topic, client_options
from spark_replay.sources.changelog import read_rows
from spark_replay.sources.digests import Digest, digests
from spark_replay.sources.kafka import KafkaSource
from spark_replay.sources.reading import reading
from stores._core.record import METADATA_BYTES, METADATA_HEADER
from stores._core.replay import NO_METADATA

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_VISIBLE_S = 30.0
_EXPIRY_BYTES = 8
_TO_THE_END = 2**31 - 1
_OVERHEAD_BYTES = 1_024


def publish_state(
    source: KafkaSource, target: KafkaSource, *, partitions: int | None = None, placed_by_key: bool = False
) -> int:
    """Write the state that a changelog stands for into another topic, and return the number of keys.

    The topic is made like the changelog if it is missing. With another number of partitions each key goes where
    murmur2 puts it, otherwise it stays where it is.

    Args:
        source: The changelog. No program writes to it: the app's workers are stopped.
        target: The new changelog.
        partitions: How many the new one has; as many as the old one if left out.
        placed_by_key: That the store's keys are placed by murmur2, for a changelog of one partition, where it can't
            be seen.

    Raises:
        TargetError: The new topic has records, or isn't compacted, or has another number of partitions.
        PlacementError: The keys can't be spread over other partitions, as those of window stores and joins can't.
        ReadError: Another program writes to the changelog, reading took longer than deletes are kept, or Spark couldn't
            read or write to the end.
        ReplayError: What `Source.describe` raises.
    """
    spark = source.spark
    if spark.conf.get("spark.speculation", "false") == "true":
        raise TargetError("spark.speculation is on: a task that was given up may write old values later, switch it off")
    began_s = time.monotonic()
    topic = source.describe()
    if topic.ends != topic.high_watermarks:
        raise ReadError(f"a transaction is open in {topic.name}: stop the app's workers, and wait until it ends")
    count = topic.partition_count if partitions is None else partitions
    like = _settings_of(source)
    _check_target(target, count, like)
    if count != topic.partition_count and topic.deletes:
        _refuse_windows(source, topic, count)
    kept = kept_writes(read_rows(source, topic)).where(F.col("value").isNotNull()).select("partition", "key", "value")
    kept.persist(StorageLevel.DISK_ONLY)
    try:
        with reading(str(source)):
            if count != topic.partition_count:
                _check_placement(kept, topic, placed_by_key=placed_by_key)
                kept = kept.withColumn("partition", home_partition(F.col("key"), count))
            settings = _ensure_target(target, count, like)
            _write(kept, target, settings)
            # everything has been read by now
            source.require_deletes_kept(time.monotonic() - began_s)
            keys = _require_published(kept, target)
    finally:
        kept.unpersist()
    now = source.describe()
    if (now.topic_id, now.high_watermarks) != (topic.topic_id, topic.high_watermarks):
        raise ReadError(
            f"{topic.name} was written to while it was read: stop the app's workers, delete {target.topic}, start again"
        )
    return keys


def _check_target(target: KafkaSource, count: int, like: Settings) -> Topic | None:
    try:
        topic = target.describe()
    except UnknownTopicError:
        return None
    if any(topic.high_watermarks):
        raise TargetError(
            f"topic {target.topic} has, or had, records: a state is published into a new topic. Delete it, or choose "
            "another name"
        )
    if topic.partition_count != count:
        raise TargetError(f"topic {target.topic} has {topic.partition_count} partitions, not {count}: delete it")
    policy, wanted = _settings_of(target).effective["cleanup.policy"], _policy(like)
    if sorted(policy.split(",")) != sorted(wanted.split(",")):
        raise TargetError(f"topic {target.topic} has cleanup.policy={policy}, not {wanted}: delete it")
    return topic


def _policy(like: Settings) -> str:
    """Return the `cleanup.policy` of a new changelog: changelogs of window stores also delete old records."""
    policies = like.effective["cleanup.policy"].split(",")
    return "compact,delete" if {"compact", "delete"} <= set(policies) else "compact"


def _refuse_windows(source: KafkaSource, topic: Topic, count: int) -> None:
    if newest_windows(source, topic):
        raise PlacementError(
            f"{topic.name} is the changelog of a window store or a join: it has one stream time for each of its "
            f"{topic.partition_count} partitions, and its rows can't be spread over {count}. Publish it with "
            f"{topic.partition_count} partitions, or give the store of the new app another name and let it handle the "
            "inputs of its retention again"
        )


def _check_placement(kept: DataFrame, topic: Topic, *, placed_by_key: bool) -> None:
    count = topic.partition_count
    if count == 1 and not placed_by_key:
        raise PlacementError(
            f'{topic.name} has one partition, so that it is unknown whether its store has placement="task" and can\'t '
            "be spread over several. If it hasn't, add --placed-by-key"
        )
    strays = kept.where(home_partition(F.col("key"), count) != F.col("partition"))
    stray = strays.limit(1).collect()
    if stray:
        key, partition = bytes(stray[0]["key"]), stray[0]["partition"]
        raise PlacementError(
            f"{topic.name} has keys in other partitions than murmur2 gives them ({key[:60]!r} in {partition}): the "
            'store has placement="task", or another producer wrote it. It can\'t be spread over other partitions'
        )


def _ensure_target(target: KafkaSource, count: int, like: Settings) -> Mapping[str, str]:
    """Create the new topic if it is missing, with the settings of the old one; return the settings that apply."""
    if _check_target(target, count, like) is None:
        with target.asking() as admin:
            settings = {**like.own, "cleanup.policy": _policy(like)}
            admin.make(target.topic, count, like.replication_factor, settings)
        _wait_until_visible(target)
    return _settings_of(target).effective


def _settings_of(source: KafkaSource) -> Settings:
    with source.asking() as admin:
        return admin.settings(source.topic)


def _wait_until_visible(target: KafkaSource) -> None:
    deadline_s = time.monotonic() + _VISIBLE_S
    while True:
        try:
            target.describe()
        except UnknownTopicError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)
        else:
            return


def _write(kept: DataFrame, target: KafkaSource, settings: Mapping[str, str]) -> None:
    client = client_options(target.brokers, target.options) | {
        "acks": "all",
        "max.request.size": str(max(1_048_576, int(settings["max.message.bytes"])) + _OVERHEAD_BYTES),
    }
    writer = kept.select(
        F.lit(target.topic).alias("topic"),
        "partition",
        "key",
        F.substring("value", METADATA_BYTES + 1, _TO_THE_END).alias("value"),
        F.array(F.struct(F.lit(METADATA_HEADER).alias("key"), _nobodys(F.col("value")).alias("value"))).alias(
            "headers"
        ),
    ).write.format("kafka")
    for key, value in client.items():
        writer = writer.option(f"kafka.{key}", value)
    writer.save()


def _require_published(kept: DataFrame, target: KafkaSource) -> int:
    """Check that the new changelog has what was written to it; return the number of keys.

    Raises:
        ReadError: It hasn't.
    """
    rows = kept_writes(read_rows(target, target.describe())).where(F.col("value").isNotNull())
    written, stored = (_digests(frame) for frame in (kept, rows))
    for number in sorted(written.keys() | stored.keys()):
        if written.get(number) != stored.get(number):
            counts = [0 if side.get(number) is None else side[number].rows for side in (written, stored)]
            raise ReadError(
                f"{counts[0]} keys were written to {target.topic} partition {number}, and {counts[1]} are in it, or "
                "other values: does another program write to it? Delete the topic, and publish again"
            )
    return sum(digest.rows for digest in written.values())


def _digests(frame: DataFrame) -> dict[int, Digest]:
    """Digest keys, values and expiries: all that a published state keeps."""
    front = METADATA_BYTES - _EXPIRY_BYTES
    kept = F.substring("value", front + 1, _TO_THE_END).alias("value")
    return digests(frame.select("partition", "key", kept), ("key", "value"))


def _nobodys(with_metadata: Column) -> Column:
    """Return write metadata of no owner and no input with the expiry of a value with its metadata."""
    front = METADATA_BYTES - _EXPIRY_BYTES
    return F.concat(F.lit(NO_METADATA[:front]), F.substring(with_metadata, front + 1, _EXPIRY_BYTES))
