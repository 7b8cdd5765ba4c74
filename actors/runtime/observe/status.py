"""A picture of a worker at one moment: what it owns, how far it is, what it holds. Plain data, ready to be encoded.

It asks no broker. Of RocksDB it reads figures that are kept in memory (some microseconds a store); only parked
messages are looked at, up to `PARKED_LIMIT` of a partition, and the keys of small stores are counted, up to
`COUNT_LIMIT` of each, both when they have changed. Of windows the first open one is looked up.
Rates are the reader's: the difference of two pictures' counters by that of their `at_ms`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Protocol, runtime_checkable

from actors.ports import TopicPartition
from actors.runtime.meters import Histogram, QueryMeters, RestoreMeter, TaskMeters, WorkerMeters
from actors.runtime.replicas.standbys import StandbyState
from actors.runtime.spec import WINDOW_MARGIN_MS
from actors.runtime.task import processor
from actors.runtime.task.task import Task
from actors.runtime.windows.committed import oldest_open_ms
from actors.runtime.windows.store import WindowStore
from stores.errors import StoreError
from stores.ports import PartitionStore

ENGINE = "interpreted" if processor.__file__.endswith(".py") else "compiled"
"""How the modules run that each record passes: `setup.py` lists those that a wheel may have compiled."""
PARKED_LIMIT = 1_000
"""More parked messages of a partition aren't counted: "at least so many"."""
_PARKED = (b"p", b"q")
COUNT_LIMIT = 1_000
"""Stores of up to so many keys are counted when they changed; RocksDB's estimate has deletes and overwritten values."""
_ESTIMATE_LIMIT = 20 * COUNT_LIMIT
STILL_MS = 60_000
"""A copy whose log wasn't looked at for so long stands still: one is looked at each second, of thousands less often."""


@runtime_checkable
class Measured(Protocol):
    """A store that has figures about itself."""

    def figures(self) -> dict[str, int]:
        """Return the figures by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramStatus:
    """How often something took how long: `buckets` are (upper bound in seconds, how often up to it)."""

    buckets: list[tuple[float, int]]
    count: int
    sum_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatus:
    """A store's partition. None where it can't be read at the moment.

    Attributes:
        name: the store's.
        keys: how many, expired ones too; RocksDB's estimate unless `keys_exact`.
        size_bytes: tables on disk and what is in memory of newer writes.
        changelog_topic, changelog_offset: up to which offset of its changelog it goes.
        figures: RocksDB's, by its names.
    """

    name: str
    keys: int | None
    size_bytes: int | None
    changelog_topic: str
    changelog_offset: int | None
    figures: dict[str, int]
    keys_exact: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowStatus:
    """The windows of a store, and their progress in a partition.

    Attributes:
        name: the store's.
        windows: the kind, with its sizes.
        grace_ms, retention_ms: as declared.
        oldest_open_ms: about the start of the oldest open window, Unix milliseconds; None if there is none, or it can't
            be read at the moment. Sessions and sliding windows are known where they have `on_close`.
    """

    name: str
    windows: str
    grace_ms: int
    retention_ms: int
    oldest_open_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InputStatus:
    """A partition of one of a task's inputs: see `TaskStatus`."""

    topic: str
    committed_offset: int | None
    end_offset: int | None
    lag: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedStatus:
    """A feed of a task: an input, or the first input of a task upstream. `time_ms` is None where it has no time."""

    topic: str
    partition: int
    time_ms: int | None

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatus:
    """A partition of an actor. Counters are of this process, `records` and what follows of what is committed.

    Attributes:
        state: as in `actors._core.task.lifecycle`: "running", "restoring", …
        epoch: of its ownership; 0 before the first claim.
        reason: why it stands still, None if it doesn't.
        committed_offset, end_offset: of the first input; None where unknown. The end is what the last fetch or takeover
            saw: of a partition whose queue is full it is some seconds old, of one that stands still up to a minute.
        lag: the records between both, of all inputs, None where unknown.
        inputs: all inputs, each with its own offsets and lag.
        windows: of each window store, what windows it has.
        queued: records that wait in memory.
        last_commit_ms, last_commit_at_ms: how long the newest commit took, and when it began; None before the first.
        overlay_bytes: about what is held in memory until the next commit.
        pending_timers: about how many, None if the actor has no timers.
        parked: how many messages are parked, None if the actor parks none or it is unknown now.
        parked_effects: how many effects are parked, one a key; None if the actor has none or it is unknown yet.
        fences: by reason, how often the task dropped its work: "fenced", "outcome_unknown", "migrated", …
        ahead_ms: how far the partition's time is ahead of the worker's clock.
        late: by window store, how many messages came too late for all their windows; by table, for its history.
        late_by_clock: likewise, those that only `close_when_idle` made late, which aren't among `late`.
        stream_ms: stream time as it is committed, Unix milliseconds; None where there is none.
        waits_for: the feed that holds stream time back while another is ahead; None if none does.
        held_s: for how long stream time has stood because of that.
        ahead: the feed whose time is the largest.
        kept_s: for how long the changelog of its windows keeps what was written, the shortest; None without windows.
        paused_at_ms, paused_by: when and by whom it was paused, Unix milliseconds; None if it isn't paused.
    """

    actor: str
    topic: str
    partition: int
    state: str
    epoch: int
    reason: str | None
    committed_offset: int | None
    end_offset: int | None
    lag: int | None
    queued: int
    records: int
    outputs: int
    writes: int
    commits: HistogramStatus
    last_commit_ms: float | None
    last_commit_at_ms: int | None
    overlay_bytes: int
    pending_timers: int | None
    parked: int | None
    takeovers: int
    fences: dict[str, int]
    restores: HistogramStatus
    restored_records: int
    restoring: list[RestoreMeter]
    stores: list[StoreStatus]
    parked_effects: int | None = None
    misplaced: int = 0
    refused_commands: int = 0
    ahead_ms: int = 0
    late: dict[str, int] = field(default_factory=dict)
    late_by_clock: dict[str, int] = field(default_factory=dict)
    stream_ms: int | None = None
    waits_for: FeedStatus | None = None
    held_s: float = 0.0
    ahead: FeedStatus | None = None
    kept_s: float | None = None
    paused_at_ms: int | None = None
    paused_by: str | None = None
    inputs: list[InputStatus] = field(default_factory=list)
    windows: list[WindowStatus] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStatus:
    """Questions over HTTP: those under way, and by HTTP status those that were answered."""

    in_flight: int
    codes: dict[int, int]
    durations: HistogramStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokersStatus:
    """How a worker gets on with its brokers.

    Attributes:
        unreachable: how many brokers it tried to connect to within the last minute, in vain.
        group_silent_s: for how long the group's coordinator hasn't answered heartbeats, 0 if it answers.
        throttled_s: for how long the brokers' quotas held up its clients, the sum over all connections.
    """

    unreachable: int = 0
    group_silent_s: float = 0.0
    throttled_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """A worker. Times are Unix milliseconds; `started_at_ms` is None before it has started.

    Attributes:
        app, worker, address: the app's id, the worker's name, where its web server is ("" if nowhere).
        rebalances: how often it was assigned partitions.
        partitions: by actor, how many partitions it has, whoever owns them.
        tasks: those that it owns now, by actor and partition.
        parked: by actor, the parked messages of this worker's partitions.
        copies: what it keeps of partitions that others own, a store each.
        assigned_copies: by actor and role ("standby", "warm-up"), of how many partitions it shall keep copies.
        clock_off_ms: how far the machine's clock is ahead of the time that is known, 0 while it is followed.
        brokers: how it gets on with them.
        commit_interval_s: how long what is handled waits for its commit at most, None where that is unknown.
    """

    app: str
    worker: str
    address: str
    started_at_ms: int | None
    at_ms: int
    rebalances: int
    partitions: dict[str, int] = field(default_factory=dict)
    tasks: list[TaskStatus] = field(default_factory=list)
    parked: dict[str, int] = field(default_factory=dict)
    queries: QueryStatus
    copies: list[StandbyState] = field(default_factory=list)
    assigned_copies: dict[str, dict[str, int]] = field(default_factory=dict)
    clock_off_ms: int = 0
    brokers: BrokersStatus = field(default_factory=BrokersStatus)
    commit_interval_s: float | None = None

    def stands_still(self, copy: StandbyState) -> bool:
        """Return whether one of its copies isn't followed: for an error, or while a restore goes first."""
        return self.at_ms - copy.looked_ms > STILL_MS

    def followed_copies(self) -> Counter[tuple[str, str]]:
        """Count by actor and role the partitions whose copies it follows, with all of their stores."""
        roles = {(copy.actor, copy.partition): copy.role for copy in self.copies}
        still = {(copy.actor, copy.partition) for copy in self.copies if self.stands_still(copy)}
        return Counter((place[0], role.value) for place, role in roles.items() if place not in still)


def measured(meters: WorkerMeters, tasks: Sequence[Task]) -> dict[str, Any]:
    """Return the fields of `WorkerStatus` that a worker's meters and tasks have."""
    statuses = [_task(task) for task in tasks]
    parked: dict[str, int] = {}
    for status in statuses:
        if status.parked is not None:
            parked[status.actor] = parked.get(status.actor, 0) + status.parked
    return {
        "started_at_ms": meters.started_at_ms or None,
        "rebalances": meters.rebalances,
        "tasks": statuses,
        "parked": parked,
        "queries": _queries(meters.queries),
    }


def _task(task: Task) -> TaskStatus:
    meters, stores = task.meters, task.committed or {}
    inputs = [_input(task, source) for source in task.sources]
    timers = None if task.spec.timers is None else _keys(stores.get(task.spec.timers.name))
    return TaskStatus(
        actor=task.spec.name,
        topic=task.spec.topic,
        partition=task.partition,
        state=task.state.value,
        epoch=task.epoch,
        reason=None if task.halted_by is None else str(task.halted_by),
        committed_offset=inputs[0].committed_offset,
        end_offset=inputs[0].end_offset,
        lag=_lag(inputs),
        inputs=inputs,
        queued=task.inbox.queued,
        records=meters.records,
        outputs=meters.outputs,
        writes=meters.writes,
        commits=_histogram(meters.commits),
        last_commit_ms=meters.last_commit_s * 1000 if meters.last_commit_at_ms else None,
        last_commit_at_ms=meters.last_commit_at_ms or None,
        overlay_bytes=task.held_bytes,
        # Each is there by its name and by its time.
        pending_timers=None if timers is None else timers // 2,
        parked=_parked(task, meters, stores),
        parked_effects=None if task.spec.effects is None else meters.parked_effects,
        misplaced=meters.misplaced,
        refused_commands=meters.refused_commands,
        ahead_ms=task.context.clock.ahead_ms,
        # A store with nothing late has a count too: a rate begins with a sample.
        late={name: meters.late[name].count if name in meters.late else 0 for name in task.spec.late_stores},
        late_by_clock=dict(meters.late_by_clock),
        stream_ms=meters.stream_ms,
        **_feeds(task),
        kept_s=min(((store.retention_ms + WINDOW_MARGIN_MS) / 1000 for store in task.spec.windows), default=None),
        paused_at_ms=None if task.paused is None else task.paused.at_ms,
        paused_by=None if task.paused is None else task.paused.by,
        windows=[
            _windows(store, stores.get(store.name)) for store in task.spec.windows if isinstance(store, WindowStore)
        ],
        takeovers=meters.takeovers,
        fences=dict(meters.fences),
        restores=_histogram(meters.restores),
        restored_records=meters.restored_records,
        restoring=[replace(meter) for meter in meters.restoring],
        stores=[_store(task, store.name, stores.get(store.name)) for store in task.spec.stores],
    )


def _feeds(task: Task) -> dict[str, Any]:
    """Return the fields that say what stream time waits for, and what is ahead."""
    time = task.time
    if time is None:
        own_ms = task.meters.stream_ms
        return {} if own_ms is None else {"ahead": _feed(task.sources[0], own_ms)}
    held_s, (holder, held_ms), (foremost, ahead_ms) = time.held_s, time.holder, time.foremost
    return {
        "waits_for": _feed(holder, held_ms) if held_s else None,
        "held_s": held_s,
        "ahead": _feed(foremost, ahead_ms),
    }


def _feed(feed: TopicPartition | None, time_ms: int) -> FeedStatus | None:
    if feed is None:
        return None
    return FeedStatus(topic=feed.topic, partition=feed.partition, time_ms=None if time_ms < 0 else time_ms)


def lag_of(task: Task) -> int | None:
    """Return how many records of all inputs wait, None where that is unknown."""
    return _lag([_input(task, source) for source in task.sources])


def _lag(inputs: Sequence[InputStatus]) -> int | None:
    lags = [one.lag for one in inputs]
    return None if None in lags else sum(lag or 0 for lag in lags)


def _input(task: Task, source: TopicPartition) -> InputStatus:
    """Return the offset up to which an input is handled, and its end.

    An idle task is done with all that was delivered, though nothing may be left to commit behind the last record:
    markers of transactions take offsets too.
    """
    sink = task.context.services.sink
    committed, end = task.meters.committed_offsets.get(source.topic), sink.end_offset(source)
    if source.topic in task.meters.end_offsets:
        end = max(task.meters.end_offsets[source.topic], end or 0)
    if committed is not None and task.is_idle:
        committed = max(committed, sink.position(source) or 0)
        end = max(end or 0, committed)
    lag = None if committed is None or end is None else max(0, end - committed)
    return InputStatus(topic=source.topic, committed_offset=committed, end_offset=end, lag=lag)


def _parked(task: Task, meters: TaskMeters, stores: Mapping[str, PartitionStore]) -> int | None:
    if task.spec.parked is None:
        return None
    store = stores.get(task.spec.parked.name)
    if meters.parked is None and store is not None:
        try:
            meters.parked = sum(1 for _ in islice(store.scan(*_PARKED), PARKED_LIMIT))
        except StoreError:
            return None
    return meters.parked


def _keys(store: PartitionStore | None) -> int | None:
    try:
        return None if store is None else store.estimated_keys()
    except StoreError:
        return None


def _store(task: Task, name: str, store: PartitionStore | None) -> StoreStatus:
    figures: dict[str, int] = {}
    keys = size = offset = None
    is_exact = False
    try:
        if store is not None:
            position = store.position()
            offset = None if position is None else position.changelog_offset
            keys, is_exact = _count(task, name, store, offset)
            if isinstance(store, Measured):
                figures = store.figures()
                size = figures.get("live-sst-files-size", 0) + figures.get("cur-size-all-mem-tables", 0)
    except StoreError:
        # It is being closed or rebuilt.
        pass
    return StoreStatus(
        name=name,
        keys=keys,
        size_bytes=size,
        changelog_topic=task.spec.changelogs[name].topic,
        changelog_offset=offset,
        figures=figures,
        keys_exact=is_exact,
    )


def _windows(store: WindowStore[Any, Any], held: PartitionStore | None) -> WindowStatus:
    oldest_ms = None
    # It may be being closed or rebuilt, or hold what its own task can't read either.
    with suppress(StoreError, ValueError):
        oldest_ms = None if held is None else oldest_open_ms(store, held)
    return WindowStatus(
        name=store.name,
        windows=str(store.windows),
        grace_ms=store.grace_ms,
        retention_ms=store.retention_ms,
        oldest_open_ms=oldest_ms,
    )


def _count(task: Task, name: str, store: PartitionStore, offset: int | None) -> tuple[int, bool]:
    """Return how many keys a store has, and whether that is exact. A store that didn't change isn't counted again."""
    counted = task.meters.counted.get(name)
    if counted is not None and counted[0] == offset:
        return counted[1], True
    estimate = store.estimated_keys()
    if offset is None or estimate > _ESTIMATE_LIMIT:
        return estimate, False
    keys = sum(1 for _ in islice(store.scan(), COUNT_LIMIT + 1))
    if keys > COUNT_LIMIT:
        return max(keys, estimate), False
    task.meters.counted[name] = offset, keys
    return keys, True


def _queries(meters: QueryMeters) -> QueryStatus:
    return QueryStatus(in_flight=meters.in_flight, codes=dict(meters.codes), durations=_histogram(meters.durations))


def _histogram(histogram: Histogram) -> HistogramStatus:
    buckets, below = [], 0
    for bound, count in zip(histogram.bounds, histogram.counts, strict=False):
        below += count
        buckets.append((bound, below))
    return HistogramStatus(buckets=buckets, count=sum(histogram.counts), sum_s=histogram.total)
