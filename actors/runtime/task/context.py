"""What a task and its processors share: the partition, the world, and where the task is in its life."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from actors._core.task.commit import CommitMark
from actors._core.task.completed import CompletedOffsets, encode_finished
from actors._core.task.lifecycle import Event, State, advance
from actors._core.task.topic_ids import TopicIds
from actors.errors import MigratedError, RecordError
from actors.ports import Identity, InputRecord, OwnerRecord, TaskLog, TopicPartition
from actors.runtime.clock import PartitionClock
from actors.runtime.committer import Membership
from actors.runtime.meters import TaskMeters
from actors.runtime.spec import ActorSpec, TaskServices, TaskSettings


class Inbox:
    """What waits for a task: filled by the worker and by what runs beside the task, emptied by the task.

    `say_has_room` is called when it was full and has room again.

    Attributes:
        is_open: whether records are taken: from a takeover until its work is dropped.
        queued: how many records wait.
        stopping: the task is to commit what it has handled and to end.
        hurries: what runs isn't waited for any more.
        doubt: why the task has to take over again, None if it needn't.
        delivered: the offset behind the last record that was put in.
        left_at: where the source stood when the task was asked to stop: what it delivers after that is dropped.
        is_last: the worker itself stops, and may not come back soon.
    """

    def __init__(self, limit: int, say_has_room: Callable[[], None]) -> None:
        self.is_open = False
        self.queued = 0
        self.stopping = False
        self.hurries = False
        self.doubt: str | None = None
        self.delivered = 0
        self.left_at: int | None = None
        self.is_last = False
        self._limit = limit
        self._say_has_room = say_has_room
        self._batches: deque[Sequence[InputRecord]] = deque()
        self._wake = asyncio.Event()

    def __bool__(self) -> bool:
        return bool(self._batches)

    @property
    def has_room(self) -> bool:
        """Whether records should be fetched for the task."""
        return self.is_open and not self.stopping and self.queued < self._limit

    def put(self, records: Sequence[InputRecord]) -> None:
        """Add records in offset order. What comes while the task isn't running is dropped, and fetched again later."""
        if not self.is_open or self.stopping:
            return
        self._batches.append(records)
        self.delivered = records[-1].offset + 1
        self.queued += len(records)
        self._wake.set()

    def take(self) -> Sequence[InputRecord]:
        """Return the oldest batch."""
        records = self._batches.popleft()
        was_full, self.queued = self.queued >= self._limit, self.queued - len(records)
        if was_full and self.queued < self._limit:
            self._say_has_room()
        return records

    def records(self) -> Iterator[InputRecord]:
        """Return all that waits, and leave it there."""
        return chain.from_iterable(self._batches)

    def open(self, offset: int) -> None:
        """Take records from this offset on."""
        self.is_open, self.doubt, self.delivered = True, None, offset

    def clear(self) -> None:
        """Drop all records, which are fetched again, and take none until the next takeover."""
        self.is_open = False
        self._batches.clear()
        self.queued = 0

    def wake(self) -> None:
        """End a wait."""
        self._wake.set()

    async def wait(self, seconds: float | None) -> bool:
        """Wait for the next `wake`, at most so long; tell whether it came. One that came before doesn't count."""
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        return self._wake.is_set()


@dataclass(slots=True)
class PoisonTracking:
    """What a task remembers of earlier processors, so that it doesn't run into the same again.

    Attributes:
        careful_until: messages before this offset are committed one by one: the broker refused a commit with them.
        careful_internal_s: internal messages are committed one by one until then, by the monotonic clock.
        dropped: the ids of internal messages that stopped the partition, and that an operator gave up.
        poisoned: by offset, or an internal message's id, why the broker refuses what a message led to.
        given_up: those of them that were skipped or parked; refused again, they stop the partition.
        sweep_after_s: nothing expired is removed before.
        went_back: by changelog, what a commit found that shows that its changelog lost records.
    """

    careful_until: int = 0
    careful_internal_s: float = 0.0
    poisoned: dict[str | int, RecordError] = field(default_factory=dict)
    given_up: set[str | int] = field(default_factory=set)
    sweep_after_s: float = 0.0
    went_back: dict[str, str] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)


@dataclass(slots=True, kw_only=True)
class TaskContext:
    """One partition of one actor as its task holds it.

    `is_storing` is true while what was committed goes into the stores: they and their positions may disagree then.
    `waits_for_commit` is true while the run loop does nothing but wait for a commit's end.
    `claimed` is what the registry says of this owner. `topics` are the ids that the takeover found, for the marks of
    this owner's commits.
    `backlog_end` is the input's end as the takeover saw it. `now_ms` is the partition's time as it was last committed,
    or is about to be; `clock` goes on from there.
    """

    spec: ActorSpec
    partition: int
    member: Membership
    log: TaskLog
    services: TaskServices
    settings: TaskSettings
    inbox: Inbox
    poison: PoisonTracking = field(default_factory=PoisonTracking)
    state: State = State.FENCING
    epoch: int = 0
    transaction: int = 0
    backlog_end: int = 0
    now_ms: int = 0
    failures: int = 0
    is_storing: bool = False
    waits_for_commit: bool = False
    claimed: OwnerRecord | None = None
    topics: TopicIds = field(default_factory=TopicIds)
    meters: TaskMeters = field(default_factory=TaskMeters)
    clock: PartitionClock = field(init=False)
    _commit_waits: list[asyncio.Future[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = PartitionClock(self.services.clock)

    @property
    def identity(self) -> Identity:
        """The worker's member id and generation now."""
        return self.member.identity

    @property
    def source(self) -> TopicPartition:
        """The input partition."""
        return TopicPartition(self.spec.topic, self.partition)

    def advance(self, event: Event) -> None:
        """Go on to the next state."""
        self.state = advance(self.state, event)
        self.is_storing = False
        if self._commit_waits:
            self._wake()

    def commit_end(self, timeout_s: float) -> asyncio.Future[None] | None:
        """Return what is done when the commit that is under way ends, however it ends; None if none is.

        It raises TimeoutError where the commit takes longer.
        """
        if self.state is not State.COMMITTING:
            return None
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        self._commit_waits.append(ended)
        timer = loop.call_later(timeout_s, _expire, ended)
        ended.add_done_callback(lambda _: timer.cancel())
        return ended

    def _wake(self) -> None:
        waits, self._commit_waits = self._commit_waits, []
        for wait in waits:
            if not wait.done():
                wait.set_result(None)

    def mark(self, completed: CompletedOffsets) -> str:
        """Return the offset metadata of the next commit."""
        self.transaction += 1
        finished = encode_finished(completed.next_offset, completed.finished) if completed.finished else ""
        nonce = uuid.uuid4().hex[:12]
        return CommitMark(self.epoch, self.transaction, nonce, finished, self.now_ms, self.topics).encode()

    async def confirm(self) -> None:
        """Ask the group whether the partition is still ours.

        A takeover calls it twice: before the fence, so that a zombie doesn't fence the new owner; and after the fence,
        where the answer counts.

        Raises:
            MigratedError: it isn't.
        """
        while not await self.services.group.is_member(identity := self.identity):
            # The next generation may have begun, of which the worker doesn't know yet what is its.
            if not await self.member.changed(identity):
                raise MigratedError(
                    f"the group doesn't know {identity.member_id} in generation {identity.generation} any more"
                )


def _expire(wait: asyncio.Future[None]) -> None:
    if not wait.done():
        wait.set_exception(TimeoutError())
