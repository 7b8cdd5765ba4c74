"""What all parts of the actor model have in common in the simulation.

A part is what an actor can do beside handling messages one after the other. It has stores and topics of its own, which
are there only in the runs that have it, operations of the handler, inputs that ask for them, and an oracle, which reads
what the handler said about each step: events in a topic of the part, sent in the commit of what they tell of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import ModuleType
from typing import TYPE_CHECKING, Any

from actors.ports import Clock, TopicPartition
from actors.runtime.message.context import Context
from actors.runtime.message.store import Store
from actors.testing.fakes.cluster import EPOCH_MS
from actors.testing.fakes.log import StoredRecord
from tests.sim import app
from tests.sim.fakes.cluster import fold
from tests.sim.fakes.loop import Process

if TYPE_CHECKING:
    from tests.sim.node import Node, World

Operation = Callable[[Context, str], Awaitable[Any]]
Handler = Callable[[Context, str], Awaitable[Any]]
Stores = tuple[Store[Any, Any], ...]


@dataclass(frozen=True, slots=True)
class Host:
    """The process in which a handler runs."""

    name: str
    clock: Clock


class Part:
    """One of them.

    Attributes:
        name: the feature.
        stores, topics, compacted: what it needs, by name; `compacted` are topics too.
        limits: limits of the product that are drawn anew for the run: module, name, choices.
        counts: how many inputs it may have.
        made_at_start: changelogs that the first start makes, not there before.
    """

    name = ""
    stores: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    compacted: tuple[str, ...] = ()
    limits: tuple[tuple[ModuleType, str, tuple[float, ...]], ...] = ()
    counts: tuple[int, ...] = (8, 20, 40)
    made_at_start: tuple[str, ...] = ()

    def __init__(self, seed: int) -> None:
        self.random = Random(f"{seed} {self.name} inputs")
        self.world: World = None  # type: ignore[assignment]
        self._seed = seed
        self._attempts: Counter[tuple[object, ...]] = Counter()

    # --- what it brings --------------------------------------------------------------------------------------------

    def make_input(self, key: str) -> str:
        """Give the value of some input."""
        raise NotImplementedError

    def input_topic(self, value: str) -> str:
        """Give which of the inputs a value is sent to."""
        return app.INPUT

    def timestamp_ms(self) -> int | None:
        """Give the timestamp of the input that is made next; None is the broker's time."""
        return None

    def operations(self, host: Host, stores: Stores) -> Mapping[str, Operation]:
        """Give what the handler does for inputs."""
        raise NotImplementedError

    def messages(self, host: Host) -> Mapping[str, Operation]:
        """Give what the handler does for messages that aren't inputs."""
        return {}

    def around(self, handler: Handler, stores: Stores) -> Handler:
        """Give the handler with what the feature puts around it; that of an earlier part is inside."""
        return handler

    def make_stores(self, host: Host) -> Stores:
        return tuple(raw_store(name) for name in self.stores)

    def declared(self, host: Host, stores: Stores) -> dict[str, Any]:
        """Give the arguments of `ActorSpec`."""
        return {}

    def begin(self) -> None:
        """Start what isn't a node's; called once, before the nodes start."""

    def heal(self) -> None:
        """Take back what harm the part does."""

    async def open(self, node: Node, process: Process) -> None:
        """Start what runs in a process beside its worker."""

    def faults(self, nodes: Sequence[Node]) -> Iterator[Callable[[], float | None]]:
        """Give the faults that come with the feature."""
        return iter(())

    def may_lack(self, store: str, rows: Mapping[bytes, bytes]) -> Iterator[bytes]:
        """Give the committed rows of a store that a disk needn't have any more; `rows` are with their metadata."""
        return iter(())

    # --- the end ---------------------------------------------------------------------------------------------------

    def unsettled(self) -> Iterator[str]:
        """Say what is still to come, when all inputs are processed."""
        return iter(())

    def operate(self) -> bool:
        """Do what people do in peace; tell whether anything was done."""
        return False

    def check(self) -> Iterator[str]:
        """Give what isn't as it has to be."""
        return iter(())

    # --- for parts -------------------------------------------------------------------------------------------------

    @property
    def is_parking(self) -> bool:
        """Whether messages may wait, handled later than they came."""
        return "park" in self.world.features

    def now_ms(self) -> int:
        """Give the time as no clock is ahead of it by more than `World.clock_ahead_ms`."""
        return EPOCH_MS + int(self.world.loop.time() * 1000)

    def latest_ms(self) -> int:
        """Give a time that no clock has come to yet."""
        return self.now_ms() + self.world.clock_ahead_ms + 1

    @property
    def partitions(self) -> Iterator[int]:
        """The partitions in which all comes to its end."""
        numbers = range(self.world.partitions)
        return (one for one in numbers if not self.world.is_given_up(TopicPartition(app.INPUT, one)))

    def attempt(self, *identity: object) -> int:
        """Count an attempt at something, and give how many there were."""
        self._attempts[identity] += 1
        return self._attempts[identity]

    def is_first_attempt(self, *identity: object) -> bool:
        return self.attempt(*identity) == 1

    def fail_with_garbage(self, ctx: Context) -> None:
        """Raise after something was sent that must not be there."""
        self.world.audit.counted[f"{self.name} retried"] += 1
        ctx.send(app.ECHO, key=ctx.key, value=app.GARBAGE)
        ctx.send(self.topics[0], key=ctx.key, value=app.GARBAGE)
        raise ValueError("the first attempt")

    def count(self, what: str) -> None:
        self.world.audit.counted[what] += 1

    def folded(self, store: str, partition: int) -> dict[bytes, bytes]:
        """Give what a store's changelog says."""
        log = self.world.cluster.log(TopicPartition(app.changelog(store), partition))
        return {key: record.value for key, record in fold(log.history).items()}

    def events(self, topic: str, partition: int) -> list[tuple[bytes, list[str]]]:
        """Give (key, words) of what the handler said."""
        log = self.world.cluster.log(TopicPartition(topic, partition))
        return [(record.key, record.value.decode().split()) for record in log.history if record.is_committed]

    def inputs(self, partition: int) -> list[StoredRecord]:
        """Give the inputs that were processed, with those processed twice twice."""
        source = TopicPartition(app.INPUT, partition)
        records = self.world.cluster.log(source).history
        spans = self.world.audit.spans(source)
        return [r for begin, end in spans for r in records if begin <= r.offset < end and r.is_committed]

    def latest_input(self, partition: int, offset: int | None = None) -> int:
        """Give the highest timestamp of a message that was processed, up to an offset; commands are none."""
        inputs = (record for record in self.inputs(partition) if offset is None or record.offset <= offset)
        return max((record.timestamp for record in inputs if not app.is_control(record)), default=0)


def now_ms_of(ctx: Context) -> int:
    """Give the time by which keys have expired for a message, which may be that of its beginning."""
    state = ctx._state
    if state is None:
        raise AssertionError("called while the message is handled")
    return state.scope.now_ms


def write_ms_of(ctx: Context) -> int:
    """Give the time from which what a message writes now lives."""
    return ctx.now_ms


def raw_store(name: str) -> Store[bytes, bytes]:
    """Make a store as the product has them for itself."""
    return Store(name, encode_key=bytes, decode_key=bytes, encode_value=bytes, decode_value=bytes, placement="task")
