"""The rules of a commit and a takeover, each taken away: what the tests here must then find is what it is there for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pytest

from actors._core.task.takeover import LogBounds
from actors._kafka.admin.control import ControlPlane
from actors._kafka.consume.consumer import KafkaSource
from actors._kafka.produce import writer
from actors._kafka.produce.failures import PartsFailedError, ProducerOverError
from actors._kafka.produce.writer import TransactionWriter
from actors._kafka.transaction_requests import OffsetsRequest
from actors.errors import FencedError, MigratedError, OutcomeUnknownError
from actors.ports import CommitBatch, CommitReceipt, Committed, Identity, TopicPartition
from actors.runtime.committer import Committer
from actors.runtime.task import former_owners, task
from actors.runtime.task.context import TaskContext
from tests.kafka.wire.world import World

Patch = pytest.MonkeyPatch
Damage = Callable[[Patch, World], None]


def with_and_without(*rules: Damage) -> pytest.MarkDecorator:
    """Run a test with the product as it is, and without each of the rules: `removed` is None, or takes one away.

    What a test finds without a rule shows that it can fail: that is nightly.
    """
    without = (pytest.param(rule, id=rule.__name__, marks=pytest.mark.nightly) for rule in rules)
    return pytest.mark.parametrize("removed", [pytest.param(None, id="kept"), *without])


def remove(rule: Damage | None, patch: Patch, world: World) -> None:
    """Take a rule away, if it is to be."""
    if rule is not None:
        rule(patch, world)


def assert_damage(found: list[str], removed: Damage | None) -> None:
    """Nothing is wrong with the product as it is, and something is without the rule."""
    if removed is None:
        assert found == []
    else:
        assert found, f"nothing is wrong without the rule: {removed.__doc__}"


def produce_unchecked(patch: Patch, world: World) -> None:
    """What a produce came to isn't looked at before the transaction's end."""
    append, ends = writer.append, dict[TopicPartition, int]()

    async def unchecked(client: Any, sequences: Any, packed: Any, **options: Any) -> dict[TopicPartition, int]:
        try:
            ends.update(await append(client, sequences, packed, **options))
        except (PartsFailedError, ProducerOverError):
            for part, batches in packed.items():
                ends[part] = ends.get(part, 0) + sum(batch.count for batch in batches)
        return ends

    patch.setattr(writer, "append", unchecked)


def records_before_offsets(patch: Patch, world: World) -> None:
    """The records are appended before the coordinator has taken the offsets."""
    add_offsets, append = TransactionWriter._add_offsets, writer.append
    left: list[Callable[[], Awaitable[None]]] = []

    async def later(*args: Any) -> None:
        left.append(partial(add_offsets, *args))

    async def first(*args: Any, **options: Any) -> dict[TopicPartition, int]:
        ends = await append(*args, **options)
        await left.pop()()
        return ends

    patch.setattr(TransactionWriter, "_add_offsets", later)
    patch.setattr(writer, "append", first)


def requests_sent_again(patch: Patch, world: World) -> None:
    """A transactional request is sent again after a transport error, with the same epoch."""
    request_once = TransactionWriter._request

    async def again(self: TransactionWriter, place: Any, request: Any, code_of: Any, **_: bool) -> Any:
        return await request_once(self, place, request, code_of, may_repeat=True)

    patch.setattr(TransactionWriter, "_request", again)


Write = Callable[[TransactionWriter, Identity, Sequence[CommitBatch]], Awaitable[Sequence[CommitReceipt]]]


def _on_unknown_outcome(patch: Patch, decide: Write) -> None:
    write = TransactionWriter.write

    async def deciding(self: TransactionWriter, identity: Identity, batches: Any) -> Any:
        try:
            return await write(self, identity, batches)
        except OutcomeUnknownError:
            await self.fence()
            return await decide(self, identity, batches)

    patch.setattr(TransactionWriter, "write", deciding)


def unknown_is_aborted(patch: Patch, world: World) -> None:
    """A commit that got no answer is taken for one that failed: the same batch once more."""
    _on_unknown_outcome(patch, TransactionWriter.write)


def unknown_is_committed(patch: Patch, world: World) -> None:
    """A commit that got no answer is taken for one that went through."""

    async def committed(_: TransactionWriter, __: Identity, batches: Sequence[CommitBatch]) -> list[CommitReceipt]:
        return [CommitReceipt({}) for _ in batches]

    _on_unknown_outcome(patch, committed)


def decided_by_the_offset(patch: Patch, world: World) -> None:
    """A commit that got no answer is taken for one that went through if the committed offset is the one it had."""

    async def by_offset(_: TransactionWriter, __: Identity, batches: Sequence[CommitBatch]) -> list[CommitReceipt]:
        if await world.committed() == batches[0].offsets[world.source].offset:
            return [CommitReceipt({}) for _ in batches]
        raise OutcomeUnknownError("the offset is another one")

    _on_unknown_outcome(patch, by_offset)


def fenced_is_migrated(patch: Patch, world: World) -> None:
    """Who is fenced believes that there is another owner, and ends."""
    write = TransactionWriter.write

    async def believing(self: TransactionWriter, identity: Identity, batches: Any) -> Any:
        try:
            return await write(self, identity, batches)
        except FencedError as error:
            raise MigratedError("somebody else has the id") from error

    patch.setattr(TransactionWriter, "write", believing)


def top_level_unchecked(patch: Patch, world: World) -> None:
    """Only what stands beside a partition is looked at, as aiokafka's `committed()` does."""

    async def stable_offset(self: ControlPlane, source: TopicPartition) -> Committed | None:
        response = await self.ask_coordinator(OffsetsRequest(self._group, [source], require_stable=True))
        for _, partitions, _ in response.topics:
            for _, offset, _, metadata, code, _ in partitions:
                if code == 0 and offset >= 0:
                    return Committed(offset, metadata or "")
        return None

    patch.setattr(ControlPlane, "stable_offset", stable_offset)


def unstable_offsets(patch: Patch, world: World) -> None:
    """The takeover doesn't wait for a transaction that may change the committed offset."""
    patch.setattr(ControlPlane, "stable_offset", ControlPlane.committed)


def bounds_before_the_offset(patch: Patch, world: World) -> None:
    """The restore ends where the changelog ended before the committed offset was stable."""
    settled, bounds = task.settled_offset, ControlPlane.bounds
    ends: dict[TopicPartition, int] = {}

    async def offset(
        group: Any, log: Any, clock: Any, source: TopicPartition, owner: Any, **_: Any
    ) -> Committed | None:
        changelog = TopicPartition(world.changelog, source.partition)
        ends[changelog] = (await bounds(group, changelog)).end
        return await settled(group, log, clock, source, owner)

    async def former(self: ControlPlane, partition: TopicPartition) -> LogBounds:
        found = await bounds(self, partition)
        return LogBounds(found.start, min(found.end, ends.get(partition, found.end)))

    patch.setattr(task, "settled_offset", offset)
    patch.setattr(ControlPlane, "bounds", former)


def committed_as_nobody(patch: Patch, world: World) -> None:
    """Offsets are committed without the member and its generation, as before KIP-447."""
    write = TransactionWriter.write

    async def as_nobody(self: TransactionWriter, identity: Identity, batches: Any) -> Any:
        return await write(self, Identity("", -1), batches)

    async def confirm(self: TaskContext) -> None:
        """Believe it."""

    patch.setattr(TransactionWriter, "write", as_nobody)
    patch.setattr(TaskContext, "confirm", confirm)


def transactions_of_the_dead_left_open(patch: Patch, world: World) -> None:
    """Nobody ends what a dead owner left open."""

    async def nothing(*_: Any) -> None:
        """Wait for the time-out."""

    patch.setattr(former_owners, "_end_of_dead", nothing)
    unnamed_left_open(patch, world)


def open_claims_unawaited(patch: Patch, world: World) -> None:
    """The registry is read while claims are open: the reader waits for them until they time out."""

    async def nothing(*_: Any, **__: Any) -> None:
        """Look at no claim."""

    patch.setattr(former_owners, "settle_claims", nothing)


def doubt_left_to_tasks(patch: Patch, world: World) -> None:
    """A transaction of unknown outcome is ended when a task asks for it, and not before."""

    async def nothing(_: Any) -> None:
        """Leave it open."""

    patch.setattr(Committer, "_leave_nothing_open", nothing)


def ended_by_the_forgotten(patch: Patch, world: World) -> None:
    """A worker ends what its transactional id has open, whether the group knows it or not."""

    async def known(*_: Any) -> bool:
        return True

    end = Committer._leave_nothing_open

    async def ends(self: Committer) -> None:
        self.knows = known
        await end(self)

    patch.setattr(Committer, "_leave_nothing_open", ends)


def unnamed_left_open(patch: Patch, world: World) -> None:
    """Only what the registry names is ended."""

    async def nothing(*_: Any) -> None:
        """Wait for the time-out."""

    patch.setattr(former_owners, "_end_of_unnamed", nothing)


def end_of_the_living(patch: Patch, world: World) -> None:
    """A takeover ends the last owner's transaction without a look at whether the group has it."""
    end_of_dead = former_owners._end_of_dead

    class Nobody:
        async def knows(self, member_id: str) -> bool:
            return False

    async def end(_: Any, log: Any, owners: Any, ended: Any) -> None:
        await end_of_dead(Nobody(), log, owners, ended)

    patch.setattr(former_owners, "_end_of_dead", end)


def missed_generation_unnoticed(patch: Patch, world: World) -> None:
    """A worker that missed a generation keeps its tasks."""

    def note(self: KafkaSource) -> None:
        self._generation = self.identity().generation

    patch.setattr(KafkaSource, "_note_generation", note)


def forgotten_keeps_its_tasks(patch: Patch, world: World) -> None:
    """A worker that the group has forgotten joins as one that stays."""

    def keeps(self: KafkaSource) -> bool:
        self._assignor.kept = True
        self._events.joining()
        return True

    missed_generation_unnoticed(patch, world)
    patch.setattr(KafkaSource, "_forgotten", lambda _: None)
    patch.setattr(KafkaSource, "_keeps", keeps)


def restored_to_the_last_stable_offset(patch: Patch, world: World) -> None:
    """The restore ends where a read-committed reader would say that the log ends."""
    bounds = ControlPlane.bounds

    async def stable(self: ControlPlane, partition: TopicPartition) -> LogBounds:
        return LogBounds((await bounds(self, partition)).start, await self.last_stable(partition))

    patch.setattr(ControlPlane, "bounds", stable)


def resumed_without_seek(patch: Patch, world: World) -> None:
    """Fetching goes on where it was, not where the takeover ended."""

    def start_from(self: KafkaSource, source: TopicPartition, offset: int, topic_id: str = "") -> None:
        seek = self._consumer.seek
        if self.position(source) is not None:
            self._consumer.seek = lambda *_: None
        try:
            start(self, source, offset, topic_id)
        finally:
            self._consumer.seek = seek

    start = KafkaSource.start_from
    patch.setattr(KafkaSource, "start_from", start_from)
