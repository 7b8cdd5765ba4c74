"""A check that the rows that were written can be read back, by count and digest."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import xor
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.observation import Observation

from spark_replay.errors import TargetError
from stores._core.printable import counted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SHARED = "give --to a folder that driver and executors share, under the same path"


@dataclass(frozen=True, slots=True)
class Digest:
    """The rows of a partition: how many, the XOR of their hashes, and what else was asked for. No two are equal."""

    rows: int
    hash: int
    more: int = 0


def digests(rows: DataFrame, columns: Sequence[str], *, lost: Column | None = None) -> dict[int, Digest]:
    """Return the digest of each partition that has rows, over these columns."""
    more = (F.lit(0) if lost is None else lost).alias("more")
    partitions = rows.groupBy("partition").agg(*_digest(columns), more).collect()
    return {row["partition"]: Digest(row["rows"], row["hash"], row["more"]) for row in partitions}


def watched(rows: DataFrame, columns: Sequence[str]) -> tuple[DataFrame, Observation]:
    """Return the same rows, and what sees the digest of all of them while the next action writes them."""
    seen = Observation()
    return rows.observe(seen, *_digest(columns)), seen


def require_same(written: Observation, read: Collection[Digest], folder: object) -> None:
    """Check that what can be read back is what was written; `TargetError` if it isn't."""
    rows, total = written.get.get("rows") or 0, written.get.get("hash") or 0
    require_read_back(rows, sum(digest.rows for digest in read), folder)
    if total != reduce(xor, (digest.hash for digest in read), 0):
        raise TargetError(
            f"what was read back from {folder}, {counted(rows, 'row')}, isn't what the executors wrote: check the "
            "disk, or the mount. Nothing was replaced"
        )


def require_read_back(written: int, read: int, folder: object) -> None:
    """Check that as many rows can be read back as the executors wrote; `TargetError` if not."""
    if written != read:
        raise TargetError(
            f"of {counted(written, 'row')} that the executors wrote to {folder}, {read} can be read back: {SHARED}. "
            "Nothing was replaced"
        )


def _digest(columns: Sequence[str]) -> tuple[Column, Column]:
    return F.count(F.lit(1)).alias("rows"), F.bit_xor(F.xxhash64(*columns)).alias("hash")
