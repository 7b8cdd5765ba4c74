"""A check that the rows that were written can be read back, by count and digest of each partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from spark_replay.errors import TargetError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SHARED = "give --to a folder that driver and executors share, under the same path"


@dataclass(frozen=True, slots=True)
class Digest:
    """The rows of a partition: how many, the sum of their hashes, and what else was asked for."""

    rows: int
    sum: Decimal
    more: int = 0


def digests(rows: DataFrame, columns: Sequence[str], *, lost: Column | None = None) -> dict[int, Digest]:
    """Return the digest of each partition that has rows, over these columns."""
    # a sum of bigints overflows
    partitions = (
        rows.groupBy("partition")
        .agg(
            F.count(F.lit(1)).alias("rows"),
            F.sum(F.xxhash64(*columns).cast("decimal(38, 0)")).alias("sum"),
            (F.lit(0) if lost is None else lost).alias("more"),
        )
        .collect()
    )
    return {row["partition"]: Digest(row["rows"], row["sum"], row["more"]) for row in partitions}


def require_same(written: Mapping[int, Digest], found: Mapping[int, Digest], folder: Path) -> None:
    """Check that what was found is what was written; `TargetError` if it isn't."""
    for number in sorted(written.keys() | found.keys()):
        one, other = (side.get(number, Digest(0, Decimal(0))) for side in (written, found))
        if one.rows != other.rows:
            raise TargetError(
                f"of {one.rows} rows of partition {number} that the executors wrote to {folder}, {other.rows} can be "
                f"read back: {SHARED}. Nothing was replaced"
            )
        if one.sum != other.sum:
            raise TargetError(
                f"the {one.rows} rows of partition {number} read back from {folder} aren't the rows that the "
                "executors wrote: check the disk, or the mount. Nothing was replaced"
            )
