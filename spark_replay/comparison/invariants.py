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
* `outputs`: every output has an input of its key that isn't younger. Outputs carry no offset of their input, so this is
  by key: it finds outputs of nothing, not one output too many. A minute is allowed for clocks. Where the input
  doesn't reach back to its beginning, older outputs aren't judged; outputs with another key than their input's
  can't be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from spark_replay.fold.fold import expired
from spark_replay.fold.windows import NO_WINDOWS, WindowLog, newest_windows
from spark_replay.printing import input_offset, printable
from spark_replay.sources.base import Source
from spark_replay.sources.brokers.topic import Topic
from spark_replay.sources.changelog import metadata_fields, read_rows
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
    "outputs": "each output has its input",
    "copies": "one copy of a partition is the owner's",
}
"""Each check and what holds if it finds nothing."""

_APART_MS = 1_000
_CLOCKS_MS = 60_000
_SHOWN_BYTES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The checks to make of a log.

    Attributes:
        placement: `key` if each key lives in the partition that murmur2 gives it, `row` if each row lives in that of
            the key that it is below, else `task`.
        put_if_absent: Whether the store is written by `put_if_absent` only.
        outputs: The topics that the actor sends to.
        inputs: The topics that it reads, with `outputs`.
    """

    placement: str = "key"
    put_if_absent: bool = False
    outputs: tuple[Source, ...] = ()
    inputs: tuple[Source, ...] = ()


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
        ReplayError: What `Source.describe` of outputs and inputs raises.
    """
    with reading(str(source)):
        findings = _in_order(read_rows(source, topic), topic, asked, newest_windows(source, topic))
        if asked.put_if_absent:
            findings.append(_put_if_absent(read_rows(source, topic), topic))
    if asked.outputs:
        findings += [_outputs(outputs, asked.inputs) for outputs in asked.outputs]
    return tuple(findings)


def flagged_rows(
    rows: DataFrame, topic: Topic, *, placement: str = "key", windows: WindowLog = NO_WINDOWS
) -> DataFrame:
    """Mark the records that are against an invariant.

    Args:
        rows: The log, as `spark_replay.sources.changelog.read_rows` returns it.
        topic: Its description.
        placement: As of `Asked`.
        windows: The window facts of the log.

    Returns:
        `partition`, `offset`, `key`, `epoch`, `source_offset`, `epoch_before` and `source_before` (the highest before),
        `input` and `home` int, and a boolean `is_…` for each of the checks `epochs`, `source_offsets`, `partitioner`,
        `metadata`.
    """
    in_order = Window.partitionBy("partition").orderBy("offset")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    fields = metadata_fields(F.col("metadata"))
    is_exact = F.get(F.array(*map(F.lit, topic.exact)), F.col("partition"))
    gap = F.col("offset") - F.lag("offset").over(in_order) > 1
    home = windows.home(topic.partition_count, placement)
    narrow = rows.select(
        "partition",
        "offset",
        F.substring("key", 1, _SHOWN_BYTES).alias("key"),
        home.alias("home"),
        F.unix_millis("timestamp").alias("at_ms"),
        F.col("metadata").isNull().alias("is_metadata"),
        fields["epoch"].alias("epoch"),
        fields["source_offset"].alias("source_offset"),
        fields["input"].alias("input"),
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
            "is_epochs": _true(F.col("epoch") < F.col("epoch_before")),
            "is_source_offsets": _true(F.col("source_offset") < F.col("source_before")),
            "is_partitioner": _true(F.col("home") != F.col("partition")),
        }
    )


def changed_keys(rows: DataFrame) -> DataFrame:
    """Return the records that change the value of a key that is there.

    Returns:
        `partition`, `offset`, `key`, `offset_before` of the record whose value was there.
    """
    of_key = Window.partitionBy("partition", "key").orderBy("offset")
    narrow = rows.where(F.col("metadata").isNotNull()).select(
        "partition",
        "offset",
        "key",
        "value",
        F.unix_millis("timestamp").alias("at_ms"),
        metadata_fields(F.col("metadata"))["expires_at_ms"].alias("expires_at_ms"),
    )
    before = narrow.withColumns(
        {
            "value_before": F.lag("value").over(of_key),
            "expires_before": F.lag("expires_at_ms").over(of_key),
            "offset_before": F.lag("offset").over(of_key),
        }
    )
    changed = F.col("value") != F.col("value_before")
    was_there = ~expired(F.col("expires_before"), F.col("at_ms"))
    return before.where(changed & was_there).select("partition", "offset", "key", "offset_before")


def outputs_without_input(outputs: DataFrame, inputs: DataFrame, *, since_ms: int | None) -> DataFrame:
    """Return the outputs of whose key there is no input, or only a younger one.

    Args:
        outputs: Records, as `Source.records` returns them.
        inputs: The same.
        since_ms: Outputs of before this time aren't judged.

    Returns:
        `partition`, `offset`, `key`, `first_ms`: the time of the key's first input, null if there is none.
    """
    first = inputs.groupBy("key").agg(F.min(F.unix_millis("timestamp")).alias("first_ms"))
    at_ms = F.unix_millis("timestamp")
    judged = outputs.where(F.col("key").isNotNull())
    if since_ms is not None:
        judged = judged.where(at_ms >= since_ms)
    late = F.col("first_ms").isNull() | (F.col("first_ms") > at_ms + _CLOCKS_MS)
    return judged.join(first, on="key", how="left").where(late).select("partition", "offset", "key", "first_ms")


def _in_order(rows: DataFrame, topic: Topic, asked: Asked, windows: WindowLog) -> list[Finding]:
    checks = ["epochs", "source_offsets", "metadata", *(["partitioner"] if asked.placement != "task" else [])]
    row = F.struct("offset", "key", "epoch", "epoch_before", "source_offset", "source_before", "input", "home")
    counts = [F.count_if(f"is_{check}").alias(check) for check in checks]
    firsts = [F.min(F.when(F.col(f"is_{check}"), row)).alias(f"first_{check}") for check in checks]
    flagged = flagged_rows(rows, topic, placement=asked.placement, windows=windows)
    partitions = sorted(flagged.groupBy("partition").agg(*counts, *firsts).collect(), key=lambda row: row["partition"])
    compacted = not all(topic.exact)
    notes = {"source_offsets": ("the log is compacted: steps back within a second aren't seen",)} if compacted else {}
    return [
        finding(
            check,
            {row["partition"]: row[check] for row in partitions},
            (_told(check, row["partition"], row[f"first_{check}"]) for row in partitions if row[check]),
            notes.get(check, ()),
        )
        for check in checks
    ]


def _put_if_absent(rows: DataFrame, topic: Topic) -> Finding:
    firsts = _firsts(changed_keys(rows))
    notes = [] if all(topic.exact) else ["the log is compacted: overwritten values are gone from it"]
    examples = (
        f"{_place(row['partition'], row['first'])} has another value than the record at offset "
        f"{row['first']['offset_before']}"
        for row in firsts
    )
    return finding("put_if_absent", {row["partition"]: row["count"] for row in firsts}, examples, notes)


def _outputs(outputs: Source, inputs: Sequence[Source]) -> Finding:
    described = [(source, source.describe()) for source in inputs]
    notes, since_ms = [], None
    with reading(f"{outputs} and {', '.join(map(str, inputs))}"):
        records = described[0][0].records(described[0][1])
        for source, topic in described[1:]:
            records = records.unionByName(source.records(topic))
        if not all(all(topic.exact) and not any(topic.starts) for _, topic in described):
            since_ms = records.agg(F.min(F.unix_millis("timestamp")).alias("since")).collect()[0]["since"]
            notes.append("the input doesn't reach back to its beginning: older outputs weren't judged")
        judged = outputs_without_input(outputs.records(outputs.describe()), records, since_ms=since_ms)
        firsts = _firsts(judged)
    examples = (
        f"{outputs.topic}: {_place(row['partition'], row['first'])} has "
        + ("no input" if row["first"]["first_ms"] is None else "inputs that are younger only")
        for row in firsts
    )
    return finding("outputs", {row["partition"]: row["count"] for row in firsts}, examples, notes)


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


def _firsts(rows: DataFrame) -> list[Row]:
    others = [name for name in rows.columns if name not in ("partition", "offset")]
    first = F.min(F.struct("offset", *others)).alias("first")
    partitions = rows.groupBy("partition").agg(F.count(F.lit(1)).alias("count"), first).collect()
    return sorted(partitions, key=lambda row: row["partition"])


def _told(check: str, partition: int, row: Row) -> str:
    offsets = [input_offset(row[name], row["input"]) for name in ("source_offset", "source_before")]
    told = {
        "epochs": f"is of epoch {row['epoch']}, behind one of epoch {row['epoch_before']}",
        "source_offsets": f"is of {offsets[0]}, behind one of {offsets[1]}",
        "partitioner": f"belongs in partition {row['home']}",
        "metadata": "has no key or no known write metadata",
    }
    return f"{_place(partition, row)} {told[check]}"


def _place(partition: int, row: Row) -> str:
    key = None if row["key"] is None else bytes(row["key"])[:_SHOWN_BYTES]
    return f"partition {partition} offset {row['offset']} key {printable(key)}"


def _true(condition: Column) -> Column:
    return F.coalesce(condition, F.lit(False))
