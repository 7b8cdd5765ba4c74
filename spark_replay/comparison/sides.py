"""Finds out what a folder holds: exports, workers' data folders, or a rebuild."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

from spark_replay.comparison.exports import find_exports
from spark_replay.comparison.held import Held, Part
from spark_replay.comparison.workers import export_workers, find_workers
from spark_replay.errors import ExportError, ReadError
from spark_replay.fold.rebuild import SUMMARY, read_rebuild, read_summary
from spark_replay.sources.topic import Topic
from stores._core.manifest import MANIFEST
from stores._core.outside import MISSHAPEN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EXPORTS = "exports"
WORKERS = "data folders"
REBUILD = "rebuild"


def kind_of(folder: Path) -> str:
    """Tell what a folder holds.

    Raises:
        ExportError: It isn't there, or holds none of the three.
    """
    if not folder.is_dir():
        raise ExportError(
            f"no folder {folder}: --against takes what `state export --to` wrote, a worker's data folder, or a rebuild"
        )
    if (folder / SUMMARY).exists():
        return REBUILD
    if any(folder.glob(MANIFEST)) or any(folder.glob(f"*/{MANIFEST}")):
        return EXPORTS
    if find_workers(folder):
        return WORKERS
    raise ExportError(
        f"no {MANIFEST} in {folder} or right below it, no worker.json and no {SUMMARY}: --against takes what `state "
        "export` wrote, a worker's data folder, or a rebuild"
    )


@contextmanager
def open_side(folder: Path, topic: Topic, *, placement: str = "key") -> Iterator[Held]:
    """Give what a folder holds; a data folder's copy goes away with the block.

    Args:
        folder: The folder.
        topic: The changelog.
        placement: Where a data folder's keys live, `key` or `task`: exports say it themselves.

    Raises:
        ExportError: It can't be read, or isn't of this changelog.
        ToolMissingError: It is a data folder, and rocksdict isn't installed.
        ReadError: It is a rebuild that can't be read.
    """
    kind = kind_of(folder)
    if kind == EXPORTS:
        yield find_exports(folder, topic.name).held(folder)
    elif kind == REBUILD:
        yield held_rebuild(folder, topic, placement=placement)
    else:
        with tempfile.TemporaryDirectory(prefix="spark-replay-") as copy:
            export_workers(
                find_workers(folder),
                Path(copy),
                changelog=topic.name,
                placement=placement,
                partition_count=topic.partition_count,
            )
            yield find_exports(Path(copy), topic.name).held(folder, WORKERS)


def held_rebuild(folder: Path, topic: Topic, *, placement: str = "key") -> Held:
    """Give a rebuild as what is compared with a log.

    Raises:
        ReadError: It can't be read.
        ExportError: It is of another changelog.
    """
    summary = read_summary(folder)
    if summary.get("changelog") != topic.name:
        raise ExportError(f"{folder} is a rebuild of {summary.get('changelog')}, not of {topic.name}")
    try:
        parts = tuple(_part(folder, part, summary) for part in summary["partitions"])
    except MISSHAPEN as error:
        raise ReadError(f"{folder}/{SUMMARY} is of another release ({error!r}): rebuild anew") from error

    def read(spark: SparkSession) -> DataFrame:
        names = ("key", "value", "source_offset", "epoch", "expires_at_ms")
        return read_rebuild(spark, folder).select("partition", F.col("partition").alias("claimed"), *names)

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


def _part(folder: Path, part: dict[str, Any], summary: dict[str, Any]) -> Part:
    return Part(
        partition=int(part["partition"]),
        changelog_offset=int(part["end_offset"]),
        as_of_ms=int(part["as_of_ms"]),
        epoch=None,
        topic_id=str(summary.get("topic_id", "")),
        where=str(folder),
        owner="the rebuild",
    )
