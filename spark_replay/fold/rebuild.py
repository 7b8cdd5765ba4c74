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

from spark_replay.errors import ReadError, TargetError, WrongTopicError
from spark_replay.fold.columns import value_columns
from spark_replay.fold.decoding import Codecs, decoded
from spark_replay.fold.extending import Base, extend
from spark_replay.fold.fold import fields
from spark_replay.fold.points import AsOf, Point, find_point, now_ms
from spark_replay.fold.rebuilt import (
    SUMMARY,
    Layer,
    Rebuilt,
    RebuiltPartition,
    UnknownKey,
    is_lost,
    write_layer,
)
from spark_replay.fold.settled import Settled, settle
from spark_replay.fold.tables import NOT_MERGED, TableBase, changes_in, changes_of
from spark_replay.fold.windows import NO_WINDOWS, WindowLog, folded_windows, held_windows
from spark_replay.printing import EXAMPLES, printable
from spark_replay.sources.base import Source
from spark_replay.sources.brokers.topic import Topic
from spark_replay.sources.folders import Folder, Target, open_target
from spark_replay.sources.reading import reading
from spark_replay.sources.staging import table_format
from spark_replay.sources.tables import Table
from stores._core.manifest import with_crc32
from stores._core.printable import counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def rebuild_state(
    source: Source, *, as_of: AsOf | str = "latest", as_of_ms: int | None = None, app: str | None = None
) -> DataFrame:
    """Return the state that a changelog stands for at a point.

    Args:
        source: The changelog, as `kafka(...)` or `archive(...)` returns it.
        as_of: The point, as `--as-of` takes it.
        as_of_ms: Unix milliseconds at which keys count as expired, in place of the point's own time.
        app: `module` or `module:app`; adds the columns `key_json`, `row_json` and `value_json`, decoded by its codecs.

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
    settled = folded_at(source, as_of, as_of_ms=as_of_ms)
    state = settled.state(folded_windows(settled).past())
    return state if codecs is None else decoded(state, codecs)


def unknown_keys(source: Source, *, as_of: AsOf | str) -> DataFrame:
    """Return the keys whose state at a point is unknown, see `spark_replay.fold.points`.

    Returns:
        `partition` int, `key` binary, `later_offset` bigint, of the first record at or above the point.

    Raises:
        ReplayError: As `rebuild_state`.
    """
    return folded_at(source, as_of, as_of_ms=0).unknown


def folded_at(source: Source, as_of: AsOf | str, *, as_of_ms: int | None = None, base: Base | None = None) -> Settled:
    """Fold a changelog at a point, from `base` on if there is one; other arguments and errors as of `rebuild_state`."""
    topic = source.describe()
    if base is not None:
        base.require_of(topic)
    point = find_point(source, topic, AsOf.of(as_of), as_of_ms=as_of_ms)
    if base is not None:
        base.require_before(topic, point)
    return settle(source, topic, point, since=() if base is None else base.ends)


def write_rebuild(
    source: Source,
    *,
    to: str | Path,
    overwrite: bool = False,
    as_of: AsOf | str = "latest",
    as_of_ms: int | None = None,
    app: str | None = None,
    base: str | Path | None = None,
    with_unknown: bool = False,
    schemas: Path | None = None,
) -> Rebuilt:
    """Write the state that a changelog stands for at a point to a folder or table, as `rebuild_state` shapes it.

    The folder, a path or a URI, has a folder for each partition, `partition=…`, and appears when it is complete; until
    then an older rebuild stays where it is. In object storage its files are in a folder of the run, and count when
    `_rebuild.json` names them. `read_rebuild` reads it.

    A table, `delta:PATH` or `iceberg:CATALOG.TABLE`, is made if need be, and goes on from what it has: each partition
    with changed keys gets one commit, with the offsets in its metadata.

    Args:
        source: The changelog.
        to: The folder or table.
        overwrite: Whether it may replace a rebuild. Of a table, whether all of the log is read.
        as_of: The point.
        as_of_ms: As of `rebuild_state`.
        app: As of `rebuild_state`.
        base: An earlier rebuild, which may be `to`. Only what the log has behind it is read, and only `read_rebuild`
            reads the result: see `spark_replay.fold.rebuilt`. The state is that of a rebuild from the start.
        with_unknown: Whether a key that is unknown keeps what `base` has of it, and the result may be a `base` that has
            unknown keys. Each was written again behind the point, and what goes on from there reads that write.
        schemas: Not with `base`; a file of schemas that adds the column `value_columns` to the files, see
            `spark_replay.fold.columns`.

    Raises:
        TargetError: The folder exists and `overwrite` isn't set, or isn't a rebuild's; or `base` can't be gone on from.
        WrongTopicError: The topic has records, and none of them has a changelog's write metadata; or `base` is of
            another topic.
        ReadError: Spark couldn't read the log to its end; or `base` can't be read, or is too old.
        ToolMissingError: The package of a table's format isn't installed.
        ReplayError: As `rebuild_state`.
    """
    codecs = None if app is None else Codecs.of(app, source.topic)
    run = _Run(source, AsOf.of(as_of), as_of_ms, codecs, table_format(to) or "parquet", with_unknown, schemas)
    if table_format(to):
        if base is not None:
            raise TargetError(f"{to} goes on from its own offsets: leave out --from")
        with reading(str(source)):
            return run.into_table(Table.of(source.spark, str(to)), is_whole=overwrite)
    with open_target(source.spark, to, SUMMARY, "rebuild", overwrite=overwrite) as target, reading(str(source)):
        # here, since a run that was killed may have left it in the folder of this one
        place = None if base is None else Folder(source.spark, base, ReadError)
        earlier = None if place is None else Base.of(place, is_decoded=codecs is not None, with_unknown=with_unknown)
        result = None if earlier is None else run.extended(earlier.linked(target), target)
        if result is None:
            result = run.from_start(target)
        elif earlier is not None:
            result = replace(result, made_from=str(earlier.folder))
        target.finish(json.dumps(with_crc32(asdict(result)), indent=1) + "\n")
    return result


@dataclass(frozen=True, slots=True)
class _Run:
    source: Source
    as_of: AsOf
    as_of_ms: int | None
    codecs: Codecs | None
    file_format: str
    with_unknown: bool
    schemas: Path | None
    made_ms: int = field(default_factory=now_ms)
    started_s: float = field(default_factory=time.monotonic)

    def from_start(self, to: Target) -> Rebuilt:
        settled = folded_at(self.source, self.as_of, as_of_ms=self.as_of_ms)
        topic, point = settled.topic, settled.point
        counts, last = _counts(settled.marked)
        _require_changelog(self.source, counts)
        windows = folded_windows(settled)
        state = settled.state(windows.past())
        layer, read = write_layer(
            state if self.schemas is None else value_columns(state, self.schemas, topic.name),
            to.folder,
            Layer(folder=to.attempt, ends=point.ends(topic)),
            codecs=self.codecs,
        )
        result = self._result(
            settled,
            counts,
            windows,
            last=last,
            keys={number: digest.rows for number, digest in read.items()},
            undecodable=sum(digest.more for digest in read.values()),
            layers=(layer,),
        )
        unknown = _examples(settled.unknown) if counts["unknown"] else ()
        early = _before_all(self.source, topic, self.as_of, counts["below"])
        return replace(result, unknown_keys=unknown, notes=(*result.notes, *early))

    def extended(self, base: Base, to: Target) -> Rebuilt | None:
        """Go on from an earlier rebuild; None where the whole log has to be read."""
        settled = folded_at(self.source, self.as_of, as_of_ms=self.as_of_ms, base=base)
        windows = folded_windows(settled)
        counts, last = _counts(settled.marked)
        if (counts["unknown"] or windows.lost) and not self.with_unknown:
            return None
        windows = windows.or_else(held_windows(base.rows(), settled.topic))
        layers, keys, undecodable = extend(base, settled, windows, to, codecs=self.codecs)
        base.require_deletes_kept(self.source, settled.topic)
        return self._result(
            replace(settled, topic=replace(settled.topic, starts=base.starts)),
            counts,
            windows,
            last=base.last_offsets | last,
            keys=keys,
            undecodable=undecodable,
            layers=layers,
        )

    def into_table(self, table: Table, *, is_whole: bool) -> Rebuilt:
        """Merge what changed since the state that a table has, a partition at a time."""
        topic = self.source.describe()
        base = TableBase.in_table(table, topic, self._of_nothing(topic), is_whole=is_whole)
        settled = folded_at(self.source, self.as_of, as_of_ms=self.as_of_ms, base=base)
        windows = folded_windows(settled)
        counts, last = _counts(settled.marked)
        if len(base.fresh) == topic.partition_count:
            _require_changelog(self.source, counts)
        elif counts["unknown"] or windows.lost or not base.keeps_deletes(self.source, settled.topic):
            return self.into_table(table, is_whole=True)
        else:
            windows = windows.or_else(held_windows(base.rows(), settled.topic))
        if not table.exists:
            table.create(base.rebuilt.columns)
        # what is unknown at the point isn't in the rebuild
        written = fields(settled.writes(settled.marked.where(F.col("last").isNotNull() & ~F.col("unknown"))))
        written, is_gone, changing = changes_of(base, written, settled, windows, codecs=self.codecs)
        result = self._result(
            replace(settled, topic=replace(settled.topic, starts=base.starts)),
            counts,
            windows,
            last=base.last_offsets | last,
            keys={part.partition: part.keys for part in base.rebuilt.partitions},
            undecodable=0,
            layers=(),
        )
        reached, before, newest = result.partitions, base.rebuilt.partitions, base.newest
        done = [before[number] if number in changing else part for number, part in enumerate(reached)]
        for number in changing:
            rows, keys = changes_in(table, written, is_gone, number)
            done[number] = replace(reached[number], keys=keys)
            # deletes are kept since the read of the partition that was read longest ago
            made_ms = self.made_ms if number == changing[-1] else base.rebuilt.made_ms
            result = replace(result, partitions=tuple(done), keys=sum(part.keys for part in done), made_ms=made_ms)
            merged = {"partition": number, "from": base.ends[number], "to": done[number].end_offset}
            text = json.dumps(with_crc32({"merged": merged} | asdict(result)))
            newest = table.merge(rows, number, text, after=newest, keys=keys)
        undecodable = None if self.codecs is None else table.rows().where(is_lost()).count()
        nothing = () if changing else (f"{table.where} has this state already: nothing was written",)
        unknown = _examples(settled.unknown) if counts["unknown"] else ()
        return replace(result, undecodable=undecodable, unknown_keys=unknown, notes=(*result.notes, *nothing))

    def _of_nothing(self, topic: Topic) -> Rebuilt:
        """Return the summary of a table that has nothing of a topic."""
        point = Point(before=topic.starts, times_ms=(NOT_MERGED,) * topic.partition_count, hazards=())
        counts = dict.fromkeys(("records", "without_metadata", "unknown"), 0)
        settled = Settled(topic=topic, point=point, facts=self.source.records(topic))
        nothing = self._result(settled, counts, NO_WINDOWS, last={}, keys={}, undecodable=0, layers=())
        return replace(nothing, notes=())

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
    groups = rows.groupBy("partition").agg(*columns, F.max("last.offset").alias("last_offset")).collect()
    last = {row["partition"]: row["last_offset"] for row in groups if row["below"]}
    return {name: sum(row[name] for row in groups) for name in counts}, last


def _require_changelog(source: Source, counts: Mapping[str, int]) -> None:
    if counts["records"] and counts["without_metadata"] == counts["records"]:
        raise WrongTopicError(
            f"none of {counted(counts['records'], 'record')} of {source} has a changelog's write metadata: it is the "
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
        for row in unknown.orderBy("partition", "key").limit(EXAMPLES).collect()
    )
