"""What a task and its processors share: the partition, the world, and where the task is in its life."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field

from actors._core.task.commit import CommitMark
from actors._core.task.completed import CompletedOffsets, encode_finished
from actors._core.task.lifecycle import Event, State, advance
from actors._core.task.topic_ids import TopicIds
from actors.errors import MigratedError, RecordError
from actors.ports import Identity, OwnerRecord, TaskLog, TopicPartition
from actors.runtime.clock import PartitionClock
from actors.runtime.meters import TaskMeters
from actors.runtime.spec import ActorSpec, TaskServices, TaskSettings
from actors.runtime.task.inbox import Inbox


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
        went_back: by store, what a commit found that shows that its changelog lost records.
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
    `claimed` is what the registry says of this owner. `topics` are the ids that the takeover found, for the marks of
    this owner's commits.
    `backlog_end` is the input's end as the takeover saw it. `now_ms` is the partition's time as it was last committed,
    or is about to be; `clock` goes on from there.
    """

    spec: ActorSpec
    partition: int
    identity: Identity
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
    claimed: OwnerRecord | None = None
    topics: TopicIds = field(default_factory=TopicIds)
    meters: TaskMeters = field(default_factory=TaskMeters)
    clock: PartitionClock = field(init=False)
    _commit_waits: list[asyncio.Future[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = PartitionClock(self.services.clock)

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
        """Give what is done when the commit that is under way ends, however it ends; None if none is.

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
        """Give the offset metadata of the next commit."""
        self.transaction += 1
        finished = encode_finished(completed.next_offset, completed.finished) if completed.finished else ""
        nonce = uuid.uuid4().hex[:12]
        return CommitMark(self.epoch, self.transaction, nonce, finished, self.now_ms, self.topics).encode()

    async def confirm(self) -> None:
        """Ask whether the partition is still ours. Before fencing it spares the new owner a fence; then it decides.

        Raises:
            MigratedError: it isn't.
        """
        if not await self.services.group.is_member(self.identity):
            raise MigratedError(
                f"the group doesn't know {self.identity.member_id} in generation {self.identity.generation} any more"
            )


def _expire(wait: asyncio.Future[None]) -> None:
    if not wait.done():
        wait.set_exception(TimeoutError())
