"""The fold of a changelog: the last write of each key, as DataFrames whose rows stay in the JVM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from spark_replay.sources.changelog import metadata_fields
from spark_replay.sources.columns import by_partition
from spark_replay.sources.reading import keep
from stores._core.record import NEVER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

_HASH = "__hash"
_BROADCAST_KEYS = 1_000_000
"""Up to so many keys are known to all tasks of the second pass, at about 150 bytes each."""
_EXAMPLES = 10
_SHOWN_BYTES = 200


def last_writes(rows: DataFrame, before: Sequence[int | None] | Column) -> DataFrame:
    """Fold records to one row a key.

    Args:
        rows: `partition`, `offset`, `key`, `value`, `metadata` (null: damaged).
        before: For each partition the position that the fold stands for; None for the log's end. Or a bigint of `rows`
            with each key's own.

    Returns:
        `partition`, `key`, `last` (struct of `offset`, `value`, `metadata` of the last record below the
        position, null if there is none), `later_offset` (of the first record from the position on, or null),
        `records` (how many were read), `damaged` (how many of them have no write metadata), `damaged_offset` (the
        first of these, or null).
    """
    # Spark sorts rows to find the last of each key. Shuffled first they are sorted once, not on both sides; and it
    # compares the first column from 8 bytes kept beside the row: a hash there spares nearly all looks at rows
    return (
        rows.repartition("partition", "key")
        .withColumn(_HASH, F.xxhash64("partition", "key"))
        .groupBy(_HASH, "partition", "key")
        .agg(F.max_by(F.struct("offset", "value", "metadata"), _offset_below(before)).alias("last"), *_facts(before))
        .drop(_HASH)
    )


def last_writes_twice(rows: DataFrame, before: Sequence[int | None]) -> DataFrame:
    """Fold records that don't change between two reads: the first finds each key's last offset, the second its record.

    Values are neither sorted nor, with few keys, sent to other tasks. The first read is done when this is called.

    Returns:
        What `last_writes` does.
    """
    at = _offset_below(before)
    facts = keep(rows.groupBy("partition", "key").agg(F.max(at).alias("at"), *_facts(before)))
    is_small = facts.count() <= _BROADCAST_KEYS
    records = rows.select(
        "partition", F.col("offset").alias("at"), F.struct("offset", "value", "metadata").alias("last")
    )
    written = records.join(facts.hint("broadcast" if is_small else "shuffle_hash"), ["partition", "at"])
    unwritten = facts.where(F.col("at").isNull()).withColumn("last", F.lit(None).cast(written.schema["last"].dataType))
    return written.unionByName(unwritten).drop("at")


def _offset_below(before: Sequence[int | None] | Column) -> Column:
    """Return a record's offset, null from the position on."""
    position = by_partition(before) if isinstance(before, Sequence) else before
    return F.when(position.isNull() | (F.col("offset") < position), F.col("offset"))


def _facts(before: Sequence[int | None] | Column) -> tuple[Column, ...]:
    """Return what `last_writes` gives of a key beside its last write."""
    offset, is_damaged = F.col("offset"), F.col("metadata").isNull()
    return (
        F.min(F.when(_offset_below(before).isNull(), offset)).alias("later_offset"),
        F.count(F.lit(1)).alias("records"),
        F.count_if(is_damaged).alias("damaged"),
        F.min(F.when(is_damaged, offset)).alias("damaged_offset"),
    )


def merged(older: DataFrame, newer: DataFrame) -> DataFrame:
    """Combine two results of `last_writes` into one."""
    return (
        older.unionByName(newer)
        .groupBy("partition", "key")
        .agg(
            F.max_by("last", "last.offset").alias("last"),
            F.min("later_offset").alias("later_offset"),
            F.sum("records").alias("records"),
            F.sum("damaged").alias("damaged"),
            F.min("damaged_offset").alias("damaged_offset"),
        )
    )


def live(folded: DataFrame, as_of_ms: int | Sequence[int]) -> DataFrame:
    """Return the state of folded records: no tombstones, nothing that has expired at `as_of_ms` (one, or by partition).

    Returns:
        `partition` int, `key` binary, `value` binary, `source_offset` bigint, `epoch` bigint, `expires_at_ms`
        bigint, `offset` bigint, `input` int (the place of the input that `source_offset` is of, null for an actor with
        one); the four of the write metadata are null where the last record has none.
    """
    fields = metadata_fields(F.col("last.metadata"))
    state = folded.where(F.col("last.value").isNotNull()).select(
        "partition",
        "key",
        F.col("last.value").alias("value"),
        fields["source_offset"].alias("source_offset"),
        fields["epoch"].alias("epoch"),
        fields["expires_at_ms"].alias("expires_at_ms"),
        F.col("last.offset").alias("offset"),
        fields["input"].alias("input"),
    )
    now = F.lit(as_of_ms) if isinstance(as_of_ms, int) else by_partition(as_of_ms)
    return state.where(~expired(F.col("expires_at_ms"), now))


def expired(expires_at_ms: Column, now_ms: Column) -> Column:
    """Return whether a key stopped being there at `now_ms`; a damaged record never expires."""
    return F.coalesce((expires_at_ms != NEVER) & (expires_at_ms <= now_ms), F.lit(False))


def is_live(side: Column, as_of_ms: Column) -> Column:
    """Return whether a side of a comparison has the key, not expired."""
    return side["value"].isNotNull() & ~expired(side["expires_at_ms"], as_of_ms)


def first_ten(rows: DataFrame, *, of: Sequence[str], sides: Sequence[str]) -> list[Row]:
    """Collect the first 10 keys of each group `of` columns; values of `sides` are cut to 200 bytes."""
    order = Window.partitionBy(*of).orderBy("partition", "key")
    return (
        rows.withColumn("rank", F.row_number().over(order))
        .where(F.col("rank") <= _EXAMPLES)
        .withColumns({side: _cut(side) for side in sides})
        .orderBy("partition", "key")
        .collect()
    )


def _cut(side: str) -> Column:
    value = F.substring(F.col(f"{side}.value"), 1, _SHOWN_BYTES)
    return F.when(F.col(side).isNotNull(), F.col(side).withField("value", value))
