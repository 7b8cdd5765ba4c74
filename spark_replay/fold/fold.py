"""The fold of a changelog: the last write of each key, as DataFrames whose rows stay in the JVM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from spark_replay.printing import EXAMPLES, SHOWN_BYTES
from spark_replay.sources.changelog import expiry, metadata_fields, metadata_of_record
from spark_replay.sources.columns import by_partition
from spark_replay.sources.reading import keep
from stores._core.record import NEVER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

_HASH = "__hash"
_BROADCAST_ROWS = 1_000_000
"""Up to so many rows of a join's smaller side are sent to all tasks, at 150 bytes each or less."""


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


def last_offsets(rows: DataFrame, before: Sequence[int | None]) -> DataFrame:
    """Fold records that don't change between two reads, by the first of these: values are neither sorted nor sent.

    The records are read when this is called.

    Returns:
        What `last_writes` does, with nothing but `offset` in `last`.
    """
    at = F.max(_offset_below(before)).alias("at")
    facts = keep(rows.groupBy("partition", "key").agg(at, *_facts(before)))
    return facts.withColumn("last", F.when(F.col("at").isNotNull(), F.struct(F.col("at").alias("offset")))).drop("at")


def with_writes(offsets: DataFrame, records: DataFrame) -> DataFrame:
    """Add the rest of `last`, by a second read, to what `last_offsets` returned of the same `Source.records`."""
    facts = offsets.withColumn("at", F.col("last.offset")).drop("last")
    writes = only_writes(offsets, records).select("partition", F.col("last.offset").alias("at"), "last")
    # facts are the smaller side: they have no values
    return facts.hint("shuffle_hash").join(writes, ["partition", "at"], "left").drop("at")


def only_writes(offsets: DataFrame, records: DataFrame) -> DataFrame:
    """Return `partition`, `key` and `last` alone, of those that have one, by a second read.

    The offsets cross to it as bits, 64 in a row, which all tasks can have: no record is sent before its offset is
    compared.
    """
    last = offsets.select("partition", F.col("last.offset").alias("offset")).where("offset is not null")
    mask = F.bit_or(F.call_function("shiftleft", F.lit(1).cast("bigint"), _bit())).alias("mask")
    words = keep(last.groupBy(_word().alias("word")).agg(mask))
    joined = records.withColumn("word", _word()).join(to_all(words, words.count(), "word"), "word")
    kept = joined.where(F.getbit("mask", _bit()) == 1)
    # by a list of one: else Spark writes the search for the header out wherever metadata is used, in a method that is
    # too long for the JVM to compile
    metadata = F.explode(F.array(metadata_of_record())).alias("metadata")
    rows = kept.select("partition", "key", "offset", "value", metadata)
    return rows.select("partition", "key", F.struct("offset", "value", "metadata").alias("last"))


def _word() -> Column:
    """Return one number for partition and offset, the same for 64 offsets: of two columns the join is slower."""
    return F.shiftleft(F.col("partition").cast("bigint"), 48).bitwiseOR(F.shiftright("offset", 6))


def _bit() -> Column:
    return F.col("offset").bitwiseAND(63).cast("int")


def to_all(rows: DataFrame, count: int, *columns: str) -> DataFrame:
    """Return the smaller side of a join, sent to all tasks; of a high `count`, hashed in parts by `columns`, if any."""
    if count <= _BROADCAST_ROWS:
        return rows.hint("broadcast")
    # In parts of 20 MB: without their number Spark would join them again until a task's memory can't hold one.
    return rows.repartition(-(-count // 200_000), *columns).hint("shuffle_hash") if columns else rows


def _offset_below(before: Sequence[int | None] | Column) -> Column:
    """Return a record's offset, null from the position on."""
    if isinstance(before, Sequence) and set(before) <= {None}:
        return F.col("offset")
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


def live(folded: DataFrame, as_of_ms: Sequence[int]) -> DataFrame:
    """Return the rows of `fields` less tombstones and what has expired at `as_of_ms`, by partition."""
    # Spark filters before it joins, and numbers cost too much there: bytes are compared
    now = F.get(F.array(*(F.lit(time_ms.to_bytes(8, "big")) for time_ms in as_of_ms)), F.col("partition"))
    at = expiry(F.col("last.metadata"))
    is_over = (at != F.lit(bytes(8))) & ((at >= F.lit(b"\x80" + bytes(7))) | (at <= now))
    return fields(folded.where(F.col("last.value").isNotNull() & ~F.coalesce(is_over, F.lit(False))))


def fields(folded: DataFrame) -> DataFrame:
    """Return folded records as the rows of a state, tombstones and expired keys too.

    Returns:
        `partition` int, `key` binary, `value` binary, `source_offset` bigint, `epoch` bigint, `expires_at_ms`
        bigint, `offset` bigint, `input` int (the place of the input that `source_offset` is of, null for an actor with
        one); the four of the write metadata are null where the last record has none.
    """
    columns = last_fields()
    names = ("value", "source_offset", "epoch", "expires_at_ms", "offset", "input")
    return folded.select("partition", "key", *(columns[name].alias(name) for name in names))


def last_fields() -> dict[str, Column]:
    """Return value, offset and write metadata of `last`, as `fields` shapes them."""
    last = F.col("last")
    return {"value": last["value"]} | metadata_fields(last["metadata"]) | {"offset": last["offset"]}


def expired(expires_at_ms: Column, now_ms: Column) -> Column:
    """Return whether a key stopped being there at `now_ms`; a damaged record never expires."""
    return F.coalesce((expires_at_ms != NEVER) & (expires_at_ms <= now_ms), F.lit(False))


def is_live(side: Column, as_of_ms: Column) -> Column:
    """Return whether a side of a comparison has the key, not expired."""
    return side["value"].isNotNull() & ~expired(side["expires_at_ms"], as_of_ms)


def first_ten(rows: DataFrame, *, of: Sequence[str], sides: Sequence[str]) -> list[Row]:
    """Collect the first 10 keys of each group `of` columns; values of `sides` are cut to 200 bytes."""
    order = Window.partitionBy(*of).orderBy("partition", "key")
    cut = {side: F.col(side).withField("value", F.substring(F.col(f"{side}.value"), 1, SHOWN_BYTES)) for side in sides}
    return (
        rows.withColumn("rank", F.row_number().over(order))
        .where(F.col("rank") <= EXAMPLES)
        .withColumns(cut)
        .orderBy("partition", "key")
        .collect()
    )
