"""State from a changelog at a point: the last write of each key, as a DataFrame or as a folder of files."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow
import pyarrow.parquet
from pyspark.sql import functions as F  # noqa: N812

from spark_replay.errors import ReadError, WrongTopicError
from spark_replay.fold.decoding import Codecs, decoded
from spark_replay.fold.fold import live
from spark_replay.fold.points import AsOf, Point, find_point
from spark_replay.fold.settled import Settled, settle
from spark_replay.fold.windows import WindowLog, folded_windows
from spark_replay.printing import printable
from spark_replay.sources.base import Source
from spark_replay.sources.brokers.topic import Topic
from spark_replay.sources.digests import digests, require_same
from spark_replay.sources.formats import read_files, require_format, write_files
from spark_replay.sources.reading import keep, reading
from spark_replay.sources.staging import NEW, local_folder, replacing, require_replaceable
from stores._core.outside import MALFORMED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SUMMARY = "_rebuild.json"
COLUMNS = (
    "key binary, value binary, source_offset bigint, epoch bigint, expires_at_ms bigint, offset bigint, input int, "
    "partition int"
)
_EXAMPLES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltPartition:
    """The result of a rebuild for one partition.

    Attributes:
        partition: The partition.
        start_offset: Where the log begins.
        end_offset: The state is that of the records below it.
        as_of_ms: Unix milliseconds at which its keys count as expired.
        keys: Rows written.
    """

    partition: int
    start_offset: int
    end_offset: int
    as_of_ms: int
    keys: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownKey:
    """A key whose state at the point is unknown: it was written again at `later_offset`."""

    partition: int
    key: str
    later_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """The result of a rebuild; `_rebuild.json` holds the same.

    Attributes:
        changelog: The topic.
        topic_id: What Kafka gave it when it was made.
        as_of: The point that was asked for.
        as_of_ms: Unix milliseconds at which keys count as expired; the latest of the partitions' if they differ.
        keys: Rows written.
        records: Records read.
        without_metadata: How many of these have no key or no write metadata that this release reads: damage.
        unknown: Keys whose state at the point is unknown, see `spark_replay.fold.points`; they aren't in the rebuild.
        undecodable: Keys and values that aren't what the app's store declares; None if none were decoded.
        seconds: How long it took.
        format: `parquet` or `delta`.
        partitions: One entry a partition.
        unknown_keys: Up to 10 of the unknown ones.
        notes: What else has to be known of it.
    """

    changelog: str
    topic_id: str
    as_of: str
    as_of_ms: int
    keys: int
    records: int
    without_metadata: int
    unknown: int
    undecodable: int | None
    seconds: float
    format: str
    partitions: tuple[RebuiltPartition, ...]
    unknown_keys: tuple[UnknownKey, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def totals(self) -> dict[str, int | float | None]:
        """The counts for a machine."""
        names = ("keys", "records", "without_metadata", "unknown", "seconds")
        more = () if self.undecodable is None else ("undecodable",)
        return {name: getattr(self, name) for name in (*names, *more)}


class RebuildSummary(msgspec.Struct, frozen=True):
    """The fields of `_rebuild.json` that are read; those with a default aren't in all rebuilds."""

    changelog: str
    partitions: tuple[RebuiltPartition, ...]
    topic_id: str = ""
    format: str = "parquet"
    undecodable: int | None = None


def rebuild_state(
    source: Source, *, as_of: AsOf | str = "latest", as_of_ms: int | None = None, app: str | None = None
) -> DataFrame:
    """Return the state that a changelog stands for at a point.

    Args:
        source: The changelog, as `kafka(...)` or `archive(...)` returns it.
        as_of: The point, as `--as-of` takes it.
        as_of_ms: Unix milliseconds at which keys count as expired, in place of the point's own time.
        app: `module` or `module:app`; adds the columns `key_json` and `value_json`, decoded by the app's codecs.

    Returns:
        One row a key: `partition` int, `key` binary, `value` binary, `source_offset` bigint, `epoch` bigint,
        `expires_at_ms` bigint (0: never), `offset` bigint, the record's own, `input` int (the place of the input that
        `source_offset` is of, null for an actor with one). The four of the write metadata are null where the key's last
        record carries none. Keys whose state is unknown are left out, see `unknown_keys`, and rows of windows that are
        past their retention.

    Raises:
        PointError: The point lies beyond the log.
        LogTooShortError: The point lies before the log's start.
        AppError: The app can't be imported, or has no such store.
        ReplayError: What `Source.describe` raises.
    """
    codecs = None if app is None else Codecs.of(app, source.topic)
    state = folded_at(source, as_of, as_of_ms=as_of_ms).state
    return state if codecs is None else decoded(state, codecs)


def unknown_keys(source: Source, *, as_of: AsOf | str) -> DataFrame:
    """Return the keys whose state at a point is unknown, see `spark_replay.fold.points`.

    Returns:
        `partition` int, `key` binary, `later_offset` bigint, of the first record at or above the point.

    Raises:
        ReplayError: As `rebuild_state`.
    """
    return folded_at(source, as_of, as_of_ms=0).unknown


@dataclass(frozen=True, slots=True)
class Folded:
    """The fold of a changelog at a point.

    Attributes:
        settled: Where it was folded, and the last write of each key.
    """

    settled: Settled

    @property
    def rows(self) -> DataFrame:
        """The rows of `spark_replay.fold.fold.last_writes`, and `unknown`: the state of the key is unknown."""
        return self.settled.folded.withColumn("unknown", self.settled.point.unknown())

    @property
    def windows(self) -> WindowLog:
        """The window facts of the log. Of a window store's log this reads a row of each partition."""
        return folded_windows(self.settled.folded, self.settled.topic)

    @property
    def state(self) -> DataFrame:
        """The state, as `spark_replay.fold.fold.live` shapes it, without windows that are past their retention."""
        return self.state_of(self.windows)

    def state_of(self, windows: WindowLog) -> DataFrame:
        """Return `state`; `windows` is what it says of windows."""
        return live(self.rows.where(~F.col("unknown") & ~windows.past()), self.settled.point.times_ms)

    @property
    def unknown(self) -> DataFrame:
        """The keys whose state is unknown, as `unknown_keys` shapes them."""
        return self.rows.where("unknown").select("partition", "key", "later_offset")

    def kept(self) -> Folded:
        """Return the same, read now and kept on the executors: what is asked of it later is of the same read."""
        if self.settled.is_kept:
            return self
        return Folded(replace(self.settled, folded=keep(self.settled.folded), is_kept=True))


def folded_at(source: Source, as_of: AsOf | str, *, as_of_ms: int | None = None) -> Folded:
    """Fold a changelog at a point; arguments and errors are those of `rebuild_state`."""
    topic = source.describe()
    point = find_point(source, topic, _as_of(as_of), as_of_ms=as_of_ms)
    return Folded(settle(source, topic, point))


def write_rebuild(
    source: Source,
    *,
    to: str | Path,
    overwrite: bool = False,
    as_of: AsOf | str = "latest",
    as_of_ms: int | None = None,
    app: str | None = None,
    file_format: str = "parquet",
) -> Rebuilt:
    """Write the state that a changelog stands for at a point to a folder, as `rebuild_state` shapes it.

    The folder, a path or a `file://` URI, has a folder for each partition, `partition=…`, and appears when it is
    complete; until then an older rebuild stays where it is. `read_rebuild` reads it.

    Raises:
        TargetError: The folder exists and `overwrite` isn't set, or isn't a rebuild's.
        WrongTopicError: The topic has records, and none of them has a changelog's write metadata.
        ReadError: Spark couldn't read the log to its end.
        ToolMissingError: The format's package isn't installed.
        ReplayError: As `rebuild_state`.
    """
    to = local_folder(to)
    require_replaceable(to, SUMMARY, "rebuild", overwrite=overwrite)
    require_format(source.spark, file_format)
    codecs = None if app is None else Codecs.of(app, source.topic)
    started = time.monotonic()
    with replacing(to) as work, reading(str(source)):
        # another run may have written it while this one waited for its turn
        require_replaceable(to, SUMMARY, "rebuild", overwrite=overwrite)
        folded = folded_at(source, as_of, as_of_ms=as_of_ms).kept()
        topic, point = folded.settled.topic, folded.settled.point
        counts = _counts(folded.rows)
        below = counts.pop("below")
        _require_changelog(source, counts)
        windows = folded.windows
        state = folded.state_of(windows)
        write_files(state if codecs is None else decoded(state, codecs), work / NEW, file_format)
        keys, undecodable = _read_back(source.spark, work / NEW, state, file_format, is_decoded=codecs is not None)
        parts = _partitions(topic, point, keys)
        result = Rebuilt(
            changelog=source.topic,
            topic_id=topic.topic_id,
            as_of=str(_as_of(as_of)),
            as_of_ms=max(point.times_ms),
            keys=sum(keys.values()),
            **counts,
            undecodable=undecodable,
            seconds=round(time.monotonic() - started, 3),
            format=file_format,
            partitions=parts,
            unknown_keys=_examples(folded.unknown) if counts["unknown"] else (),
            notes=(
                *_notes(topic, point, windows),
                *_before_all(source, topic, _as_of(as_of), below),
                *source.doubts([part.end_offset for part in parts]),
            ),
        )
        (work / NEW / SUMMARY).write_text(json.dumps(asdict(result), indent=1) + "\n")
    return result


def read_rebuild(spark: SparkSession, folder: str | Path) -> DataFrame:
    """Read what `write_rebuild` wrote to a folder, given by its path or a `file://` URI.

    Raises:
        ReadError: The folder is no rebuild, or rows of it are missing.
    """
    folder = local_folder(folder)
    summary = read_summary(folder)
    if summary.format == "parquet":
        _require_whole(folder, summary)
    extra = "" if summary.undecodable is None else "key_json string, value_json string, "
    with reading(f"the rebuild in {folder}"):
        return read_files(spark, folder, summary.format, extra + COLUMNS)


def _require_whole(folder: Path, summary: RebuildSummary) -> None:
    """Check that the files of each partition have the rows that the summary tells: Spark reads what is there."""
    for part in summary.partitions:
        number, expected = part.partition, part.keys
        rows = 0
        for file in (folder / f"partition={number}").glob("*.parquet"):
            try:
                rows += pyarrow.parquet.read_metadata(file).num_rows
            except (OSError, pyarrow.ArrowException) as error:
                reason = str(error).splitlines()[0]
                raise ReadError(f"{file} of a rebuild can't be read ({reason}): rebuild again") from error
        if rows != expected:
            raise ReadError(
                f"partition {number} of the rebuild in {folder} has {rows} rows, and was written with {expected}: "
                "rebuild again, or give a folder that this machine sees"
            )


def read_summary(folder: Path) -> RebuildSummary:
    """Read a rebuild's summary; `ReadError` if the folder is no rebuild."""
    try:
        return msgspec.json.decode((folder / SUMMARY).read_bytes(), type=RebuildSummary)
    except (OSError, *MALFORMED, msgspec.MsgspecError) as error:
        raise ReadError(
            f"{folder} is no rebuild that this release reads: its {SUMMARY} can't be read ({error}): rebuild again"
        ) from error


def _counts(rows: DataFrame) -> dict[str, int]:
    counted = rows.agg(
        F.sum("records").alias("records"),
        F.sum("damaged").alias("without_metadata"),
        F.count_if("unknown").alias("unknown"),
        F.count("last").alias("below"),
    ).collect()
    return {name: value or 0 for name, value in counted[0].asDict().items()}


def _as_of(given: AsOf | str) -> AsOf:
    return AsOf.parse(given) if isinstance(given, str) else given


def _require_changelog(source: Source, counts: Mapping[str, int]) -> None:
    if counts["records"] and counts["without_metadata"] == counts["records"]:
        raise WrongTopicError(
            f"none of the {counts['records']:,} records of {source} has a changelog's write metadata: it is the "
            "changelog of no store of this framework"
        )


def _partitions(topic: Topic, point: Point, keys: Mapping[int, int]) -> tuple[RebuiltPartition, ...]:
    return tuple(
        RebuiltPartition(
            partition=number,
            start_offset=topic.starts[number],
            end_offset=topic.ends[number] if before is None else before,
            as_of_ms=point.times_ms[number],
            keys=keys.get(number, 0),
        )
        for number, before in enumerate(point.before)
    )


def _notes(topic: Topic, point: Point, windows: WindowLog) -> Iterator[str]:
    for number in windows.lost:
        yield (
            f"the stream time of partition {number} at the point is unknown, since it was written again: what was "
            "past its retention may be in it; an archive that was made before has it (--archive)"
        )
    for number, before in enumerate(point.before):
        start, spans = topic.starts[number], topic.spans[number] if topic.spans else ()
        if start and before is not None:
            yield f"partition {number} begins at offset {start}: what was written before and not since isn't in it"
        if spans and not spans[-1].exact and not spans[-1].whole and (before is None or before > spans[-1].start):
            yield (
                f"partition {number} of the archive ends before the log did: keys that were written again behind its "
                "end may be missing; go on archiving, or give --brokers too"
            )


def _before_all(source: Source, topic: Topic, as_of: AsOf, below: int) -> Iterator[str]:
    """Return a note that a time lies before the first record: it is likely to be a mistake."""
    if as_of.timestamp_ms is None or below or topic.starts == topic.ends:
        return
    first = source.records(topic).agg(F.min(F.unix_millis("timestamp")).alias("first")).collect()[0]["first"]
    if first is not None:
        when = datetime.fromtimestamp(first / 1000, UTC).isoformat(timespec="milliseconds")
        yield f"{as_of} lies before the first record of {source}, which is of {when}: the state there is empty"


def _examples(unknown: DataFrame) -> tuple[UnknownKey, ...]:
    return tuple(
        UnknownKey(partition=row["partition"], key=printable(row["key"]), later_offset=row["later_offset"])
        for row in unknown.orderBy("partition", "key").limit(_EXAMPLES).collect()
    )


def _read_back(
    spark: SparkSession, folder: Path, state: DataFrame, file_format: str, *, is_decoded: bool
) -> tuple[dict[int, int], int | None]:
    """Check that what was written can be read; return the keys of each partition, and how many weren't decoded.

    Raises:
        TargetError: Rows are missing, or are others.
    """
    lost = F.col("key_json").isNull() | F.col("value_json").isNull() if is_decoded else F.lit(False)
    extra = "key_json string, value_json string, " if is_decoded else ""
    rows = read_files(spark, folder, file_format, extra + COLUMNS)
    read = digests(rows, state.columns, lost=F.count_if(lost))
    require_same(digests(state, state.columns), read, folder)
    keys = {number: digest.rows for number, digest in read.items()}
    return keys, sum(digest.more for digest in read.values()) if is_decoded else None
