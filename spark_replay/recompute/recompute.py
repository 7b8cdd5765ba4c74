"""Replay an actor's input through the app's own handlers, and compare the state with the changelog.

Each key of a store that either side has gets one kind:

* `equal`: the same value.
* `different`: in both, with another value.
* `only_recomputed`: the handlers would have written it, and the changelog doesn't have it.
* `only_changelog`: the changelog has it, and the handlers would not have written it.
* `unknown`: it isn't equal, and something happened to it that the input doesn't tell: see `docs/how-to/recompute.md`.
* `superseded`: the changelog only has later writes of it than the point compared. Nothing can be said.

Keys that neither side has, deleted or expired on both, get none, and neither do windows that are past their retention.
Records stay in the JVM save where they pass through the handlers, which are Python: one Spark task for each partition.
Records of several inputs are merged by their times as if all had been there when the first was handled.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from spark_replay.fold.fold import first_ten, is_live, last_fields
from spark_replay.fold.points import now_ms, point_at
from spark_replay.fold.rebuilt import read_rebuild
from spark_replay.fold.settled import settle
from spark_replay.fold.windows import WindowLog, newest_windows
from spark_replay.recompute.plan import Recompute
from spark_replay.recompute.report import FINE, Recomputed, recomputed
from spark_replay.recompute.worker import INPUT_COLUMNS, OUTPUT_SCHEMA, Job, event_time_of, replay_rows
from spark_replay.sources.changelog import input_of, metadata_fields
from spark_replay.sources.columns import by_input
from spark_replay.sources.reading import reading

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

_LOCAL = ("local[", "local-")


def recompute_actor(spark: SparkSession, plan: Recompute) -> Recomputed:
    """Replay the input, compare, and count; keys that differ are named, up to 10 of each kind and store.

    Raises:
        RecomputeError: The app can't be imported by Spark's workers, or the replay failed.
        ReadError: Spark couldn't read a topic to its end.
    """
    started = time.monotonic()
    replayed = _replay(spark, plan).persist(StorageLevel.DISK_ONLY)
    try:
        with reading(f"input {plan.input} or its changelogs"):
            told = _told(replayed)
            windows = _windows(plan)
            judged = _judge(plan, replayed, windows)
            groups = judged.groupBy("store", "partition", "kind").count().collect()
            examples = [] if all(row["kind"] in FINE for row in groups) else _examples(judged)
    finally:
        replayed.unpersist()
    seconds, windowed = time.monotonic() - started, {store for store, facts in windows.items() if facts}
    return recomputed(plan, told=told, groups=groups, examples=examples, seconds=seconds, windowed=windowed)


def recompute_keys(spark: SparkSession, plan: Recompute) -> DataFrame:
    """Return the judgement of every key, for a notebook. Each action replays the input again: persist it.

    The changelogs are read when this is called.

    Returns:
        One row a key: `store` string, `partition` int, `key` binary, `kind` string, `log` (struct of `value`,
        `source_offset`, `expires_at_ms`, `epoch`, `offset`, `input`), `recomputed` (struct of `value`, `source_offset`,
        `expires_at_ms`, `input`), both null where the side has nothing, `unknown` (struct of `source_offset` and
        `reason` of the first thing that the input doesn't tell, or null), `later_offset` bigint. `input` is the place
        of the input that `source_offset` is of, null for an actor with one.
    """
    return _judge(plan, _replay(spark, plan), _windows(plan))


def _replay(spark: SparkSession, plan: Recompute) -> DataFrame:
    """Return the output of the replays, as `recompute_worker.OUTPUT_SCHEMA` has it."""
    context = spark.sparkContext
    if (context.master or "").startswith(_LOCAL) and "PYSPARK_PYTHON" not in os.environ:
        # pyspark would take the first python3 on PATH, which needn't have what the app needs
        context.pythonExec = sys.executable
    inputs = [_input(plan, place) for place in range(len(plan.inputs))]
    if plan.from_state or len(inputs) > 1:
        ranked = [_ranked(plan, place, records) for place, records in enumerate(inputs)]
        rows = reduce(lambda left, right: left.unionAll(right), [*ranked, *_kept(spark, plan)])
        # what the stores held comes before the first record
        rows = rows.repartition(max(1, len(plan.until_ms)), "partition").sortWithinPartitions(
            "partition", F.col("store").isNull(), "rank_ms", _turn(plan), "offset"
        )
    else:
        # The source gives each partition as one of Spark's, in order.
        [rows] = inputs
    job = Job(
        module=plan.module,
        actor=plan.actor,
        stores=tuple(plan.changelogs),
        starts=tuple(zip(*(one.starts for one in plan.inputs), strict=True)),
        until_ms=plan.until_ms,
        topic_ids=tuple(one.topic.topic_id for one in plan.inputs),
        metadata=tuple(zip(*(one.metadata for one in plan.inputs), strict=True)),
    )
    replayed = rows.select(*INPUT_COLUMNS).rdd.mapPartitions(lambda rows: replay_rows(job, rows))
    return spark.createDataFrame(replayed, OUTPUT_SCHEMA, verifySchema=False)


def _input(plan: Recompute, place: int) -> DataFrame:
    part = plan.inputs[place]
    source = replace(plan.kafka, topic=part.topic.name)
    records = source.in_order(replace(part.topic, starts=part.starts, ends=part.bounds))
    return records.select(
        "partition",
        F.lit(place).alias("input"),
        "offset",
        F.unix_millis("timestamp").alias("timestamp_ms"),
        "key",
        "value",
        "headers",
        F.lit(None).cast("string").alias("store"),
    )


def _ranked(plan: Recompute, place: int, records: DataFrame) -> DataFrame:
    """Add what the records of all inputs are ordered by, with the input's place and the offset.

    The record with the lowest time among the inputs' next ones goes first. So a record whose time is lower than an
    earlier one's of its input comes right behind that one.
    """
    if len(plan.inputs) > 1 and plan.inputs[place].topic.name in plan.timed:
        # without Arrow: it would need pandas
        time_of = F.udf(event_time_of(plan.module, plan.actor, place, len(plan.until_ms)), "bigint", useArrow=False)
        records = records.withColumn("at_ms", time_of("timestamp_ms", "key", "value", "headers"))
    else:
        records = records.withColumn("at_ms", F.col("timestamp_ms"))
    so_far = Window.partitionBy("partition").orderBy("offset").rowsBetween(Window.unboundedPreceding, 0)
    return records.withColumn("rank_ms", F.max("at_ms").over(so_far)).drop("at_ms")


def _turn(plan: Recompute) -> Column:
    """Return the column that orders records of one timestamp."""
    place = F.col("input")
    return F.coalesce(*(F.when(place == number, F.lit(turn)) for number, turn in enumerate(plan.turns)), place)


def _kept(spark: SparkSession, plan: Recompute) -> list[DataFrame]:
    return [
        read_rebuild(spark, folder).select(
            "partition",
            F.lit(0).alias("input"),
            F.coalesce("source_offset", F.lit(0)).alias("offset"),
            F.coalesce("expires_at_ms", F.lit(0)).alias("timestamp_ms"),
            "key",
            "value",
            F.lit(None).cast("array<struct<key:string,value:binary>>").alias("headers"),
            F.lit(store).alias("store"),
            F.lit(0).cast("bigint").alias("rank_ms"),
        )
        for store, folder in plan.from_state.items()
    ]


def _windows(plan: Recompute) -> dict[str, WindowLog]:
    """Return the current window facts of each store's changelog: those that are past their retention aren't compared.

    Compaction may have removed the facts at the point of the comparison.
    """
    return {
        store: newest_windows(replace(plan.kafka, topic=changelog.name), changelog)
        for store, changelog in plan.changelogs.items()
    }


def _judge(plan: Recompute, replayed: DataFrame, windows: Mapping[str, WindowLog]) -> DataFrame:
    as_of, past = F.lit(now_ms()), F.lit(False)
    for store, facts in windows.items():
        if facts:
            # Which entries for closes are left depends on when the closes before them were handled.
            past = past | ((F.col("store") == store) & (facts.past() | facts.entries()))
    keys = ["store", "partition", "key"]
    states = replayed.where(F.col("kind") == "state").select(
        *keys, F.struct("value", "source_offset", "expires_at_ms", "input").alias("recomputed")
    )
    reason = F.struct("source_offset", F.col("value").cast("string").alias("reason"))
    unknowns = (
        replayed.where(F.col("kind") == "unknown").groupBy("partition", "key").agg(F.min(reason).alias("unknown"))
    )
    logs = reduce(lambda left, right: left.unionAll(right), [_logged(plan, store) for store in plan.changelogs])
    sides = logs.join(states, on=keys, how="full_outer").join(unknowns, on=["partition", "key"], how="left")
    return (
        sides.withColumn("kind", _kind(as_of, past))
        .where(F.col("kind").isNotNull())
        .select(*keys, "kind", "log", "recomputed", "unknown", "later_offset")
    )


def _kind(as_of_ms: Column, past: Column) -> Column:
    """Null where neither side has the key, or need not have it."""
    log, ours = F.col("log"), F.col("recomputed")
    in_log, in_ours = is_live(log, as_of_ms) & ~past, is_live(ours, as_of_ms) & ~past
    # the same write may have expired on one side already: its time is the worker's there, the input's here
    is_same = F.coalesce(log["value"] == ours["value"], F.lit(False))
    return (
        F.when(~in_log & ~in_ours, F.lit(None).cast("string"))
        .when(is_same, "equal")
        .when(F.col("unknown").isNotNull(), "unknown")
        .when(log.isNull() & F.col("later_offset").isNotNull(), "superseded")
        .when(in_log & in_ours, "different")
        .when(in_ours, "only_recomputed")
        .otherwise("only_changelog")
    )


def _logged(plan: Recompute, store: str) -> DataFrame:
    """Return each key's last write of the inputs replayed, and its first of later ones, as of one moment."""
    changelog = plan.changelogs[store]
    metadata = F.col("metadata")
    # A record without write metadata is of no known input. A worker that restores takes it all the same.
    is_later = metadata_fields(metadata)["source_offset"] >= by_input(plan.bounds, input_of(metadata))
    everything = [None] * changelog.partition_count
    folded = settle(
        replace(plan.kafka, topic=changelog.name),
        changelog,
        point_at(changelog, everything, [0] * changelog.partition_count),
        # no offset lies below 0
        select=lambda rows: rows.withColumn("position", F.when(is_later, F.lit(0).cast("bigint"))),
        position=F.col("position"),
    ).folded
    fields = last_fields()
    names = ("value", "source_offset", "expires_at_ms", "epoch", "offset", "input")
    log = F.when(F.col("last").isNotNull(), F.struct(*(fields[name].alias(name) for name in names)))
    return folded.select(F.lit(store).alias("store"), "partition", "key", log.alias("log"), "later_offset")


def _told(replayed: DataFrame) -> list[Row]:
    """Count by partition the unknown things of each `reason`, and the replays with their `records`, which have none."""
    is_unknown = F.col("kind") == "unknown"
    reason = F.when(is_unknown, F.col("value").cast("string")).alias("reason")
    groups = replayed.where(is_unknown | (F.col("kind") == "done")).groupBy("partition", reason)
    return groups.agg(F.count(F.lit(1)).alias("count"), F.sum("source_offset").alias("records")).collect()


def _examples(judged: DataFrame) -> list[Row]:
    rows = first_ten(judged.where(~F.col("kind").isin(*FINE)), of=("store", "kind"), sides=("log", "recomputed"))
    return sorted(rows, key=lambda row: (row["store"], row["kind"]))
