"""State from a changelog at a point: the last write of each key, as a DataFrame or as a folder of files."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.observation import Observation

from spark_replay.changelog import read_rows
from spark_replay.decoding import Codecs, decoded
from spark_replay.errors import ReadError, TargetError, WrongTopicError
from spark_replay.fold import last_writes, live
from spark_replay.formats import read_files, require_format, write_files
from spark_replay.points import AsOf, Point, find_point
from spark_replay.printing import printable
from spark_replay.reading import reading
from spark_replay.sources.base import Source
from spark_replay.topic import Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SUMMARY = "_rebuild.json"
COLUMNS = (
    "key binary, value binary, source_offset bigint, epoch bigint, expires_at_ms bigint, offset bigint, partition int"
)
_EXAMPLES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltPartition:
    """What a rebuild found in one partition.

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
    """A key whose state at the point isn't known: it was written again at `later_offset`."""

    partition: int
    key: str
    later_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """What a rebuild read and wrote; `_rebuild.json` holds the same.

    Attributes:
        changelog: The topic.
        topic_id: What Kafka gave it when it was made.
        as_of: The point that was asked for.
        as_of_ms: Unix milliseconds at which keys count as expired; the latest of the partitions' if they differ.
        keys: Rows written.
        records: Records read.
        unstamped: How many of these have no key or no stamp of this release's version: damage of the log.
        unknown: Keys whose state at the point isn't known, see `spark_replay.points`; they aren't in the rebuild.
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
    unstamped: int
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
        names = ("keys", "records", "unstamped", "unknown", "seconds")
        more = () if self.undecodable is None else ("undecodable",)
        return {name: getattr(self, name) for name in (*names, *more)}


def rebuild_state(
    source: Source, *, as_of: AsOf | str = "latest", as_of_ms: int | None = None, app: str | None = None
) -> DataFrame:
    """Give the state that a changelog stands for at a point.

    Args:
        source: The changelog, as `kafka(...)` or `archive(...)` gives it.
        as_of: The point, as `--as-of` takes it.
        as_of_ms: Unix milliseconds at which keys count as expired, in place of the point's own time.
        app: `module` or `module:app`; adds the columns `key_json` and `value_json`, decoded by the app's codecs.

    Returns:
        One row a key: `partition` int, `key` binary, `value` binary, `source_offset` bigint, `epoch` bigint,
        `expires_at_ms` bigint (0: never), `offset` bigint, the record's own. The three of the stamp are null
        where the key's last record carries none. Keys whose state isn't known are left out, see `unknown_keys`.

    Raises:
        PointError: The point lies beyond the log.
        LogTooShortError: The point lies before the log's start.
        AppError: The app can't be imported, or has no such store.
        ReplayError: What `Source.describe` raises.
    """
    codecs = None if app is None else Codecs.of(app, source.topic)
    point, folded = _fold_at(source, source.describe(), as_of, as_of_ms)
    state = live(folded.where(~F.col("unknown")), point.times_ms)
    return state if codecs is None else decoded(state, codecs)


def unknown_keys(source: Source, *, as_of: AsOf | str) -> DataFrame:
    """Give the keys whose state at a point isn't known, see `spark_replay.points`.

    Returns:
        `partition` int, `key` binary, `later_offset` bigint, of the first record at or above the point.

    Raises:
        ReplayError: As `rebuild_state`.
    """
    _, folded = _fold_at(source, source.describe(), as_of, as_of_ms=0)
    return folded.where("unknown").select("partition", "key", "later_offset")


def write_rebuild(
    source: Source,
    *,
    to: Path,
    overwrite: bool = False,
    as_of: AsOf | str = "latest",
    as_of_ms: int | None = None,
    app: str | None = None,
    file_format: str = "parquet",
) -> Rebuilt:
    """Write the state that a changelog stands for at a point to a folder, as `rebuild_state` shapes it.

    The folder has a folder for each partition, `partition=…`, and appears when it is complete; until then an older
    rebuild stays where it is. `read_rebuild` reads it.

    Raises:
        TargetError: The folder exists and `overwrite` isn't set, or isn't a rebuild's.
        WrongTopicError: The topic has records, and none of them has a changelog's stamp.
        ReadError: Spark couldn't read the log to its end.
        ToolMissingError: The format's package isn't installed.
        ReplayError: As `rebuild_state`.
    """
    require_free(to, overwrite=overwrite)
    require_format(source.spark, file_format)
    codecs = None if app is None else Codecs.of(app, source.topic)
    started = time.monotonic()
    topic = source.describe()
    point, folded = _fold_at(source, topic, as_of, as_of_ms)
    seen = Observation()
    counted = folded.observe(
        seen,
        F.sum("records").alias("records"),
        F.sum("damaged").alias("unstamped"),
        F.count_if("unknown").alias("unknown"),
    )
    state = live(counted.where(~F.col("unknown")), point.times_ms)
    with _replacing(to) as staging, reading(str(source)):
        write_files(state if codecs is None else decoded(state, codecs), staging, file_format)
        counts = {name: value or 0 for name, value in seen.get.items()}
        _require_changelog(source, counts)
        keys, undecodable = _count(source.spark, staging, file_format, is_decoded=codecs is not None)
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
            partitions=_partitions(topic, point, keys),
            unknown_keys=_examples(folded) if counts["unknown"] else (),
            notes=tuple(_notes(topic, point)),
        )
        (staging / SUMMARY).write_text(json.dumps(asdict(result), indent=1) + "\n")
    return result


def read_rebuild(spark: SparkSession, folder: Path) -> DataFrame:
    """Read what `write_rebuild` wrote.

    Raises:
        ReadError: The folder is no rebuild.
    """
    summary = read_summary(folder)
    extra = "" if summary.get("undecodable") is None else "key_json string, value_json string, "
    with reading(f"the rebuild in {folder}"):
        return read_files(spark, folder, summary["format"], extra + COLUMNS)


def read_summary(folder: Path) -> dict[str, Any]:
    """Read what a rebuild says of itself, the fields of `Rebuilt`.

    Raises:
        ReadError: The folder is no rebuild.
    """
    try:
        summary: dict[str, Any] = {"format": "parquet"} | json.loads((folder / SUMMARY).read_text())
    except (OSError, ValueError, TypeError) as error:
        raise ReadError(f"{folder} is no rebuild: its {SUMMARY} can't be read: {error}") from error
    return summary


def require_free(to: Path, *, overwrite: bool) -> None:
    """Check that a rebuild may be written to a folder.

    Raises:
        TargetError: It exists and `overwrite` isn't set, or holds something that isn't a rebuild.
    """
    if not to.exists():
        return
    if not overwrite:
        raise TargetError(f"{to} exists: choose another folder, or replace it with --overwrite")
    if not to.is_dir() or (not (to / SUMMARY).exists() and any(to.iterdir())):
        raise TargetError(f"{to} is no rebuild (it has no {SUMMARY}): not overwritten, choose another folder")


def _fold_at(source: Source, topic: Topic, as_of: AsOf | str, as_of_ms: int | None) -> tuple[Point, DataFrame]:
    point = find_point(source, topic, _as_of(as_of), as_of_ms=as_of_ms)
    folded = last_writes(read_rows(source, point.narrowed(topic)), point.before)
    return point, folded.withColumn("unknown", point.unknown())


def _as_of(given: AsOf | str) -> AsOf:
    return AsOf.parse(given) if isinstance(given, str) else given


def _require_changelog(source: Source, counts: Mapping[str, int]) -> None:
    if counts["records"] and counts["unstamped"] == counts["records"]:
        raise WrongTopicError(
            f"none of the {counts['records']:,} records of {source} has a changelog's stamp: it is the changelog of "
            "no store of this framework"
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


def _notes(topic: Topic, point: Point) -> Iterator[str]:
    for number, before in enumerate(point.before):
        start, spans = topic.starts[number], topic.spans[number] if topic.spans else ()
        if start and before is not None:
            yield f"partition {number} begins at offset {start}: what was written before and not since isn't in it"
        if spans and not spans[-1].exact and not spans[-1].whole and (before is None or before > spans[-1].start):
            yield (
                f"partition {number} of the archive ends before the log did: keys that were written again behind its "
                "end may be missing; go on archiving, or give --brokers too"
            )


def _examples(folded: DataFrame) -> tuple[UnknownKey, ...]:
    rows = folded.where("unknown").select("partition", "key", "later_offset").orderBy("partition", "key")
    return tuple(
        UnknownKey(partition=row["partition"], key=printable(row["key"]), later_offset=row["later_offset"])
        for row in rows.limit(_EXAMPLES).collect()
    )


def _count(
    spark: SparkSession, folder: Path, file_format: str, *, is_decoded: bool
) -> tuple[dict[int, int], int | None]:
    lost = F.col("key_json").isNull() | F.col("value_json").isNull() if is_decoded else F.lit(False)
    extra = "key_json string, value_json string, " if is_decoded else ""
    rows = read_files(spark, folder, file_format, extra + COLUMNS)
    found = rows.groupBy("partition").agg(F.count(F.lit(1)).alias("keys"), F.count_if(lost).alias("lost")).collect()
    keys = {row["partition"]: row["keys"] for row in found}
    return keys, sum(row["lost"] for row in found) if is_decoded else None


@contextmanager
def _replacing(to: Path) -> Iterator[Path]:
    to = to.absolute()
    staging = to.with_name(f".{to.name}-{os.getpid()}")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        yield staging
        shutil.rmtree(to, ignore_errors=True)
        staging.rename(to)
    except OSError as error:
        raise TargetError(f"{to} can't be written: {error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
