"""Tables of Delta Lake and Iceberg that a rebuild is merged into, a partition at a time.

Each MERGE is one commit of the table, which carries a text of the rebuild's own. A commit without one that changed rows
is another program's.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from spark_replay.errors import TargetError, ToolMissingError
from spark_replay.jars import package_of
from spark_replay.session import TABLE_SETTINGS
from spark_replay.sources.reading import reading
from spark_replay.sources.staging import local_folder, table_format
from stores._core.printable import counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BEGIN = '{"merged": '
"""How the text of a rebuild's commits begins."""
LIVE = "is_live"
"""A column of changed rows: whether the key is there, else its row goes."""
_RECENT = 100
_TEXTS = {
    "delta": "spark.databricks.delta.commitInfo.userMetadata",
    "iceberg": "spark.sql.iceberg.snapshot-property.spark-replay",
}
"""Settings of a session: the text of its commits."""
_HARMLESS = {
    "delta": ("CREATE TABLE", "OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES", "UPGRADE PROTOCOL"),
    "iceberg": ("replace",),
}
"""Operations that change no rows."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of a table: its version, and the rebuild's text, None if another program made it by some operation."""

    version: int
    text: str | None
    operation: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        spark: The session, which has what the format needs.
        where: `delta:PATH` or `iceberg:CATALOG.TABLE`.
    """

    spark: SparkSession
    where: str

    @classmethod
    def of(cls, spark: SparkSession, where: str) -> Table:
        """Return the table of a name.

        Raises:
            TargetError: Its path isn't supported, or its catalog isn't set up.
            ToolMissingError: The session lacks the format; the text names what to install.
        """
        table = cls(spark, where)
        kind, catalog = table.format, table._place.partition(".")[0]
        extension = TABLE_SETTINGS[kind]["spark.sql.extensions"]
        if extension not in (spark.conf.get("spark.sql.extensions", None) or ""):
            raise ToolMissingError(
                f"this Spark has no {kind.capitalize()}: start it with spark.jars.packages="
                f"{package_of(kind, spark.version)} and spark.sql.extensions={extension}"
            )
        if kind == "iceberg" and spark.conf.get(f"spark.sql.catalog.{catalog}", None) is None:
            raise TargetError(
                f"{where}: the catalog {catalog} isn't set up: give its settings, such as --spark-option "
                f"spark.sql.catalog.{catalog}.type=rest --spark-option spark.sql.catalog.{catalog}.uri=…"
            )
        return table

    @property
    def format(self) -> str:
        """`delta` or `iceberg`."""
        return table_format(self.where)

    @property
    def _place(self) -> str:
        place = self.where.partition(":")[2]
        path = local_folder(place) if self.format == "delta" else None
        return place if path is None else str(path.absolute())

    @property
    def name(self) -> str:
        """The name in SQL."""
        parts = ["delta", self._place] if self.format == "delta" else self._place.split(".")
        return ".".join("`{}`".format(part.replace("`", "``")) for part in parts)

    @property
    def exists(self) -> bool:
        """True if there is such a table."""
        with reading(self.where):
            if self.format == "iceberg":
                return self.spark.catalog.tableExists(self.name)
            tables = self.spark._jvm.io.delta.tables.DeltaTable  # type: ignore[union-attr]
            return bool(tables.isDeltaTable(self.spark._jsparkSession, self._place))

    def create(self, columns: str) -> None:
        """Make the table, without rows."""
        with reading(self.where):
            self.spark.sql(f"CREATE TABLE {self.name} ({columns}) USING {self.format} PARTITIONED BY (partition)")

    def commits(self, limit: int = _RECENT) -> list[Commit]:
        """Return the newest commits, up to a limit, that changed rows; the newest first."""
        with reading(self.where):
            if self.format == "delta":
                rows = self.spark.sql(f"DESCRIBE HISTORY {self.name} LIMIT {limit}")
                rows = rows.selectExpr("version", "userMetadata AS text", "operation")
            else:
                rows = self.spark.sql(
                    "SELECT snapshot_id AS version, summary['spark-replay'] AS text, operation "
                    f"FROM {self.name}.history JOIN {self.name}.snapshots USING (snapshot_id) "
                    f"WHERE is_current_ancestor ORDER BY made_current_at DESC LIMIT {limit}"
                )
            commits = [Commit(*row) for row in rows.collect()]
        # other programs may say something too
        commits = [c if str(c.text).startswith(BEGIN) else replace(c, text=None) for c in commits]
        return [c for c in commits if c.text is not None or c.operation not in _HARMLESS[self.format]]

    def rows(self, version: int | None = None) -> DataFrame:
        """Return the rows of a version; None: as they are now."""
        with reading(self.where):
            return self.spark.sql(
                f"SELECT * FROM {self.name}" + ("" if version is None else f" VERSION AS OF {version}")
            )

    def merge(
        self, changes: DataFrame, partition: int, text: str, *, after: Sequence[Commit], keys: int
    ) -> list[Commit]:
        """Write a partition's changed rows by one commit, and return that.

        Args:
            changes: The table's columns, and `LIVE`.
            partition: The partition of all of them.
            text: The commit's.
            after: The newest commit until then, if there is one.
            keys: How many rows the partition has then.

        Raises:
            ReadError: Spark couldn't write.
            TargetError: Another program wrote to the table meanwhile; or not all rows can be read back.
        """
        if self.commits()[:1] != after:
            raise self._interrupted(partition)
        names, view = [name for name in changes.columns if name != LIVE], f"spark_replay_{uuid.uuid4().hex}"
        is_same = " AND ".join(f"t.{name} <=> s.{name}" for name in names)
        changes.createOrReplaceTempView(view)
        self.spark.conf.set(_TEXTS[self.format], text)
        try:
            with reading(self.where):
                self.spark.sql(
                    f"MERGE INTO {self.name} AS t USING {view} AS s ON t.partition = {partition} AND t.key <=> s.key "
                    f"WHEN MATCHED AND NOT s.{LIVE} THEN DELETE WHEN MATCHED AND NOT ({is_same}) "
                    f"THEN UPDATE SET {', '.join(f'{name} = s.{name}' for name in names)} "
                    f"WHEN NOT MATCHED AND s.{LIVE} THEN INSERT ({', '.join(names)}) "
                    f"VALUES ({', '.join(f's.{name}' for name in names)})"
                )
                if self.format == "delta" and self.commits()[:1] == after:
                    # Delta makes no commit where no row changes
                    name = f"spark_replay.partition-{partition}"
                    self.spark.sql(f"ALTER TABLE {self.name} SET TBLPROPERTIES ('{name}' = 'merged')")
        finally:
            self.spark.conf.unset(_TEXTS[self.format])
            self.spark.catalog.dropTempView(view)
        newer = [commit for commit in self.commits()[:2] if commit not in after]
        writes = sum(commit.operation not in _HARMLESS[self.format] for commit in newer)
        # a commit that another thread makes by this session meanwhile has the text too
        if {commit.text for commit in newer} != {text} or writes > 1:
            raise self._interrupted(partition)
        with reading(self.where):
            count = self.rows().where(F.col("partition") == partition).count()
        if count != keys:
            raise TargetError(
                f"{counted(count, 'row')} of partition {partition} can be read back from {self.where}, of {keys} by "
                "the log: another program wrote to it, or driver and executors see different folders. Read the log "
                "again from its start with --overwrite"
            )
        return newer[:1]

    def _interrupted(self, partition: int) -> TargetError:
        return TargetError(
            f"another program wrote to {self.where} before or while partition {partition} was merged: let one run at a "
            "time write to it, and read the log again from its start with --overwrite"
        )
