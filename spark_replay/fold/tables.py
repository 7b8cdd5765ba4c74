"""A rebuild in a table of Delta Lake or Iceberg, which goes on from what the table has.

Each partition of the changelog is merged by one commit, and each commit's text is the whole summary of the table, with
the offsets that every partition has reached: of a run that was killed, the next one goes on with the partitions that
are left. A partition of which the table has nothing that counts has `NOT_MERGED` for a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql import functions as F  # noqa: N812

from spark_replay.errors import PointError, ReadError, TargetError, WrongTopicError
from spark_replay.fold.decoding import Codecs, decoded
from spark_replay.fold.extending import Base
from spark_replay.fold.fold import expired
from spark_replay.fold.points import AsOf
from spark_replay.fold.rebuilt import Rebuilt, decode_summary, without_keys
from spark_replay.fold.settled import Settled
from spark_replay.fold.windows import WindowLog
from spark_replay.sources.brokers.topic import Topic
from spark_replay.sources.columns import by_partition
from spark_replay.sources.reading import keep
from spark_replay.sources.tables import LIVE, Commit, Table
from stores._core.printable import counted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

NOT_MERGED = -1
_ALL_COMMITS = 1_000_000


def read_table(spark: SparkSession, table: str, *, as_of: AsOf | str = "latest") -> DataFrame:
    """Read what `write_rebuild` wrote to a table, as `rebuild_state` shapes it.

    Args:
        spark: The session.
        table: `delta:PATH` or `iceberg:CATALOG.TABLE`.
        as_of: The newest version of the table that isn't behind this point of the changelog, in any partition.

    Raises:
        ReadError: The table has no rebuild, or not yet all partitions of it; or another program changed its rows.
        PointError: All versions are behind the point.
        ReplayError: What `Table.of` raises.
    """
    return complete(Table.of(spark, table), as_of)[1]


def complete(table: Table, as_of: AsOf | str = "latest") -> tuple[Rebuilt, DataFrame]:
    """Return summary and rows of the rebuild in a table; arguments and errors are those of `read_table`."""
    point = AsOf.of(as_of)
    if not table.exists:
        raise ReadError(f"there is no table {table.where}: rebuild with --to {table.where}")
    if point == AsOf():
        rebuilt = _newest(table, table.commits())
        if rebuilt is None or not _is_complete(rebuilt):
            raise ReadError(
                f"{table.where} hasn't all partitions of a rebuild: run rebuild --to {table.where} to its end"
            )
        return rebuilt, table.rows()
    for commit in table.commits(_ALL_COMMITS):
        if commit.text is not None:
            rebuilt = decode_summary(commit.text, f"version {commit.version} of {table.where}")
            if _is_complete(rebuilt) and _is_not_behind(rebuilt, point):
                return rebuilt, table.rows(commit.version)
    raise PointError(f"{table.where} has no version at or before {point}: rebuild from the log")


def _newest(table: Table, commits: Sequence[Commit], *, is_whole: bool = False) -> Rebuilt | None:
    """Return the summary in the newest commit; `is_whole`: in the newest that has one."""
    if commits and commits[0].text is None and not is_whole:
        raise ReadError(
            f"another program changed the rows of {table.where}: version {commits[0].version} is of "
            f"{commits[0].operation}. Read the log again from its start with --overwrite"
        )
    texts = [commit.text for commit in commits if commit.text is not None]
    return decode_summary(texts[0], table.where) if texts else None


def _is_complete(rebuilt: Rebuilt) -> bool:
    return all(part.as_of_ms != NOT_MERGED for part in rebuilt.partitions)


def _is_not_behind(rebuilt: Rebuilt, point: AsOf) -> bool:
    return all(
        part.end_offset <= point.offsets.get(part.partition, part.end_offset)
        and (point.timestamp_ms is None or part.as_of_ms <= point.timestamp_ms)
        for part in rebuilt.partitions
    ) and rebuilt.topic_id in ("", point.topic_id or rebuilt.topic_id)


@dataclass(frozen=True, slots=True)
class TableBase(Base):
    """The rebuild in a table, to go on from.

    Attributes:
        table: The table.
        fresh: The partitions that are folded from the log's start: what the table has of them doesn't count.
        newest: The table's newest commit, if it has one.
    """

    table: Table
    fresh: frozenset[int]
    newest: list[Commit]

    @classmethod
    def in_table(cls, table: Table, topic: Topic, nothing: Rebuilt, *, is_whole: bool) -> TableBase:
        """Return what a table has of a topic.

        Args:
            table: The table; it may be missing.
            topic: The topic.
            nothing: The summary of a table without rows.
            is_whole: Whether all of the log is to be read, whatever the table has.

        Raises:
            TargetError: The table has rows of no rebuild; or one of it and the new rebuild is made with `--app`.
            WrongTopicError: It is of another topic.
            ReadError: It is of another format; or another program changed its rows.
        """
        rebuilt: Rebuilt | None = None
        commits: list[Commit] = []
        if table.exists:
            commits = table.commits()
            rebuilt, rows = _newest(table, commits, is_whole=is_whole), table.rows()
            if rebuilt is None and not rows.isEmpty():
                raise TargetError(f"{table.where} is a table of no rebuild: choose another one")
            if set(rows.columns) != {column.split()[0] for column in nothing.columns.split(", ")}:
                raise TargetError(
                    f"one of {table.where} and the new rebuild is made with --app: choose the same for both"
                )
        if rebuilt is not None and rebuilt.changelog != topic.name:
            raise WrongTopicError(f"{table.where} is a rebuild of {rebuilt.changelog}, not of {topic.name}")
        if rebuilt is not None and len(rebuilt.partitions) > topic.partition_count:
            raise WrongTopicError(
                f"{table.where} is a rebuild of {counted(len(rebuilt.partitions), 'partition')}, {topic.name} has "
                f"{topic.partition_count}: choose another table"
            )
        if rebuilt is None or is_whole or rebuilt.unknown:
            rebuilt = nothing
        fresh = frozenset(part.partition for part in rebuilt.partitions if part.as_of_ms == NOT_MERGED)
        parts = tuple(
            part if part.partition not in fresh else nothing.partitions[part.partition] for part in rebuilt.partitions
        )
        return cls(cast("Any", table.where), replace(rebuilt, partitions=parts), table, fresh, commits[:1])

    def rows(self) -> DataFrame:
        """Return the rows of the state."""
        return self.table.rows().where(~F.col("partition").isin(*self.fresh))


def changes_of(
    base: TableBase, written: DataFrame, settled: Settled, windows: WindowLog, *, codecs: Codecs | None
) -> tuple[DataFrame, Column, tuple[int, ...]]:
    """Find what changes in a table; `written`, `settled` and `windows` are of the fold of what the log has behind it.

    Returns:
        The last writes since, with `LIVE`; of a row of the table without a write since, whether its key is gone; and
        the partitions with changes.
    """
    is_over = expired(F.col("expires_at_ms"), by_partition(settled.point.times_ms)) | windows.past()
    is_gone = is_over | F.col("partition").isin(*base.fresh)
    changing = settled.facts.where(F.col("last").isNotNull()).select("partition")
    changing = changing.union(base.table.rows().where(is_gone).select("partition")).distinct()
    written = written.withColumn(LIVE, F.col("value").isNotNull() & ~is_over)
    numbers = tuple(sorted(row["partition"] for row in changing.collect()))
    # a commit says that there is nothing else
    numbers = numbers or tuple(base.fresh)[:1]
    return written if codecs is None else decoded(written, codecs), is_gone, numbers


def changes_in(table: Table, written: DataFrame, is_gone: Column, number: int) -> tuple[DataFrame, int]:
    """Return a partition's changed rows as `Table.merge` takes them, and how many rows the table has then."""
    is_of = F.col("partition") == number
    written = keep(written.where(is_of))
    rest = without_keys(table.rows().where(is_of), written, written.count())
    gone = rest.where(is_gone).select("partition", "key", F.lit(False).alias(LIVE))
    keys = rest.where(~is_gone).count() + written.where(LIVE).count()
    return keep(written.unionByName(gone, allowMissingColumns=True)), keys
