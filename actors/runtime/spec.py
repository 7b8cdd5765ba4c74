"""The parts that a task is made of: its actor, the worker's settings, the ports to the world."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import Any, Protocol

import msgspec

from actors._core.backoff import Backoff
from actors._core.event_time import EventTime
from actors._core.group.members import Declared
from actors._core.logs import Reminders
from actors._core.partitioner import MURMUR2, PARTITIONERS, Partitioner
from actors._core.task.commit import CommitPolicy
from actors._core.task.policy import STOP_ON_ERROR, Misplaced, OnError, Then
from actors._core.task.takeover import StartRules
from actors.errors import RecordError
from actors.ports import (
    Clock,
    GroupView,
    InputRecord,
    Logs,
    OwnerRecord,
    Owners,
    Requests,
    TaskSink,
)
from actors.runtime.clock import MARGIN_MS
from actors.runtime.commands import OPEN_COMMANDS, CommandKey
from actors.runtime.handlers.effect import Effect, Outcome
from actors.runtime.handlers.methods import Methods
from actors.runtime.message.context import Context
from actors.runtime.message.failures import REMIND_S, cause_of
from actors.runtime.message.outputs import OutputTopic
from actors.runtime.message.publishing import Publications
from actors.runtime.message.store import Store
from actors.runtime.message.table import Table, turns_of
from actors.runtime.requests.replies import Replies
from actors.runtime.state.restore import Changelog, Restorer
from actors.runtime.state.stores import StoreCache
from actors.runtime.windows.closes import TimedStore
from actors.runtime.windows.joins import JoinStore

Handler = Callable[[Context, Any], Awaitable[Any]]

WINDOW_MARGIN_MS = 86_400_000
"""How much longer than its windows are kept a changelog keeps their records."""


class TracedCall(Protocol):
    """A call of an effect as it was recorded: `trace` is the context of the span that recorded it."""

    @property
    def name(self) -> str:
        """The effect's name."""

    @property
    def attempts(self) -> int:
        """How many attempts failed."""

    @property
    def trace(self) -> dict[str, str] | msgspec.UnsetType:
        """The context of the span that recorded the call."""


class Tracing(Protocol):
    """Makes spans of what an actor leads to beside its messages; see `actors.runtime.observe.tracing`."""

    def asks(self, asks: Requests) -> Requests:
        """Return what carries questions with their context."""

    def carried(self) -> dict[str, str]:
        """Return the context of the running code, to be kept."""

    def effect(self, record: TracedCall, attempt: Awaitable[Outcome]) -> Awaitable[Outcome]:
        """Return an attempt of an effect in a span of the trace that it was called in."""

    def passing(self) -> Any:
        """Return the `Propagation` of the headers that the app names; None if it names none."""


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One of an actor's input topics.

    Attributes:
        topic: its name.
        handler: takes the messages.
        decode_key, decode_value: for the bytes of its records.
        partitioner: how its producers place keys.
        tombstones: whether a record with a null value is a message, None.
        event_time: how its values tell their time, if it is declared with `timestamp=`.
        is_keyless: whether a record without a key is a message, though the actor has state by key.
    """

    topic: str
    handler: Handler
    decode_key: Callable[[bytes], Any]
    decode_value: Callable[[bytes], Any]
    partitioner: Partitioner = MURMUR2
    tombstones: bool = False
    event_time: EventTime | None = None
    is_keyless: bool = False


@dataclass(frozen=True, slots=True)
class Feeds:
    """The feeds of an actor's event time; see `actors._core.task.feed_times`.

    Attributes:
        upstream: by input whose writers are declared, the first inputs of these writers.
        connected: the topics of all sources that are connected with the actor through topics with declared writers,
            its own included; empty if it neither reads nor writes such a topic.
        has_readers: whether it writes into a topic whose writers are declared.
        idle_after_s: how long a source has to be at its end before it follows the others.
        behind_ms: how far behind the wall clock sources at their ends follow it; None if they don't.
    """

    upstream: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    connected: frozenset[str] = frozenset()
    has_readers: bool = False
    idle_after_s: float = 1.0
    behind_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlingOptions:
    """The options of `@app.actor` that the runtime reads as they are declared.

    Attributes:
        concurrency: how many messages of different keys are handled at once in a partition.
        on_error: what becomes of a message whose handler raises, or that doesn't decode.
        windows: its window stores, or that of its join, whose rows are among its stores too.
        max_task_idle: how long a task waits for an input at its end before it handles what other inputs have.
    """

    concurrency: int = 1
    on_error: OnError = STOP_ON_ERROR
    windows: tuple[TimedStore, ...] = ()
    max_task_idle: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorParts(HandlingOptions):
    """The fields that an actor's definition and its spec share: options that the runtime reads, and stores.

    Attributes:
        name: the actor's.
        stores: all of its stores.
        effect_functions: by name.
        timers, effects, parked: the stores of these, which are in `stores` too; None for what isn't used.
        order: likewise, of the records that wait to be handled in the order of time.
        methods: what its timers and effects call.
    """

    name: str
    stores: tuple[Store[Any, Any], ...]
    effect_functions: Mapping[str, Effect] = field(default_factory=dict)
    timers: Store[bytes, bytes] | None = None
    effects: Store[bytes, bytes] | None = None
    parked: Store[bytes, bytes] | None = None
    order: Store[bytes, bytes] | None = None
    methods: Methods | None = None

    @property
    def tables(self) -> tuple[Table[Any, Any], ...]:
        """Its tables, each of which is fed by one of its inputs."""
        return tuple(store for store in self.stores if isinstance(store, Table))

    @property
    def obeys_commands(self) -> bool:
        """True if an operator can retry or drop something of the actor; if not, it skips commands."""
        is_kept = any(store is not None for store in (self.parked, self.effects, self.timers))
        return is_kept or any(store.on_close_function is not None for store in self.windows)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSpec(ActorParts):
    """An actor as the runtime needs it.

    An actor may have several inputs with as many partitions each; a task has the partition of its number of all. The
    first one is the actor's address: requests, admin commands, and what timers and effects send have its key and its
    messages' types.

    Attributes:
        inputs: in the order of their declaration.
        partition_count: how many partitions each input has.
        changelogs: by store name.
        encode_message: gives the value and the headers of a message to this actor.
        seen: the stores of ids and answers, by which repeats are skipped; in `stores` too.
        dead_letters: where messages go that are parked, or skipped and buried.
        answers: how its handlers' answers go to who asked; None if they give none.
        tracing: makes spans, if the app wants that; its handlers are wrapped already.
        published: where changes of its stores go beside the changelog.
        misplaced: what becomes of a record in another partition than its key's; None if that isn't looked at.
        commands: what admin commands are checked with; by default all are obeyed.
        max_ahead_ms: how far timestamps may be ahead of the clock where stream time, or a history, goes by them.
        foreign: the topics whose declared writers it isn't among, each with these.
        feeds: what its event time follows; None where that is the records that it handles.
        forwarded: the inputs that only another actor of the app writes: all of them is new, whatever the reset policy.
    """

    inputs: tuple[InputSpec, ...]
    partition_count: int
    changelogs: Mapping[str, Changelog]
    encode_message: Callable[[Any], tuple[bytes, list[tuple[str, bytes]]]] | None = None
    seen: tuple[Store[bytes, bytes], ...] = ()
    dead_letters: OutputTopic | None = None
    answers: Replies | None = None
    tracing: Tracing | None = None
    published: Publications = field(default_factory=dict)
    misplaced: Misplaced | None = None
    commands: CommandKey = OPEN_COMMANDS
    feeds: Feeds | None = None
    foreign: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    forwarded: frozenset[str] = frozenset()
    max_ahead_ms: int = 86_400_000

    def then_for(self, record: InputRecord, failed: RecordError) -> Then:
        """Return what becomes of a message that can't be handled."""
        is_asked = self.answers is not None and self.answers.is_question(record)
        return self.on_error.then_for(cause_of(failed), is_asked=is_asked)

    @property
    def topic(self) -> str:
        """The first input's name."""
        return self.inputs[0].topic

    @property
    def partitioner(self) -> Partitioner:
        """How keys are placed, in all inputs alike."""
        return self.inputs[0].partitioner

    @property
    def topics(self) -> tuple[str, ...]:
        """The inputs' names in the order of their declaration."""
        return tuple(one.topic for one in self.inputs)

    @property
    def event_times(self) -> dict[str, EventTime]:
        """The event times of inputs that are declared with `timestamp=`, by topic."""
        return {one.topic: one.event_time for one in self.inputs if one.event_time is not None}

    def with_handlers(self, wrap: Callable[[Handler], Handler]) -> ActorSpec:
        """Return the actor with each input's handler wrapped, and that of its private methods."""
        inputs = tuple(replace(source, handler=wrap(source.handler)) for source in self.inputs)
        methods = None if self.methods is None else replace(self.methods, handler=wrap(self.methods.handler))
        return replace(self, inputs=inputs, methods=methods)

    @property
    def declared(self) -> Declared:
        """The parts that other workers of the group have to declare alike. Functions that place keys count as alike."""
        partitioner = self.partitioner.name if self.partitioner.name in PARTITIONERS else "a function"
        changelogs = sorted(changelog.topic for changelog in self.changelogs.values())
        return Declared(self.name, self.topic, partitioner, tuple(changelogs), self.topics[1:])

    @property
    def topic_names(self) -> list[str]:
        """The inputs, and the changelogs of all stores."""
        return [*self.topics, *(changelog.topic for changelog in self.changelogs.values())]

    @property
    def late_stores(self) -> list[str]:
        """The stores for which messages may come too late: those of windows, and tables with a history."""
        versioned = (table.name for table in self.tables if table.history is not None)
        windows = (store.name for store in self.windows if not store.is_part)
        ordered = () if self.order is None else (self.order.name,)
        return [*windows, *versioned, *ordered]

    @property
    def wholly_read(self) -> frozenset[str]:
        """The inputs that are read from their beginning where the group has no offset, whatever the reset policy."""
        return self.forwarded | {table.topic_name for table in self.tables}

    @property
    def turns(self) -> tuple[int, ...]:
        """By input, what goes first among records of one timestamp, lowest first: see `turns_of`."""
        tables = {table.topic_name for table in self.tables}
        return turns_of([topic in tables for topic in self.topics])

    @property
    def is_partitioned(self) -> bool:
        """True if its inputs must keep their number of partitions, because of its state or of other inputs."""
        return bool(self.stores) or len(self.inputs) > 1

    @property
    def needs_key(self) -> bool:
        """True if state lives with the messages' keys, so that a message without one can't be handled.

        A join knows what such a message matches: nothing.
        """
        is_join = any(isinstance(store, JoinStore) for store in self.windows)
        return not is_join and any(store.placement == "key" for store in self.stores)


def shared(kind: type[HandlingOptions], source: HandlingOptions) -> dict[str, Any]:
    """Return by name the fields of a kind that `source` has too."""
    return {part.name: getattr(source, part.name) for part in fields(kind)}


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """The settings that all tasks of a worker share.

    `queue_records` bounds what is fetched ahead of the handler; clocks may differ by `clock_skew_margin_ms`. `group` is
    the consumer group's name, for texts that tell an operator what to do. `transactional_id` is the worker's, "" in a
    replay, which commits nothing.
    """

    worker: str
    address: str
    policy: CommitPolicy
    rules: StartRules
    backoff: Backoff
    queue_records: int
    checkpoint_refresh_s: float
    group: str = "GROUP"
    transactional_id: str = ""
    clock_skew_margin_ms: int = MARGIN_MS


@dataclass(frozen=True, slots=True)
class TaskServices:
    """The ports of a task. `release` stops the standby of (actor, partition), before the task opens its stores.

    `command_id` gives the transactional id with which commands write for (actor, partition).
    `reminders` limits the lines about errors that tasks meet again and again, see `is_repeated`; all tasks share it.
    """

    group: GroupView
    logs: Logs
    owners: Owners
    restorer: Restorer
    stores: StoreCache
    sink: TaskSink
    clock: Clock
    resolve_output: Callable[[Any], OutputTopic]
    encode_owner: Callable[[OwnerRecord], Any]
    asks: Requests | None = None
    release: Callable[[str, int], Awaitable[None]] | None = None
    command_id: Callable[[str, int], str] | None = None
    reminders: Reminders = field(default_factory=lambda: Reminders(REMIND_S))
