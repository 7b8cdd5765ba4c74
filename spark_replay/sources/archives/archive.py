"""A Parquet archive, as `spark_replay archive` writes it, as a source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from spark_replay.errors import ArchiveError, UnknownTopicError
from spark_replay.session import require_classic
from spark_replay.sources.archives.manifest import FILES, SCHEMA, ArchiveFile, Manifest, read_manifest
from spark_replay.sources.archives.verification import read_parquet, require_present, require_sound
from spark_replay.sources.base import RECORDS, Source, first_since
from spark_replay.sources.brokers.topic import Topic
from spark_replay.sources.folders import Folder
from spark_replay.sources.reading import reading, with_limit
from stores._core.printable import counted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TOLD_FILES = 5


@dataclass(frozen=True)
class ArchiveSource(Source):
    """A topic as an archive holds it.

    Attributes:
        spark: A session.
        where: The archive's folder, a local path or a URI.
        topic: The topic.
    """

    spark: SparkSession = field(repr=False)
    where: str
    topic: str
    _read: list[Manifest] = field(default_factory=list, init=False, repr=False, compare=False)

    def describe(self) -> Topic:
        """Read what the archive covers, and check that its files are there, as long as they were written."""
        manifest = self.manifest()
        require_present(Folder(self.spark, self.where), manifest.of(self.topic))
        return manifest.ledgers[self.topic].described

    def manifest(self) -> Manifest:
        """Read the archive's manifest.

        Raises:
            ArchiveError: There is no archive, or its manifest can't be read.
            UnknownTopicError: It doesn't hold the topic.
        """
        folder = Folder(self.spark, self.where)
        manifest = read_manifest(folder)
        if not manifest.ledgers:
            raise ArchiveError(f"no archive in {folder}: `spark_replay archive --to {folder}` makes one")
        if self.topic not in manifest.ledgers:
            names = ", ".join(sorted(manifest.ledgers))
            raise UnknownTopicError(f"the archive {folder} has no topic {self.topic!r}, it has {names}")
        self._read[:] = [manifest]
        return manifest

    @property
    def described(self) -> Manifest:
        """The manifest as `describe` read it last, read now if it never did: a command reads it once."""
        return self._read[0] if self._read else self.manifest()

    def files(self, topic: Topic) -> list[ArchiveFile]:
        """Return the files with records between `starts` and `ends`."""
        return [
            file
            for file in self.described.of(self.topic)
            if file.partition < topic.partition_count
            and file.last >= topic.starts[file.partition]
            and file.first < topic.ends[file.partition]
        ]

    def records(self, topic: Topic) -> DataFrame:
        """Read the files of these offsets, after their digests were compared."""
        return self._records(topic, self.files(topic))

    def _records(self, topic: Topic, files: Sequence[ArchiveFile]) -> DataFrame:
        folder = Folder(self.spark, self.where)
        if not files:
            return self.spark.range(0).select(F.from_json(F.lit("{}"), RECORDS).alias("record")).select("record.*")
        require_sound(self.spark, folder, files)
        with reading(str(self)):
            rows = read_parquet(self.spark, folder, (file.name for file in files), SCHEMA).drop("topic")
            rows = with_limit(rows, F.lit(self.topic))
            condition = _between(topic, files)
            return rows if condition is None else rows.where(condition)

    def doubts(self, ends: Sequence[int]) -> tuple[str, ...]:
        """Return a warning if there are files that no entry of the manifest names, and none will."""
        manifest, folder = self.described, Folder(self.spark, self.where)
        left = sorted(manifest.unnamed(folder.files(FILES)))
        if not left:
            return ()
        files, names = counted(len(left), "file"), ", ".join(left[:TOLD_FILES])
        return (f"not counted: {files} of the archive {folder} that its manifest doesn't name: {names}",)

    def offsets_at(self, topic: Topic, timestamp_ms: int) -> tuple[int, ...]:
        """Look through the first file of each partition that has a record so late."""
        files: list[ArchiveFile] = []
        done = set[int]()
        for file in self.files(topic):
            if file.latest_ms >= timestamp_ms and file.partition not in done:
                files.append(file)
                if not _is_cut(topic, file):
                    done.add(file.partition)
        firsts = first_since(self._records(topic, files), timestamp_ms, str(self))
        return tuple(firsts.get(number, end) for number, end in enumerate(topic.ends))

    def __str__(self) -> str:
        """Name folder and topic."""
        return f"topic {self.topic} of the archive {self.where}"


def archive(spark: SparkSession, path: str | Path, topic: str) -> ArchiveSource:
    """Return a topic of an archive as a source.

    Args:
        spark: A session.
        path: The folder that `spark_replay archive --to` was given; a local path or a URI.
        topic: The topic.

    Raises:
        ReplayError: It is a session of Spark Connect.
    """
    require_classic(spark)
    return ArchiveSource(spark, str(path), topic)


def _is_cut(topic: Topic, file: ArchiveFile) -> bool:
    """Return whether a file has records outside of the offsets of `topic`."""
    return file.first < topic.starts[file.partition] or file.last >= topic.ends[file.partition]


def _between(topic: Topic, files: Sequence[ArchiveFile]) -> Column | None:
    """Return the condition on rows, in a form that Parquet's reader skips row groups by; None if all are wanted."""
    cut = sorted({file.partition for file in files if _is_cut(topic, file)})
    if not cut:
        return None
    partition, offset = F.col("partition"), F.col("offset")
    ranges = [
        (partition == number) & (offset >= topic.starts[number]) & (offset < topic.ends[number]) for number in cut
    ]
    return reduce(lambda left, right: left | right, ranges, ~partition.isin(cut))
