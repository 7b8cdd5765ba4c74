"""A worker's counts of itself: plain numbers, added to once per commit, batch or takeover, never per record.

Nothing here knows who reads it. `status` beside it makes a picture of it, from which metrics and pages are made.
Counters never go back while the process lives, also over a partition's coming and going.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

from actors._core.group.members import TaskId
from actors.errors import (
    BrokerUnavailableError,
    CommitRefusedError,
    FencedError,
    MigratedError,
    OutcomeUnknownError,
    RestoreError,
)
from actors.ports import CommitBatch, TopicPartition

COMMIT_BOUNDS_S = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
RESTORE_BOUNDS_S = (0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
QUERY_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

_CODES = frozenset(HTTPStatus)

_REASONS: Sequence[tuple[type[BaseException], str]] = (
    (MigratedError, "migrated"),
    (FencedError, "fenced"),
    (OutcomeUnknownError, "outcome_unknown"),
    (CommitRefusedError, "refused"),
    (RestoreError, "restore"),
    (BrokerUnavailableError, "unavailable"),
)


class Histogram:
    """How often something took how long.

    Attributes:
        bounds: upper bounds of the buckets, seconds, ascending.
        counts: how often it fell between a bound and the one before; the last is what is above all bounds.
        total: how long it took in all, seconds.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds


@dataclass(slots=True)
class RestoreMeter:
    """One restore of one store: offsets of its changelog, records that were read, and since when (Unix ms)."""

    store: str = ""
    started_at_ms: int = 0
    start: int = 0
    position: int = 0
    end: int = 0
    records: int = 0

    def begins(self, start: int, end: int) -> None:
        """Note what is going to be read; a store that is rebuilt begins again."""
        self.start = self.position = start
        self.end = end

    def read(self, next_offset: int, count: int) -> None:
        """Note a chunk."""
        self.position = next_offset
        self.records += count


@dataclass(slots=True)
class LateMeter:
    """The late records of one store, and the newest of them.

    Attributes:
        count: the number of late records.
        source, offset, key: the place and the key of the newest one.
        at_ms, stream_ms: its time, and stream time when it was handled.
        handled_at_ms: the wall clock when it was handled.
        is_warned: whether its actor has late="warn".
    """

    count: int = 0
    source: TopicPartition | None = None
    offset: int = -1
    key: bytes | None = None
    at_ms: int = -1
    stream_ms: int = -1
    handled_at_ms: int = 0
    is_warned: bool = False


@dataclass(slots=True)
class TaskMeters:
    """One partition of one actor in this process.

    Attributes:
        records: input records that were handled and are committed.
        outputs, writes: what commits sent to other topics, and wrote to changelogs.
        commits: how long they took, from their transaction's begin until the stores had them.
        last_commit_s, last_commit_at_ms: the newest commit's duration and begin; 0 before the first.
        takeovers: how often the task became the owner, a new epoch each time.
        fences: by reason, how often it had to drop its work and look again, or to give the partition up.
        restores: how long bringing a store to its changelog's end took.
        restored_records: what was read for that.
        restoring: the restores that run.
        committed_offsets: by input topic, the group's offset as far as known.
        end_offsets: by input topic, its end as the last takeover saw it, or a look while the partition stands still.
        parked: how many messages are parked, None when that is unknown: it is counted again then.
        parked_effects: how many effects are known to be parked; None before a takeover's first look at the outbox.
        misplaced: how many records were found in another partition than their key's, among those that were looked at.
        late: by window store, the messages that came too late for all their windows; by table, for its history.
        late_by_clock: likewise, how many only `close_when_idle` made late, which aren't among `late`.
        stream_ms: stream time as it is committed, None where the actor has no window store, or before the first record.
        refused_commands: how many admin commands were ignored, because they aren't signed or can't be read.
        waits_for: what a takeover waits for that has nothing to do with this task itself, "" if for nothing.
        counted: by store, the changelog offset up to which its keys were counted, and how many there were.
    """

    records: int = 0
    outputs: int = 0
    writes: int = 0
    commits: Histogram = field(default_factory=lambda: Histogram(COMMIT_BOUNDS_S))
    last_commit_s: float = 0.0
    last_commit_at_ms: int = 0
    takeovers: int = 0
    fences: dict[str, int] = field(default_factory=dict)
    restores: Histogram = field(default_factory=lambda: Histogram(RESTORE_BOUNDS_S))
    restored_records: int = 0
    restoring: list[RestoreMeter] = field(default_factory=list)
    late: dict[str, LateMeter] = field(default_factory=dict)
    late_by_clock: dict[str, int] = field(default_factory=dict)
    stream_ms: int | None = None
    committed_offsets: dict[str, int | None] = field(default_factory=dict)
    end_offsets: dict[str, int] = field(default_factory=dict)
    parked: int | None = None
    parked_effects: int | None = None
    misplaced: int = 0
    refused_commands: int = 0
    waits_for: str = ""
    counted: dict[str, tuple[int, int]] = field(default_factory=dict)

    def waiting(self, what: str) -> None:
        """Note what a takeover waits for, "" at the end."""
        self.waits_for = what

    def looked(self, topic: str, committed: int | None, end: int) -> None:
        """Note what a takeover found of an input."""
        self.committed_offsets[topic], self.end_offsets[topic] = committed, end
        self.parked = self.parked_effects = None
        self.counted.clear()

    def committed(self, batch: CommitBatch, *, records: int, seconds: float, at_ms: int, parked: str | None) -> None:
        """Note a commit of so many records that took `seconds`; `parked` is the changelog of parked messages."""
        for source, committed in batch.offsets.items():
            self.committed_offsets[source.topic] = committed.offset
        self.records += records
        self.outputs += len(batch.outputs)
        self.writes += sum(map(len, batch.changelogs.values()))
        self.commits.observe(seconds)
        self.last_commit_s, self.last_commit_at_ms = seconds, at_ms
        if parked in batch.changelogs:
            self.parked = None

    def fenced(self, error: BaseException) -> None:
        """Note that the work in hand was dropped."""
        reason = next((reason for kind, reason in _REASONS if isinstance(error, kind)), "store")
        self.fences[reason] = self.fences.get(reason, 0) + 1

    def restore_begins(self, store: str, at_ms: int) -> RestoreMeter:
        """Return the meter of a restore."""
        meter = RestoreMeter(store, at_ms)
        self.restoring.append(meter)
        return meter

    def restore_ended(self, meter: RestoreMeter, seconds: float | None) -> None:
        """Note the end of a restore; `seconds` None if it came to nothing."""
        self.restoring.remove(meter)
        self.restored_records += meter.records
        if seconds is not None:
            self.restores.observe(seconds)


@dataclass(slots=True)
class QueryMeters:
    """Questions that this worker was asked, those that it passed on too: by HTTP status, and how long they took."""

    in_flight: int = 0
    codes: dict[int, int] = field(default_factory=dict)
    durations: Histogram = field(default_factory=lambda: Histogram(QUERY_BOUNDS_S))

    def answered(self, code: int, seconds: float) -> None:
        """Count one. What another worker answered may have any code: those that HTTP doesn't name count as 0."""
        code = code if code in _CODES else 0
        self.codes[code] = self.codes.get(code, 0) + 1
        self.durations.observe(seconds)


@dataclass(slots=True)
class WorkerMeters:
    """One worker. `tasks` keeps those of partitions that went elsewhere: their counters go on when they come back."""

    started_at_ms: int = 0
    rebalances: int = 0
    tasks: dict[TaskId, TaskMeters] = field(default_factory=dict)
    queries: QueryMeters = field(default_factory=QueryMeters)

    def task(self, task: TaskId) -> TaskMeters:
        """Return the meters of a task."""
        found = self.tasks.get(task)
        if found is None:
            found = self.tasks[task] = TaskMeters()
        return found
