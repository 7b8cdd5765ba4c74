"""The invariants of every changelog, whatever the app does, checked on the log alone.

* `epochs`: in the order of offsets the epoch of a partition's owner never goes back. If it does, an owner wrote that
  had been replaced.
* `source_offsets`: neither does the input's offset, among the records of one owner. Within a commit records may be in
  any order. Where commits begin, gaps in the offsets tell (a commit's end takes one). On a compacted log gaps tell
  nothing: there a record only counts if it was written a second after the one that it falls behind.
* `partitioner`: murmur2 puts the key into the partition in which it lies (stores with placement by key); of a window
  store the key of the message.
* `metadata`: every record has a key and write metadata of this release's version.
* `writers`: an owner of its partition can have written each record, as far as the leader registry and the group's
  offsets tell: see `spark_replay.comparison.writers`.
* `put_if_absent`: a key doesn't change its value, unless it was deleted or had expired in between. Only for stores
  that are written by `put_if_absent` alone. On a compacted log only what compaction left can be seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from spark_replay.fold.fold import expired
from spark_replay.fold.windows import WindowLog, newest_windows
from spark_replay.printing import SHOWN_BYTES, input_offset, printable
from spark_replay.sources.base import Source
from spark_replay.sources.brokers.topic import Topic
from spark_replay.sources.changelog import metadata_fields, read_rows
from spark_replay.sources.columns import is_true
from spark_replay.sources.reading import reading

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

CHECKS = {
    "epochs": "owners' epochs only grow",
    "source_offsets": "inputs' offsets only grow while one owner writes",
    "partitioner": "each key lies in its own partition",
    "metadata": "each record has a key and write metadata",
    "writers": "an owner of its partition can have written each record",
    "put_if_absent": "no key changes its value",
    "copies": "one copy of a partition is the owner's",
}
"""Each check and what holds if it finds nothing."""

_OF_COMPACTED = {
    "source_offsets": ("the log is compacted: steps back within a second aren't seen",),
    "put_if_absent": ("the log is compacted: overwritten values are gone from it",),
}
_APART_MS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The checks to make of a log.

    Attributes:
        placement: `key` if each key lives in the partition that murmur2 gives it, `row` if each row lives in that of
            the key that it is below, else `task`.
        put_if_absent: Whether the store is written by `put_if_absent` only.
    """

    placement: str = "key"
    put_if_absent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check.

    Attributes:
        check: Its name, of `CHECKS`.
        means: What holds if it finds nothing.
        count: How many records are against it; 0: all is well.
        by_partition: The same by partition, those with none left out.
        examples: The first of each partition, in words.
        notes: What it couldn't see.
    """

    check: str
    means: str
    count: int
    by_partition: Mapping[int, int] = field(default_factory=dict)
    examples: Sequence[str] = ()
    notes: Sequence[str] = ()


def find_violations(source: Source, topic: Topic, asked: Asked) -> tuple[Finding, ...]:
    """Check a log.

    Args:
        source: The changelog.
        topic: Its description.
        asked: What to check.

    Returns:
        A finding for each check that was made, also if it found nothing.

    Raises:
        ReadError: Spark couldn't read the log.
    """
    checks = ["epochs", "source_offsets", "metadata"]
    checks += ["partitioner"] if asked.placement != "task" else []
    checks += ["put_if_absent"] if asked.put_if_absent else []
    row = F.struct(
        "offset", "key", "epoch", "epoch_before", "source_offset", "source_before", "input", "home", "changed"
    )
    counts = [F.count_if(f"is_{check}").alias(check) for check in checks]
    firsts = [F.min(F.when(F.col(f"is_{check}"), row)).alias(f"first_{check}") for check in checks]
    with reading(str(source)):
        flagged = _flagged(read_rows(source, topic), topic, asked, newest_windows(source, topic))
        partitions = flagged.groupBy("partition").agg(*counts, *firsts).collect()
    partitions.sort(key=lambda row: row["partition"])
    notes = {} if all(topic.exact) else _OF_COMPACTED
    return tuple(
        finding(
            check,
            {row["partition"]: row[check] for row in partitions},
            (_told(check, row["partition"], row[f"first_{check}"]) for row in partitions if row[check]),
            notes.get(check, ()),
        )
        for check in checks
    )


def _flagged(rows: DataFrame, topic: Topic, asked: Asked, windows: WindowLog) -> DataFrame:
    """Mark the records that are against an invariant: a boolean `is_…` for each check.

    `epoch_before` and `source_before` are the highest before a record, `home` is its key's own partition, and `changed`
    the offset of the value that it replaces.
    """
    in_order = Window.partitionBy("partition").orderBy("offset")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    fields = metadata_fields(F.col("metadata"))
    is_exact = F.get(F.array(*map(F.lit, topic.exact)), F.col("partition"))
    gap = F.col("offset") - F.lag("offset").over(in_order) > 1
    home = windows.home(topic.partition_count, asked.placement)
    narrow = rows.select(
        "partition",
        "offset",
        F.substring("key", 1, SHOWN_BYTES).alias("key"),
        home.alias("home"),
        F.unix_millis("timestamp").alias("at_ms"),
        F.col("metadata").isNull().alias("is_metadata"),
        fields["epoch"].alias("epoch"),
        fields["source_offset"].alias("source_offset"),
        fields["input"].alias("input"),
        (_changed() if asked.put_if_absent else F.lit(None).cast("bigint")).alias("changed"),
    )
    ordered = narrow.withColumns(
        {
            "epoch_before": F.max("epoch").over(in_order.rowsBetween(Window.unboundedPreceding, -1)),
            "clock_ms": F.max("at_ms").over(so_far),
            "commit": F.sum(F.when(is_exact & gap, 1).otherwise(0)).over(so_far),
        }
    )
    of_owner = Window.partitionBy("partition", "epoch", "input")
    earlier = of_owner.orderBy("commit").rangeBetween(Window.unboundedPreceding, -1)
    older = of_owner.orderBy("clock_ms").rangeBetween(Window.unboundedPreceding, -_APART_MS)
    source_before = F.greatest(F.max("source_offset").over(earlier), F.max("source_offset").over(older))
    return ordered.withColumn("source_before", source_before).withColumns(
        {
            "is_epochs": is_true(F.col("epoch") < F.col("epoch_before")),
            "is_source_offsets": is_true(F.col("source_offset") < F.col("source_before")),
            "is_partitioner": is_true(F.col("home") != F.col("partition")),
            "is_put_if_absent": F.col("changed").isNotNull(),
        }
    )


def _changed() -> Column:
    """Return the offset of the value of a key that is there and that a record changes, null if it changes none."""
    earlier = Window.partitionBy("partition", "key").orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)
    is_write, expiry = F.col("metadata").isNotNull(), metadata_fields(F.col("metadata"))["expires_at_ms"]
    write = F.when(is_write, F.struct("offset", "value", expiry.alias("expires_at_ms")))
    before = F.last(write, ignorenulls=True).over(earlier)
    was_there = ~expired(before["expires_at_ms"], F.unix_millis("timestamp"))
    return F.when(is_write & was_there & (F.col("value") != before["value"]), before["offset"])


def finding(check: str, by_partition: Mapping[int, int], examples: Iterable[str], notes: Sequence[str] = ()) -> Finding:
    """Put a check's finding together."""
    counts = {number: count for number, count in sorted(by_partition.items()) if count}
    return Finding(
        check=check,
        means=CHECKS[check],
        count=sum(counts.values()),
        by_partition=counts,
        examples=tuple(examples),
        notes=tuple(notes),
    )


def _told(check: str, partition: int, row: Row) -> str:
    offsets = [input_offset(row[name], row["input"]) for name in ("source_offset", "source_before")]
    told = {
        "epochs": f"is of epoch {row['epoch']}, behind one of epoch {row['epoch_before']}",
        "source_offsets": f"is of {offsets[0]}, behind one of {offsets[1]}",
        "partitioner": f"belongs in partition {row['home']}",
        "metadata": "has no key or no known write metadata",
        "put_if_absent": f"has another value than the record at offset {row['changed']}",
    }
    return f"partition {partition} offset {row['offset']} key {printable(row['key'])} {told[check]}"
