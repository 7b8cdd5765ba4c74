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
from operator import and_
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F  # noqa: N812

from spark_replay.comparison.judging import CONTENT_AND_METADATA
from spark_replay.sources.brokers.topic import Topic
from spark_replay.sources.changelog import has_input, input_of, metadata_fields
from spark_replay.sources.columns import is_true
from spark_replay.sources.reading import keep

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_RESTORE = (
    "The log is right. Stop the worker, keep its data folder aside, start it: it restores the partition from the "
    "changelog. Find out first whether outputs were made from the wrong value."
)
_OTHER_WRITER = "Something else than the app writes to the changelog: find it, and take away its right to write."


class Cause(NamedTuple):
    """The meaning of a cause, and its remedy."""

    meaning: str
    advice: str


CAUSES = {
    "record_without_metadata": Cause("a record of the log has no key or no write metadata", _OTHER_WRITER),
    "wrong_partition": Cause(
        "the key lies in another partition than its own",
        "Was the number of partitions changed, or is the store one without placement by key? Else something else than "
        "the app writes to the changelog: find it.",
    ),
    "held_twice": Cause(
        "the key is held more than once",
        "Export again. If it stays, the export's files were mixed up or damaged.",
    ),
    "partition_not_held": Cause(
        "nobody holds the partition", "Export on all workers, and check that each partition has an owner."
    ),
    "overlapping_owners": Cause(
        "two owners wrote to the partition at the same time",
        "An owner that had been replaced could still write. Keep the logs of both workers, see whether anything other "
        "than the app writes, and validate the outputs too.",
    ),
    "aborted_write": Cause("the held value was never committed: its transaction was aborted, or is open", _RESTORE),
    "ahead_of_position": Cause(
        "the held value was committed behind the position that the holder states",
        "The export and its manifest don't belong together: export again.",
    ),
    "stale_owner": Cause("the held value was written by an owner that had been replaced", _RESTORE),
    "different_value": Cause(
        "the held value has the metadata of a committed write, and another value or expiry", _RESTORE
    ),
    "expired_key_held": Cause("the key expired and was removed from the log, and is still held", _RESTORE),
    "deleted_key_back": Cause("the key was deleted, and an older write of it is held", _RESTORE),
    "committed_write_missing": Cause("the held state lacks the last committed write", _RESTORE),
    "never_committed": Cause("the held value is nowhere in the log, and compaction can't have removed it", _RESTORE),
    "unknown": Cause(
        "compaction removed the records that would show the cause",
        "Compare with an archive that was begun earlier (--archive): it has what compaction removed.",
    ),
}
"""The causes, in the order in which they are tried."""
DIFFERENCES = {
    "only_first": Cause(
        "the key is in the first state only",
        "Expected if the key was deleted, or not yet mirrored, between the two.",
    ),
    "only_second": Cause("the key is in the second state only", "Expected if the key was written between the two."),
    "other_value": Cause("the value or the expiry differs", "Expected if the key was written between the two."),
    "other_metadata": Cause(
        "the source offset, its input or the epoch differs, and nothing else",
        "Expected between clusters whose inputs have other offsets; leave out --metadata.",
    ),
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
    beside = rows.join(asked, on=["partition", "key"], how="left")
    # all of the log is read once: its owners, and the last writes of the keys in question
    writers = keep(
        _with_fields(beside)
        .groupBy(
            "partition", "epoch", "place", "has_inputs", F.when(F.col("asked").isNotNull(), F.col("key")).alias("key")
        )
        .agg(
            F.min("source_offset").alias("first_source"),
            F.min("offset").alias("first_offset"),
            F.max(F.when(_is_held(CONTENT_AND_METADATA), F.col("offset"))).alias("held_at"),
            F.max(F.when(_is_held(("epoch", "source_offset", "input")), F.col("offset"))).alias("origin_at"),
        )
    )
    offsets = writers.where("key IS NOT NULL").withColumn("aborted_at", F.lit(None).cast("bigint"))
    if everything is not None:
        written = _with_fields(everything.join(asked, on=["partition", "key"], how="inner"))
        aborted_at = F.when(_is_held(CONTENT_AND_METADATA), F.col("offset")).alias("aborted_at")
        offsets = offsets.unionByName(written.select("partition", "key", aborted_at), allowMissingColumns=True)
    lasts = [F.max(name).alias(name) for name in ("held_at", "origin_at", "aborted_at")]
    of_key = offsets.groupBy("partition", "key").agg(*lasts)
    facts = suspects.join(send(of_key), on=["partition", "key"], how="left")
    facts = facts.join(F.broadcast(_epochs(writers)), on="partition", how="left")
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


def _with_fields(beside: DataFrame) -> DataFrame:
    metadata = F.col("metadata")
    return beside.withColumns(
        {**metadata_fields(metadata), "place": input_of(metadata), "has_inputs": has_input(metadata)}
    )


def _is_held(names: Sequence[str]) -> Column:
    """Return whether a record has the same in some fields as what is held."""
    return reduce(and_, (F.col(name).eqNullSafe(F.col(f"asked.{name}")) for name in names))


def _epochs(writers: DataFrame) -> DataFrame:
    """Return for each partition its owners by epoch, for each of their inputs the first offsets that the log has.

    Offsets of different inputs say nothing of each other.
    """
    owners = writers.where("epoch IS NOT NULL").groupBy(
        "partition", "epoch", F.col("place").alias("input"), "has_inputs"
    )
    firsts = owners.agg(*(F.min(name).alias(name) for name in ("first_source", "first_offset")))
    owner = F.struct("epoch", "first_offset", "first_source", "input", "has_inputs")
    return firsts.groupBy("partition").agg(F.array_sort(F.collect_list(owner)).alias("epochs"))


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
    is_older = is_true(held_at < log["offset"]) | is_true(seems_older)
    is_newer = (is_comparable & (export["source_offset"] > log["source_offset"])) | (export["epoch"] > log["epoch"])
    is_certain = is_complete | (F.col("later_offset").isNull() & log["value"].isNotNull() & is_true(is_newer))
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
    names = [F.when(is_true(condition), name) for name, condition in (*causes.items(), *rest.items())]
    return F.coalesce(*names, F.lit("unknown"))


def _of(flags: Sequence[bool]) -> Column:
    return is_true(F.get(F.array(*map(F.lit, flags)), F.col("partition")))
