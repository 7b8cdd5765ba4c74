"""Key by key: what a changelog stands for at an export's position, against what the export holds.

Each key of the log or of an export gets one kind:

* `equal`, or `absent` where neither side has it: deleted or expired on both.
* `missing`: in the log, not in the export. `extra`: in the export and deleted or unknown in the log, or twice
  there.
* `different`: in both, with another value or stamp.
* `wrong_partition`: murmur2 puts it elsewhere, or the row says another partition than its file's.
* `unstamped`: a record of it in the log has no key or no stamp.
* `superseded`: the log only has later writes of it. Compaction took the one that the export shows, so that
  nothing can be said; no mismatch.

Exports are to be validated within the topic's `delete.retention.ms`: after that compaction also removes the
tombstones behind the position, and a key deleted since the export looks `extra`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from spark_replay.changelog import read_rows, stamp_fields
from spark_replay.columns import by_partition
from spark_replay.errors import ExportError, LogTooShortError
from spark_replay.exports import Copy, Exports, find_exports, read_exports
from spark_replay.fold import expired, last_writes
from spark_replay.placement import home_partition
from spark_replay.points import now_ms
from spark_replay.reading import reading
from spark_replay.report import Report, report
from spark_replay.sources.base import Source
from spark_replay.topic import Topic

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

_COMPARED = ("value", "source_offset", "epoch", "expires_at_ms")
_FINE = ("equal", "absent")
_EXAMPLES = 10
_SHOWN_BYTES = 200


def validate_exports(
    source: Source,
    *,
    against: Path,
) -> Report:
    """Compare the exports below a folder with their changelog.

    Args:
        source: The changelog, as `kafka(...)` or `archive(...)` gives it.
        against: The folder that the workers exported to.

    Raises:
        ExportError: The exports can't be read or aren't of this changelog.
        LogTooShortError: A position lies outside the log.
        ReadError: Spark couldn't read a side to its end.
        ReplayError: What `Source.describe` raises.
    """
    started = time.monotonic()
    exports = find_exports(against, source.topic)
    described = source.describe()
    require_comparable(exports, described)
    with reading(f"{source} or the exports in {against}"):
        judged = judge(read_rows(source, described), read_exports(source.spark, exports), exports)
        summary = summarise(judged)
    return report(summary, topic=described, exports=exports, seconds=time.monotonic() - started)


def compare_exports(
    source: Source,
    *,
    against: Path,
) -> DataFrame:
    """Give the judgement of every key, for a notebook; arguments and errors are those of `validate_exports`.

    Returns:
        One row a key: `partition` int, `key` binary, `kind` string, `log` and `export` (structs of `value`,
        `source_offset`, `epoch`, `expires_at_ms`, the log's with `offset` too; null where the side has
        nothing), `differs` (array of the names that do), `home` int (null when the placement isn't by key),
        `claimed` int, `export_rows`, `later_offset`, `damaged_offset`, `records`, `damaged` bigint, `live`
        boolean.
    """
    exports = find_exports(against, source.topic)
    described = source.describe()
    require_comparable(exports, described)
    return judge(read_rows(source, described), read_exports(source.spark, exports), exports)


def require_comparable(exports: Exports, topic: Topic) -> None:
    """Check that the exports' partitions and positions are ones that the log has.

    Raises:
        ExportError: The topic has another number of partitions.
        LogTooShortError: A position lies outside the log.
    """
    if exports.partition_count != topic.partition_count:
        raise ExportError(
            f"{topic.name} has {topic.partition_count} partitions and the exports are of "
            f"{exports.partition_count}: keys are placed otherwise, export anew"
        )
    for copy in exports.chosen:
        written_from = copy.part.position.changelog_id
        if topic.topic_id and written_from and written_from != topic.topic_id:
            raise ExportError(
                f"{copy.file} is of a topic {topic.name} with the id {written_from}, the brokers' has "
                f"{topic.topic_id}: the "
                "topic was made anew since, or this is another cluster"
            )
        problem = _outside(copy, topic)
        if problem:
            raise LogTooShortError(f"{topic.name} partition {copy.partition} {problem}")


def judge(rows: DataFrame, exported: DataFrame, exports: Exports) -> DataFrame:
    """Judge every key; the shape is that of `compare_exports`.

    Args:
        rows: The log: `partition`, `offset`, `key`, `value`, `stamp` (null: damaged).
        exported: The copies that count, as `read_exports` gives them.
        exports: What their manifests say.
    """
    count = exports.partition_count
    # a partition without an export is judged at the log's end: whatever is there is missing
    positions: list[int | None] = [None] * count
    as_of = [exports.exported_at_ms or now_ms()] * count
    for copy in exports.chosen:
        positions[copy.partition] = copy.changelog_offset
        as_of[copy.partition] = copy.manifest.exported_at_ms
    both = _logged(last_writes(rows, positions)).join(_held(exported), on=["partition", "key"], how="full_outer")
    home = home_partition(F.col("key"), count) if exports.placement == "key" else F.lit(None).cast("int")
    sided = both.withColumns(
        {
            "home": home,
            "live": _is_live(F.col("log"), by_partition(as_of)),
            "held": _is_live(F.col("export"), by_partition(as_of)),
            "differs": _differences(),
        }
    )
    return sided.select(
        "partition",
        "key",
        _kind().alias("kind"),
        "log",
        "export",
        "differs",
        "home",
        "claimed",
        F.coalesce("export_rows", F.lit(0)).alias("export_rows"),
        "later_offset",
        "damaged_offset",
        F.coalesce("records", F.lit(0)).alias("records"),
        F.coalesce("damaged", F.lit(0)).alias("damaged"),
        "live",
    )


def summarise(judged: DataFrame) -> list[Row]:
    """Count the kinds of each partition, and name up to 10 keys of each kind that isn't fine.

    The keys are looked for in a second pass, only when there is one to name.

    Returns:
        Rows of `partition`, `kind`, `count`, `records`, `damaged`, `live` (sums) and `example`: null, or in a row whose
        sums are 0 a judged row whose values are cut to 200 bytes.
    """
    counted = (
        judged.groupBy("partition", "kind")
        .agg(
            F.count(F.lit(1)).alias("count"),
            F.sum("records").alias("records"),
            F.sum("damaged").alias("damaged"),
            F.sum(F.col("live").cast("bigint")).alias("live"),
        )
        .withColumn("example", F.lit(None))
        .collect()
    )
    if all(row["kind"] in _FINE for row in counted):
        return counted
    return counted + _examples(judged)


def _examples(judged: DataFrame) -> list[Row]:
    example = F.struct(
        "key",
        _cut("log").alias("log"),
        _cut("export").alias("export"),
        "differs",
        "home",
        "claimed",
        "export_rows",
        "later_offset",
        "damaged_offset",
    )
    zero = F.lit(0).cast("bigint")
    return (
        judged.filter(~F.col("kind").isin(*_FINE))
        .withColumn("rank", F.row_number().over(Window.partitionBy("kind").orderBy("partition", "key")))
        .filter(F.col("rank") <= _EXAMPLES)
        .select(
            "partition",
            "kind",
            zero.alias("count"),
            zero.alias("records"),
            zero.alias("damaged"),
            zero.alias("live"),
            example.alias("example"),
        )
        .collect()
    )


def _outside(copy: Copy, topic: Topic) -> str | None:
    number, position = copy.partition, copy.changelog_offset
    start, end, high = topic.starts[number], topic.ends[number], topic.high_watermarks[number]
    if position > high:
        return (
            f"ends at {high}, the log is shorter than the export's position {position} ({copy.file}): "
            f"was the topic made anew, or is this another cluster?"
        )
    if position > end:
        return (
            f"can be read to {end} because a transaction is open there, the export's position is {position} "
            f"({copy.file}): try again when it is over"
        )
    if position < start:
        return f"begins at {start}, after the export's position {position} ({copy.file}): export anew"
    return None


def _logged(folded: DataFrame) -> DataFrame:
    fields = {"value": F.col("last.value")} | stamp_fields(F.col("last.stamp")) | {"offset": F.col("last.offset")}
    log = F.struct(*(column.alias(name) for name, column in fields.items()))
    return folded.select(
        "partition",
        "key",
        F.when(F.col("last").isNotNull(), log).alias("log"),
        "later_offset",
        "records",
        "damaged",
        "damaged_offset",
    )


def _held(exported: DataFrame) -> DataFrame:
    row = F.struct(*_COMPARED)
    return (
        exported.repartition("partition", "key")
        .groupBy("partition", "key")
        .agg(
            F.first(row).alias("export"),
            F.max("claimed").alias("claimed"),
            F.count(F.lit(1)).alias("export_rows"),
        )
    )


def _is_live(side: Column, as_of_ms: Column) -> Column:
    return side["value"].isNotNull() & ~expired(side["expires_at_ms"], as_of_ms)


def _differences() -> Column:
    names = [F.when(~F.col(f"log.{name}").eqNullSafe(F.col(f"export.{name}")), name) for name in _COMPARED]
    return F.filter(F.array(*names), lambda name: name.isNotNull())


def _kind() -> Column:
    """The first that applies; the order is the order of causes, from the log's own damage on."""
    partition, written = F.col("partition"), F.col("log.value").isNotNull()
    displaced = (F.col("home") != partition) | (F.col("claimed") != partition)
    return (
        F.when(F.coalesce("damaged", F.lit(0)) > 0, "unstamped")
        .when(~F.col("live") & ~F.col("held"), "absent")
        .when(F.coalesce(displaced, F.lit(False)), "wrong_partition")
        .when(F.col("export").isNull(), "missing")
        .when(F.col("export_rows") > 1, "extra")
        .when(F.col("log").isNull() & F.col("later_offset").isNotNull(), "superseded")
        .when(~written, "extra")
        .when(F.size("differs") > 0, "different")
        .otherwise("equal")
    )


def _cut(side: str) -> Column:
    value = F.substring(F.col(f"{side}.value"), 1, _SHOWN_BYTES)
    return F.when(F.col(side).isNotNull(), F.col(side).withField("value", value))
