"""Build what a page shows of a cluster: rows, sums, and notices about what needs attention. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, TypeVar

from actors._core.task.lifecycle import State
from actors.runtime.meters import RestoreMeter
from actors.runtime.observe.feeds import HeldTimes
from actors.runtime.observe.status import InputStatus, TaskStatus, WindowStatus, WorkerStatus
from actors.runtime.replicas.standbys import StandbyState
from actors.web.dashboard.group import ClusterStatus, Pace, Seen, TaskKey
from actors.web.dashboard.waiting import ParkedLine
from actors.web.operations import Tone
from actors.web.panels import HeldLock
from stores._core.printable import moment

MAX_ROWS = 100
TELL_GONE_MS = 600_000
"""A worker that went needs attention for so long: it may have been meant to."""
MAX_REASONS = 10
"""How many partitions that stand still are told one by one."""

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class Condition:
    """A state for a person: a word, how it looks, what it means."""

    word: str
    tone: Tone
    meaning: str


_TAKING_OVER = Condition("Taking over", "busy", "its owner has just been named and is settling what was left open")
_CONDITIONS = {
    State.RUNNING: Condition("Running", "good", "its records are handled"),
    State.COMMITTING: Condition("Running", "good", "its records are handled"),
    State.FENCING: _TAKING_OVER,
    State.CONFIRMING: _TAKING_OVER,
    State.LOOKING: _TAKING_OVER,
    State.CLAIMING: _TAKING_OVER,
    State.RESTORING: Condition("Restoring", "busy", "its state is read from the changelog"),
    State.HALTED: Condition("Halted", "bad", "it stands still in front of a record that its handler can't take"),
    State.REFUSED: Condition("Refused", "bad", "its state contradicts the committed offset"),
    State.CLOSED: Condition("Moving", "busy", "it is going to another worker"),
}
PAUSED = Condition("Paused", "busy", "an operator has paused it: it keeps its state, and handles nothing")
_SILENT = Condition("Unknown", "warn", "its last owner doesn't answer")
_OWNERLESS = Condition("No owner", "warn", "no worker says that it has it")
_UNHEARD = Condition("Unknown", "warn", "a state that this release doesn't know")
UP = Condition("Up", "good", "it answers")
SILENT = Condition("No answer", "bad", "it doesn't answer, and still is the last known owner of partitions")
GONE = Condition("Gone", "warn", "it doesn't answer, and owns nothing any more")


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that needs attention, and where on the page there is more."""

    tone: Tone
    text: str
    target: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Sums over what is known: None where nothing is. `commit_ms` is the slowest partition's."""

    lag: int | None = None
    records_per_s: float | None = None
    commit_ms: float | None = None
    keys: int | None = None
    keys_exact: bool = False
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """A worker; sums are None while it doesn't answer."""

    seen: Seen
    is_here: bool
    condition: Condition
    partitions: int
    records_per_s: float | None = None
    lag: int | None = None
    copies: int | None = None
    assigned_copies: int | None = None
    still_copies: int = 0


@dataclass(frozen=True, slots=True)
class CopyCell:
    """A copy of a partition, all of its stores together; `lag` is in changelog offsets, None where unknown."""

    worker: str
    role: str
    lag: int | None
    stands_still: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow(Sums):
    """A partition of an actor. Unknown values are None."""

    actor: str
    partition: int
    owner: str | None
    epoch: int | None
    condition: Condition
    reason: str = ""
    waits: str = ""
    restoring: Sequence[RestoreMeter] = ()
    copies: Sequence[CopyCell]
    task: TaskStatus | None = None

    @property
    def is_paused(self) -> bool:
        """True while an operator's pause holds it."""
        return self.task is not None and self.task.paused_at_ms is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRow(Sums):
    """A store of an actor, over the partitions that are known."""

    name: str
    changelog: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRow:
    """A window store of an actor, over the partitions that are known; times are Unix milliseconds.

    Attributes:
        windows: the kind, with its sizes.
        late: how many messages came too late for all of its windows, since the workers started.
        behind_ms, ahead_ms: the least and the largest stream time of a partition; None before the first message.
        oldest_open_ms: about the start of the oldest window that is open.
    """

    name: str
    windows: str
    grace_ms: int
    retention_ms: int
    late: int
    behind_ms: int | None
    ahead_ms: int | None
    oldest_open_ms: int | None


@dataclass(frozen=True, slots=True)
class InputRow:
    """One of an actor's inputs: its lag over the partitions that are known, and the partition with the largest."""

    topic: str
    lag: int | None
    partition: int
    at: InputStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorRow(Sums):
    """An actor: sums over the partitions that are known."""

    name: str
    inputs: list[InputRow]
    partitions: int
    running: int
    condition: Condition
    overlay_bytes: int | None
    parked: int
    effects: int
    retried: int
    timers: int
    next_timer_ms: int | None
    has_timers: bool
    is_paused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class View(Sums):
    """A page's content: of the whole app, or of one actor."""

    app: str
    worker: str
    at_ms: int
    tone: Tone
    verdict: str
    notices: list[Notice]
    up: int
    workers: list[WorkerRow]
    actors: list[ActorRow]
    actor: ActorRow | None
    stores: list[StoreRow]
    windows: list[WindowRow]
    partitions: list[PartitionRow]
    partitions_count: int
    partitions_from: int
    restoring: list[PartitionRow]
    lines: list[ParkedLine]
    lines_count: int
    locks: list[HeldLock]
    locks_count: int | None
    is_cut: bool
    unheard: int
    has_copies: bool


def build(cluster: ClusterStatus, actor: str | None = None, start: int = 0) -> View:
    """Return the view of the app, or of one actor with its partitions from the `start`-th on."""
    rows = _partitions(cluster)
    actors = [_actor(cluster, name, [row for row in rows if row.actor == name]) for name in cluster.partitions]
    workers = [_worker(cluster, seen) for seen in cluster.workers]
    notices = [
        *_worker_notices(cluster, workers),
        *_partition_notices(rows),
        *_pause_notices(cluster, rows),
        *_wait_notices(rows),
        *_copy_notices(workers),
        *_parked_notices(actors),
    ]
    tone, verdict = _verdict(notices, rows)
    own = next((row for row in actors if row.name == actor), None)
    shown = [row for row in rows if actor in (None, row.actor)]
    if actor is None and len(shown) > MAX_ROWS:
        # Those that somebody may have to look at must be among those that are shown.
        shown.sort(key=lambda row: row.condition.tone == "good")
    answers = [seen.waiting for seen in cluster.workers if seen.waiting is not None]
    lines = [line for waiting in answers for line in waiting.lines if actor in (None, line.actor)]
    lines.sort(key=lambda line: (line.actor, line.what, line.partition, line.key))
    held = [waiting.locks_held for waiting in answers if waiting.locks_held is not None]
    of_page = [row for row in actors if actor in (None, row.name)]
    return View(
        app=cluster.app,
        worker=cluster.worker,
        at_ms=cluster.at_ms,
        tone=tone,
        verdict=verdict,
        notices=notices,
        up=sum(row.condition is UP for row in workers),
        workers=workers,
        actors=actors,
        actor=own,
        stores=[] if own is None else _stores(shown),
        windows=[] if own is None else _windows(shown),
        partitions=shown[start : start + MAX_ROWS],
        partitions_count=len(shown),
        partitions_from=start,
        restoring=[row for row in shown if row.restoring][:MAX_ROWS],
        lines=lines[:MAX_ROWS],
        lines_count=sum(row.parked for row in of_page),
        locks=sorted((lock for waiting in answers for lock in waiting.locks), key=lambda lock: lock.name)[:MAX_ROWS],
        locks_count=sum(held) if held else None,
        is_cut=any(waiting.is_cut for waiting in answers),
        unheard=sum(row.task is None for row in shown),
        has_copies=any(row.assigned_copies for row in workers) or any(row.copies for row in shown),
        **_sums(of_page),
    )


def _verdict(notices: Sequence[Notice], rows: Sequence[PartitionRow]) -> tuple[Tone, str]:
    urgent = [notice for notice in notices if notice.tone in ("bad", "warn")]
    if urgent:
        tone: Tone = "bad" if any(notice.tone == "bad" for notice in urgent) else "warn"
        return tone, f"{len(urgent)} things need attention" if len(urgent) > 1 else "1 thing needs attention"
    if notices:
        moves = any(row.condition.tone == "busy" and row.condition is not PAUSED for row in rows)
        return "busy", "Partitions are being taken over" if moves else "Partitions are paused"
    return "good", "Everything runs"


def _partitions(cluster: ClusterStatus) -> list[PartitionRow]:
    found: dict[TaskKey, tuple[Seen, TaskStatus]] = {}
    for seen in cluster.workers:
        for task in seen.tasks:
            key = task.actor, task.partition
            # One that is closing may still be told of by its last owner.
            if key not in found or found[key][1].epoch <= task.epoch:
                found[key] = seen, task
    silent = {seen.worker for seen in cluster.workers if seen.silent_since_ms is not None}
    copies = _copies(cluster)
    held_times = HeldTimes([seen.status for seen in cluster.workers if seen.status is not None], cluster.at_ms)
    rows = []
    for actor, count in cluster.partitions.items():
        for partition in range(count):
            held, kept = found.get((actor, partition)), copies.get((actor, partition), ())
            if held is None:
                rows.append(_unheard(cluster, (actor, partition), silent, kept))
            else:
                seen, task = held
                row = _partition(seen.worker, task, seen.pace.get((actor, partition), Pace()), kept)
                rows.append(replace(row, waits=held_times.text(task)))
    return rows


def _copies(cluster: ClusterStatus) -> Mapping[TaskKey, list[CopyCell]]:
    """Return the copies of each partition, by their workers' names."""
    found: dict[TaskKey, list[CopyCell]] = defaultdict(list)
    for seen in sorted(cluster.workers, key=lambda seen: seen.worker):
        status = seen.status
        if status is None:
            continue
        stores: dict[TaskKey, list[StandbyState]] = defaultdict(list)
        for copy in status.copies:
            stores[copy.actor, copy.partition].append(copy)
        for key, parts in stores.items():
            found[key].append(_copy(seen.worker, status, parts))
    return found


def _copy(worker: str, status: WorkerStatus, parts: Sequence[StandbyState]) -> CopyCell:
    is_known = all(part.lag is not None for part in parts)
    return CopyCell(
        worker=worker,
        role=parts[0].role.value,
        lag=_total(part.lag for part in parts) if is_known else None,
        stands_still=any(status.stands_still(part) for part in parts),
    )


def _unheard(cluster: ClusterStatus, key: TaskKey, silent: set[str], copies: Sequence[CopyCell]) -> PartitionRow:
    """Return the row of a partition that no worker reports, from the registry."""
    record = cluster.owners.get(key)
    is_silent = record is not None and record.worker in silent
    return PartitionRow(
        actor=key[0],
        partition=key[1],
        owner=record.worker if record is not None else None,
        epoch=record.epoch if record is not None else None,
        condition=_SILENT if is_silent else _OWNERLESS,
        copies=copies,
    )


def _partition(owner: str, task: TaskStatus, pace: Pace, copies: Sequence[CopyCell]) -> PartitionRow:
    try:
        condition = _CONDITIONS[State(task.state)]
    except ValueError:
        condition = _UNHEARD
    if task.paused_at_ms is not None and condition.tone == "good":
        condition = PAUSED
    return PartitionRow(
        actor=task.actor,
        partition=task.partition,
        owner=owner,
        epoch=task.epoch or None,
        condition=condition,
        reason=task.reason or "",
        lag=task.lag,
        records_per_s=pace.records_per_s,
        commit_ms=pace.commit_ms,
        keys=_total(store.keys for store in task.stores),
        keys_exact=all(store.keys_exact for store in task.stores),
        size_bytes=_total(store.size_bytes for store in task.stores),
        restoring=task.restoring,
        copies=copies,
        task=task,
    )


def _actor(cluster: ClusterStatus, name: str, rows: Sequence[PartitionRow]) -> ActorRow:
    tasks = [row.task for row in rows if row.task is not None]
    answers = [seen.waiting for seen in cluster.workers if seen.waiting is not None]
    waiting = [one for answer in answers for one in answer.tasks if one.actor == name]
    return ActorRow(
        name=name,
        inputs=_inputs(tasks),
        partitions=len(rows),
        running=sum(row.condition.tone == "good" for row in rows),
        condition=_worst(rows),
        **_sums(rows),
        overlay_bytes=_total(task.overlay_bytes for task in tasks),
        parked=sum(one.parked for one in waiting),
        effects=sum(one.effects for one in waiting),
        retried=sum(one.retried for one in waiting),
        timers=sum(one.timers for one in waiting),
        next_timer_ms=min((one.next_timer_ms for one in waiting if one.next_timer_ms is not None), default=None),
        has_timers=any(task.pending_timers is not None for task in tasks),
        is_paused=bool(rows) and all(row.is_paused for row in rows),
    )


def _inputs(tasks: Sequence[TaskStatus]) -> list[InputRow]:
    parts: dict[str, list[tuple[int, int, InputStatus]]] = {}
    for task in tasks:
        for one in task.inputs:
            parts.setdefault(one.topic, []).append((-1 if one.lag is None else one.lag, task.partition, one))
    rows = []
    for topic, found in parts.items():
        _, partition, at = max(found, key=itemgetter(0))
        rows.append(InputRow(topic, _total(one.lag for _, _, one in found), partition, at))
    return rows


def _worst(rows: Sequence[PartitionRow]) -> Condition:
    order = ("bad", "warn", "busy", "good")
    return min((row.condition for row in rows), key=lambda condition: order.index(condition.tone), default=_OWNERLESS)


def _stores(rows: Sequence[PartitionRow]) -> list[StoreRow]:
    parts = [store for row in rows if row.task is not None for store in row.task.stores]
    names = dict.fromkeys(part.name for part in parts)
    return [
        StoreRow(
            name=name,
            keys=_total(part.keys for part in parts if part.name == name),
            keys_exact=all(part.keys_exact for part in parts if part.name == name),
            size_bytes=_total(part.size_bytes for part in parts if part.name == name),
            changelog=next(part.changelog_topic for part in parts if part.name == name),
        )
        for name in names
    ]


def _windows(rows: Sequence[PartitionRow]) -> list[WindowRow]:
    parts: dict[str, list[tuple[TaskStatus, WindowStatus]]] = {}
    for task in (row.task for row in rows if row.task is not None):
        for one in task.windows:
            parts.setdefault(one.name, []).append((task, one))
    found = []
    for name, held in parts.items():
        times_ms = [task.stream_ms for task, _ in held if task.stream_ms is not None]
        oldest_ms = (one.oldest_open_ms for _, one in held if one.oldest_open_ms is not None)
        declared = held[0][1]
        found.append(
            WindowRow(
                name=name,
                windows=declared.windows,
                grace_ms=declared.grace_ms,
                retention_ms=declared.retention_ms,
                late=sum(task.late.get(name, 0) for task, _ in held),
                behind_ms=min(times_ms, default=None),
                ahead_ms=max(times_ms, default=None),
                oldest_open_ms=min(oldest_ms, default=None),
            )
        )
    return found


def _worker(cluster: ClusterStatus, seen: Seen) -> WorkerRow:
    owned = sum(record.worker == seen.worker for record in cluster.owners.values())
    status, is_here = seen.status, seen.worker == cluster.worker
    if status is None:
        return WorkerRow(seen=seen, is_here=is_here, condition=SILENT if owned else GONE, partitions=owned)
    return WorkerRow(
        seen=seen,
        is_here=is_here,
        condition=UP,
        partitions=len(status.tasks),
        records_per_s=_total(pace.records_per_s for pace in seen.pace.values()),
        lag=_total(task.lag for task in status.tasks),
        copies=status.followed_copies().total(),
        assigned_copies=sum(count for roles in status.assigned_copies.values() for count in roles.values()),
        still_copies=_still(status),
    )


def _still(status: WorkerStatus) -> int:
    """Count the copies that stand still for no reason that the page shows: they wait while partitions are restored."""
    if any(task.restoring for task in status.tasks):
        return 0
    return len({(copy.actor, copy.partition) for copy in status.copies if status.stands_still(copy)})


def _sums(rows: Sequence[Sums]) -> dict[str, Any]:
    return {
        "lag": _total(row.lag for row in rows),
        "records_per_s": _total(row.records_per_s for row in rows),
        "commit_ms": max((row.commit_ms for row in rows if row.commit_ms is not None), default=None),
        "keys": _total(row.keys for row in rows),
        "keys_exact": all(row.keys_exact for row in rows if row.keys is not None),
        "size_bytes": _total(row.size_bytes for row in rows),
    }


def _total(values: Iterable[Number | None]) -> Number | None:
    """Return the sum of the values that aren't None, None if all are."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _worker_notices(cluster: ClusterStatus, rows: Sequence[WorkerRow]) -> list[Notice]:
    notices = []
    if cluster.trouble:
        notices.append(Notice("bad", f"Owners may be out of date: {cluster.trouble}"))
    unreadable = cluster.unreadable
    notices += [Notice("warn", text[0].upper() + text[1:], "workers") for text in unreadable[:MAX_REASONS]]
    if len(unreadable) > MAX_REASONS:
        notices.append(Notice("warn", f"{len(unreadable) - MAX_REASONS} more members can't be understood", "workers"))
    for row in rows:
        if row.condition is SILENT:
            text = (
                f"Worker {row.seen.worker} doesn't answer. Its partitions go to other workers when its session is over"
            )
            notices.append(Notice("bad", text, "workers"))
        elif row.condition is GONE and cluster.at_ms - (row.seen.silent_since_ms or 0) < TELL_GONE_MS:
            notices.append(Notice("warn", f"Worker {row.seen.worker} is gone. It owns nothing any more", "workers"))
    return notices


def _partition_notices(rows: Sequence[PartitionRow]) -> list[Notice]:
    notices = []
    stopped = [row for row in rows if row.condition.tone == "bad"]
    for row in stopped[:MAX_REASONS]:
        reason = row.reason or row.condition.meaning
        text = f"{row.actor}, partition {row.partition} is {row.condition.word.lower()}: {reason}"
        notices.append(Notice("bad", text, "partitions"))
    if len(stopped) > MAX_REASONS:
        notices.append(Notice("bad", f"{len(stopped) - MAX_REASONS} more partitions stand still", "partitions"))
    lost = sum(row.task is None for row in rows)
    if lost:
        what = "partition has no owner that answers" if lost == 1 else "partitions have no owner that answers"
        notices.append(Notice("warn", f"{lost} {what}", "partitions"))
    busy = sum(row.condition.tone == "busy" and row.condition is not PAUSED for row in rows)
    if busy:
        what = "partition is being taken over" if busy == 1 else "partitions are being taken over"
        notices.append(Notice("busy", f"{busy} {what}", "partitions"))
    return notices


def _pause_notices(cluster: ClusterStatus, rows: Sequence[PartitionRow]) -> list[Notice]:
    """Name what is paused: nothing is wrong with it, but somebody has to end it."""
    notices = []
    for actor, count in cluster.partitions.items():
        tasks = [row.task for row in rows if row.actor == actor and row.is_paused and row.task is not None]
        if tasks:
            first = min(tasks, key=lambda task: task.paused_at_ms or 0)
            what = "is paused" if len(tasks) == count else f"is paused in {len(tasks)} of {count} partitions"
            since = f"since {moment(first.paused_at_ms or 0)}, by {first.paused_by}"
            notices.append(Notice("busy", f"{actor} {what}, {since}", "partitions"))
    return notices


def _wait_notices(rows: Sequence[PartitionRow]) -> list[Notice]:
    """Name what event time waits for: windows don't close, and joins hand out nothing, until it goes on."""
    held = [row for row in rows if row.waits]
    notices = [
        Notice("warn", f"Event time of {row.actor}, partition {row.partition} {row.waits}", "partitions")
        for row in held[:MAX_REASONS]
    ]
    if len(held) > MAX_REASONS:
        notices.append(Notice("warn", f"Event time of {len(held) - MAX_REASONS} more partitions waits", "partitions"))
    return notices


def _copy_notices(rows: Sequence[WorkerRow]) -> list[Notice]:
    notices = []
    for row in rows:
        if row.still_copies:
            what = "copy stands" if row.still_copies == 1 else "copies stand"
            text = f"{row.still_copies} {what} still on worker {row.seen.worker}: its log says why"
            notices.append(Notice("warn", text, "workers"))
    return notices


def _parked_notices(actors: Sequence[ActorRow]) -> list[Notice]:
    return [
        Notice(
            "warn",
            f"{row.name}: {row.parked} {'key waits' if row.parked == 1 else 'keys wait'} behind what was parked",
            "parked",
        )
        for row in actors
        if row.parked
    ]
