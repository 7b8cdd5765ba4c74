"""The comparison key by key of a held state with its changelog at the state's position.

Each key of the log or of the held state gets one kind:

* `equal`, or `absent` where neither side has it: deleted or expired on both; or of a window past its retention, which
  either side may still have.
* `missing`: in the log, not held. `extra`: held and deleted or unknown in the log, or held twice.
* `different`: in both, with another value or metadata.
* `wrong_partition`: murmur2 puts it elsewhere, or the row names another partition than its file's.
* `without_metadata`: a record of it in the log has no key or no write metadata.
* `superseded`: the log only has later writes of it. Compaction took the one that is held, so that
  nothing can be said; no mismatch.

* `behind_position`: counts records, not keys: those that were committed behind the position. They aren't compared; that
  an owner can have written them is checked, see `spark_replay.comparison.writers`.

All but `equal`, `absent`, `superseded` and `behind_position` are mismatches, and each has a cause, see
`spark_replay.comparison.causes`.

What is held is to be validated within the topic's `delete.retention.ms`: after that compaction also removes the
tombstones behind the position, and a key deleted since looks `extra`.
"""

from __future__ import annotations

import atexit
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812
from pyspark.storagelevel import StorageLevel

from spark_replay.comparison.causes import name_causes
from spark_replay.comparison.exports import open_side, unreadable
from spark_replay.comparison.held import Held, Part
from spark_replay.comparison.invariants import Asked, find_violations
from spark_replay.comparison.judging import FINE, held_point, judge, logged, logged_since
from spark_replay.comparison.report import Report, Summary, report
from spark_replay.comparison.writers import find_foreign
from spark_replay.errors import ExportError, LogTooShortError, ReadError
from spark_replay.fold.extending import Base
from spark_replay.fold.fold import first_ten
from spark_replay.fold.rebuilt import require_sound
from spark_replay.fold.settled import settle
from spark_replay.fold.windows import WindowLog, folded_windows, held_windows, is_progress
from spark_replay.sources.base import Source
from spark_replay.sources.brokers.topic import Topic
from spark_replay.sources.changelog import read_rows, read_uncommitted_rows
from spark_replay.sources.folders import Folder
from spark_replay.sources.reading import keep, reading
from stores._core.printable import counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROW_BYTES = 100
_SMALL_BYTES = 10_000_000
# folders that lazy DataFrames read; they go when the process ends
_open = ExitStack()
atexit.register(_open.close)


def validate_exports(
    source: Source,
    *,
    against: str | Path,
    placement: str = "key",
    invariants: Asked | None = None,
    progress: Callable[[int, int], None] | None = None,
    base: str | Path | None = None,
) -> Report:
    """Compare what workers hold with their changelog.

    Args:
        source: The changelog, as `kafka(...)` or `archive(...)` returns it.
        against: The folder that the workers exported to, or in which their data folders are, or a rebuild; a path, or a
            URI, of object storage for a rebuild.
        placement: Of data folders and rebuilds, `key` if each key lives in the partition that murmur2 gives it, else
            `task`; exports state it themselves.
        invariants: What to check of the log besides, with the placement that is held; None: nothing.
        progress: Called with a partition, and how many keys of it were copied from a data folder.
        base: A rebuild of the changelog from before the held positions: only what the log has behind it is read. Damage
            before it is seen in last writes alone, and of a key that had expired then nothing is compared.

    Raises:
        ExportError: The folder can't be read or isn't of this changelog.
        PointError: A position is before the one of `base`.
        WrongTopicError: `base` is of another topic.
        LogTooShortError: A position lies outside the log.
        ReadError: Spark couldn't read a side to its end.
        ToolMissingError: It holds data folders, and rocksdict isn't installed.
        ReplayError: What `Source.describe` raises.
    """
    started = time.monotonic()
    described = source.describe()
    earlier = None if base is None else Base.of(Folder(source.spark, base, ReadError))
    if earlier is not None:
        earlier.require_of(described)
        require_sound(earlier.folder, earlier.rebuilt)
    with open_side(against, described, placement=placement, progress=progress) as opened:
        # a worker that goes on writing while its folder is read is ahead of what was asked for before
        described = source.describe()
        state = comparable(opened, described)
        state, judged, summary = _compare_readable(source, described, state, earlier)
        _require_read(summary, state)
    owned = [part for part in state.parts if part.epoch is not None]
    foreign, behind = find_foreign(source, owned, only_behind=invariants is None)
    findings = (foreign,) if any(behind.values()) or invariants is not None else ()
    if invariants is not None:
        findings = (*findings, *find_violations(source, judged.topic, replace(invariants, placement=state.placement)))
    seconds = time.monotonic() - started
    return report(
        summary,
        topic=judged.topic,
        held=state,
        findings=findings,
        seconds=seconds,
        has_windows=bool(judged.windows),
        behind=behind,
    )


def validate_log(source: Source, asked: Asked) -> Report:
    """Check the invariants of a changelog, without any worker's state.

    Raises:
        ReadError: Spark couldn't read the log.
        ReplayError: What `Source.describe` raises, of outputs and inputs too.
    """
    started = time.monotonic()
    topic = source.describe()
    findings = (find_foreign(source)[0], *find_violations(source, topic, asked))
    seconds = round(time.monotonic() - started, 3)
    return Report(changelog=topic.name, seconds=seconds, ends=topic.ends, findings=findings)


def compare_exports(source: Source, *, against: str | Path, placement: str = "key") -> DataFrame:
    """Return the judgement of every key, for a notebook; arguments and errors are those of `validate_exports`.

    Returns:
        One row a key: `partition` int, `key` binary, `kind` string, `log` and `export` (structs of `value`,
        `source_offset`, `epoch`, `expires_at_ms`, `input`, the log's with `offset` too; null where the side has
        nothing), `differs` (array of the names that do), `home` int (null when the placement isn't by key),
        `claimed` int, `export_rows`, `later_offset`, `damaged_offset`, `records`, `damaged` bigint, `live`
        boolean, `position` bigint (null where the compared state lacks the partition), `is_over` boolean (held, and
        expired).
    """
    topic, state = _opened(source, against, placement)
    return _judged(source, topic, state).rows


def explain_exports(source: Source, *, against: str | Path, placement: str = "key") -> DataFrame:
    """Return the keys that aren't fine, each with its cause; arguments and errors are those of `validate_exports`.

    Returns:
        Rows as of `compare_exports`, with the columns that `spark_replay.comparison.causes.name_causes` adds.
    """
    topic, state = _opened(source, against, placement)
    return _explained(source, state, _judged(source, topic, state))


def _opened(source: Source, against: str | Path, placement: str) -> tuple[Topic, Held]:
    state = _open.enter_context(open_side(against, source.describe(), placement=placement))
    topic = source.describe()
    return topic, comparable(state, topic)


def comparable(held: Held, topic: Topic) -> Held:
    """Return the partitions whose positions the log has; the others are `unanswered`.

    Raises:
        ExportError: The topic has another number of partitions, or is another one.
        LogTooShortError: All positions lie outside the log.
    """
    if held.partition_count != topic.partition_count:
        raise ExportError(
            f"{topic.name} has {counted(topic.partition_count, 'partition')} and the {held.kind} are of "
            f"{held.partition_count}: keys lie in other partitions, export again"
        )
    for part in held.parts:
        if topic.topic_id and part.topic_id and part.topic_id != topic.topic_id:
            raise ExportError(
                f"{part.where} is of a topic {topic.name} with the id {part.topic_id}, the brokers' has "
                f"{topic.topic_id}: the topic was re-created since, or this is another cluster"
            )
    problems = {part.partition: problem for part in held.parts if (problem := _outside(part, topic))}
    if problems and len(problems) == len(held.parts):
        number, problem = next(iter(problems.items()))
        raise LogTooShortError(f"{topic.name} partition {number} {problem}")
    return held.without(problems)


def _require_read(summary: Summary, held: Held) -> None:
    """Check that the executors read all rows that the files are said to have.

    Raises:
        ExportError: They read others, as executors do that see another folder than the driver.
    """
    read = Counter[int]()
    for row in summary.kinds:
        read[row["partition"]] += row["held"]
    for part in held.parts:
        if part.rows is not None and read[part.partition] != part.rows:
            raise ExportError(
                f"the executors read {counted(read[part.partition], 'row')} of {part.where}, and its manifest says "
                f"{part.rows}: give --against a folder that driver and executors share, under the same path"
            )


@dataclass(frozen=True, slots=True)
class _Judged:
    """The rows that `judge` returns, the log at that time, and its windows."""

    rows: DataFrame
    topic: Topic
    windows: WindowLog


def compare_held(source: Source, topic: Topic, held: Held, base: Base | None = None) -> tuple[_Judged, Summary]:
    """Compare a held state with a log, or with a rebuild and the log behind it, and count what there is.

    Raises:
        ReplayError: As of `validate_exports`.
    """
    with reading(f"{source} or the {held.kind} in {held.where}"):
        judged = _judged(source, topic, held, base)
        if held.only is not None:
            # few rows, which are asked for more than once
            judged = replace(judged, rows=keep(judged.rows))
        return judged, _summarised(judged.rows, lambda: _explained(source, held, judged))


def _compare_readable(source: Source, topic: Topic, held: Held, base: Base | None) -> tuple[Held, _Judged, Summary]:
    """Compare; a partition whose file turns out to be damaged is left out, and the others are compared again."""
    try:
        return held, *compare_held(source, topic, held, base)
    except ReadError:
        damaged = unreadable(held)
        if not damaged or len(damaged) == len(held.parts):
            raise
        rest = held.without(damaged)
        return rest, *compare_held(source, topic, rest, base)


def _judged(source: Source, topic: Topic, held: Held, base: Base | None = None) -> _Judged:
    kept, point = _answered(held.read(source.spark), held), held_point(topic, held)
    if base is not None:
        # a worker's position is behind its last record, a rebuild's behind the marker that ends the transaction
        point = base.reached(topic, point)
        base.require_before(topic, point)
    since = () if base is None else base.ends
    settled = settle(source, topic, point, to_the_end=True, select=lambda rows: _answered(rows, held), since=since)
    windows, at = folded_windows(settled), settled.point
    # What the log had of the row at the held position, compaction may have taken since.
    if base is None:
        windows = windows.or_else(held_windows(kept, topic))
        return _Judged(judge(logged(settled.folded), at, held, kept, windows=windows), settled.topic, windows)
    base.require_deletes_kept(source, settled.topic)
    state = _answered(base.rows(), held)
    windows = windows.or_else(held_windows(state, topic)).or_else(held_windows(kept, topic))
    log = logged_since(state, settled.folded, at)
    rows = judge(log, at, held, kept, windows=windows, expired_ms=base.times_ms)
    rows = rows if held.only is None else rows.where(held.only)
    # causes are looked for in all of the log
    return _Judged(rows, replace(settled.topic, starts=topic.starts), windows)


def _answered(rows: DataFrame, held: Held) -> DataFrame:
    """Return the rows to compare, and the row `m` of windows, which says what is past its retention."""
    rows = rows if held.only is None else rows.where(held.only | is_progress())
    return rows.where(~F.col("partition").isin(*held.unanswered)) if held.unanswered else rows


def _summarised(judged: DataFrame, explain: Callable[[], DataFrame]) -> Summary:
    """Count the kinds and causes of each partition, and name up to 10 keys of each kind and cause that isn't fine.

    Args:
        judged: What `judge` returns.
        explain: Returns the rows that aren't fine with their causes. Called, for a second pass, only if there are any.
    """
    groups = (
        judged.groupBy("partition", "kind")
        .agg(
            F.count(F.lit(1)).alias("count"),
            F.sum("records").alias("records"),
            F.sum("damaged").alias("damaged"),
            F.sum("export_rows").alias("held"),
            F.sum(F.col("live").cast("bigint")).alias("live"),
            F.count_if(F.col("is_over") & (F.col("kind") == "absent")).alias("over"),
        )
        .collect()
    )
    if all(row["kind"] in FINE for row in groups):
        return Summary(groups)
    explained = explain().persist(StorageLevel.MEMORY_AND_DISK)
    try:
        causes = explained.groupBy("partition", "cause").agg(F.count(F.lit(1)).alias("count")).collect()
        return Summary(groups, causes, first_ten(explained, of=("kind", "cause"), sides=("log", "export")))
    finally:
        explained.unpersist()


def _explained(source: Source, held: Held, judged: _Judged) -> DataFrame:
    # judged once, not by each of the joins that look for causes; of partitions without any nothing is read
    suspects, topic = keep(judged.rows.where(~F.col("kind").isin(*FINE))), judged.topic
    size = F.sum(_ROW_BYTES + F.coalesce(F.octet_length("key") + F.octet_length("export.value"), F.lit(0)))
    sizes = dict(map(tuple, suspects.groupBy("partition").agg(size).collect()))
    bounds = enumerate(zip(topic.starts, topic.ends, strict=True))
    log = replace(topic, starts=tuple(start if number in sizes else end for number, (start, end) in bounds))
    contested, is_small = {newer.partition for newer, _ in held.contested()}, sum(sizes.values()) <= _SMALL_BYTES
    rows, everything = read_rows(source, log), read_uncommitted_rows(source, log)
    return name_causes(suspects, rows, everything, topic, contested, is_small=is_small)


def _outside(part: Part, topic: Topic) -> str | None:
    number, position = part.partition, part.changelog_offset
    start, end, high = topic.starts[number], topic.ends[number], topic.high_watermarks[number]
    if position > high:
        return (
            f"ends at {high}, the log is shorter than the export's position {position} ({part.where}): "
            f"was the topic re-created, or is this another cluster?"
        )
    if position > end:
        return (
            f"can be read to {end} because a transaction is open there, the export's position is {position} "
            f"({part.where}): try again when it is over"
        )
    if position < start:
        return f"begins at {start}, after the export's position {position} ({part.where}): export again"
    return None
