"""Two states side by side: of two points of a log, or of two clusters, such as a mirror."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from spark_replay.comparison.judging import CONTENT, CONTENT_AND_METADATA, differences
from spark_replay.comparison.report import Report, cause_counts, differing, kind_counts, named_examples
from spark_replay.errors import PlacementError
from spark_replay.fold.fold import first_ten
from spark_replay.fold.points import AsOf, now_ms
from spark_replay.fold.rebuild import folded_at
from spark_replay.fold.windows import folded_windows
from spark_replay.sources.base import Source
from spark_replay.sources.reading import reading
from stores._core.printable import counted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row


def validate_states(
    left: Source,
    right: Source,
    *,
    as_of: AsOf | str = "latest",
    against_as_of: AsOf | str | None = None,
    metadata: bool = False,
) -> Report:
    """Compare the states that two logs, or one at two points, stand for.

    Keys are compared by value and expiry: offsets of a mirror are others. Where both topics have the same number of
    partitions a key has to be in the same one. Keys whose state at a point is unknown (see `spark_replay.fold.points`)
    count as `superseded`.

    Args:
        left: The log that is taken for right.
        right: The one that is judged.
        as_of: The point of both, as `--as-of` takes it.
        against_as_of: The point of the second; None: the same.
        metadata: Whether source offset and epoch have to be equal too.

    Raises:
        PointError: A point lies beyond its log.
        LogTooShortError: A point lies before its log's start.
        PlacementError: Window stores of different numbers of partitions.
        ReadError: Spark couldn't read a log.
        ReplayError: What `Source.describe` raises.
    """
    started = time.monotonic()
    points = (AsOf.of(as_of), AsOf.of(as_of if against_as_of is None else against_as_of))
    # at the logs' ends keys expire by the clock: both by one reading of it
    now = now_ms()
    folded = [
        folded_at(source, point, as_of_ms=now if point == AsOf() else None)
        for source, point in zip((left, right), points, strict=True)
    ]
    topics = [settled.topic for settled in folded]
    by_partition = topics[0].partition_count == topics[1].partition_count
    windows = [folded_windows(settled) for settled in folded]
    if any(windows) and not by_partition:
        raise PlacementError(
            f"{left} has {counted(topics[0].partition_count, 'partition')} and {right} {topics[1].partition_count}: a "
            "window store or a join has rows of its own in each partition: compare it with one of as many partitions"
        )
    states = [settled.state(facts.past()) for settled, facts in zip(folded, windows, strict=True)]
    compared = compare(*states, metadata=metadata, by_partition=by_partition)
    for settled, point in zip(folded, points, strict=True):
        if point != AsOf():
            compared = _without_unknown(compared, settled.unknown)
    caused = compared.withColumn("cause", _cause()).withColumnsRenamed({"left": "log", "right": "export"})
    counts = F.count(F.lit(1)).alias("count"), F.count("log").alias("live")
    with reading(f"{left} or {right}"):
        groups = caused.groupBy("partition", "kind", "cause").agg(*counts).collect()
        unequal = caused.where("cause IS NOT NULL") if any(row["cause"] for row in groups) else None
        examples = [] if unequal is None else first_ten(unequal, of=("cause",), sides=("log", "export"))
    kinds: dict[int, Counter[str]] = {}
    for row in groups:
        kinds.setdefault(row["partition"], Counter())[row["kind"]] += row["count"]
    return Report(
        changelog=left.topic,
        **kind_counts(kinds),
        **cause_counts(groups),
        keys=sum(row["live"] for row in groups),
        seconds=round(time.monotonic() - started, 3),
        positions={number: points[0].offsets.get(number, end) for number, end in enumerate(topics[0].ends)},
        ends=topics[0].ends,
        against=f"{right} at {points[1]}",
        examples=named_examples(examples, _seen, has_windows=any(windows)),
    )


def compare(left: DataFrame, right: DataFrame, *, metadata: bool = True, by_partition: bool = True) -> DataFrame:
    """Compare two states key by key.

    Args:
        left: What is taken for right: rows as `rebuild_state` returns them; `input` may be left out.
        right: What is judged: the same columns, `offset` not needed.
        metadata: Whether source offset, its input, and epoch have to be equal too. In two clusters they may differ.
        by_partition: Whether a key in another partition is another key. If not, `partition` is the left one's.

    Returns:
        One row a key: `partition` int, `key` binary, `kind` string (`equal`, `missing` on the right, `extra`
        there, `different`), `left` and `right` (structs of `value`, `source_offset`, `epoch`, `expires_at_ms`,
        `input`; null where the side has nothing), `differs` (array of the names that do).
    """
    names = CONTENT_AND_METADATA if metadata else CONTENT
    keys = ["partition", "key"] if by_partition else ["key"]
    both = _side(left, "left", keys).join(_side(right, "right", keys), on=keys, how="full_outer")
    if not by_partition:
        both = both.withColumn("partition", F.coalesce("left_partition", "right_partition"))
    differs = differences("left", "right", names)
    kind = (
        F.when(F.col("right").isNull(), "missing")
        .when(F.col("left").isNull(), "extra")
        .when(F.size(differs) > 0, "different")
        .otherwise("equal")
    )
    return both.select("partition", "key", kind.alias("kind"), "left", "right", differs.alias("differs"))


def _side(state: DataFrame, name: str, keys: Sequence[str]) -> DataFrame:
    if "input" not in state.columns:
        state = state.withColumn("input", F.lit(None).cast("int"))
    more = [] if "partition" in keys else [F.col("partition").alias(f"{name}_partition")]
    return state.select(*keys, *more, F.struct(*CONTENT_AND_METADATA).alias(name))


def _without_unknown(compared: DataFrame, unknown: DataFrame) -> DataFrame:
    marks = unknown.select("key", F.lit("superseded").alias("mark")).distinct()
    return compared.join(marks, "key", "left").withColumn("kind", F.coalesce("mark", "kind")).drop("mark")


def _cause() -> Column:
    is_content = F.exists("differs", lambda name: name.isin(*CONTENT))
    return (
        F.when(F.col("kind") == "missing", "only_first")
        .when(F.col("kind") == "extra", "only_second")
        .when((F.col("kind") == "different") & is_content, "other_value")
        .when(F.col("kind") == "different", "other_metadata")
    )


def _seen(row: Row) -> str:
    places = {"only_first": "in the first state only", "only_second": "in the second state only"}
    return places.get(row["cause"]) or differing(row["differs"])
