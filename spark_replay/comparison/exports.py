"""The state in a folder: exports of workers, their data folders, or a rebuild.

Data folders are exported into a folder that goes away, as `state export` does it without the app. Nothing in them is
changed, and a worker may be using them. Each partition is read as of one moment of its own, on this machine.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow
import pyarrow.parquet
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_replay.comparison.held import Held, Part
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

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EXPORTS = "exports"
WORKERS = "data folders"
REBUILD = "rebuild"
_SCHEMA = "partition int, key binary, value binary, source_offset bigint, epoch bigint, expires_at_ms bigint, input int"
_COLUMNS = {
    "partition": pyarrow.int32(),
    "key": pyarrow.binary(),
    "value": pyarrow.binary(),
    "source_offset": pyarrow.int64(),
    "epoch": pyarrow.int64(),
    "expires_at_ms": pyarrow.int64(),
    "input": pyarrow.int32(),
}
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
        yield find_exports(local, topic.name).held(local)
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
            side = find_exports(Path(copy), topic.name).held(local, WORKERS).without(damaged)
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
        names = ("key", "value", "source_offset", "epoch", "expires_at_ms", "input")
        rows = read_rebuild(spark, folder) if table is None else table.rows()
        return rows.select("partition", F.col("partition").alias("claimed"), *names)

    return Held(
        kind=REBUILD,
        where=str(folder),
        app="",
        store="",
        placement=placement,
        partition_count=len(parts),
        parts=parts,
        stale=(),
        read=read,
    )


@dataclass(frozen=True, slots=True)
class Copy:
    """One worker's export of one partition, in `file`."""

    manifest: Manifest
    part: ManifestPartition
    file: Path

    @property
    def partition(self) -> int:
        """The partition."""
        return self.part.partition

    @property
    def rank(self) -> tuple[int, int]:
        """The owner's copy has the highest."""
        return (self.part.position.epoch, self.part.position.changelog_offset)


@dataclass(frozen=True, slots=True)
class Exports:
    """The exports of one store: the copy of each partition that counts, and the others.

    Attributes:
        app: The app.
        store: The store.
        placement: `key` if each key lives in the partition that murmur2 gives it, else `task`.
        partition_count: How many partitions the store has.
        chosen: At most one copy a partition, by partition.
        stale: The copies that another one goes before.
        damaged: Why the copy of a partition can't be read, by partition; it isn't in `chosen`.
    """

    app: str
    store: str
    placement: str
    partition_count: int
    chosen: tuple[Copy, ...]
    stale: tuple[Copy, ...]
    damaged: Mapping[int, str]

    def held(self, where: Path, kind: str = "exports") -> Held:
        """Return the rows in the form that is compared with a log."""
        return Held(
            kind=kind,
            where=str(where),
            app=self.app,
            store=self.store,
            placement=self.placement,
            partition_count=self.partition_count,
            parts=tuple(_part(copy) for copy in self.chosen),
            stale=tuple(_part(copy) for copy in self.stale),
            read=lambda spark: read_exports(spark, self),
            unanswered=self.damaged,
        )


def find_exports(folder: Path, changelog: str) -> Exports:
    """Read the manifests in a folder and right below it, and check the files of the copies that count.

    Raises:
        ExportError: There is none, they aren't of this changelog or contradict each other, or all files are
            missing, cut off or of another shape.
    """
    if not folder.is_dir():
        raise ExportError(f"no folder {folder}: --against takes the folder given to `state export --to`")
    paths = sorted([*folder.glob(MANIFEST), *folder.glob(f"*/{MANIFEST}")])
    if not paths:
        raise ExportError(f"no {MANIFEST} in {folder} or right below it: --against takes what `state export` wrote")
    manifests = [(path, _read(path, changelog)) for path in paths]
    first = manifests[0][1]
    for path, manifest in manifests:
        if _identity(manifest) != _identity(first):
            raise ExportError(f"{path} is of {_told(manifest)}, {paths[0]} of {_told(first)}: export them apart")
    chosen, stale = _choose(
        Copy(manifest, part, path.with_name(part.file)) for path, manifest in manifests for part in manifest.partitions
    )
    damaged = {copy.partition: problem for copy in chosen if (problem := _damage(copy))}
    if damaged and len(damaged) == len(chosen):
        raise ExportError(next(iter(damaged.values())))
    whole = tuple(copy for copy in chosen if copy.partition not in damaged)
    return Exports(first.app, first.store, first.placement, first.partition_count, whole, stale, damaged)


def read_exports(spark: SparkSession, exports: Exports) -> DataFrame:
    """Read the copies that count.

    Returns:
        `partition` int (the file's, by its manifest), `claimed` int (the row's own), `key`, `value` binary,
        `source_offset`, `epoch`, `expires_at_ms` bigint, `input` int (null for an actor with one).
    """
    # a worker may be called [::1]:6066, which is no pattern to look for
    reader = spark.read.schema(_SCHEMA).option("__globPaths__", "false")
    frames = [
        reader.parquet(f"file://{copy.file.absolute()}").select(
            F.lit(copy.partition).alias("partition"),
            F.col("partition").alias("claimed"),
            "key",
            "value",
            "source_offset",
            "epoch",
            "expires_at_ms",
            "input",
        )
        for copy in exports.chosen
    ]
    if not frames:
        return spark.createDataFrame([], _SCHEMA.replace("key", "claimed int, key", 1))
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


def _part(copy: Copy) -> Part:
    position = copy.part.position
    return Part(
        partition=copy.partition,
        changelog_offset=position.changelog_offset,
        as_of_ms=copy.manifest.exported_at_ms,
        epoch=position.epoch,
        topic_id=position.changelog_id,
        where=str(copy.file),
        owner=f"worker {copy.manifest.worker}",
        rows=copy.part.keys,
        transaction=position.transaction,
    )


def _read(path: Path, changelog: str) -> Manifest:
    try:
        manifest = decode_manifest(path.read_text())
    except (OSError, ValueError) as error:
        raise ExportError(f"{path}: {error}") from error
    if manifest.changelog != changelog:
        raise ExportError(f"{path} is an export of {manifest.changelog}, not of {changelog}")
    return manifest


def _identity(manifest: Manifest) -> tuple[str, str, str, int]:
    return (manifest.app, manifest.store, manifest.placement, manifest.partition_count)


def _told(manifest: Manifest) -> str:
    app, store, placement, count = _identity(manifest)
    return f"app {app}, store {store}, placement {placement}, {count} partitions"


def _choose(copies: Iterable[Copy]) -> tuple[tuple[Copy, ...], tuple[Copy, ...]]:
    chosen: dict[int, Copy] = {}
    stale = []
    for copy in copies:
        kept = chosen.setdefault(copy.partition, copy)
        if kept is copy:
            continue
        better, worse = (copy, kept) if copy.rank > kept.rank else (kept, copy)
        chosen[copy.partition] = better
        stale.append(worse)
    return tuple(chosen[partition] for partition in sorted(chosen)), tuple(stale)


def unreadable(held: Held) -> dict[int, str]:
    """Read the files of exports to their ends; return the error of each damaged one, by partition."""
    damaged = {}
    for part in held.parts if held.kind in (EXPORTS, WORKERS) else ():
        try:
            with pyarrow.parquet.ParquetFile(part.where) as file:
                for _ in file.iter_batches():
                    pass
        except (OSError, pyarrow.ArrowException) as error:
            damaged[part.partition] = f"{part.where} can't be read ({str(error).splitlines()[0]}): export again"
    return damaged


def _damage(copy: Copy) -> str | None:
    """Return why a file isn't what its manifest says, None if it is."""
    try:
        metadata = pyarrow.parquet.read_metadata(copy.file)
        schema = metadata.schema.to_arrow_schema()
    except (OSError, pyarrow.ArrowException) as error:
        return f"{copy.file} can't be read ({str(error).splitlines()[0]}): export again"
    for name, kind in _COLUMNS.items():
        column = schema.field(name).type if name in schema.names else "missing"
        if column != kind:
            return f"{copy.file}: column {name} is {column}, expected {kind}"
    if metadata.num_rows != copy.part.keys:
        return f"{copy.file} has {metadata.num_rows} rows and its manifest says {copy.part.keys}: export again"
    return None
