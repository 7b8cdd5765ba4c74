"""The state in a folder: exports of workers, their data folders, or a rebuild.

Data folders are exported into a folder that goes away, as `state export` does it without the app. Nothing in them is
changed, and a worker may be using them. Each partition is read as of one moment of its own, on this machine.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow
import pyarrow.parquet
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_replay.comparison.held import ROWS, Held, Part
from spark_replay.errors import ExportError, ReadError, ToolMissingError
from spark_replay.fold.points import now_ms
from spark_replay.fold.rebuilt import SUMMARY, read_rebuild, read_summary
from spark_replay.fold.tables import complete
from spark_replay.session import first_line
from spark_replay.sources.brokers.topic import Topic
from spark_replay.sources.changelog import store_of
from spark_replay.sources.folders import Folder
from spark_replay.sources.staging import local_folder, table_format
from spark_replay.sources.tables import Table
from stores._core.manifest import MANIFEST, Manifest, ManifestPartition, decode_manifest
from stores._core.printable import counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EXPORTS = "exports"
WORKERS = "data folders"
REBUILD = "rebuild"
_SCHEMA = ROWS.replace("claimed int, ", "")
_ARROW = {"int": pyarrow.int32(), "bigint": pyarrow.int64(), "binary": pyarrow.binary()}
_COLUMNS = {name: _ARROW[kind] for name, kind in map(str.split, _SCHEMA.split(", "))}
_ABOUT = "worker.json"
_DEPTHS = ("", "*/", "*/*/", "*/*/*/", "*/*/*/*/")
"""A folder passed as `-D` has the file two folders deeper, and may hold several workers' folders."""


def kind_of(folder: Path) -> str:
    """Return what a folder holds; `ExportError` if it is missing, or holds none of the three."""
    if not folder.is_dir():
        raise ExportError(
            f"no folder {folder}: --against takes what `state export --to` wrote, a worker's data folder, or a rebuild"
        )
    if (folder / SUMMARY).exists():
        return REBUILD
    if any(folder.glob(MANIFEST)) or any(folder.glob(f"*/{MANIFEST}")):
        return EXPORTS
    if find_folders(folder):
        return WORKERS
    raise ExportError(
        f"no {MANIFEST} in {folder} or right below it, no worker.json and no {SUMMARY}: --against takes what `state "
        "export` wrote, a worker's data folder, or a rebuild"
    )


@contextmanager
def open_side(
    folder: str | Path, topic: Topic, *, placement: str = "key", progress: Callable[[int, int], None] | None = None
) -> Iterator[Held]:
    """Return what a folder holds; a data folder's copy goes away with the block.

    Args:
        folder: The folder, by a path or a URI, of object storage for a rebuild; or a rebuild's table.
        topic: The changelog.
        placement: Where a data folder's keys live, `key` or `task`: exports state it themselves.
        progress: Called with a partition, and how many keys of it were copied from a data folder.

    Raises:
        ExportError: It can't be read, or isn't of this changelog.
        TargetError: It is a URI that isn't supported.
        ToolMissingError: It is a data folder, and rocksdict isn't installed.
        ReadError: It is a rebuild that can't be read.
    """
    local = None if table_format(folder) else local_folder(folder)
    kind = REBUILD if local is None else kind_of(local)
    if kind == REBUILD or local is None:
        yield held_rebuild(folder, topic, placement=placement)
    elif kind == EXPORTS:
        yield find_exports(local, topic.name)
    else:
        with tempfile.TemporaryDirectory(prefix="spark-replay-") as copy:
            damaged = export_folders(
                find_folders(local),
                Path(copy),
                changelog=topic.name,
                placement=placement,
                partition_count=topic.partition_count,
                progress=progress,
            )
            side = find_exports(Path(copy), topic.name, local).without(damaged)
            if not side.parts and damaged:
                raise ExportError(next(iter(damaged.values())))
            yield side


def held_rebuild(folder: str | Path, topic: Topic, *, placement: str = "key") -> Held:
    """Return a rebuild, in a folder or table, as what is compared with a log.

    Raises:
        ReadError: It can't be read.
        ExportError: It is of another changelog.
    """
    spark = SparkSession.active()
    table = Table.of(spark, str(folder)) if table_format(folder) else None
    summary = read_summary(Folder(spark, folder, ReadError)) if table is None else complete(table)[0]
    if summary.changelog != topic.name:
        raise ExportError(f"{folder} is a rebuild of {summary.changelog}, not of {topic.name}")
    parts = tuple(
        Part(
            partition=part.partition,
            changelog_offset=part.end_offset,
            as_of_ms=part.as_of_ms,
            epoch=None,
            topic_id=summary.topic_id,
            where=str(folder),
            owner="the rebuild",
        )
        for part in summary.partitions
    )

    def read(spark: SparkSession) -> DataFrame:
        rows = read_rebuild(spark, folder) if table is None else table.rows()
        return rows.select(*_COLUMNS, F.col("partition").alias("claimed"))

    return Held(
        kind=REBUILD,
        where=str(folder),
        placement=placement,
        partition_count=len(parts),
        parts=parts,
        read=read,
    )


def find_exports(folder: Path, changelog: str, where: Path | None = None) -> Held:
    """Read the manifests in a folder and right below it, and check the files of the copies that count.

    Args:
        folder: The folder.
        changelog: The topic that they have to be of.
        where: The data folders that were exported there, if it was done here.

    Raises:
        ExportError: They aren't of this changelog or contradict each other, or all files are missing, cut off or of
            another shape.
    """
    paths = sorted([*folder.glob(MANIFEST), *folder.glob(f"*/{MANIFEST}")])
    manifests = [(path, _read(path, changelog)) for path in paths]
    first = manifests[0][1]
    for path, manifest in manifests:
        if _told(manifest) != _told(first):
            raise ExportError(f"{path} is of {_told(manifest)}, {paths[0]} of {_told(first)}: export them apart")
    parts, stale = _choose(
        _part(manifest, part, path.with_name(part.file)) for path, manifest in manifests for part in manifest.partitions
    )
    damaged = {part.partition: problem for part in parts if (problem := _damage(part))}
    if damaged and len(damaged) == len(parts):
        raise ExportError(next(iter(damaged.values())))
    whole = tuple(part for part in parts if part.partition not in damaged)
    return Held(
        kind=EXPORTS if where is None else WORKERS,
        where=str(where or folder),
        app=first.app,
        store=first.store,
        placement=first.placement,
        partition_count=first.partition_count,
        parts=whole,
        stale=stale,
        read=lambda spark: _read_files(spark, whole),
        unanswered=damaged,
    )


def _read_files(spark: SparkSession, parts: Iterable[Part]) -> DataFrame:
    """Read the copies that count, as `Held.read` returns them: `partition` is the file's, by its manifest."""
    # a worker may be called [::1]:6066, which is no pattern to look for
    reader = spark.read.schema(_SCHEMA).option("__globPaths__", "false")
    names = [name for name in _COLUMNS if name != "partition"]
    frames = [
        reader.parquet(f"file://{Path(part.where).absolute()}").select(
            F.lit(part.partition).alias("partition"), F.col("partition").alias("claimed"), *names
        )
        for part in parts
    ]
    if not frames:
        return spark.createDataFrame([], ROWS)
    return reduce(lambda left, right: left.unionAll(right), frames)


def find_folders(folder: Path) -> list[Path]:
    """Return the data folders in a folder, by the file that each has."""
    return sorted({path.parent for depth in _DEPTHS for path in folder.glob(f"{depth}{_ABOUT}")})


def export_folders(
    folders: list[Path],
    to: Path,
    *,
    changelog: str,
    placement: str,
    partition_count: int,
    progress: Callable[[int, int], None] | None = None,
) -> dict[int, str]:
    """Export what data folders hold of a changelog's store; return why a partition can't be read.

    Raises:
        ToolMissingError: rocksdict isn't installed.
        ExportError: A folder can't be read, or none holds the store.
    """
    try:
        from stores.export import export_store
    except ImportError as error:
        raise ToolMissingError(
            f"RocksDB folders can't be read here ({first_line(error)}): pip install faust-actors, or hand over what "
            "`state export` wrote on the worker's machine"
        ) from error
    from stores.errors import StoreError, UnknownStoreError
    from stores.folder import DataFolder

    refused = []
    count = 0
    damaged: dict[int, str] = {}
    for folder in folders:
        try:
            app = DataFolder.inspect(folder).app
            store = store_of(changelog, app)
            if store is None:
                refused.append(f"{folder} belongs to the app {app}")
                continue
            export_store(
                folder,
                store,
                to,
                app=app,
                changelog=changelog,
                placement=placement,
                partition_count=partition_count,
                worker=worker_name(folder),
                now_ms=now_ms(),
                progress=progress,
                damaged=lambda partition, error: damaged.update({partition: first_line(error)}),
            )
        except UnknownStoreError as error:
            refused.append(str(error))
        except StoreError as error:
            raise ExportError(f"the data folder {folder} can't be read: {first_line(error)}") from error
        else:
            count += 1
    if not count:
        raise ExportError(f"no data folder holds the store of {changelog}: {'; '.join(refused)}")
    return damaged


def worker_name(folder: Path) -> str:
    """Return a name for a data folder: always the same for one folder, never the same for two."""
    parts = [part for part in folder.absolute().parts if part not in ("/", "actors")]
    mark = hashlib.sha256(str(folder.resolve()).encode(errors="surrogateescape")).hexdigest()[:6]
    name = "-".join(parts[-2:])
    return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name) + f"-{mark}"


def _part(manifest: Manifest, part: ManifestPartition, file: Path) -> Part:
    return Part(
        partition=part.partition,
        changelog_offset=part.position.changelog_offset,
        as_of_ms=manifest.exported_at_ms,
        epoch=part.position.epoch,
        topic_id=part.position.changelog_id,
        where=str(file),
        owner=f"worker {manifest.worker}",
        rows=part.keys,
        transaction=part.position.transaction,
    )


def _read(path: Path, changelog: str) -> Manifest:
    try:
        manifest = decode_manifest(path.read_text())
    except (OSError, ValueError) as error:
        raise ExportError(f"{path}: {error}") from error
    if manifest.changelog != changelog:
        raise ExportError(f"{path} is an export of {manifest.changelog}, not of {changelog}")
    return manifest


def _told(manifest: Manifest) -> str:
    where = f"app {manifest.app}, store {manifest.store}, placement {manifest.placement}"
    return f"{where}, {counted(manifest.partition_count, 'partition')}"


def _choose(copies: Iterable[Part]) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """Return the copy of each partition that counts, the owner's, and the others."""
    ordered = sorted(copies, key=lambda copy: (-copy.partition, copy.epoch, copy.changelog_offset), reverse=True)
    chosen = {copy.partition: copy for copy in reversed(ordered)}
    return (
        tuple(chosen[number] for number in sorted(chosen)),
        tuple(copy for copy in ordered if copy is not chosen[copy.partition]),
    )


def unreadable(held: Held) -> dict[int, str]:
    """Read the files of exports to their ends; return the error of each damaged one, by partition."""
    parts = held.parts if held.kind in (EXPORTS, WORKERS) else ()
    return {part.partition: problem for part in parts if (problem := _damage(part, is_read=True))}


def _damage(part: Part, *, is_read: bool = False) -> str | None:
    """Return why a file isn't what its manifest says, None if it is; `is_read`: after reading it to its end."""
    try:
        with pyarrow.parquet.ParquetFile(part.where) as file:
            metadata, schema = file.metadata, file.schema_arrow
            for _ in file.iter_batches() if is_read else ():
                pass
    except (OSError, pyarrow.ArrowException) as error:
        return f"{part.where} can't be read ({str(error).splitlines()[0]}): export again"
    for name, kind in _COLUMNS.items():
        column = schema.field(name).type if name in schema.names else "missing"
        if column != kind:
            return f"{part.where}: column {name} is {column}, expected {kind}"
    if metadata.num_rows != part.rows:
        return f"{part.where} has {counted(metadata.num_rows, 'row')} and its manifest says {part.rows}: export again"
    return None
