"""The cause of each mismatch, decided from the records that the log has of the key.

The causes are in `CAUSES`; docs/how-to/validate.md has the table for operators. Each is decided by facts, and the
first that applies is the one, so that they exclude each other. The facts come from a second pass over the log, which
reads of it the keys in question only, and happens only if there are any:

* `held_at`: the last committed record of the key with the value and write metadata that are held.
* `origin_at`: the last one of the same owner and input, whatever its value.
* `aborted_at`: the last record of all, committed or not, with the value and write metadata that are held.
* `newer`: an owner of a later epoch that had already handled the input that the held write is of.
* `overlap`: an owner of a later epoch whose records lie before the log's last write of the key.

Compaction takes facts. What then can't be decided is `unknown`, and is a mismatch all the same.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from spark_replay.comparison.judging import CONTENT_AND_METADATA
from spark_replay.sources.brokers.topic import Topic
from spark_replay.sources.changelog import has_input, input_of, metadata_fields

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CAUSES = {
    "record_without_metadata": "a record of the log has no key or no write metadata",
    "wrong_partition": "the key lies in another partition than its own",
    "held_twice": "the key is held more than once",
    "partition_not_held": "nobody holds the partition",
    "overlapping_owners": "two owners wrote to the partition at the same time",
    "aborted_write": "the held value was never committed: its transaction was aborted, or is open",
    "ahead_of_position": "the held value was committed behind the position that the holder states",
    "stale_owner": "the held value was written by an owner that had been replaced",
    "different_value": "the held value has the metadata of a committed write, and another value or expiry",
    "expired_key_held": "the key expired and was removed from the log, and is still held",
    "deleted_key_back": "the key was deleted, and an older write of it is held",
    "committed_write_missing": "the held state lacks the last committed write",
    "never_committed": "the held value is nowhere in the log, and compaction can't have removed it",
    "unknown": "compaction removed the records that would show the cause",
}
"""Each cause and what it means, in the order in which they are tried."""
DIFFERENCES = {
    "only_first": "the key is in the first state only",
    "only_second": "the key is in the second state only",
    "other_value": "the value or the expiry differs",
    "other_metadata": "the source offset, its input or the epoch differs, and nothing else",
}
"""The same of two states, of which neither has to be right."""
NOT_JUDGED = "superseded"
"""Stands in a cause's place where the log only has a later write; no mismatch."""


def name_causes(
    suspects: DataFrame,
    rows: DataFrame,
    everything: DataFrame | None,
    topic: Topic,
    contested: Collection[int] = (),
    *,
    is_small: bool = False,
) -> DataFrame:
    """Add the cause to judged rows that aren't fine.

    Args:
        suspects: Rows as `judge` returns them.
        rows: The log's committed records: `partition`, `offset`, `key`, `value`, `metadata`.
        everything: The same of committed and other records, None if there is no such log.
        topic: The log.
        contested: Partitions of which two copies claim to be the owner's.
        is_small: Whether the suspects can be sent to all tasks, so that the log isn't sent to another one.

    Returns:
        The rows with `cause` string, `held_at`, `origin_at`, `aborted_at` bigint, `newer` and `overlap` (structs of
        `epoch`, `first_offset`, `first_source`, `input`, `has_inputs`, null if there is none).
    """
    send = F.broadcast if is_small else lambda frame: frame
    asked = send(suspects.where("export IS NOT NULL").select("partition", "key", F.col("export").alias("asked")))
    writer = ("epoch", "source_offset", "input")
    offsets = [_last_offsets(rows, asked, held_at=CONTENT_AND_METADATA, origin_at=writer)]
    offsets += [] if everything is None else [_last_offsets(everything, asked, aborted_at=CONTENT_AND_METADATA)]
    facts = reduce(lambda left, right: left.join(send(right), ["partition", "key"], "left"), offsets, suspects)
    if everything is None:
        facts = facts.withColumn("aborted_at", F.lit(None).cast("bigint"))
    facts = facts.join(F.broadcast(_epochs(rows)), on="partition", how="left")
    held_epoch, held_source = F.col("export.epoch"), F.col("export.source_offset")
    held_input = F.coalesce("export.input", F.lit(0))
    # a new owner's timers may carry the input before its first one; with all records there is no doubt
    reached = F.when(_of(topic.complete), held_source).otherwise(held_source - 1)
    newer = F.filter(
        "epochs",
        lambda owner: (
            (owner["epoch"] > held_epoch) & (owner["input"] == held_input) & (owner["first_source"] <= reached)
        ),
    )
    overlap = F.filter(
        "epochs",
        lambda owner: (owner["epoch"] > F.col("log.epoch")) & (owner["first_offset"] < F.col("log.offset")),
    )
    return (
        facts.withColumns({"newer": F.get(newer, F.lit(0)), "overlap": F.get(overlap, F.lit(0))})
        .withColumn("cause", _cause(topic, contested))
        .drop("epochs")
    )


def _last_offsets(rows: DataFrame, asked: DataFrame, **names: Sequence[str]) -> DataFrame:
    """Return of each key the offsets of the last records that have the same in some fields as what is held."""
    beside = rows.join(asked, on=["partition", "key"], how="inner").withColumns(metadata_fields(F.col("metadata")))
    last = (F.max(F.when(_is_same(fields), F.col("offset"))).alias(name) for name, fields in names.items())
    return beside.groupBy("partition", "key").agg(*last)


def _is_same(names: Sequence[str]) -> Column:
    same = F.lit(True)
    for name in names:
        same = same & F.col(name).eqNullSafe(F.col(f"asked.{name}"))
    return same


def _epochs(rows: DataFrame) -> DataFrame:
    """Return for each partition its owners by epoch, for each of their inputs the first offsets that the log has.

    Offsets of different inputs say nothing of each other.
    """
    metadata = F.col("metadata")
    fields = metadata_fields(metadata)
    owners = (
        rows.where(metadata.isNotNull())
        .select(
            "partition",
            "offset",
            fields["epoch"].alias("epoch"),
            fields["source_offset"].alias("source_offset"),
            input_of(metadata).alias("input"),
            has_input(metadata).alias("has_inputs"),
        )
        .groupBy("partition", "epoch", "input", "has_inputs")
        .agg(F.min("source_offset").alias("first_source"), F.min("offset").alias("first_offset"))
    )
    owner = F.struct("epoch", "first_offset", "first_source", "input", "has_inputs")
    return owners.groupBy("partition").agg(F.array_sort(F.collect_list(owner)).alias("epochs"))


def _cause(topic: Topic, contested: Collection[int]) -> Column:
    kind, log, export = F.col("kind"), F.col("log"), F.col("export")
    held_at, is_complete = F.col("held_at"), _of(topic.complete)
    deleted = log.isNotNull() & log["value"].isNull()
    is_comparable = export["input"].eqNullSafe(log["input"])
    # what compaction took was older than what it left
    seems_older = (
        ~is_complete
        & held_at.isNull()
        & (~is_comparable | (export["source_offset"] <= log["source_offset"]))
        & (export["epoch"] <= log["epoch"])
    )
    is_older = _true(held_at < log["offset"]) | _true(seems_older)
    is_newer = (is_comparable & (export["source_offset"] > log["source_offset"])) | (export["epoch"] > log["epoch"])
    is_certain = is_complete | (F.col("later_offset").isNull() & log["value"].isNotNull() & _true(is_newer))
    causes = {
        "record_without_metadata": kind == "without_metadata",
        NOT_JUDGED: kind == "superseded",
        "wrong_partition": kind == "wrong_partition",
        "held_twice": F.col("export_rows") > 1,
        "partition_not_held": export.isNull() & F.col("position").isNull(),
        "overlapping_owners": F.col("overlap").isNotNull(),
        "committed_write_missing": export.isNull(),
        "aborted_write": held_at.isNull() & F.col("aborted_at").isNotNull(),
        "ahead_of_position": held_at >= F.col("position"),
        "stale_owner": held_at.isNull() & F.col("newer").isNotNull(),
        "different_value": held_at.isNull() & F.col("origin_at").isNotNull(),
        "expired_key_held": F.col("is_over") & (deleted | ~is_complete),
        # a rebuild that was gone on from has no tombstones
        "deleted_key_back": (deleted & is_older) | (log.isNull() & held_at.isNotNull()),
    }
    rest = {
        "committed_write_missing": log["value"].isNotNull() & is_older,
        "overlapping_owners": F.col("partition").isin(*contested),
        "never_committed": is_certain,
    }
    names = [F.when(_true(condition), name) for name, condition in (*causes.items(), *rest.items())]
    return F.coalesce(*names, F.lit("unknown"))


def _true(condition: Column) -> Column:
    return F.coalesce(condition, F.lit(False))


def _of(flags: Sequence[bool]) -> Column:
    return _true(F.get(F.array(*map(F.lit, flags)), F.col("partition")))
