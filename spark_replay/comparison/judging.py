"""The judgement of each key: what a log stands for at a held state's position, against what is held."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from spark_replay.comparison.held import Held
from spark_replay.fold.fold import expired, is_live, last_fields
from spark_replay.fold.points import Point, now_ms, point_at
from spark_replay.fold.windows import NO_WINDOWS, WindowLog
from spark_replay.sources.brokers.topic import Topic
from spark_replay.sources.columns import by_partition

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CONTENT = ("value", "expires_at_ms")
CONTENT_AND_METADATA = ("value", "source_offset", "epoch", "expires_at_ms", "input")
FINE = ("equal", "absent")


def held_point(topic: Topic, held: Held) -> Point:
    """Return the positions and times of a held state as a point of the log."""
    # a partition that nobody holds is judged at the log's end: whatever is there is missing
    positions: list[int | None] = [None] * held.partition_count
    as_of = [max((part.as_of_ms for part in held.parts), default=now_ms())] * held.partition_count
    for part in held.parts:
        positions[part.partition] = part.changelog_offset
        as_of[part.partition] = part.as_of_ms
    return point_at(topic, positions, as_of)


def judge(
    log: DataFrame,
    point: Point,
    held: Held,
    kept: DataFrame,
    *,
    windows: WindowLog = NO_WINDOWS,
    expired_ms: Sequence[int] = (),
) -> DataFrame:
    """Judge every key; the shape is that of `spark_replay.compare_exports`.

    Args:
        log: The log at `point`, as `logged` returns it.
        point: What `held_point` returns.
        held: What is known of the held state.
        kept: Its rows, as `Held.read` returns them.
        windows: Of a window store, which rows are past their retention.
        expired_ms: In each partition, `log` lacks keys that had expired then; empty if it lacks none.
    """
    both = log.join(_kept(kept), on=["partition", "key"], how="full_outer")
    both = both.withColumn("position", by_partition(point.before))
    as_of = by_partition(point.times_ms)
    home = windows.home(held.partition_count, held.placement)
    past = windows.past()
    if expired_ms:
        past |= F.col("log").isNull() & expired(F.col("export.expires_at_ms"), by_partition(expired_ms))
    sided = both.withColumns(
        {
            "home": home,
            "past": past,
            "live": is_live(F.col("log"), as_of) & ~past,
            "held": is_live(F.col("export"), as_of) & ~past,
            "differs": differences("log", "export", CONTENT_AND_METADATA),
        }
    )
    none = {name: F.coalesce(name, F.lit(0)) for name in ("export_rows", "records", "damaged")}
    is_over = F.coalesce(F.col("export").isNotNull() & ~F.col("held"), F.lit(False))
    return sided.withColumns({"kind": _kind(), "is_over": is_over, **none}).drop("held", "past")


def differences(left: str, right: str, names: Sequence[str]) -> Column:
    """Return the names of the fields in which two structs differ."""
    columns = [F.when(~F.col(f"{left}.{name}").eqNullSafe(F.col(f"{right}.{name}")), name) for name in names]
    return F.filter(F.array(*columns), lambda name: name.isNotNull())


def logged(folded: DataFrame, *more: str) -> DataFrame:
    """Return `last_writes` with `log` for `last`: a struct of `CONTENT_AND_METADATA` and `offset`, or null."""
    fields = last_fields()
    log = F.struct(*(fields[name].alias(name) for name in (*CONTENT_AND_METADATA, "offset")))
    return folded.select(
        "partition",
        "key",
        F.when(F.col("last").isNotNull(), log).alias("log"),
        "later_offset",
        "records",
        "damaged",
        "damaged_offset",
        *more,
    )


def logged_since(state: DataFrame, folded: DataFrame, point: Point) -> DataFrame:
    """Return what `logged` does of a log, from the state at an offset and a fold of what came behind it.

    Args:
        state: The rows of an earlier rebuild.
        folded: What `spark_replay.fold.fold.last_writes` returns of the log behind it.
        point: The point of the fold.
    """
    # with a write behind the point only, the key may have had one between that compaction took
    newer = logged(folded.withColumn("is_unknown", point.unknown()), "is_unknown")
    older = state.select(
        F.col("partition").alias("_partition"),
        F.col("key").alias("_key"),
        F.struct(*CONTENT_AND_METADATA, "offset").alias("_log"),
    )
    is_same = (F.col("partition") == F.col("_partition")) & F.col("key").eqNullSafe(F.col("_key"))
    both = older.join(newer, is_same, "full_outer")
    is_older = F.col("log").isNull() & ~F.coalesce("is_unknown", F.lit(False))
    log = F.when(is_older, F.col("_log")).otherwise(F.col("log"))
    is_damaged = is_older & F.col("_log").isNotNull() & F.col("_log.epoch").isNull()
    return both.select(
        F.coalesce("partition", "_partition").alias("partition"),
        F.coalesce("key", "_key").alias("key"),
        log.alias("log"),
        "later_offset",
        F.coalesce("records", F.lit(0)).alias("records"),
        (F.coalesce("damaged", F.lit(0)) + is_damaged.cast("bigint")).alias("damaged"),
        F.coalesce("damaged_offset", F.when(is_damaged, F.col("_log.offset"))).alias("damaged_offset"),
    )


def _kept(rows: DataFrame) -> DataFrame:
    return (
        rows.repartition("partition", "key")
        .groupBy("partition", "key")
        .agg(
            F.first(F.struct(*CONTENT_AND_METADATA)).alias("export"),
            F.max("claimed").alias("claimed"),
            F.count(F.lit(1)).alias("export_rows"),
        )
    )


def _kind() -> Column:
    """The first that applies; the order is the order of causes, from the log's own damage on."""
    partition, written = F.col("partition"), F.col("log.value").isNotNull()
    displaced = (F.col("home") != partition) | (F.col("claimed") != partition)
    # an owner keeps an expired key until a tombstone of it is in the log
    has_gone = F.col("export").isNull() | written | F.col("later_offset").isNotNull() | F.col("past")
    return (
        F.when(F.coalesce("damaged", F.lit(0)) > 0, "without_metadata")
        .when(~F.col("live") & ~F.col("held") & has_gone, "absent")
        .when(F.coalesce(displaced, F.lit(False)), "wrong_partition")
        .when(F.col("export").isNull(), "missing")
        .when(F.col("export_rows") > 1, "extra")
        .when(F.col("log").isNull() & F.col("later_offset").isNotNull(), "superseded")
        .when(~written, "extra")
        .when(F.size("differs") > 0, "different")
        .otherwise("equal")
    )
