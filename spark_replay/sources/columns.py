"""Columns that more than one module builds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

if TYPE_CHECKING:
    from pyspark.sql import Column


def by_partition(values: Sequence[int | None]) -> Column:
    """Return the bigint of `values` at the index that the column `partition` holds."""
    return F.get(F.array(*(F.lit(value).cast("bigint") for value in values)), F.col("partition"))


def by_input(values: Sequence[Sequence[int | None]], place: Column) -> Column:
    """Return `by_partition` of the values at the index `place`."""
    return F.get(F.array(*(by_partition(offsets) for offsets in values)), place)


def is_true(condition: Column) -> Column:
    """Return the condition, false where it is null."""
    return F.coalesce(condition, F.lit(False))
