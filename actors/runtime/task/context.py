"""The context that a task and its processors share: partition, ports to the world, state of the task."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from actors._core.task.commit import CommitMark
from actors._core.task.completed import encode_finished
from actors._core.task.lifecycle import Event, State, advance
from actors.errors import MigratedError, RecordError
from actors.ports import CommitBatch, Committed, Identity, OwnerRecord, TaskLog, TopicPartition
from actors.runtime.clock import PartitionClock
from actors.runtime.committer import Membership
from actors.runtime.handlers.effect import Outcome
from actors.runtime.inputs.inbox import Inbox
from actors.runtime.inputs.progress import InputProgress
from actors.runtime.message.publishing import Publications
from actors.runtime.message.task_state import TaskState
from actors.runtime.meters import TaskMeters
from actors.runtime.spec import ActorSpec, TaskServices, TaskSettings
from stores._core.overlay import Writes

CAREFUL_INTERNAL_S = 30.0
"""How long internal messages are committed one by one after a refused commit."""
MessageId = str | tuple[str, int]
"""A message's identity within its task: an internal message's id, or an input record's topic and offset."""


Batched = dict[str, Writes]
"""By changelog."""


@dataclass(slots=True)
class PoisonTracking:
    """A task's memory of earlier processors, so that it doesn't meet the same error, or make the same call, again.

    Attributes:
        careful_until: by input topic, messages before this offset are committed one by one: the broker refused a commit
            with them.
        careful_internal_s: internal messages are committed one by one until then, by the monotonic clock.
        dropped: the ids of internal messages that stopped the partition, and that an operator gave up.
        poisoned: by `actors.runtime.task.handling.identity` why a message isn't handled again: the broker refuses what
            it led to, or it is in `held_up`.
        held_up: messages whose handlers held the event loop for longer than a session, again and again. The worker
            keeps them for the partition's next task.
        given_up: those of them that were skipped or parked; refused again, they stop the partition.
        sweep_after_s: nothing expired is removed before.
        went_back: by changelog, what a commit found that shows that its changelog lost records.
        succeeded: by id, calls of effects whose outcomes weren't committed.
    """

    careful_until: dict[str, int] = field(default_factory=dict)
    careful_internal_s: float = 0.0
    poisoned: dict[MessageId, RecordError] = field(default_factory=dict)
    given_up: set[MessageId] = field(default_factory=set)
    sweep_after_s: float = 0.0
    went_back: dict[str, str] = field(default_factory=dict)
    held_up: dict[MessageId, RecordError] = field(default_factory=dict)
    dropped: set[MessageId] = field(default_factory=set)
    succeeded: dict[str, Outcome] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class TaskContext:
    """One partition of one actor as its task holds it.

    `is_storing` is true while what was committed goes into the stores: they and their positions may disagree then.
    `waits_for_commit` is true while the run loop does nothing but wait for a commit's end.
    `claimed` is what the registry says of this owner. `now_ms` is the partition's time as it was last committed, or is
    about to be; `clock` goes on from there.
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
    now_ms: int = 0
    failures: int = 0
    is_storing: bool = False
    waits_for_commit: bool = False
    claimed: OwnerRecord | None = None
    meters: TaskMeters = field(default_factory=TaskMeters)
    clock: PartitionClock = field(init=False)
    _commit_waits: list[asyncio.Future[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = PartitionClock(self.services.clock)

    @property
    def identity(self) -> Identity:
        """The worker's member id and generation now."""
        return self.member.identity

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

    def marked(self, inputs: Iterable[InputProgress]) -> dict[TopicPartition, Committed]:
        """Return the offsets of the next commit, with the metadata that says which commit it was."""
        self.transaction += 1
        nonce, offsets = uuid.uuid4().hex[:12], {}
        for one in inputs:
            completed, finished = one.completed, ""
            if completed.finished:
                finished = encode_finished(completed.next_offset, completed.finished)
            mark = CommitMark(self.epoch, self.transaction, nonce, finished, self.now_ms, one.topics, one.times)
            offsets[one.source] = Committed(completed.next_offset, mark.encode())
        return offsets

    def last_owner(self, inputs: Sequence[InputProgress]) -> OwnerRecord | None:
        """Return the registry's record of this owner for its last commit; None if nothing of it is new."""
        claimed = self.claimed
        if claimed is None or not self.inbox.is_last:
            return None
        owner = replace(claimed, inputs=tuple(one.owned() for one in inputs))
        return None if owner == claimed else owner

    def batch(
        self, state: TaskState, inputs: Sequence[InputProgress], *, published: Publications, writes: Batched, size: int
    ) -> CommitBatch:
        """Return what is committed with these writes: the inputs' offsets, the outputs, and what the stores publish."""
        outputs, state.outputs, state.output_bytes = state.outputs, [], 0
        for topic, of_topic in writes.items():
            if topic in published:
                outputs.extend(published[topic].records(of_topic))
        for one in inputs:
            one.completed.skip_to(one.next_offset)
        self.now_ms = max(self.now_ms, state.scope.now_ms, state.tools.latest_ms)
        return CommitBatch(self.partition, self.marked(inputs), writes, outputs, size)

    async def confirm(self) -> None:
        """Ask the group whether the partition is still ours.

        A takeover calls it twice: before the fence, so that a worker that isn't a member ends without one; and after
        the fence, which may take long: only that answer counts.

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
