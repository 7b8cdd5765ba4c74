"""A Parquet archive, as `spark_replay archive` writes it, as a source.

Spark's own list of the files of finished batches, `_spark_metadata`, says which files count: what a killed batch left
behind isn't on it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pyspark.sql import functions as F  # noqa: N812

from spark_replay.errors import ArchiveError, UnknownTopicError
from spark_replay.session import require_classic
from spark_replay.sources.archives.digested import ArchiveFile, digested_files, require_listed, require_sound
from spark_replay.sources.archives.folders import Folder
from spark_replay.sources.archives.ledger import LEDGERS, Ledger, decode_ledger
from spark_replay.sources.base import RECORDS, Source, first_since
from spark_replay.sources.brokers.topic import Topic
from spark_replay.sources.columns import by_partition
from spark_replay.sources.formats import VERIFIED
from spark_replay.sources.reading import reading
from stores._core.outside import MISSHAPEN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES = "_spark_metadata"
"""Spark's list of the files that count."""
_CLOCKS_MS = 60_000
_SCHEMA = f"{RECORDS}, topic string, day date"


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

    def describe(self) -> Topic:
        """Read what the archive covers, and check that its files are listed and there, as long as they were written."""
        folder = Folder(self.spark, self.where)
        ledger = read_ledger(folder, self.topic)
        # in this order: a run that goes on lists a file first
        digested = () if folder.local is None else digested_files(folder.local, self.topic)
        files = self.files()
        require_listed(digested, files)
        for file in files:
            _check(file, folder)
        return Topic(
            name=self.topic,
            starts=ledger.starts,
            ends=ledger.ends,
            high_watermarks=ledger.ends,
            topic_id=ledger.topic_id,
            spans=ledger.spans,
            deletes=ledger.deletes,
        )

    def files(self) -> tuple[ArchiveFile, ...]:
        """Return the topic's files; `ArchiveError` if the list of files can't be read."""
        marker = f"/topic={self.topic}/"
        return tuple(file for file in list_files(Folder(self.spark, self.where)) if marker in file.uri)

    def records(self, topic: Topic) -> DataFrame:
        """Read the files of finished batches; those on this machine are compared with their digests first."""
        folder = Folder(self.spark, self.where)
        require_sound(self.files())
        with reading(str(self)):
            rows = self.spark.read.options(**VERIFIED).schema(_SCHEMA).parquet(folder.uri)
        offset = F.col("offset")
        return rows.where(
            (F.col("topic") == topic.name)
            & (offset >= by_partition(topic.starts))
            & (offset < by_partition(topic.ends))
        ).drop("topic", "day")

    def offsets_at(self, topic: Topic, timestamp_ms: int) -> tuple[int, ...]:
        """Look through the rows."""
        firsts = first_since(self.records(topic), timestamp_ms, str(self))
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


def read_ledger(folder: Folder, topic: str) -> Ledger:
    """Read what an archive covers of a topic.

    Raises:
        ArchiveError: There is no archive, or what it says of itself can't be read.
        UnknownTopicError: It doesn't hold the topic.
    """
    topics = sorted(name.removesuffix(".json") for name in folder.names(LEDGERS) if name.endswith(".json"))
    if not topics:
        raise ArchiveError(f"no archive in {folder}: `spark_replay archive --to {folder}` makes one")
    if topic not in topics:
        raise UnknownTopicError(f"the archive {folder} has no topic {topic!r}, it has {', '.join(topics)}")
    name = f"{LEDGERS}/{topic}.json"
    try:
        return decode_ledger(folder.text(name))
    except ValueError as error:
        raise ArchiveError(f"{folder}/{name}: {error}") from error


def list_files(folder: Folder) -> tuple[ArchiveFile, ...]:
    """Return the files of an archive's finished batches, as Spark's log of them says.

    Raises:
        ArchiveError: The log can't be read.
    """
    batches = folder.names(FILES)
    folded = max((int(name.removesuffix(".compact")) for name in batches if name.endswith(".compact")), default=-1)
    logs = [f"{folded}.compact"] if folded >= 0 else []
    logs += sorted((name for name in batches if name.isdigit() and int(name) > folded), key=int)
    if not logs:
        raise ArchiveError(
            f"{folder} has lost its {FILES}, so that it is unknown which of its files count: restore the archive from "
            "a backup"
        )
    return tuple(file for log in logs for file in _listed(folder, f"{FILES}/{log}"))


def batch_files(folder: Folder, batch: int, since_ms: int) -> tuple[ArchiveFile, ...]:
    """Return the files that a batch wrote since `since_ms` (Unix milliseconds), and maybe some of the batches before.

    Raises:
        ArchiveError: Spark's list of them can't be read.
    """
    if folder.exists(f"{FILES}/{batch}"):
        return tuple(_listed(folder, f"{FILES}/{batch}"))
    if not folder.exists(f"{FILES}/{batch}.compact"):
        # a batch without rows
        return ()
    # the list of all files until then; an executor's clock may be behind, and file systems round times down
    oldest_ms = since_ms - _CLOCKS_MS
    return tuple(file for file in _listed(folder, f"{FILES}/{batch}.compact") if file.modified_ms >= oldest_ms)


def _listed(folder: Folder, name: str) -> list[ArchiveFile]:
    try:
        entries: list[dict[str, Any]] = [json.loads(line) for line in folder.text(name).splitlines()[1:]]
        files = [
            ArchiveFile(str(entry["path"]), int(entry["size"]), int(entry["modificationTime"])) for entry in entries
        ]
    except MISSHAPEN as error:
        raise ArchiveError(f"{folder}/{name} isn't a list of an archive's files: {error}") from error
    for file in files:
        if ".." in unquote(file.uri).split("/"):
            raise ArchiveError(
                f"{folder}/{name} isn't a list of an archive's files: {file.uri} leads out of its folder"
            )
    return files


def _check(file: ArchiveFile, folder: Folder) -> None:
    path = file.local
    if path is None or folder.local is None:
        return
    if not path.is_relative_to(folder.local.resolve()) and not path.is_relative_to(folder.local):
        raise ArchiveError(
            f"the archive {folder} was written at another place (it has {path}) and can't be read here: move it back, "
            "or mount it there"
        )
    try:
        size = path.stat().st_size
    except OSError as error:
        raise ArchiveError(f"{path} of the archive can't be read: {error.strerror}") from error
    if size != file.size_bytes:
        raise ArchiveError(f"{path} of the archive has {size} bytes and was written with {file.size_bytes}")
