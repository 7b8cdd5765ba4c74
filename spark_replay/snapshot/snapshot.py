"""A snapshot: a changelog's state as RocksDB tables, from which workers with an empty disk begin.

What a snapshot holds is what a worker's restore of the log would have at that point: the last value of each key with
its metadata, of expired keys too (their owner removes them, and runs the store's hooks), of no deleted ones. What a
position holds is what that restore would have found. See `docs/design/0005-snapshots.md`.

The rows are sorted in the JVM and written to Parquet in the target's file system; Python on the executors makes tables
of these files.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.observation import Observation

from spark_replay.errors import ReadError, TargetError, WrongTopicError
from spark_replay.fold.points import now_ms
from spark_replay.sources.brokers.topic import Topic
from spark_replay.sources.changelog import has_input, read_rows, store_of
from spark_replay.sources.digests import SHARED, require_read_back
from spark_replay.sources.folders import open_target
from spark_replay.sources.kafka import KafkaSource
from spark_replay.sources.reading import reading
from spark_replay.sources.staging import NEW, local_folder
from stores._core.printable import counted
from stores._core.record import BEFORE_INPUT, INPUT_PLACE, METADATA_BYTES, SOURCE_PLACE, Position
from stores._core.replay import NO_METADATA, advance
from stores._core.snapshot import (
    SNAPSHOT_MANIFEST,
    SnapshotManifest,
    SnapshotPartition,
    SnapshotTable,
    encode_snapshot,
    table_file,
)
from stores._files import crc32

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

ROWS_PER_FILE = 1_000_000
"""How many rows one task makes tables of."""
_MARK_BYTES = 17
_FEW_PARTITIONS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenSnapshot:
    """The result of a snapshot.

    Attributes:
        app: Whose.
        store: Which of its stores.
        changelog: The topic.
        folder: Where the snapshot is.
        keys: How many keys it holds, expired ones included.
        records: How many records were read.
        without_metadata: How many of these have no write metadata that this release reads; a restore takes them as
            they are.
        size_bytes: Of all tables.
        seconds: How long it took.
    """

    app: str
    store: str
    changelog: str
    folder: str
    keys: int
    records: int
    without_metadata: int
    size_bytes: int
    seconds: float


def write_snapshot(source: KafkaSource, *, app: str, to: str | Path, overwrite: bool = False) -> WrittenSnapshot:
    """Write a snapshot of a store to the folder `to`/STORE, which appears when it is complete.

    Args:
        source: The changelog, as `kafka(...)` returns it. An archive won't do: of a key that was deleted since it was
            read, Kafka may have no record any more.
        app: The id of the app that the changelog belongs to.
        to: A folder that the driver, the executors and the workers reach, as a path or URI; a setting of the workers,
            `state_snapshot`. For a URI of object storage, which the driver writes to, driver and executors share a
            folder for temporary files.
        overwrite: Replace a snapshot of the store that is there.

    Raises:
        WrongTopicError: The topic isn't a changelog of the app.
        TargetError: The folder can't be used, or isn't the same for driver and executors.
        AppError: The executors' Python can't write tables.
        ReadError: Spark couldn't read the log to its end, or reading took longer than deletes are kept.
        ReplayError: What `Source.describe` raises.
    """
    store = require_store(source.topic, app)
    folder = f"{local_folder(to) or str(to).rstrip('/')}/{store}"
    started, began_ms = time.monotonic(), now_ms()
    opened = open_target(source.spark, folder, SNAPSHOT_MANIFEST, "snapshot", overwrite=overwrite)
    with opened as target, reading(str(source)):
        topic, work = source.describe(), target.work
        seen = _write_rows(source, topic, work / "rows")
        source.require_deletes_kept((now_ms() - began_ms) / 1000)
        summary = _summary(source.spark, work / "rows", seen["rows"])
        tables = _make_tables(source.spark, work)
        numbers = range(topic.partition_count)
        parts = [
            replace(_part(number, topic, began_ms, summary.get(number, ()), tables), folder=target.attempt)
            for number in numbers
        ]
        manifest = SnapshotManifest(
            app=app,
            store=store,
            changelog=topic.name,
            partition_count=topic.partition_count,
            made_at_ms=began_ms,
            partitions=tuple(parts),
        )
        if target.attempt:
            target.folder.upload(work / NEW, target.attempt)
        target.finish(encode_snapshot(manifest))
    return WrittenSnapshot(
        app=app,
        store=store,
        changelog=topic.name,
        folder=folder,
        keys=sum(part.keys for part in parts),
        records=seen["records"],
        without_metadata=seen["without_metadata"],
        size_bytes=sum(table.size_bytes for part in parts for table in part.tables),
        seconds=round(time.monotonic() - started, 3),
    )


def require_store(topic: str, app: str) -> str:
    """Return the store that a changelog of the app belongs to; `WrongTopicError` if it is none of the app's."""
    store = store_of(topic, app)
    # A snapshot lies in a folder of the store's name.
    if store is None or store in (".", ".."):
        raise WrongTopicError(f"{topic} isn't a changelog of the app {app!r}, which would be {app}--STORE-changelog")
    return store


def marked_writes(rows: DataFrame) -> DataFrame:
    """Fold a changelog's records to what a worker keeps of each key, and to what moves its position.

    Args:
        rows: `partition`, `offset`, `key`, `value`, `metadata`, as `read_rows` returns them.

    Returns:
        One row for each key and input that wrote it: `partition` int, `key` binary; `value` binary: with metadata in
        front, null if the key was deleted, and in all rows but that of the input that wrote last; `place` binary: the
        bytes at `INPUT_PLACE` of write metadata of version 2, null for other records, and `-` in front for what was
        written before the first input, whose bytes order behind all others; `mark` binary: the front of the
        highest write metadata of these records, up to the input offset; `records`, `without_metadata` bigint.
    """
    by_input = (
        _stored(rows)
        .groupBy("partition", "key", "place")
        .agg(
            F.max_by("value", "offset").alias("value"),
            F.max("offset").alias("offset"),
            F.max("mark").alias("mark"),
            F.count(F.lit(1)).alias("records"),
            F.count_if(F.col("mark").isNull()).alias("without_metadata"),
        )
    )
    last = F.max("offset").over(Window.partitionBy("partition", "key"))
    return by_input.withColumn("value", F.when(F.col("offset") == last, F.col("value"))).drop("offset")


def highest_marks(marked: DataFrame) -> DataFrame:
    """Return the highest write metadata of each input, as `stored_writes` of a worker has it.

    Args:
        marked: `partition`, `place` and `mark` as `marked_writes` returns them, and `kept`: the row has a value.

    Returns:
        One row for each partition and place: `partition` int, `place` binary, `mark` binary, `rows` bigint, and `keys`
        bigint: rows with a value.
    """
    return marked.groupBy("partition", "place").agg(
        F.count(F.lit(1)).alias("rows"),
        F.sum(F.col("kept").cast("bigint")).alias("keys"),
        F.max("mark").alias("mark"),
    )


def _stored(rows: DataFrame) -> DataFrame:
    """Return the records with a key as a store has them: with metadata in front of each value."""
    metadata = F.coalesce("metadata", F.lit(NO_METADATA))
    place = F.substring("metadata", INPUT_PLACE.start + 1, INPUT_PLACE.stop - INPUT_PLACE.start)
    is_before_input = F.substring("metadata", SOURCE_PLACE.start + 1, 1) >= F.lit(bytes([BEFORE_INPUT]))
    return rows.where(F.col("key").isNotNull()).select(
        "partition",
        "offset",
        "key",
        F.when(F.col("value").isNotNull(), F.concat(metadata, "value")).alias("value"),
        F.substring("metadata", 1, _MARK_BYTES).alias("mark"),
        F.when(is_before_input, F.concat(F.lit(b"-"), place)).when(has_input(F.col("metadata")), place).alias("place"),
    )


def _write_rows(source: KafkaSource, topic: Topic, to: Path) -> dict[str, int]:
    """Write what is kept, sorted by partition and key, and count it."""
    count = topic.partition_count
    # a task for each partition, save where two fall on one: hence more of them than partitions
    shuffled = read_rows(source, topic).repartition(count * (8 if count <= _FEW_PARTITIONS else 2), "partition")
    seen = Observation()
    kept = marked_writes(shuffled).observe(
        seen,
        F.count(F.lit(1)).alias("rows"),
        F.sum("records").alias("records"),
        F.sum("without_metadata").alias("without_metadata"),
    )
    (
        kept.sortWithinPartitions("partition", "key")
        .select("partition", "key", "value", "place", "mark", F.col("value").isNotNull().alias("kept"))
        .write.option("maxRecordsPerFile", ROWS_PER_FILE)
        .parquet(f"file://{to}")
    )
    return {name: seen.get.get(name) or 0 for name in ("rows", "records", "without_metadata")}


def _summary(spark: SparkSession, rows: Path, expected: int) -> dict[int, list[Row]]:
    """Return by partition what `highest_marks` has of each input, from what the driver finds in its folder."""
    listed = list(rows.glob("*.parquet")) if rows.is_dir() else []
    marks = highest_marks(spark.read.parquet(f"file://{rows}")).collect() if listed else []
    require_read_back(expected, sum(row["rows"] for row in marks), rows)
    by_partition: dict[int, list[Row]] = {}
    for row in marks:
        by_partition.setdefault(row["partition"], []).append(row)
    return by_partition


def _make_tables(spark: SparkSession, work: Path) -> dict[int, list[SnapshotTable]]:
    """Have the executors make tables of the rows; return those of each partition, in key order, by final names."""
    target = work / NEW
    target.mkdir()

    def make(file: str) -> list[tuple[int, SnapshotTable]]:
        # only executors need what it imports
        from spark_replay.snapshot.tables import tables_of

        return tables_of(Path(file), target)

    files = sorted(str(file) for file in (work / "rows").glob("*.parquet"))
    by_partition: dict[int, list[SnapshotTable]] = {}
    if files:
        context = spark.sparkContext
        pairs = context.parallelize(files, len(files)).flatMap(make).collect()
        for partition, table in pairs:
            own = by_partition.setdefault(partition, [])
            name = table_file(partition, len(own))
            own.append(replace(table, file=name))
            _require_table(target / table.file, table)
            (target / table.file).rename(target / name)
    shutil.rmtree(work / "rows")
    # what failed attempts left
    named = {table.file for tables in by_partition.values() for table in tables}
    for file in target.iterdir():
        if file.name not in named:
            file.unlink()
    return by_partition


def _require_table(file: Path, table: SnapshotTable) -> None:
    """Check that the driver has a table as the executor wrote it; `TargetError` if it hasn't."""
    if not file.exists():
        raise TargetError(f"the driver finds no {file}, which an executor wrote: {SHARED}. Nothing was replaced")
    if (file.stat().st_size, crc32(file)) != (table.size_bytes, table.crc32):
        raise TargetError(f"{file} isn't what the executor wrote: check the disk, or the mount. Nothing was replaced")


def _part(
    number: int, topic: Topic, began_ms: int, found: Sequence[Row], tables: dict[int, list[SnapshotTable]]
) -> SnapshotPartition:
    position = Position(
        source_offset=0,
        changelog_offset=topic.starts[number],
        wall_time_ms=began_ms,
        epoch=0,
        changelog_id=topic.topic_id,
    )
    marks = [bytes(row["mark"]).ljust(METADATA_BYTES, b"\0") for row in found if row["mark"] is not None]
    part = SnapshotPartition(number, advance(position, marks, topic.ends[number]), tuple(tables.get(number, ())))
    expected = sum(row["keys"] for row in found)
    if part.keys != expected:
        raise ReadError(f"{topic.name} partition {number}: {counted(expected, 'key')} read and {part.keys} written")
    return part
