"""What a command would read and write, found out without a Spark job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from spark_replay.fold.points import AsOf, find_offsets, point_at
from spark_replay.printing import new_table, say
from spark_replay.sources.archives.archive import ArchiveSource
from spark_replay.sources.base import Source
from spark_replay.sources.brokers.topic import Topic
from spark_replay.sources.kafka import JoinedSource

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True)
class Stretch:
    """Offsets of a partition: from `start` to before `end`."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One topic at one place.

    Attributes:
        source: The place.
        topic: The topic.
        partitions: The offsets.
        records_at_most: How many offsets these are; aborted, compacted and marker offsets have no record.
        files: How many files an archive has of the topic, None of Kafka.
        size_bytes: How large these are, None of Kafka.
    """

    source: str
    topic: str
    partitions: tuple[Stretch, ...]
    records_at_most: int
    files: int | None = None
    size_bytes: int | None = None

    @classmethod
    def of(cls, where: str, topic: Topic) -> Reading:
        """Plan to read a topic between its bounds."""
        bounds = enumerate(zip(topic.starts, topic.ends, strict=True))
        stretches = tuple(Stretch(number, start, end) for number, (start, end) in bounds)
        count = sum(stretch.end - stretch.start for stretch in stretches)
        return cls(source=where, topic=topic.name, partitions=stretches, records_at_most=count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a command would do.

    Attributes:
        command: The command.
        reads: What it would read.
        writes: Where it would write, None if nowhere.
        notes: What else there is to say.
    """

    command: str
    reads: tuple[Reading, ...]
    writes: str | None
    notes: tuple[str, ...] = ()

    @property
    def as_json(self) -> dict[str, Any]:
        """The plan for a machine."""
        return {**asdict(self), "dry_run": True}


def plan_rebuild(source: Source, as_of: AsOf, *, writes: str) -> Plan:
    """Plan a rebuild.

    Raises:
        PointError: The point lies beyond the log.
        LogTooShortError: The point lies before the log's start.
        ReplayError: What `Source.describe` raises.
    """
    topic = source.describe()
    if as_of.timestamp_ms is not None:
        note = "where in the log the time lies, its records tell: everything is counted here"
        return Plan(command="rebuild", reads=_readings(source, topic), writes=writes, notes=(note,))
    point = point_at(topic, find_offsets(source, topic, as_of), [0] * topic.partition_count)
    return Plan(command="rebuild", reads=_readings(source, point.narrowed(topic)), writes=writes)


def plan_reading(command: str, source: Source, *, also: str) -> Plan:
    """Plan to read all of a source, and something else; errors are those of `Source.describe`."""
    return Plan(command=command, reads=_readings(source, source.describe()), writes=None, notes=(also,))


def show_plan(plan: Plan, console: Console) -> None:
    """Print a plan as a table a person reads."""
    for reading in plan.reads:
        count = f"{reading.records_at_most:,} records at most"
        if reading.files is not None:
            count += f", {reading.files:,} files of {reading.size_bytes or 0:,} bytes in all"
        table = new_table(f"would read {reading.source}: {count}", "partition", "from offset", "to before")
        for stretch in reading.partitions:
            table.add_row(str(stretch.partition), f"{stretch.start:,}", f"{stretch.end:,}")
        console.print(table)
    lines = [*plan.notes, f"would write to {plan.writes}" if plan.writes else "would write nothing"]
    for line in lines:
        say(console, line)


def _readings(source: Source, topic: Topic) -> tuple[Reading, ...]:
    if isinstance(source, JoinedSource):
        old, new = source.parts(topic)
        return (*_readings(source.older, old), *_readings(source.newer, new))
    reading = Reading.of(str(source), topic)
    if isinstance(source, ArchiveSource):
        files = source.files()
        reading = replace(reading, files=len(files), size_bytes=sum(file.size_bytes for file in files))
    return (reading,)


def plan_archive(topics: Sequence[Topic], covered: Mapping[str, Sequence[int]], *, brokers: str, writes: str) -> Plan:
    """Plan a run of `archive`, which begins where the archive ends."""
    readings = []
    for topic in topics:
        done = covered.get(topic.name, ())
        starts = tuple(map(max, topic.starts, (*done, *topic.starts[len(done) :])))
        readings.append(Reading.of(f"topic {topic.name} of {brokers}", replace(topic, starts=starts)))
    return Plan(command="archive", reads=tuple(readings), writes=writes)
