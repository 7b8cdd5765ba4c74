"""Two states side by side: which keys differ, and in what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CONTENT = ("value", "expires_at_ms")
CONTENT_AND_METADATA = ("value", "source_offset", "epoch", "expires_at_ms")


def compare(left: DataFrame, right: DataFrame, *, metadata: bool = True, by_partition: bool = True) -> DataFrame:
    """Compare two states key by key.

    Args:
        left: What is taken for right: rows as `rebuild_state` gives them.
        right: What is judged: the same columns, `offset` not needed.
        metadata: Whether source offset and epoch have to be equal too. In two clusters they may differ.
        by_partition: Whether a key in another partition is another key. If not, `partition` is the left one's.

    Returns:
        One row a key: `partition` int, `key` binary, `kind` string (`equal`, `missing` on the right, `extra`
        there, `different`), `left` and `right` (structs of `value`, `source_offset`, `epoch`, `expires_at_ms`;
        null where the side has nothing), `differs` (array of the names that do).
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


def differences(left: str, right: str, names: Sequence[str]) -> Column:
    """Give the names of the fields in which two structs differ."""
    found = [F.when(~F.col(f"{left}.{name}").eqNullSafe(F.col(f"{right}.{name}")), name) for name in names]
    return F.filter(F.array(*found), lambda name: name.isNotNull())


def _side(state: DataFrame, name: str, keys: Sequence[str]) -> DataFrame:
    more = [] if "partition" in keys else [F.col("partition").alias(f"{name}_partition")]
    return state.select(*keys, *more, F.struct(*CONTENT_AND_METADATA).alias(name))
