"""State from a changelog at a point: the last write of each key, as a DataFrame or as a folder of files."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from spark_replay.errors import WrongTopicError
from spark_replay.fold.columns import value_columns
from spark_replay.fold.decoding import Codecs, decoded
from spark_replay.fold.extending import Base, extend
from spark_replay.fold.fold import live
from spark_replay.fold.points import AsOf, Point, find_point, now_ms
from spark_replay.fold.rebuilt import SUMMARY, Layer, Rebuilt, RebuiltPartition, UnknownKey, write_layer
from spark_replay.fold.settled import Settled, settle
from spark_replay.fold.windows import WindowLog, folded_windows, held_windows
from spark_replay.printing import printable
from spark_replay.sources.base import Source
from spark_replay.sources.brokers.topic import Topic
from spark_replay.sources.formats import require_format
from spark_replay.sources.reading import reading
from spark_replay.sources.staging import NEW, local_folder, replacing, require_replaceable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EXAMPLES = 10


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
    def facts(self) -> DataFrame:
        """The rows of `Settled.facts`, and `unknown`: the state of the key is unknown."""
        return self.settled.facts.withColumn("unknown", self.settled.point.unknown())

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
        writes = self.settled.writes(self.facts.where(~F.col("unknown")))
        return live(writes.where(~windows.past()), self.settled.point.times_ms)

    @property
    def unknown(self) -> DataFrame:
        """The keys whose state is unknown, as `unknown_keys` shapes them."""
        return self.facts.where("unknown").select("partition", "key", "later_offset")


def folded_at(source: Source, as_of: AsOf | str, *, as_of_ms: int | None = None, base: Base | None = None) -> Folded:
    """Fold a changelog at a point, from `base` on if there is one; other arguments and errors as of `rebuild_state`."""
    topic = source.describe()
    if base is not None:
        base.require_of(topic)
    point = find_point(source, topic, _as_of(as_of), as_of_ms=as_of_ms)
    if base is not None:
        base.require_before(topic, point)
    return Folded(settle(source, topic, point, since=() if base is None else base.ends))


def write_rebuild(
    source: Source,
    *,
    to: str | Path,
    overwrite: bool = False,
    as_of: AsOf | str = "latest",
    as_of_ms: int | None = None,
    app: str | None = None,
    file_format: str = "parquet",
    base: Path | None = None,
    schemas: Path | None = None,
) -> Rebuilt:
    """Write the state that a changelog stands for at a point to a folder, as `rebuild_state` shapes it.

    The folder, a path or a `file://` URI, has a folder for each partition, `partition=…`, and appears when it is
    complete; until then an older rebuild stays where it is. `read_rebuild` reads it.

    Args:
        source: The changelog.
        to: The folder.
        overwrite: Whether it may replace a rebuild.
        as_of: The point.
        as_of_ms: As of `rebuild_state`.
        app: As of `rebuild_state`.
        file_format: `parquet` or `delta`.
        base: An earlier rebuild, which may be `to`. Only what the log has behind it is read, and only `read_rebuild`
            reads the result: see `spark_replay.fold.rebuilt`. The state is that of a rebuild from the start.
        schemas: Not with `base`; a file of schemas that adds the column `value_columns` to the files, see
            `spark_replay.fold.columns`.

    Raises:
        TargetError: The folder exists and `overwrite` isn't set, or isn't a rebuild's; or `base` can't be gone on from.
        WrongTopicError: The topic has records, and none of them has a changelog's write metadata; or `base` is of
            another topic.
        ReadError: Spark couldn't read the log to its end; or `base` can't be read, or is too old.
        ToolMissingError: The format's package isn't installed.
        ReplayError: As `rebuild_state`.
    """
    to = local_folder(to)
    require_replaceable(to, SUMMARY, "rebuild", overwrite=overwrite)
    require_format(source.spark, file_format)
    codecs = None if app is None else Codecs.of(app, source.topic)
    run = _Run(source, _as_of(as_of), as_of_ms, codecs, file_format, schemas)
    with replacing(to) as work, reading(str(source)):
        # another run may have written it while this one waited for its turn
        require_replaceable(to, SUMMARY, "rebuild", overwrite=overwrite)
        # here, since a run that was killed may have left it in the folder of this one
        earlier = None if base is None else Base.of(base, file_format, is_decoded=codecs is not None)
        result = None if earlier is None else run.extended(earlier.linked(work / "base"), work / NEW)
        if result is None:
            result = run.from_start(work / NEW)
        elif earlier is not None:
            result = replace(result, made_from=str(earlier.folder))
        (work / NEW / SUMMARY).write_text(json.dumps(asdict(result), indent=1) + "\n")
    return result


@dataclass(frozen=True, slots=True)
class _Run:
    source: Source
    as_of: AsOf
    as_of_ms: int | None
    codecs: Codecs | None
    file_format: str
    schemas: Path | None
    made_ms: int = field(default_factory=now_ms)
    started_s: float = field(default_factory=time.monotonic)

    def from_start(self, to: Path) -> Rebuilt:
        folded = Folded(folded_at(self.source, self.as_of, as_of_ms=self.as_of_ms).settled.kept())
        topic, point = folded.settled.topic, folded.settled.point
        counts, last = _counts(folded.facts)
        _require_changelog(self.source, counts)
        windows = folded.windows
        state = folded.state_of(windows)
        layer, read = write_layer(
            state if self.schemas is None else value_columns(state, self.schemas, topic.name),
            to,
            Layer(folder="", ends=point.ends(topic)),
            codecs=self.codecs,
            file_format=self.file_format,
        )
        result = self._result(
            folded.settled,
            counts,
            windows,
            last=last,
            keys={number: digest.rows for number, digest in read.items()},
            undecodable=sum(digest.more for digest in read.values()),
            layers=(layer,),
        )
        unknown = _examples(folded.unknown) if counts["unknown"] else ()
        early = _before_all(self.source, topic, self.as_of, counts["below"])
        return replace(result, unknown_keys=unknown, notes=(*result.notes, *early))

    def extended(self, base: Base, to: Path) -> Rebuilt | None:
        """Go on from an earlier rebuild; None where the whole log has to be read."""
        folded = Folded(folded_at(self.source, self.as_of, as_of_ms=self.as_of_ms, base=base).settled.kept())
        settled, windows = folded.settled, folded.windows
        counts, last = _counts(folded.facts)
        if counts["unknown"] or windows.lost:
            return None
        windows = windows.or_else(held_windows(base.rows(self.source.spark), settled.topic))
        extension = extend(base, settled, windows, to, codecs=self.codecs)
        base.require_deletes_kept(self.source, settled)
        return self._result(
            replace(settled, topic=replace(settled.topic, starts=base.starts)),
            counts,
            windows,
            last=base.last_offsets | last,
            keys=extension.keys,
            undecodable=extension.undecoded,
            layers=extension.layers,
        )

    def _result(
        self,
        settled: Settled,
        counts: Mapping[str, int],
        windows: WindowLog,
        *,
        last: Mapping[int, int],
        keys: Mapping[int, int],
        undecodable: int,
        layers: tuple[Layer, ...],
    ) -> Rebuilt:
        topic, point = settled.topic, settled.point
        return Rebuilt(
            changelog=topic.name,
            topic_id=topic.topic_id,
            as_of=str(self.as_of),
            as_of_ms=max(point.times_ms),
            keys=sum(keys.values()),
            records=counts["records"],
            without_metadata=counts["without_metadata"],
            unknown=counts["unknown"],
            undecodable=None if self.codecs is None else undecodable,
            seconds=round(time.monotonic() - self.started_s, 3),
            format=self.file_format,
            partitions=_partitions(topic, point, last, keys),
            notes=(*_notes(topic, point, windows), *self.source.doubts(point.ends(topic))),
            made_ms=self.made_ms,
            deletes=topic.deletes,
            layers=layers,
        )


def _counts(rows: DataFrame) -> tuple[dict[str, int], dict[int, int]]:
    """Return the counts, and of each partition with records below the point the offset of the last one."""
    counts = {
        "records": F.sum("records"),
        "without_metadata": F.sum("damaged"),
        "unknown": F.count_if("unknown"),
        "below": F.count("last"),
    }
    columns = [count.alias(name) for name, count in counts.items()]
    counted = rows.groupBy("partition").agg(*columns, F.max("last.offset").alias("last_offset")).collect()
    last = {row["partition"]: row["last_offset"] for row in counted if row["below"]}
    return {name: sum(row[name] for row in counted) for name in counts}, last


def _as_of(given: AsOf | str) -> AsOf:
    return AsOf.parse(given) if isinstance(given, str) else given


def _require_changelog(source: Source, counts: Mapping[str, int]) -> None:
    if counts["records"] and counts["without_metadata"] == counts["records"]:
        raise WrongTopicError(
            f"none of the {counts['records']:,} records of {source} has a changelog's write metadata: it is the "
            "changelog of no store of this framework"
        )


def _partitions(
    topic: Topic, point: Point, last: Mapping[int, int], keys: Mapping[int, int]
) -> tuple[RebuiltPartition, ...]:
    return tuple(
        RebuiltPartition(
            partition=number,
            start_offset=topic.starts[number],
            end_offset=end,
            last_offset=last.get(number, -1),
            as_of_ms=point.times_ms[number],
            keys=keys.get(number, 0),
        )
        for number, end in enumerate(point.ends(topic))
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
