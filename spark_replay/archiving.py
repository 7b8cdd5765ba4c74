"""Copies topics into a Parquet archive by Structured Streaming, each committed record once.

What is in the archive's folder:

* `topic=…/day=…/part-….parquet`: the records; the day is that of the record's timestamp in UTC.
* `_spark_metadata`: Spark's list of the files that count.
* `_checkpoint`: how far the stream is. A batch's offsets are written there before it runs and repeated as they were
  after a crash; its files count when they are all on the list, at one moment. So a crash neither loses nor doubles.
* `_digests` in each day's folder: size and CRC-32 of its files, see `spark_replay.sources.archives.digested`. They
  are written when the driver has found a batch's files as the executors wrote them, before the batch counts.
* `_offsets`: what finished batches cover, see `spark_replay.sources.archives.ledger`. It is written after a batch,
  and for batches whose run died before that when the next run begins.
"""

from __future__ import annotations

import fcntl
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

from spark_replay.errors import ArchiveError, LogTooShortError, TargetError, UnknownTopicError, WrongTopicError
from spark_replay.session import require_classic
from spark_replay.sources.archives.archive import FILES, batch_files, read_ledger
from spark_replay.sources.archives.digested import write_digests
from spark_replay.sources.archives.folders import Folder
from spark_replay.sources.archives.ledger import LEDGERS, Ledger, Read, encode_ledger, escaped_deletes
from spark_replay.sources.brokers.topic import (
    Retention,
    Topic,
    asking,
    client_options,
    describe_topic,
    retention_of,
)
from spark_replay.sources.kafka import FETCHING
from spark_replay.sources.reading import reading
from spark_replay.sources.staging import local_folder
from stores._core.outside import MISSHAPEN
from stores._files import make_folder, open_private, tighten

if TYPE_CHECKING:
    import re

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

CHECKPOINT = "_checkpoint"
_DAY_MS = 86_400_000
_POLL_S = 0.2
_STOP_TIMEOUT = "10s"


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
    stop: threading.Event | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Archived:
    """Copy what topics hold, and what comes, into an archive.

    Args:
        spark: A session with the Kafka connector, as `spark_session` returns it.
        wanted: Which topics.
        to: The archive's folder, a path or a `file://` URI; an archive that is there is gone on with.
        every_ms: Goes on, with a batch in so many milliseconds, until `stop` is set. If left out, ends when all that
            was committed at the start is in.
        stop: Ends the run within 10 s; a batch that is cut off is re-created by the next run.
        tell: Called with a line for each batch.

    Raises:
        TargetError: The folder holds something else, is in use, archives topics that aren't wanted now, or is a URI of
            another file system.
        LogTooShortError: Kafka deleted records before they were archived.
        WrongTopicError: A topic was re-created since.
        UnknownTopicError: There is no such topic.
        BrokerError: The brokers don't answer.
        ReadError: The stream failed.
    """
    require_classic(spark)
    # what executors write elsewhere can't be compared with what the driver finds
    to = local_folder(to).absolute()
    folder = Folder(spark, to)
    started = time.monotonic()
    _require_archive(folder)
    stop = threading.Event() if stop is None else stop
    with _alone(to):
        books = Books(spark, wanted, folder, is_once=every_ms is None)
        books.settle()
        topics = _wanted_topics(spark, wanted)
        _require_following(topics, books.ledgers, folder)
        require_checkpoint(books.ledgers, folder)
        for line in _doubts(spark, wanted, topics, books.ledgers):
            tell(line)
        count = _run(_start(spark, wanted, folder, every_ms), books, stop, tell)
    return Archived(
        topics={name: ledger.ends for name, ledger in sorted(books.ledgers.items())},
        batches=len(count),
        records=sum(count.values()),
        seconds=round(time.monotonic() - started, 3),
        complete=every_ms is None and not stop.is_set(),
    )


def _require_archive(folder: Folder) -> None:
    """Check that a folder is an archive, empty, or not there; `TargetError` if it holds something else."""
    if folder.local is not None and folder.local.exists() and not folder.local.is_dir():
        raise TargetError(f"{folder} is no folder: choose another")
    names = [name for name in folder.names() if not name.startswith(".")]
    if names and not {CHECKPOINT, LEDGERS, FILES} & set(names):
        raise TargetError(f"{folder} has files that are no archive: nothing was written, choose another folder")
    if FILES in names and CHECKPOINT not in names:
        raise TargetError(
            f"the archive {folder} has lost its {CHECKPOINT}, without which a run would copy everything again: "
            "choose another folder"
        )


def _wanted_topics(spark: SparkSession, wanted: Wanted) -> dict[str, Topic]:
    """Describe the topics that are wanted.

    Raises:
        UnknownTopicError: There is no such topic, or none that the pattern matches.
        BrokerError: The brokers don't answer.
    """
    names = wanted.topics
    if wanted.pattern is not None:
        with asking(spark, wanted.brokers, wanted.options, "their topics") as admin:
            names = tuple(sorted(filter(wanted.pattern.fullmatch, admin.names())))
    if not names:
        pattern = wanted.pattern.pattern if wanted.pattern else ""
        raise UnknownTopicError(f"{wanted.brokers} has no topic that matches {pattern!r}")
    return {name: describe_topic(spark, wanted.brokers, name, wanted.options) for name in names}


def _read_ledgers(folder: Folder) -> dict[str, Ledger]:
    """Return what an archive covers by topic; nothing if there is none.

    Raises:
        ArchiveError: It can't be read.
    """
    names = [name.removesuffix(".json") for name in folder.names(LEDGERS) if name.endswith(".json")]
    return {name: read_ledger(folder, name) for name in sorted(names)}


def _require_following(topics: Mapping[str, Topic], ledgers: Mapping[str, Ledger], folder: Folder) -> None:
    """Check that the topics go on where the archive ends.

    Raises:
        TargetError: The archive has topics that aren't wanted now.
        WrongTopicError: A topic was re-created since.
        LogTooShortError: Kafka deleted records before they were archived.
    """
    left_out = sorted(set(ledgers) - set(topics))
    if left_out:
        raise TargetError(
            f"the archive {folder} also has {', '.join(left_out)}: an archive keeps its topics, so name them too, or "
            "choose another folder"
        )
    for name, ledger in ledgers.items():
        topic = topics[name]
        if ledger.topic_id != topic.topic_id:
            raise WrongTopicError(
                f"the archive {folder} has a topic {name} with the id {ledger.topic_id}, the brokers' has "
                f"{topic.topic_id}: it was re-created, choose another folder"
            )
        for number, (end, start) in enumerate(zip(ledger.ends, topic.starts, strict=False)):
            if end < start:
                raise LogTooShortError(
                    f"{name} partition {number}: the archive {folder} ends at offset {end}, and the brokers' log "
                    f"begins at {start}: what was between was deleted before it was archived; begin another archive"
                )


def require_checkpoint(ledgers: Mapping[str, Ledger], folder: Folder) -> None:
    """Check that the checkpoint is that of the list of files, neither restored from another day nor incomplete.

    Spark leaves out the files of a batch whose number is on the list already, whatever offsets the checkpoint gives it.

    Raises:
        TargetError: The checkpoint is older, or has other offsets than the archive.
    """
    listed = (int(name.removesuffix(".compact")) for name in folder.names(FILES) if name[:1].isdigit())
    planned = max((int(name) for name in folder.names(f"{CHECKPOINT}/offsets") if name.isdigit()), default=-1)
    last = max([*listed, *(ledger.batch for ledger in ledgers.values())], default=-1)
    if planned < last:
        raise TargetError(
            f"the {CHECKPOINT} of the archive {folder} is older than its list of files: it ends with batch {planned} "
            f"and the list with {last}, so that a run would leave out records. Restore both from one backup, or begin "
            "another archive"
        )
    for name, ledger in ledgers.items():
        # Spark removes old batches from the checkpoint
        ends = _read_planned(folder, ledger.batch).ends.get(name, ledger.ends)
        if ends != ledger.ends:
            raise TargetError(
                f"the {CHECKPOINT} of the archive {folder} has the offsets {list(ends)} for batch {ledger.batch} of "
                f"{name}, and the archive ends at {list(ledger.ends)}: restore both from one backup, or begin another "
                "archive"
            )


def _doubts(
    spark: SparkSession, wanted: Wanted, topics: Mapping[str, Topic], ledgers: Mapping[str, Ledger]
) -> Iterator[str]:
    if ledgers:
        retentions = retention_of(spark, wanted.brokers, sorted(ledgers), wanted.options)
        for name, ledger in sorted(ledgers.items()):
            told = escaped_deletes(ledger, topics[name].ends, retentions[name], _now_ms())
            if told is not None:
                yield told


class Books:
    """Keeps an archive's ledgers up to date with its checkpoint."""

    def __init__(self, spark: SparkSession, wanted: Wanted, folder: Folder, *, is_once: bool) -> None:
        self.ledgers = _read_ledgers(folder)
        self._spark = spark
        self._wanted = wanted
        self._folder = folder
        self._is_once = is_once
        self._started_ms = _now_ms()
        # what an earlier run planned, it planned with settings that we don't know
        planned = [int(name) for name in folder.names(f"{CHECKPOINT}/offsets") if name.isdigit()]
        self._first_own = max(planned, default=-1) + 1

    def settle(self) -> None:
        """Write down the finished batches that aren't yet."""
        last = min((ledger.batch for ledger in self.ledgers.values()), default=-1)
        finished = (int(name) for name in self._folder.names(f"{CHECKPOINT}/commits") if name.isdigit())
        batches = sorted(batch for batch in finished if batch > last)
        if not batches:
            return
        planned = {batch: _read_planned(self._folder, batch) for batch in batches}
        for batch, plan in planned.items():
            # before the batch counts: what the driver doesn't find isn't in the archive
            write_digests(batch_files(self._folder, batch, plan.planned_ms))
        names = sorted({name for plan in planned.values() for name in plan.ends})
        retentions = retention_of(self._spark, self._wanted.brokers, names, self._wanted.options)
        for name in names:
            topic = describe_topic(self._spark, self._wanted.brokers, name, self._wanted.options)
            self._settle(topic, retentions[name], {batch: planned[batch] for batch in batches})

    def _settle(self, topic: Topic, retention: Retention, planned: Mapping[int, _Planned]) -> None:
        ledger = before = self.ledgers.get(topic.name) or Ledger(
            topic=topic.name, topic_id=topic.topic_id, batch=-1, asked_ms=0, starts=(), spans=(), deletes=False
        )
        read_ms = _now_ms()
        for batch, plan in planned.items():
            if batch <= ledger.batch or topic.name not in plan.ends:
                continue
            ends = plan.ends[topic.name]
            limited = self._is_limited(batch, plan)
            read = Read(
                starts=self._starts(topic, ends) if len(ends) > len(ledger.starts) else (),
                ends=ends,
                asked_ms=ledger.asked_ms if limited else max(ledger.asked_ms, self._asked_ms(batch)),
                read_ms=read_ms,
                # a record that came meanwhile may have made compaction take one before it was read
                whole=ends == topic.ends,
                retention=retention,
            )
            ledger = ledger.extended(batch, read)
        if ledger is not before:
            self._folder.write(f"{LEDGERS}/{topic.name}.json", encode_ledger(ledger))
            self.ledgers[topic.name] = ledger

    def _is_limited(self, batch: int, plan: _Planned) -> bool:
        """Return whether the batch may have ended before the log did."""
        if batch < self._first_own:
            return True
        limit = self._wanted.max_offsets_per_trigger
        # a limited batch is shared out among the partitions, and rounded in each
        slack = sum(map(len, plan.ends.values()))
        return limit is not None and plan.offsets_after(_read_planned(self._folder, batch - 1)) >= limit - slack

    def _asked_ms(self, batch: int) -> int:
        """Return a moment before the batch asked for the log's end."""
        if self._is_once or batch == self._first_own:
            # such a run asks when it begins, and takes what was there then
            return self._started_ms
        return max(self._started_ms, _read_planned(self._folder, batch - 1).planned_ms)

    def _starts(self, topic: Topic, ends: Sequence[int]) -> tuple[int, ...]:
        """Return where the stream began to read the partitions of a topic."""
        first = _read_first(self._folder).get(topic.name, ())
        # of partitions that came later Spark doesn't write down where it began: it was not after this
        return tuple(map(min, (*first, *topic.starts[len(first) :]), ends))


@dataclass(frozen=True, slots=True)
class _Planned:
    """A batch in the checkpoint: its end offsets by topic, and when these were decided."""

    planned_ms: int
    ends: Mapping[str, tuple[int, ...]]

    def offsets_after(self, before: _Planned) -> int:
        """Count the offsets between two batches."""
        return sum(
            end - start
            for name, ends in self.ends.items()
            for end, start in zip(ends, (*before.ends.get(name, ()), *([0] * len(ends))), strict=False)
        )


def _read_planned(folder: Folder, batch: int) -> _Planned:
    name = f"{CHECKPOINT}/offsets/{batch}"
    if batch < 0 or not folder.exists(name):
        return _Planned(0, {})
    lines = folder.text(name).splitlines()
    try:
        return _Planned(int(json.loads(lines[1])["batchTimestampMs"]), _offsets(lines[2]))
    except MISSHAPEN as error:
        raise _unplanned(folder, name, error) from error


def _read_first(folder: Folder) -> Mapping[str, tuple[int, ...]]:
    name = f"{CHECKPOINT}/sources/0/0"
    if not folder.exists(name):
        return {}
    text = folder.text(name)
    try:
        return _offsets(text[text.index("{") :])
    except MISSHAPEN as error:
        raise _unplanned(folder, name, error) from error


def _unplanned(folder: Folder, name: str, error: Exception) -> ArchiveError:
    return ArchiveError(f"{folder}/{name} isn't Spark's plan of a batch ({error!r}): restore the archive from a backup")


def _offsets(text: str) -> dict[str, tuple[int, ...]]:
    raw: dict[str, dict[str, int]] = json.loads(text)
    return {name: tuple(parts[str(number)] for number in range(len(parts))) for name, parts in raw.items()}


def _start(spark: SparkSession, wanted: Wanted, folder: Folder, every_ms: int | None) -> StreamingQuery:
    client = FETCHING | client_options(wanted.brokers, wanted.options) | {"isolation.level": "read_committed"}
    reader = spark.readStream.format("kafka").option("includeHeaders", "true").option("failOnDataLoss", "true")
    for key, value in client.items():
        reader = reader.option(f"kafka.{key}", value)
    if wanted.pattern is not None:
        reader = reader.option("subscribePattern", wanted.pattern.pattern)
    else:
        reader = reader.option("subscribe", ",".join(wanted.topics))
    if wanted.max_offsets_per_trigger is not None:
        reader = reader.option("maxOffsetsPerTrigger", str(wanted.max_offsets_per_trigger))
    spark.conf.set("spark.sql.streaming.stopTimeout", _STOP_TIMEOUT)
    with reading(f"the topics of {wanted.brokers}"):
        records = reader.option("startingOffsets", "earliest").load()
        writer = _archived(records).writeStream.format("parquet").outputMode("append")
        writer = writer.partitionBy("topic", "day").option("checkpointLocation", f"{folder.uri}/{CHECKPOINT}")
        if every_ms is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{every_ms} milliseconds")
        return writer.start(folder.uri)


def _archived(records: DataFrame) -> DataFrame:
    days = F.floor(F.unix_millis("timestamp") / _DAY_MS).cast("int")
    return records.select(
        "partition",
        "offset",
        "key",
        "value",
        "timestamp",
        "headers",
        "topic",
        F.date_add(F.lit("1970-01-01").cast("date"), days).alias("day"),
    )


def _run(query: StreamingQuery, books: Books, stop: threading.Event, tell: Callable[[str], None]) -> dict[int, int]:
    """Follow a stream until it ends or is stopped; return the records of each batch that it finished."""
    counts: dict[int, int] = {}
    try:
        while query.isActive and not stop.wait(_POLL_S):
            _follow(query, books, counts, tell)
        if not stop.is_set():
            _follow(query, books, counts, tell)
        elif query.isActive:
            query.stop()
            _follow(query, books, counts, tell)
    except Exception:
        if stop.is_set():
            # a signal to the process group ends Spark too; finished batches are in the checkpoint
            return counts
        query.stop()
        raise
    failure = None if stop.is_set() else query.exception()
    if failure is not None:
        with reading("the topics to their end"):
            raise failure
    return counts


def _follow(query: StreamingQuery, books: Books, counts: dict[int, int], tell: Callable[[str], None]) -> None:
    last: Any = query.lastProgress
    if last is None or (last["batchId"] in counts and query.isActive):
        return
    for progress in query.recentProgress:
        rows, batch = progress["numInputRows"], progress["batchId"]
        if rows and batch not in counts:
            counts[batch] = rows
            tell(f"batch {batch}: {rows:,} records in {progress['batchDuration'] / 1000:.1f} s")
    books.settle()


@contextmanager
def _alone(to: Path) -> Iterator[None]:
    """Keep other runs on this machine out; elsewhere Spark's checkpoint stops the second one."""
    try:
        make_folder(to)
        tighten(to)
        file = open_private(to / ".lock", "w")
    except OSError as error:
        raise TargetError(f"{to} can't be written: {error}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise TargetError(f"another run is archiving to {to}: wait for its end, or stop it") from error
        yield


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
