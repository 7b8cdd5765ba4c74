"""The runtime's ports: `actors._kafka` implements them with a broker, `actors.testing` in memory.

All offsets are "next" offsets: the one after the last record. All times are Unix milliseconds unless the name says
`_s`.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from actors._core.partitioner import Partitioner
from actors._core.task.pauses import Pause, Release
from actors._core.task.takeover import LogBounds
from actors.errors import RecordError
from stores.ports import SnapshotContent

Headers = Sequence[tuple[str, bytes]]


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


class LogRecord(Protocol):
    """A record as the client's parser makes it, so that nothing is copied.

    `timestamp` is in Unix milliseconds; -1 if it has none.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


InputRecord = LogRecord


@dataclass(slots=True, kw_only=True)
class RefusedRecord:
    """Stands in the place of a record that can't be handled, or of all that are left of an unreadable batch.

    It has no value, so that it is never taken for a message.

    Attributes:
        first_offset: of the first record that it stands for; None if `offset`, that of the last one, is.
        error: why it is refused; the client leaves the error's topic and partition empty.
        original: the record with what can be read of it; None if nothing can.
        stops: the partition stops in front of it whatever the actor's policy.
        may_be_transient: whether it may be readable when it is fetched again.
    """

    offset: int
    error: RecordError
    first_offset: int | None = None
    original: LogRecord | None = None
    stops: bool = False
    may_be_transient: bool = False
    timestamp: int = 0
    key: bytes | None = None
    value: bytes | None = None
    headers: Sequence[tuple[str, bytes]] = ()


class Output(NamedTuple):
    """A record that a handler sent.

    `partition` None means: where murmur2 puts the key; or where a partitioner does. `timestamp_ms` None means: the
    commit's time.
    """

    topic: str
    partition: int | Partitioner | None
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    timestamp_ms: int | None


@dataclass(frozen=True, slots=True)
class Identity:
    """A member of the group in one generation; what makes a claim to a partition checkable."""

    member_id: str
    generation: int


@dataclass(frozen=True, slots=True)
class Committed:
    """A group's committed offset with its metadata."""

    offset: int
    metadata: str


ChangelogWrites = Mapping[bytes, tuple[bytes, bytes | None]]
"""key → (metadata, value or None for a delete): the last write of each key."""


@dataclass(frozen=True, slots=True)
class CommitBatch:
    """The writes of one commit of a task.

    Attributes:
        partition: the task's, which its changelogs share.
        offsets: the task's offset in each input; empty if they stay as they are.
        changelogs: writes by topic.
        outputs: in order.
        size: about how many bytes it takes.
    """

    partition: int
    offsets: Mapping[TopicPartition, Committed]
    changelogs: Mapping[str, ChangelogWrites] = field(default_factory=dict)
    outputs: Sequence[Output] = ()
    size: int = 0

    def __str__(self) -> str:
        """Return the commit's name in errors."""
        return "commit of " + ", ".join(f"{source} at {one.offset}" for source, one in self.offsets.items())


@dataclass(frozen=True, slots=True)
class CommitReceipt:
    """The next offset of each changelog that the commit wrote to, by topic."""

    changelog_offsets: Mapping[str, int]


class TaskLog(Protocol):
    """The writing side of one task. At most one call runs at a time."""

    async def fence(self) -> None:
        """Return when no earlier commit of this worker can take effect any more.

        Raises:
            BrokerUnavailableError: that is unknown.
        """

    async def end_transaction_of(self, transactional_id: str) -> None:
        """End what somebody else's id left open: its owner isn't in the group any more.

        Raises:
            BrokerUnavailableError: it may still be open.
        """

    async def commit(self, batch: CommitBatch) -> CommitReceipt:
        """Make `batch` durable as a whole.

        Raises:
            CommitRefusedError: nothing was committed, because of what is in the batch.
            OutcomeUnknownError: it failed, or may have: `fence` comes next.
            MigratedError: nothing was committed, after `end`.
        """

    def is_ready(self, wake: Callable[[], None]) -> bool:
        """Return whether a commit that isn't due may begin now. If not, records are gathered until `wake` is called."""

    def end(self) -> None:
        """Begin no further commit, and drop those that wait: the partition may be another member's."""

    async def close(self) -> None:
        """Close it. May be called twice."""


class Writer(Protocol):
    """A worker's connection for commits. At most one call runs at a time."""

    async def fence(self) -> None:
        """End what this worker left open, on every partition, and shut out whoever has its transactional id.

        Waits as long as the brokers need.

        Raises:
            BrokerUnavailableError: it may still be open.
        """

    async def end_transaction_of(self, transactional_id: str) -> None:
        """End the open transaction of an id as `TaskLog.end_transaction_of` does."""

    async def write(self, identity: Identity, batches: Sequence[CommitBatch]) -> Sequence[CommitReceipt]:
        """Make all batches durable as a whole. `identity` owns their inputs.

        Raises:
            BatchesRefusedError: nothing was committed, because of some of the batches.
            StaleGenerationError: nothing was committed, because the group has another generation; `fence` is next.
            OutcomeUnknownError: it failed, or may have: nothing but `fence` and `close` works then.
        """

    async def close(self) -> None:
        """Disconnect. May be called twice."""


NO_ID = str(uuid.UUID(int=0))


@dataclass(frozen=True, slots=True)
class TopicIdentity:
    """Which topic a name stands for now. `topic_id` is `str(uuid)`: a topic that is created again has another one.

    It is empty where the brokers give none: a cluster with ZooKeeper whose `inter.broker.protocol.version` is before
    2.8. A changelog's facts have `NO_ID` then.
    """

    topic_id: str
    partitions: int

    @property
    def changelog_id(self) -> str:
        """The id as a changelog's facts have it."""
        return self.topic_id or NO_ID


@dataclass(frozen=True, slots=True)
class LookAnswer:
    """The answer to a look at feeds.

    Attributes:
        commits: committed offsets, of a transaction that is open what was committed before; those that there are.
        ends: high watermarks, with the leader's epoch; asked for when `commits` were answered.
        topics: the topics that exist; asked for when `commits` were answered.
    """

    commits: Mapping[TopicPartition, Committed]
    ends: Mapping[TopicPartition, tuple[int, int]]
    topics: Mapping[str, TopicIdentity]


class GroupView(Protocol):
    """The cluster's view of the group's members and offsets, and of topics."""

    async def is_member(self, identity: Identity) -> bool:
        """Return whether the group still knows this member in this generation."""

    async def committed(self, source: TopicPartition) -> Committed | None:
        """Return the group's committed offset, None only where there provably is none."""

    async def stable_offset(self, source: TopicPartition) -> Committed | None:
        """Return the group's committed offset, None only where there provably is none.

        Raises:
            UnstableOffsetError: an open transaction may change it.
        """

    async def knows(self, member_id: str) -> bool:
        """Return whether the group has this member, in whatever generation."""

    async def left_open(self, own_id: str) -> Collection[str]:
        """Return transactional ids of workers that have a transaction open, and aren't in the group any more.

        `own_id` is the caller's, who is a member. Nobody is named of whom that isn't sure: while the group is
        rebalancing, while one of its members doesn't say which id it has, or with brokers before Kafka 3.0. Calls at
        the same time share their requests.
        """

    async def topic_ids(self, names: Iterable[str]) -> Mapping[str, TopicIdentity]:
        """Return the identities of those of the topics that exist now. Calls at the same time share one request."""

    async def look(
        self, commits: Collection[TopicPartition], ends: Collection[TopicPartition], topics: Collection[str]
    ) -> LookAnswer:
        """Ask for committed offsets, and when they are answered for high watermarks and topics. Asks once.

        Raises:
            BrokerUnavailableError: a broker doesn't answer, or not for one of them.
        """

    async def require_agreement(self, names: Iterable[str]) -> None:
        """Check that all brokers that answer have the same topics, of as many partitions, under these names.

        Raises:
            BrokerUnavailableError: they don't: one that is behind still has a former topic, or hasn't heard of the new;
                or one of the topics may not be described.
        """


class Logs(Protocol):
    """Committed records and bounds of any topic."""

    async def bounds(self, partition: TopicPartition) -> LogBounds:
        """Return the partition's start and its high watermark, as its leader says."""

    def read(
        self, partition: TopicPartition, start: int, end: int, topic_id: str = ""
    ) -> AsyncIterator[tuple[Sequence[LogRecord], int]]:
        """Return chunks of committed records with the next offset to read, until that reaches `end`.

        Waits while an open transaction holds back the last stable offset. With `topic_id`, gives records of the topic
        with this id only.

        Raises:
            RestoreError: the log doesn't have `start` any more.
            ReplacedLogError: the topic has another id, or the broker that was asked hasn't heard of this one yet.
        """

    async def open_records(self, partition: TopicPartition) -> Sequence[LogRecord] | None:
        """Return the records from the oldest open transaction on, None where none is open.

        Some may be of transactions that were committed or aborted since.
        """


class Snapshot(SnapshotContent, Protocol):
    """One partition's snapshot: a store's content up to an offset of its changelog."""

    @property
    def changelog(self) -> str:
        """Return the topic that it was made from."""

    @property
    def partition_count(self) -> int:
        """Return how many partitions that had."""

    @property
    def keys(self) -> int:
        """Return how many keys it holds, estimated if a worker wrote it."""

    def fetched(self) -> AbstractAsyncContextManager[SnapshotContent]:
        """Return the content with its files on this machine, for the time of the context.

        Raises:
            SnapshotError: on entry: files are missing, damaged, or can't be read.
        """


class Snapshots(Protocol):
    """Where snapshots of an app's stores lie."""

    def find(self, store: str, partition: int) -> Snapshot | None:
        """Return a partition's snapshot, None if there is none. Blocks.

        Raises:
            SnapshotError: it can't be read, or is of another app or store.
        """


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic as the brokers have it."""

    topic: str
    topic_id: str
    partitions: int
    cleanup_policy: str
    delete_retention_ms: int
    max_record_bytes: int


class Following(Protocol):
    """Committed records of some partitions, as they come."""

    async def poll(self, timeout_s: float) -> Mapping[TopicPartition, tuple[Sequence[LogRecord], int]]:
        """Return the next chunk of some partitions with the next offset of each, nothing after `timeout_s`.

        Raises:
            RestoreError: a log doesn't have the offset that would be read next.
            BrokerUnavailableError: it can't go on: follow anew.
        """

    async def close(self) -> None:
        """Close it. May be called twice."""


class TopicLogs(Logs, Protocol):
    """The followers' reads from the brokers."""

    async def facts(self, topic: str) -> TopicFacts | None:
        """Return a topic's facts, None where there provably is no such topic."""

    async def follow(
        self, positions: Mapping[TopicPartition, int], topic_ids: Mapping[str, str] | None = None
    ) -> Following:
        """Begin to read at these offsets, without an end; of topics that are in `topic_ids`, those with these ids only.

        A poll raises ReplacedLogError where a topic has another id.
        """

    async def close(self) -> None:
        """Disconnect. May be called twice."""


@dataclass(frozen=True, slots=True)
class OwnerInput:
    """One input of an `OwnerRecord`.

    `input_offset` is the group's committed offset at the takeover, or at the last clean stop of the worker; None where
    the record doesn't prove that the group had one. `since` and `is_recreated` are those of `TopicIds`.
    """

    topic: str
    topic_id: str
    input_offset: int | None
    since: int = 0
    is_recreated: bool = False


@dataclass(frozen=True, slots=True)
class OwnerRecord:
    """An entry of the leader registry: which worker took a task over, in which epoch.

    `inputs` are in the order of the actor's declaration. `transactional_id` is the one that the worker commits with,
    and `member_id` its id in the group. `changelog_ids` has by store the id of the topic that has its state.
    """

    actor: str
    partition: int
    epoch: int
    worker: str
    address: str
    at_ms: int
    inputs: tuple[OwnerInput, ...] = ()
    transactional_id: str = ""
    member_id: str = ""
    changelog_ids: Mapping[str, str] = field(default_factory=dict)

    @property
    def topic(self) -> str:
        """The first input's name, "" where none is recorded."""
        return self.inputs[0].topic if self.inputs else ""

    def is_of_another(self, topics: Sequence[str]) -> bool:
        """Return whether the task had one input, and the one that it has now is another topic."""
        return len(topics) == len(self.inputs) == 1 and self.topic not in ("", topics[0])


class Owners(Protocol):
    """The leader registry, a compacted topic."""

    topic: str

    async def latest(self, actor: str, partition: int) -> OwnerRecord | None:
        """Return the newest committed record of a task. Waits for the end of open transactions."""

    async def open_claims(self) -> Sequence[OwnerRecord] | None:
        """Return the records of claims that are in open transactions, None if none is open."""

    async def refresh(self) -> None:
        """Read the committed records up to the end as it is now."""

    def pause_of(self, actor: str, partition: int) -> Pause | None:
        """Return a task's pause as of the last `latest` or `refresh`, None if there is none."""

    def released(self, actor: str) -> Sequence[Release]:
        """Return the feeds that an actor's event time goes on without, as of then."""


class Clock(Protocol):
    """Time and waiting."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""

    def wall_ms(self) -> int:
        """Return Unix milliseconds."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""


class TaskSink(Protocol):
    """How a task drives its input partition."""

    def start_from(self, source: TopicPartition, offset: int, topic_id: str = "") -> None:
        """Deliver records from `offset` on, of the topic with this id only; empty means whichever has the name."""

    def stop_delivery(self, source: TopicPartition) -> None:
        """Deliver nothing until `start_from`."""

    def has_room(self) -> None:
        """Say that a queue which was full has room again."""

    def position(self, source: TopicPartition) -> int | None:
        """Return the offset that is fetched next: all before it was delivered, or is no record. None if unknown."""

    def end_offset(self, source: TopicPartition) -> int | None:
        """Return the end of a partition as the last fetch saw it, without asking; None if unknown."""

    def stable_offset(self, source: TopicPartition) -> int | None:
        """Return the end of the records that can be fetched, as of the last fetch since `start_from`; None without one.

        Records of open transactions can't, where committed ones are read.
        """


@dataclass(frozen=True, slots=True)
class ActorRequest:
    """A message that wants an answer. `id` is the same each time the same question is asked."""

    id: str
    topic: str
    partition: int
    key: bytes
    value: bytes
    headers: Sequence[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class ActorReply:
    """The reply: "ok" with the encoded value, None for None, or the kind of failure with its text."""

    status: str
    value: bytes | None


class Requests(Protocol):
    """Carries questions, outside of any transaction, and brings their answers."""

    async def ask(self, question: ActorRequest, timeout_s: float) -> ActorReply:
        """Send a question and wait for its answer. A late or repeated answer is dropped.

        Raises:
            TimeoutError: none came in time.
            BrokerUnavailableError: it couldn't be sent.
        """


class Source(TaskSink, Protocol):
    """The worker's one consumer."""

    def check(self) -> None:
        """Raise what went wrong with the membership in the background; `poll` does so too.

        Raises:
            BrokerUnavailableError: it can't go on.
        """

    async def poll(self, wanted: Iterable[TopicPartition], timeout_s: float) -> Mapping[Any, Sequence[Any]]:
        """Return records of the wanted partitions as {partition: records}, after `timeout_s` at the latest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceEvents:
    """The callbacks from a source to its worker.

    Attributes:
        joining: called before the worker joins again and keeps its tasks.
        revoked: called before it joins again without them; it joins when this has returned.
        assigned: called with the new generation, its partitions, and those that have to be handed over.
        handed_over: returns when these are handed over; the worker joins again then.
        dropped: called when the group has forgotten the worker, or may have given its partitions to others.
        room: called when a poll may find more.
        lost: called with a partition that can't be delivered, and why.
        failed: called with an error that ends the worker.
        counted: called with the topics' numbers of partitions before each call of `assigned`.
    """

    joining: Callable[[], None]
    revoked: Callable[[], Awaitable[None]]
    assigned: Callable[[Identity, list[TopicPartition], frozenset[TopicPartition]], None]
    handed_over: Callable[[], Awaitable[None]]
    dropped: Callable[[], None]
    room: Callable[[], None]
    lost: Callable[[TopicPartition, str], None]
    failed: Callable[[BaseException], None]
    counted: Callable[[Mapping[str, int]], None] = lambda _: None
