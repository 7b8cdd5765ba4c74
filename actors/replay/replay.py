"""Replays the inputs of one partition through an app's handlers: what state would they have made of them?

The messages pass through the product's own tenure: decoding, savepoints, expiry, timers, deduplication, answers and
`on_error` are the real ones. There is no broker, and time is the input's: the clock stands at the highest timestamp of
the records so far, and stops on its way at each timer and each expiry that comes due in between. State is in RocksDB
databases in a temporary folder, so that memory doesn't grow with the input or with the keys.

What the input alone doesn't tell is told as `UNKNOWN`, and the replay goes on:

    an ask        what the other actor answered is nowhere in the input: what the message did is taken back
    an effect     it isn't called, and what it sent back to its key isn't in the input
    a failure     a handler that raises where the policy is to stop: the workers got past it, so it is skipped
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from actors._core.task.commit import parse_mark
from actors._core.task.completed import CompletedOffsets
from actors._core.task.topic_ids import TopicIds
from actors._faust.setup import Setup
from actors._kafka.admin.control import TopicInfo
from actors.declare.definition import ActorDefinition
from actors.declare.host import DeclaredApp
from actors.errors import ActorsError
from actors.ports import InputRecord, TopicPartition
from actors.replay.processor import (
    Expiries,
    InputClock,
    MemoryLog,
    Replay,
    Unknowns,
    on_input_time,
)
from actors.runtime.commands import OPEN_COMMANDS
from actors.runtime.committer import Membership
from actors.runtime.inputs.event_times import EventTimes
from actors.runtime.inputs.inbox import Inbox, InputQueue
from actors.runtime.inputs.progress import InputProgress
from actors.runtime.message.table import turns_of
from actors.runtime.spec import ActorSpec, TaskServices
from actors.runtime.state.restore import Restored
from actors.runtime.task.context import TaskContext
from actors.runtime.virtual_time import StuckError, VirtualTime
from stores._core.record import METADATA_BYTES, Position, decode_metadata, encode_metadata, place_of
from stores.rocks import RocksStore
from stores.rocks_options import RocksResources

STATE, UNKNOWN, DONE = "state", "unknown", "done"

_AT_ONCE = 1_000
"""How many records are handled between two commits: handlers that read ranges look at all uncommitted keys."""
_LOAD_ROWS = 10_000
_EPOCH = 1
_ANY_PARTITION = 1 << 31
_NO_ID = str(UUID(int=0))
_TOPIC_CONFIG = {
    "max.message.bytes": "1048588",
    "delete.retention.ms": str(1 << 50),
    "cleanup.policy": "delete",
}


class Replayed(NamedTuple):
    """The result of a replay.

    Attributes:
        kind: `STATE`: what a store holds for a key at the end. `UNKNOWN`: something that the input doesn't tell
            happened to the message key `key`; `value` has the reason. `DONE`, the last one: `source_offset` has how
            many records there were.
        store: the store's name.
        key: in bytes.
        value: in bytes; of a key that has expired too.
        source_offset: of the input record that wrote it, or from which on something is unknown.
        expires_at_ms: Unix milliseconds, 0 for never.
        input: the place of the input that the offset of a `STATE` is of, None for an actor with one.
    """

    kind: str
    store: str | None
    key: bytes | None
    value: bytes | None
    source_offset: int
    expires_at_ms: int = 0
    input: int | None = None


class Kept(NamedTuple):
    """A key's row before the first record; the numbers as in the store's changelog."""

    store: str
    key: bytes
    value: bytes
    source_offset: int
    expires_at_ms: int


@dataclass(frozen=True, slots=True)
class Replayer:
    """Replays inputs of one actor; `Replayer.of` makes it.

    Attributes:
        app: the app.
        definition: the actor.
        group: whose committed offsets say how far the workers are.
        changelogs: by store, the changelog of what follows from the input: the app's stores, a class's states.
        others: the same for stores that also follow from the clock, effects and other actors.
    """

    app: DeclaredApp
    definition: ActorDefinition
    group: str
    changelogs: Mapping[str, str]
    others: Mapping[str, str]

    @classmethod
    def of(cls, app: DeclaredApp, actor: Any) -> Replayer:
        """Make the replayer of an actor, given by its class, function or name.

        Raises:
            UsageError: the app has no such actor.
        """
        setup, used = Setup(app), app.definition_of(actor)
        ids = app.stores.get(f"{used.name}-ids")
        helpers = {used.timers, used.effects, used.parked, used.answers, used.order, ids}
        topics = {store: setup.changelog_topic(store.name) for store in used.stores}
        return cls(
            app,
            used,
            setup.group,
            {store.name: topic for store, topic in topics.items() if store not in helpers},
            {store.name: topic for store, topic in topics.items() if store in helpers},
        )

    @property
    def actor(self) -> str:
        """Its name."""
        return self.definition.name

    @property
    def topics(self) -> Sequence[str]:
        """Its inputs."""
        return self.definition.topic_names

    @property
    def forwarded(self) -> Collection[str]:
        """Those of its inputs that are read by another key: workers write them, and delete what they have handled."""
        return self.definition.sources.keys()

    @property
    def turns(self) -> Sequence[int]:
        """By input, what goes first among records of one timestamp, lowest first: see `ActorSpec.turns`."""
        return turns_of([self.definition.table_fed_by(topic) is not None for topic in self.topics])

    @property
    def follows_time(self) -> bool:
        """True if its state changes without messages: by timers or `on_expire`."""
        hooks = any(store.on_expire is not None for store in self.definition.stores)
        return self.definition.timers is not None or hooks

    @property
    def timed(self) -> Collection[str]:
        """The inputs whose values have their time in a field."""
        return [str(topic.get_topic_name()) for topic in self.definition.topics if topic.timestamp is not None]

    def event_times(self, partition_count: int) -> Callable[[int, InputRecord], int]:
        """Return the function that gives the time of a record of an input: by it a worker orders its inputs.

        A record whose time can't be told gets 0, as there: it goes first as soon as it is next in its input.
        """
        run = _Run(self, 0, partition_count, {}, [""] * len(self.topics))
        times = run.event_times()
        run.close()
        return lambda place, record: times.timed(place, [record])[0].timestamp

    @staticmethod
    def topics_of(metadata: str) -> TopicIds:
        """Return the topics that a commit was about, by the metadata of its offset; without ids if it has none."""
        mark = parse_mark(metadata)
        return TopicIds() if mark is None or mark.topics is None else mark.topics

    def run(
        self,
        partition: int,
        records: Iterable[tuple[int, InputRecord]],
        *,
        partition_count: int,
        starts: Sequence[int] | None = None,
        kept: Iterable[Kept] = (),
        until_ms: int | None = None,
        stores: Sequence[str] | None = None,
        topic_ids: Sequence[str] | None = None,
        metadata: Sequence[str] | None = None,
    ) -> Iterator[Replayed]:
        """Replay a partition's records as they are taken from the iterator, then give the state that they led to.

        Args:
            partition: the partition.
            records: all that is committed, in the order in which it is handled, each with its input's place in
                `topics`; with `offset`, `timestamp` (Unix milliseconds), `key`, `value` and `headers`.
            partition_count: of the inputs.
            starts: by input, records before this offset are skipped.
            kept: what the stores held at `starts`.
            until_ms: the clock goes on to that time after the last record, Unix milliseconds.
            stores: whose state is given; those of `changelogs` by default.
            topic_ids: the inputs' ids. With them, and the workers' secret in this process, only commands that are
                signed are obeyed, as the workers do; else all are.
            metadata: by input, that of the group's committed offset, which says what ids of messages are made of.

        Raises:
            ActorsError: a handler waits for something that never comes.
        """
        wanted = list(self.changelogs) if stores is None else stores
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="actors-replay-")))
            ids = dict(zip(self.topics, topic_ids or (), strict=False))
            run = _Run(self, partition, partition_count, ids, metadata or [""] * len(self.topics))
            stack.callback(run.close)
            run.open(folder, starts or [0] * len(self.topics), kept)
            yield from run.replay(records, until_ms)
            yield from run.state(wanted)
            yield Replayed(DONE, None, None, None, run.count)


class _Run:
    def __init__(
        self,
        replayer: Replayer,
        partition: int,
        partition_count: int,
        topic_ids: Mapping[str, str],
        metadata: Sequence[str],
    ) -> None:
        self.count = 0
        self._ids = [replayer.topics_of(one) for one in metadata]
        self._partition = partition
        self._loop = VirtualTime()
        self._clock, self._unknowns = InputClock(), Unknowns()
        self._setup = Setup(replayer.app)
        # What is replayed was traced when it happened.
        self._setup.is_tracing = False
        self._topics: Any = _Topics(replayer.topics, partition_count)
        self._spec, self._resolve = self._loop.run(self._specify(replayer, partition_count, topic_ids))
        self._opened: dict[str, RocksStore] = {}
        self._replay: Replay | None = None

    def event_times(self) -> EventTimes:
        """Return the reader of event times from records' values."""
        spec = self._spec
        sources = [TopicPartition(of.topic, self._partition) for of in spec.inputs]
        return EventTimes(spec.event_times, sources)

    def open(self, folder: Path, starts: Sequence[int], kept: Iterable[Kept]) -> None:
        """Make the stores, and put into them what was kept."""
        spec, resources = self._spec, RocksResources()
        position = Position(0, 0, 0, _EPOCH, "").at(starts)
        for number, store in enumerate(spec.stores):
            self._opened[store.name] = held = RocksStore.open(folder / str(number), resources=resources)
            held.apply([], position)
        hooked = {store.name: number for number, store in enumerate(spec.stores) if store.on_expire is not None}
        expiries = Expiries({spec.changelogs[store].topic: number for store, number in hooked.items()})
        self._load(kept, position, expiries, hooked)
        restored = [Restored(held, position, is_empty=False) for held in self._opened.values()]
        self._replay = self._loop.run(self._make_replay(restored, starts, expiries))

    def replay(self, records: Iterable[tuple[int, InputRecord]], until_ms: int | None) -> Iterator[Replayed]:
        """Handle the records, and return the unknowns."""
        replay, left = self._replay, iter(records)
        if replay is None:
            raise AssertionError("open() comes first")
        while batch := list(islice(left, _AT_ONCE)):
            self.count += len(batch)
            first, last = (f"{self._spec.topics[place]} {record.offset}" for place, record in (batch[0], batch[-1]))
            self._run(replay.replay(batch), f"{first} to {last}")
            yield from self._noted()
        if until_ms is not None:
            self._run(replay.pass_time(until_ms), "the last")
            self._run(replay.replay([]), "the last")
        yield from self._noted()

    def state(self, stores: Sequence[str]) -> Iterator[Replayed]:
        """Yield the contents of the stores."""
        for name in stores:
            for key, raw in self._opened[name].scan():
                metadata = decode_metadata(raw)
                value, offset, expires_at_ms = raw[METADATA_BYTES:], metadata.source_offset, metadata.expires_at_ms
                yield Replayed(STATE, name, key, value, offset, expires_at_ms, place_of(raw))

    def close(self) -> None:
        """End it."""
        for held in self._opened.values():
            held.close()
        self._loop.close()

    def _noted(self) -> Iterator[Replayed]:
        found, self._unknowns.found = self._unknowns.found, []
        for key, offset, reason in found:
            yield Replayed(UNKNOWN, None, key, reason.encode(errors="backslashreplace"), offset)

    def _run(self, work: Coroutine[Any, Any, None], offsets: str) -> None:
        try:
            self._loop.run(work)
        except StuckError as error:
            raise ActorsError(
                f"partition {self._partition}, offsets {offsets}: a handler of actor {self._spec.name} waits "
                "for something that never comes in a replay"
            ) from error

    async def _specify(
        self, replayer: Replayer, partition_count: int, topic_ids: Mapping[str, str]
    ) -> tuple[ActorSpec, Any]:
        setup, topics = self._setup, self._topics
        inputs = {
            name: TopicInfo(name, UUID(topic_ids.get(name) or _NO_ID), partition_count)
            for definition in replayer.app.actors.values()
            for name in definition.topic_names
        }
        resolve = await setup.outputs(topics)
        specs = await setup.specs(inputs, await topics.existing(setup.compacted(inputs)), topics)
        spec = next(spec for spec in specs if spec.name == replayer.actor)
        if not topic_ids.get(spec.topic):
            # The command's signed content is unknown.
            spec = replace(spec, commands=OPEN_COMMANDS)
        # Recorded input is handled in the order of time as it is.
        return replace(spec.with_handlers(self._on_input_time), order=None), resolve

    def _on_input_time(self, handler: Any) -> Any:
        return on_input_time(handler, self._clock, self._unknowns)

    async def _make_replay(self, stores: list[Restored], starts: Sequence[int], expiries: Expiries) -> Replay:
        settings, spec = self._setup.task_settings(), self._spec
        inbox = Inbox(settings.queue_records, lambda: None)
        inbox.queues = [InputQueue() for _ in spec.inputs]
        sources = [TopicPartition(of.topic, self._partition) for of in spec.inputs]
        if spec.event_times:
            inbox.event_times = self.event_times()
        context = TaskContext(
            spec=spec,
            partition=self._partition,
            member=Membership(),
            log=MemoryLog(expiries),
            services=self._services(),
            settings=settings,
            inbox=inbox,
            epoch=_EPOCH,
        )
        inputs = [
            InputProgress(
                place,
                sources[place],
                of,
                CompletedOffsets(starts[place]),
                self._ids[place],
                0,
            )
            for place, of in enumerate(spec.inputs)
        ]
        return Replay(context, stores, inputs, clock=self._clock, unknowns=self._unknowns, expiries=expiries)

    def _services(self) -> TaskServices:
        nothing: Any = None
        resolve: Any = self._resolve
        return TaskServices(
            group=nothing,
            logs=nothing,
            owners=nothing,
            restorer=nothing,
            stores=nothing,
            sink=nothing,
            clock=self._clock,
            resolve_output=resolve,
            encode_owner=nothing,
        )

    def _load(self, kept: Iterable[Kept], position: Position, expiries: Expiries, numbers: Mapping[str, int]) -> None:
        rows = iter(kept)
        while batch := list(islice(rows, _LOAD_ROWS)):
            by_store: dict[str, list[tuple[bytes, bytes | None]]] = {}
            for store, key, value, source_offset, expires_at_ms in batch:
                metadata = encode_metadata(_EPOCH, source_offset, expires_at_ms)
                by_store.setdefault(store, []).append((key, metadata + value))
                if store in numbers:
                    expiries.expect(numbers[store], key, metadata)
            for store, writes in by_store.items():
                self._opened[store].apply(writes, position)


class _Topics:
    """The part of `actors._kafka.admin.topics.Topics` that `Setup` uses: every topic exists."""

    def __init__(self, topics: Iterable[str], partition_count: int) -> None:
        self._counts = dict.fromkeys(topics, partition_count)

    async def existing(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        return {name: TopicInfo(name, UUID(int=0), self._counts.get(name, _ANY_PARTITION)) for name in names}

    async def configs(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        return {name: dict(_TOPIC_CONFIG) for name in names}
