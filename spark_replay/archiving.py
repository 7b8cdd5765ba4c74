"""Copies topics into a Parquet archive, each committed record once.

What is in the archive's folder:

* `data/{number}-{attempt}/…parquet`: the records of a batch, a file for each partition, or several.
* `_manifest`: the files that count and the offsets that they cover, see `spark_replay.sources.archives.manifest`.

A batch reads the offsets that were planned for it, writes its files, reads them back, and then writes its entry of the
manifest. A run that is killed before that leaves files that no entry names: they don't count, and a later run removes
them when the entry of their number exists, because no run can name them any more then.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812

from spark_replay.errors import TargetError, UnknownTopicError
from spark_replay.fold.points import now_ms
from spark_replay.session import require_classic
from spark_replay.sources.archives.archive import TOLD_FILES
from spark_replay.sources.archives.ledger import Ledger, escaped_deletes
from spark_replay.sources.archives.manifest import (
    FILES,
    MANIFEST,
    SCHEMA,
    WHOLE_EVERY,
    ArchiveFile,
    Manifest,
    decode_entry,
    encode_entry,
    entry_name,
    read_manifest,
)
from spark_replay.sources.archives.verification import digests_of, file_name, read_parquet, require_sound
from spark_replay.sources.brokers.topic import Topic, asking
from spark_replay.sources.digests import require_read_back
from spark_replay.sources.folders import WRITING, Folder
from spark_replay.sources.kafka import KafkaSource, kafka, read_topics, require_following
from spark_replay.sources.reading import reading
from spark_replay.sources.staging import alone
from stores._core.printable import counted
from stores._files import tighten, tighten_tree

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_POLL_S = 0.2
_FILE_OFFSETS = 250_000
"""A larger range of a partition is written to several files."""
_SMALL_BYTES = 64 << 20
"""A compaction rewrites files smaller than this."""
_MANY_FILES = 30
"""A continuous run compacts when a partition has so many small files."""
_KEEP_MS = 86_400_000
"""How long files that a compaction replaced stay for readers that began before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The topics to archive, and how.

    Attributes:
        brokers: `host:port,…`.
        topics: Names of topics; or none, and a pattern.
        pattern: Matches the names of topics from end to end; those made later are archived from then on.
        options: Settings of the Kafka client.
        max_offsets_per_trigger: A batch takes no more offsets than about this many, of all topics together.
    """

    brokers: str
    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    # may hold passwords
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    max_offsets_per_trigger: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """The topics and records that a run added to an archive.

    Attributes:
        topics: What it holds now, by topic the end of each partition.
        batches: How many the run finished.
        records: How many records these have.
        seconds: How long it took.
        complete: Whether the run ended by itself: it has all that was there at its start.
    """

    topics: Mapping[str, Sequence[int]]
    batches: int
    records: int
    seconds: float
    complete: bool


def archive_topics(
    spark: SparkSession,
    wanted: Wanted,
    *,
    to: str | Path,
    every_ms: int | None = None,
    compact: bool = False,
    stop: threading.Event | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Archived:
    """Copy what topics hold, and what comes, into an archive.

    Args:
        spark: A session with the Kafka connector, as `spark_session` returns it.
        wanted: Which topics.
        to: The archive's folder, a path or a URI such as `s3a://bucket/archive`; a later run goes on with it.
        every_ms: Goes on, with a batch in so many milliseconds, until `stop` is set. If left out, ends when all that
            was committed at the start is in.
        compact: Also rewrites small files as larger ones: at the end, or in a continuous run when there are many.
        stop: Ends the run within 10 s; a batch that is cut off is repeated by the next run.
        tell: Called with a line for each batch.

    Raises:
        TargetError: The folder holds something else, is in use, or archives topics that aren't wanted now.
        ArchiveError: The archive is damaged, or its file system refuses.
        LogTooShortError: Kafka deleted records before they were archived.
        WrongTopicError: A topic was re-created since.
        UnknownTopicError: There is no such topic.
        BrokerError: The brokers don't answer.
        ReadError: Spark failed.
    """
    require_classic(spark)
    folder = Folder(spark, to)
    started = time.monotonic()
    stop = threading.Event() if stop is None else stop
    _require_archive(folder)
    # in object storage the manifest stops one of two runs
    with nullcontext() if folder.local is None else alone(folder.local / ".lock", folder.local):
        run = _Run(spark, wanted, folder, stop, tell)
        with _stopped_by(spark, stop):
            run.begin()
            while True:
                due = time.monotonic() + (every_ms or 0) / 1000
                run.catch_up()
                if compact:
                    run.compact(least=2 if every_ms is None else _MANY_FILES)
                if every_ms is None or stop.wait(max(0.0, due - time.monotonic())):
                    break
            run.clean()
    return Archived(
        topics={name: ledger.ends for name, ledger in sorted(run.manifest.ledgers.items())},
        batches=len(run.counts),
        records=sum(run.counts),
        seconds=round(time.monotonic() - started, 3),
        complete=every_ms is None and not stop.is_set(),
    )


def _require_archive(folder: Folder) -> None:
    """Check that a folder is an archive, empty, or not there; `TargetError` if it holds something else."""
    if folder.local is not None and folder.local.exists() and not folder.local.is_dir():
        raise TargetError(f"{folder} is no folder: choose another")
    names = [name for name in folder.names() if not name.startswith(".")]
    if names and not {MANIFEST, FILES} & set(names):
        raise TargetError(f"{folder} has files that are no archive: nothing was written, choose another folder")


@dataclass(slots=True)
class _Run:
    """A run that writes to an archive.

    Attributes:
        manifest: The archive's content.
        counts: The number of records of each batch that the run finished.
    """

    _spark: SparkSession
    _wanted: Wanted
    _folder: Folder
    _stop: threading.Event
    _tell: Callable[[str], None]
    manifest: Manifest = field(default_factory=Manifest)
    counts: list[int] = field(default_factory=list)

    def begin(self) -> None:
        """Read what the archive holds, and warn of tombstones that may have escaped it."""
        if self._folder.local is not None:
            tighten(self._folder.local)
        self.manifest = read_manifest(self._folder)
        ledgers = self.manifest.ledgers
        if not ledgers:
            return
        topics = self._topics()
        for name, ledger in sorted(ledgers.items()):
            warning = escaped_deletes(ledger, topics[name].ends, self._source(name).retention(), now_ms())
            if warning is not None:
                self._tell(warning)

    def catch_up(self) -> None:
        """Write batches up to what is committed now."""
        asked_ms = now_ms()
        topics = self._topics()
        while not self._stop.is_set():
            plan = self._plan(topics)
            if not plan:
                return
            is_last = all(part.ends == topics[part.name].ends for part in plan)
            self._write_batch(plan, asked_ms if is_last else None)

    def _source(self, name: str) -> KafkaSource:
        return kafka(self._spark, self._wanted.brokers, name, self._wanted.options)

    def _topics(self) -> dict[str, Topic]:
        """Describe the topics that are wanted.

        Raises:
            UnknownTopicError: There is no such topic, or none that the pattern matches.
            TargetError: The archive has topics that aren't wanted now.
            ReplayError: What `Source.describe` and `require_following` raise.
        """
        names, pattern, brokers = self._wanted.topics, self._wanted.pattern, self._wanted.brokers
        if pattern is not None:
            with asking(self._spark, brokers, self._wanted.options, "their topics") as admin:
                names = tuple(sorted(filter(pattern.fullmatch, admin.names())))
        if not names:
            raise UnknownTopicError(f"{brokers} has no topic that matches {getattr(pattern, 'pattern', '')!r}")
        left_out = sorted(self.manifest.ledgers.keys() - set(names))
        if left_out:
            raise TargetError(
                f"the archive {self._folder} also has {', '.join(left_out)}: an archive keeps its topics, so name them "
                "too, or choose another folder"
            )
        topics = {name: self._source(name).describe() for name in names}
        for name, ledger in self.manifest.ledgers.items():
            require_following(ledger.described, topics[name], archive=f"the archive {self._folder}", brokers=brokers)
        return topics

    def _plan(self, topics: Mapping[str, Topic]) -> list[Topic]:
        """Return what the next batch reads of the topics that have something new."""
        parts = []
        for name, topic in sorted(topics.items()):
            ledger = self.manifest.ledgers.get(name)
            at = () if ledger is None else ledger.ends
            part = replace(topic, starts=(*at, *topic.starts[len(at) :]))
            if ledger is None or part.starts != topic.ends or len(at) < len(part.starts):
                parts.append(part)
        size, limit = sum(map(_size, parts)), self._wanted.max_offsets_per_trigger
        if limit is None or size <= limit:
            return parts
        # each partition has its share, and at least one offset
        return [
            replace(
                part,
                ends=tuple(
                    min(end, start + max(1, (end - start) * limit // size))
                    for start, end in zip(part.starts, part.ends, strict=True)
                ),
            )
            for part in parts
        ]

    def _write_batch(self, plan: Sequence[Topic], asked_ms: int | None) -> None:
        """Write the records of a plan; `asked_ms` is None if it ends before the log did."""
        started, records, files = time.monotonic(), 0, list[ArchiveFile]()
        size = sum(map(_size, plan))
        if size:
            options = {**self._wanted.options, "isolation.level": "read_committed"}
            splits = str(max(1, size // _FILE_OFFSETS))
            attempt = self._attempt()
            with reading(f"the topics of {self._wanted.brokers}"):
                rows = read_topics(self._spark, self._wanted.brokers, options, plan, minPartitions=splits)
                records = self._write(rows, attempt)
            files = self._written(attempt, records)
        parts = self._covered(plan, asked_ms)
        self._commit(self.manifest.batch(now_ms(), parts, files))
        self.counts += [records] if size else []
        self._tell(f"batch {self.manifest.number}: {counted(records, 'record')} in {time.monotonic() - started:.1f} s")

    def _attempt(self) -> str:
        return f"{FILES}/{self.manifest.number + 1:08}-{uuid.uuid4().hex}"

    def _write(self, rows: DataFrame, name: str) -> int:
        """Write rows to a new folder; return how many."""
        observation = Observation()
        rows = rows.observe(observation, F.count(F.lit(1)).alias("records"))
        rows.write.options(**WRITING).parquet(f"{self._folder.uri}/{name}")
        return int(observation.get["records"])

    def _written(self, attempt: str, records: int) -> list[ArchiveFile]:
        """Return the files of an attempt as they can be read back.

        Raises:
            TargetError: They don't have all records.
        """
        if self._folder.local is not None:
            folder = self._folder.local / attempt
            # Spark gives files modes of its own. Of checksums there are ours
            tighten(folder.parent)
            tighten_tree(folder)
            for checksum in folder.rglob(".*.crc"):
                checksum.unlink()
        sizes = {name: size for name, (size, _) in self._folder.files(attempt).items() if name.endswith(".parquet")}
        names = sorted(sizes)
        if not names:
            require_read_back(records, 0, self._folder)
            return []
        rows = read_parquet(self._spark, self._folder, names, SCHEMA).groupBy(
            "_metadata.file_path", "topic", "partition"
        )
        ranges = rows.agg(
            F.min("offset").alias("first"),
            F.max("offset").alias("last"),
            F.count(F.lit(1)).alias("records"),
            F.max(F.unix_millis("timestamp")).alias("latest_ms"),
        )
        with reading(f"what the executors wrote to {self._folder}"):
            rows_of_files = ranges.collect()
        require_read_back(records, sum(row["records"] for row in rows_of_files), self._folder)
        digests = digests_of(self._spark, self._folder, names)
        return [
            ArchiveFile(
                name=name,
                topic=row["topic"],
                partition=row["partition"],
                first=row["first"],
                last=row["last"],
                latest_ms=row["latest_ms"],
                records=row["records"],
                bytes=sizes[name],
                digest=digests[name],
            )
            for name, row in sorted((file_name(row["file_path"]), row) for row in rows_of_files)
        ]

    def _covered(self, plan: Sequence[Topic], asked_ms: int | None) -> list[Ledger]:
        """Return the offsets of a batch that was just read."""
        read_ms, ledgers = now_ms(), []
        for part in plan:
            ledger = self.manifest.ledgers.get(part.name) or Ledger(topic=part.name, topic_id=part.topic_id)
            with self._source(part.name).asking() as admin:
                topic, retention = admin.describe(part.name), admin.retention(part.name)
            batch = ledger.batch(
                starts=part.starts,
                ends=part.ends,
                asked_ms=ledger.asked_ms if asked_ms is None else max(ledger.asked_ms, asked_ms),
                read_ms=read_ms,
                # a record that came meanwhile may have made compaction take one before it was read
                whole=part.ends == topic.ends,
                retention=retention,
            )
            ledgers.append(batch)
        return ledgers

    def _commit(self, entry: Manifest) -> None:
        """Write an entry of the manifest; what it names counts from then on.

        Raises:
            TargetError: Another run has written an entry of this number.
        """
        is_whole = entry.whole == entry.number
        text = encode_entry(entry, self.manifest)
        entry, _ = decode_entry(text)
        try:
            entry.check(self.manifest.number + 1)
            manifest = entry if is_whole else self.manifest.joined(entry)
        except ValueError as error:
            raise TargetError(f"{self._folder}: {error}. The archive is as it was") from error
        if not self._folder.create(entry_name(entry.number), text):
            raise TargetError(
                f"another run is archiving to {self._folder}: it wrote batch {entry.number} first, and what this run "
                "read doesn't count. Let one run at a time write to an archive"
            )
        self.manifest = manifest

    def compact(self, *, least: int) -> None:
        """Rewrite small files that follow each other, if a partition has at least so many."""
        groups = list(_small_groups(self.manifest))
        if self._stop.is_set() or not any(len(group) >= least for group in groups):
            return
        old = [file for group in groups for file in group]
        require_sound(self._spark, self._folder, old)
        attempt = self._attempt()
        for number, group in enumerate(groups):
            with reading(f"the files of the archive {self._folder}"):
                rows = read_parquet(self._spark, self._folder, (file.name for file in group), SCHEMA)
                self._write(rows.coalesce(1).sortWithinPartitions("offset"), f"{attempt}/{number}")
        new = self._written(attempt, sum(file.records for file in old))
        self._commit(self.manifest.compacted(now_ms(), old, new))
        self._tell(f"rewrote {counted(len(old), 'file')} as {len(new)}")
        self.clean()

    def clean(self) -> None:
        """Remove files that no entry names or can name, and those that were replaced long ago."""
        present = self._folder.files(FILES)
        removed = self.manifest.unnamed(present) | {
            name for name, at_ms in self.manifest.replaced.items() if name in present and now_ms() - at_ms >= _KEEP_MS
        }
        kept = {name.split("/")[1] for name in present.keys() - removed}
        # a folder may have lost its files, or never had some
        empty = {f"{FILES}/{folder}" for folder in self._folder.names(FILES) if folder not in kept}
        for name in self.manifest.unnamed(empty) | {name for name in removed if name.split("/")[1] in kept}:
            self._folder.remove(name)
        if removed:
            names = ", ".join(sorted(removed)[:TOLD_FILES])
            files = counted(len(removed), "file")
            self._tell(f"removed {files} of {self._folder} that its manifest doesn't name: {names}")
        for name in self._folder.names(MANIFEST):
            number = name.removesuffix(".json")
            if number.isdigit() and int(number) < self.manifest.whole - WHOLE_EVERY:
                self._folder.remove(f"{MANIFEST}/{name}")


def _size(part: Topic) -> int:
    return sum(part.ends) - sum(part.starts)


def _small_groups(manifest: Manifest) -> Iterator[list[ArchiveFile]]:
    """Yield files that a compaction puts together: of one partition, in order, each small."""
    group: list[ArchiveFile] = []
    for file in manifest.in_order():
        follows = group and (group[-1].topic, group[-1].partition) == (file.topic, file.partition)
        is_full = sum(member.bytes for member in group) >= 2 * _SMALL_BYTES
        if not follows or is_full or file.bytes >= _SMALL_BYTES:
            if len(group) > 1:
                yield group
            group = []
        if file.bytes < _SMALL_BYTES:
            group.append(file)
    if len(group) > 1:
        yield group


@contextmanager
def _stopped_by(spark: SparkSession, stop: threading.Event) -> Iterator[None]:
    """Cancel the block's Spark jobs when `stop` is set, and take its errors from then on for the end of the run."""
    context: Any = spark.sparkContext
    group, ended = f"archive-{uuid.uuid4().hex}", threading.Event()

    def cancel() -> None:
        while not ended.wait(_POLL_S):
            if stop.is_set():
                # the JVM may have ended by the same signal
                with suppress(Exception):
                    context.cancelJobGroup(group)

    context.setJobGroup(group, "archive", interruptOnCancel=True)
    watch = threading.Thread(target=cancel, daemon=True)
    watch.start()
    try:
        yield
    except Exception:
        # a signal to the process group ends Spark too; finished batches are in the manifest
        if not stop.is_set():
            raise
    finally:
        ended.set()
        watch.join()
        if not stop.is_set():
            context.setLocalProperty("spark.jobGroup.id", None)
