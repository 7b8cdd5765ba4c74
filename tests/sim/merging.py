"""Two inputs of one actor: the order between them while they are handled, and at the end what comes of both."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from actors.ports import TopicPartition
from actors.runtime.message.context import Context
from actors.runtime.message.internal_messages import InternalRecord
from actors.testing.fakes.log import PartitionLog, StoredRecord
from stores._core.record import METADATA_HEADER, decode_metadata
from tests.sim import app
from tests.sim.fakes.cluster import fold
from tests.sim.fakes.source import FakeSource
from tests.sim.part import Handler

if TYPE_CHECKING:
    from tests.sim.node import World

UNORDERED = frozenset(("parallel", "park", "refused"))
"""Where a message may be overtaken, or be done with without a call of the handler."""
ROUNDING_S = 0.001


@dataclass(frozen=True, slots=True)
class _Delivered:
    record: Any
    poll: int
    at_s: float


class InputOrder:
    """Watches the order in which a process handles the records of its inputs.

    Three rules. Of the heads that have both been delivered the one with the lowest timestamp goes first. While an input
    has nothing here but more in its log, it is waited for. One at its end is waited for `max_task_idle_s`.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._source: FakeSource | None = None
        self._polls = 0
        self._waiting: defaultdict[TopicPartition, deque[_Delivered]] = defaultdict(deque)
        self._empty_s: dict[TopicPartition, float] = {}
        self._delivered_s: dict[TopicPartition, float] = {}
        self._latest_ms: Counter[TopicPartition] = Counter()
        self._is_watched = len(world.inputs) > 1 and UNORDERED.isdisjoint(world.features)

    def watch(self, source: FakeSource) -> None:
        """Look at what the source delivers from now on."""
        self._source = source
        if self._is_watched:
            source.on_start.append(self._begins)
            source.on_delivery.append(self._delivered)

    def around(self, handler: Handler) -> Handler:
        """Give the handler with a look at each record."""

        async def handle(ctx: Context, value: str) -> Any:
            if not isinstance(ctx._record, InternalRecord):
                self._handled(TopicPartition(ctx.topic, ctx.partition), ctx.offset)
            return await handler(ctx, value)

        return handle if self._is_watched else handler

    def _begins(self, source: TopicPartition) -> None:
        self._waiting[source].clear()
        self._empty_s[source] = self._delivered_s[source] = self._world.loop.time()

    def _delivered(self, found: Mapping[TopicPartition, Sequence[Any]]) -> None:
        self._polls += 1
        for source, records in found.items():
            self._delivered_s[source] = now_s = self._world.loop.time()
            self._waiting[source] += [_Delivered(one, self._polls, now_s) for one in records]

    def _handled(self, source: TopicPartition, offset: int) -> None:
        waiting = self._waiting[source]
        while waiting and waiting[0].record.offset < offset:
            waiting.popleft()
        if not waiting or waiting[0].record.offset != offset:
            # It failed before, and is tried again.
            return
        one = waiting.popleft()
        self._latest_ms[source] = max(self._latest_ms[source], one.record.timestamp)
        self._world.audit.counted["ordered"] += 1
        for topic in self._world.inputs:
            other = source._replace(topic=topic)
            if other != source and self._waiting[other]:
                self._compare(source, one, other)
            elif other != source:
                self._check_wait(source, one, other)
        self._empty_s[source] = self._world.loop.time()

    def _compare(self, source: TopicPartition, one: _Delivered, other: TopicPartition) -> None:
        head = self._waiting[other][0]
        # What isn't for the handler may be done with by now.
        if head.poll > one.poll or not app.owes_echo(head.record):
            return
        self._world.audit.counted["ordered by time"] += 1
        if self._rank(other, head) < self._rank(source, one):
            self._world.audit.violated(f"merging: {source} {one} is handled before {other} {head}")

    def _rank(self, source: TopicPartition, one: _Delivered) -> tuple[int, int]:
        return one.record.timestamp, self._world.inputs.index(source.topic)

    def _check_wait(self, source: TopicPartition, one: _Delivered, other: TopicPartition) -> None:
        position = None if self._source is None else self._source.position(other)
        if position is None:
            return
        log = self._world.cluster.log(other)
        empty_s, max_idle_s = self._empty_s[other], self._world.max_task_idle_s
        lacking = next((record for record in log.history if record.offset >= position), None)
        # One of an open transaction can't be fetched. One that came after `one` may have been preceded by it.
        if lacking is not None and lacking.transaction is None:
            self._world.audit.counted["lacking"] += 1
            if self._world.appended_s[log][lacking.offset] <= max(empty_s, one.at_s):
                self._world.audit.violated(f"merging: {source} {one} is handled before {other} {lacking}")
        waited_s = self._world.loop.time() - self._delivered_s[other]
        # One that isn't later than the last of the other input was taken together with that.
        if one.record.timestamp > self._latest_ms[other] and waited_s < max_idle_s - ROUNDING_S:
            self._world.audit.violated(f"merging: {source} {one} is handled {waited_s:.3f} s after the last of {other}")


# --- the end ----------------------------------------------------------------------------------------------------------


def refolded(world: World, partition: int) -> Iterator[str]:
    """Say what isn't as if both inputs had been handled in the order that the outputs are in."""
    handled = {topic: _owed(world, TopicPartition(topic, partition)) for topic in world.inputs}
    expected, is_ordered = app.Expected(), world.features.isdisjoint(("parallel", "park"))
    for key, value in app.echoed(world.cluster.log(TopicPartition(app.ECHO, partition))):
        place = value.decode().split()[0]
        topic, _, offset = place.rpartition("/")
        records = handled[topic or app.INPUT]
        at = next((at for at, record in enumerate(records) if str(record.offset) == offset), None)
        if at is None:
            yield f"exactly once: {value!r} comes of no input, or was there before"
            return
        record = records.pop(at)
        overtaken = [other for other in records[:at] if is_ordered or other.key == record.key]
        if overtaken:
            yield f"exactly once: {value!r} comes before that of {overtaken[0]}"
        expected.process(record)
        if expected.echo[-1] != (key, value):
            yield f"exactly once: {key!r} has {value!r}, not {expected.echo[-1]}"
            return
    for topic, left in handled.items():
        if left:
            yield f"exactly once: {topic}[{partition}] has no output of {left[0]} and {len(left) - 1} others"
    for store in app.STORES:
        log = world.cluster.log(TopicPartition(app.changelog(store), partition))
        yield from _compared(expected, store, log, has_parked="park" in world.features)


def _owed(world: World, source: TopicPartition) -> list[StoredRecord]:
    """Give what was handled and has an output."""
    return [
        record
        for record in world.audit.handled(source)
        if app.owes_echo(record) or not (app.is_decodable(record) or world.deployment.skips)
    ]


def _compared(expected: app.Expected, store: str, log: PartitionLog, *, has_parked: bool) -> Iterator[str]:
    held, wanted = fold(log.history), expected.state(store)
    found = {key: record.value for key, record in held.items()}
    if found != wanted:
        yield f"exactly once: {log.name} is {found}, not {wanted}"
        return
    # What was parked is handled later, in the place of the command or of what came before.
    for key, record in () if has_parked else held.items():
        writer = expected.writers[store, key]
        metadata = decode_metadata(dict(record.headers)[METADATA_HEADER])
        if (app.INPUTS[metadata.input], metadata.source_offset) != (writer.topic, writer.offset):
            yield f"exactly once: {log.name} {key!r} was written by {writer}, and says {metadata}"
