"""Reports of all workers of the group, each asked for at the worker's address.

Addresses are in the leader registry, and of workers that never owned anything in what members told the group. A worker
is known until `FORGET_MS` after its last answer, one that never owned anything from its first answer on. Workers are
asked when somebody looks, once a second at most, however many look.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import aiohttp
import msgspec

from actors._core.logs import escaping
from actors._core.origins import origin_of
from actors._core.outside import MALFORMED
from actors._kafka.consume.standby_owners import Members
from actors.errors import ActorsError, NotReadyError
from actors.ports import OwnerRecord
from actors.runtime.observe.status import TaskStatus, WorkerStatus
from actors.web.dashboard.waiting import Waiting
from actors.web.problems import Problem
from actors.web.queries.routing import KNOWN
from actors.web.queries.service import QueryService
from actors.web.workers import Limits, WorkerClient

logger = escaping(logging.getLogger(__name__))

STATUS_PATH = "/dashboard/status.json"
REST_S = 1.0
MEMBERS_S = 5.0
"""The coordinator is asked no more often for the group's members."""
REGISTRY_S = 2.0
"""The registry is read no more often: a task that moved shows in its new owner's answer anyway."""
ANSWER_S = 3.0
SILENT_ANSWER_S = 0.5
"""How long a page waits for a worker that didn't answer the last time."""
MAX_REPORT_BYTES = 4 * 1024 * 1024
"""Of one worker's report; one with a thousand partitions has about 1 MiB."""
MAX_REPORTS_BYTES = 32 * 1024 * 1024
"""Of all reports together."""
FORGET_MS = 3_600_000
MAX_WORKERS = 200
WINDOW_MS = 10_000
"""Rates are of about the last 10 s."""

TaskKey = tuple[str, int]
Owners = Mapping[TaskKey, OwnerRecord]


class Report(msgspec.Struct, frozen=True):
    """A worker's report about itself."""

    status: WorkerStatus
    waiting: Waiting


@dataclass(frozen=True, slots=True)
class Pace:
    """Speed of a task: None while unknown, or without a commit in the last 10 s."""

    records_per_s: float | None = None
    commit_ms: float | None = None


@dataclass(frozen=True, slots=True)
class _Counts:
    records: int
    commits: int
    commit_s: float


@dataclass(slots=True)
class Seen:
    """A worker as far as this one knows.

    Attributes:
        report: its last.
        answered_ms, silent_since_ms: when it answered last, and since when it doesn't; Unix milliseconds.
        trouble: why there is no answer.
        pace: of its tasks.
    """

    worker: str
    address: str
    report: Report | None = None
    answered_ms: int | None = None
    silent_since_ms: int | None = None
    trouble: str = ""
    pace: dict[TaskKey, Pace] = field(default_factory=dict)
    _past: deque[tuple[int, dict[TaskKey, _Counts]]] = field(default_factory=deque)

    @property
    def status(self) -> WorkerStatus | None:
        """Its last answer; None while it doesn't answer."""
        return None if self.report is None or self.silent_since_ms is not None else self.report.status

    @property
    def waiting(self) -> Waiting | None:
        """The entries that wait there as of its last answer; None while it doesn't answer."""
        return None if self.report is None or self.silent_since_ms is not None else self.report.waiting

    @property
    def tasks(self) -> list[TaskStatus]:
        """Its partitions as of its last answer; none while it doesn't answer."""
        return [] if self.status is None else self.status.tasks

    def answered(self, report: Report, now_ms: int) -> None:
        """Take in an answer."""
        status = report.status
        if self.report is not None and self.report.status.started_at_ms != status.started_at_ms:
            # Another process of the same name.
            self._past.clear()
        self.report, self.answered_ms, self.silent_since_ms, self.trouble = report, now_ms, None, ""
        self.address = status.address or self.address
        counts = {
            (task.actor, task.partition): _Counts(task.records, task.commits.count, task.commits.sum_s)
            for task in status.tasks
        }
        past = self._past
        past.append((status.at_ms, counts))
        # One that is older than the window stays, so that there is always something to compare with.
        while len(past) > 2 and past[1][0] <= status.at_ms - WINDOW_MS:
            past.popleft()
        then_ms, before = past[0]
        recently_ms = status.at_ms - WINDOW_MS
        last = {
            (task.actor, task.partition): task.last_commit_ms
            for task in status.tasks
            if (task.last_commit_at_ms or 0) >= recently_ms
        }
        self.pace = {
            key: _pace(before.get(key), now, (status.at_ms - then_ms) / 1000, last.get(key))
            for key, now in counts.items()
        }

    def failed(self, trouble: str, now_ms: int) -> None:
        """Note that it didn't answer."""
        self.silent_since_ms = self.silent_since_ms or now_ms
        self.trouble = trouble
        self.report = None
        self._past.clear()


def _pace(before: _Counts | None, now: _Counts, seconds: float, last_commit_ms: float | None) -> Pace:
    # Fewer than before: another process of the same name.
    if before is None or seconds <= 0 or now.records < before.records or now.commits < before.commits:
        return Pace(None, last_commit_ms)
    commits = now.commits - before.commits
    commit_ms = (now.commit_s - before.commit_s) / commits * 1000 if commits else last_commit_ms
    return Pace((now.records - before.records) / seconds, commit_ms)


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The group at one moment.

    Attributes:
        worker: the one that drew it.
        owners: the leader registry, of actors that the app has.
        partitions: by actor, how many it has, in the order of the actors' names.
        trouble: why the registry can't be read; "" if it can.
        unreadable: which members of the group can't be understood, for a person.
    """

    app: str
    worker: str
    at_ms: int
    owners: Owners
    partitions: Mapping[str, int]
    workers: list[Seen]
    trouble: str = ""
    unreadable: Sequence[str] = ()


class Group:
    """Asks the workers.

    Args:
        app: the app's id.
        own_report: what this worker says about itself.
    """

    def __init__(self, app: str, own_report: Callable[[], Awaitable[Report]]) -> None:
        self._app = app
        self._own_report = own_report
        self._known: dict[str, Seen] = {}
        self._members = Members([], [])
        self._members_s = float("-inf")
        # Members at addresses where nobody known is, and whose names only they can tell.
        self._strangers: dict[str, Seen] = {}
        self._cluster: ClusterStatus | None = None
        self._looked_s = 0.0
        self._lock = asyncio.Lock()

    async def look(self, service: QueryService) -> ClusterStatus:
        """Return the group as it was a second ago at most."""
        async with self._lock:
            if self._cluster is None or time.monotonic() - self._looked_s >= REST_S:
                self._cluster = await self._look(service)
                self._looked_s = time.monotonic()
        return self._cluster

    async def _look(self, service: QueryService) -> ClusterStatus:
        (owners, trouble), _ = await asyncio.gather(_owners(service), self._find_members(service))
        for record in owners.values():
            found = self._known.setdefault(record.worker, Seen(record.worker, record.address))
            found.address = record.address
        here = self._known.setdefault(service.worker, Seen(service.worker, service.address))
        here.answered(await self._own_report(), _now_ms())
        others = [seen for seen in self._known.values() if seen is not here]
        self._meet()
        room = Room()
        asked = (*others, *self._strangers.values())
        await asyncio.gather(*(ask_worker(service.workers, seen, room) for seen in asked))
        self._know()
        self._forget({record.worker for record in owners.values()} | {here.worker})
        return ClusterStatus(
            app=self._app,
            worker=here.worker,
            at_ms=_now_ms(),
            owners=owners,
            partitions={name: service.actors[name].partition_count for name in sorted(service.actors)},
            workers=sorted(self._known.values(), key=lambda seen: seen.worker),
            trouble=trouble,
            unreadable=self._members.troubles,
        )

    async def _find_members(self, service: QueryService) -> None:
        """Ask the group's coordinator now and then; without an answer what it said before stands."""
        if time.monotonic() - self._members_s < MEMBERS_S:
            return
        try:
            async with asyncio.timeout(ANSWER_S):
                found = await service.members()
                # None are known while the group rebalances.
                if found.addresses or found.troubles:
                    self._members = found
        except (ActorsError, TimeoutError):
            pass
        self._members_s = time.monotonic()

    def _meet(self) -> None:
        """Note the members' addresses at which no known worker answers: another one may run there."""
        known = {seen.address for seen in self._known.values() if seen.silent_since_ms is None}
        addresses = [address for address in self._members.addresses if address not in known][:MAX_WORKERS]
        self._strangers = {address: self._strangers.get(address) or Seen("", address) for address in addresses}

    def _know(self) -> None:
        """Add workers that reported their names, unless one of that name answers at another address."""
        for seen in self._strangers.values():
            if seen.status is None:
                continue
            before = self._known.get(seen.worker)
            if before is None or before.silent_since_ms is not None:
                self._known[seen.worker] = seen

    def _forget(self, owning: set[str]) -> None:
        """Forget workers that are long gone or that another has replaced, the longest gone first if there are many."""
        answering = {seen.address for seen in self._known.values() if seen.silent_since_ms is None}
        gone = [seen for seen in self._known.values() if seen.silent_since_ms is not None and seen.worker not in owning]
        gone.sort(key=lambda seen: seen.silent_since_ms or 0)
        too_many = len(self._known) - MAX_WORKERS
        for number, seen in enumerate(gone):
            is_old = (seen.silent_since_ms or 0) < _now_ms() - FORGET_MS
            if number < too_many or is_old or seen.address in answering:
                del self._known[seen.worker]


async def _owners(service: QueryService) -> tuple[Owners, str]:
    """Return the registry, and why it isn't as of now."""
    directory, trouble = service.router.directory, ""
    found: Owners
    try:
        found = await directory.owners(since_s=time.monotonic() - REGISTRY_S)
        trouble = directory.trouble()
    except NotReadyError as error:
        found, trouble = {}, str(error)
        with contextlib.suppress(NotReadyError):
            found = await directory.owners(since_s=KNOWN)
    # It remembers actors that the app doesn't have any more.
    counts = {name: spec.partition_count for name, spec in service.actors.items()}
    return {key: record for key, record in found.items() if key[1] < counts.get(key[0], 0)}, trouble


class Room:
    """Memory that the reports of a look at the group may take."""

    def __init__(self) -> None:
        self._left = MAX_REPORTS_BYTES

    def take(self, size: int) -> None:
        """Count bytes of a report; `NotReadyError` if there are too many."""
        self._left -= size
        if self._left < 0:
            raise NotReadyError(f"the workers' reports have more than {MAX_REPORTS_BYTES} bytes together")


async def ask_worker(workers: WorkerClient, seen: Seen, room: Room) -> None:
    """Ask another worker; what it says, or that it doesn't, is noted."""
    if not seen.address:
        seen.failed("it has no web server", _now_ms())
        return
    answer_s = ANSWER_S if seen.silent_since_ms is None else SILENT_ANSWER_S
    try:
        limits = Limits(max_bytes=MAX_REPORT_BYTES, took=room.take)
        raw = await workers.fetch("GET", seen.address, STATUS_PATH, answer_s=answer_s, limits=limits)
        report = read_report(raw)
    except Problem as problem:
        seen.failed(f"it answered {problem.status}: {problem.detail}", _now_ms())
    except TimeoutError:
        seen.failed("it doesn't answer in time", _now_ms())
    except (aiohttp.ClientError, ActorsError, OSError) as error:
        seen.failed(str(error) or type(error).__name__, _now_ms())
    except MALFORMED:
        seen.failed("its answer can't be read: another release, or another program, may run there", _now_ms())
    else:
        if seen.worker in ("", report.status.worker):
            seen.worker = report.status.worker
            seen.answered(report, _now_ms())
        else:
            seen.failed(f"worker {report.status.worker} answers at its address", _now_ms())


def read_report(raw: bytes) -> Report:
    """Read what a worker says about itself.

    Raises:
        One of `MALFORMED`: it is something else, or has numbers of more than 64 bits, which JSON may have and pages
            can't calculate with, or an address that isn't an origin.
    """
    report = msgspec.json.decode(raw, type=Report)
    # Its integers have 64 bits: that looks at each.
    msgspec.msgpack.encode(report)
    if report.status.address:
        origin_of(report.status.address)
    return report


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
