"""The rules of a commit and a takeover, each taken away: what the tests here must then find is what it is there for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from actors._kafka.produce.transactions import TransactionLog
from aiokafka.errors import KafkaError, ProducerFenced

from actors._core.task.lifecycle import State
from actors._kafka.admin import control
from actors._kafka.admin.control import ControlPlane
from actors._kafka.consume.consumer import KafkaSource
from actors._kafka.produce import sending, transactions
from actors.errors import MigratedError, OutcomeUnknownError
from actors.ports import CommitBatch, CommitReceipt, Committed, TopicPartition
from actors.runtime.task.context import TaskContext
from tests.kafka.wire.world import World

Patch = pytest.MonkeyPatch
Damage = Callable[[Patch, World], None]


def with_and_without(*rules: Damage) -> pytest.MarkDecorator:
    """Run a test with the product as it is, and without each of the rules: `removed` is None, or takes one away."""
    return pytest.mark.parametrize("removed", [None, *rules], ids=["kept", *(rule.__name__ for rule in rules)])


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
    """What a produce came to isn't looked at before the transaction's end, as with aiokafka alone."""
    send_all = sending.send_all

    async def unchecked(*args: Any) -> CommitReceipt:
        try:
            return await send_all(*args)
        except KafkaError:
            return CommitReceipt({})

    patch.setattr(sending, "send_all", unchecked)


def requests_sent_again(patch: Patch, world: World) -> None:
    """The client sends a transactional request again after a transport error, with the same epoch."""
    patch.setattr(transactions, "_guard", lambda _: None)


def _on_unknown_outcome(patch: Patch, decide: Callable[[TransactionLog, CommitBatch], Any]) -> None:
    commit = TransactionLog.commit

    async def deciding(self: TransactionLog, batch: CommitBatch) -> CommitReceipt:
        try:
            return await commit(self, batch)
        except OutcomeUnknownError:
            await self.fence()
            return await decide(self, batch)

    patch.setattr(TransactionLog, "commit", deciding)


def unknown_is_aborted(patch: Patch, world: World) -> None:
    """A commit that got no answer is taken for one that failed: the same batch once more."""
    commit = TransactionLog.commit
    _on_unknown_outcome(patch, commit)


def unknown_is_committed(patch: Patch, world: World) -> None:
    """A commit that got no answer is taken for one that went through."""

    async def committed(_: TransactionLog, batch: CommitBatch) -> CommitReceipt:
        return CommitReceipt({})

    _on_unknown_outcome(patch, committed)


def decided_by_the_offset(patch: Patch, world: World) -> None:
    """A commit that got no answer is taken for one that went through if the committed offset is the one it had."""

    async def by_offset(_: TransactionLog, batch: CommitBatch) -> CommitReceipt:
        if await world.committed() == batch.next_offset:
            return CommitReceipt({})
        raise OutcomeUnknownError("the offset is another one")

    _on_unknown_outcome(patch, by_offset)


def fenced_is_migrated(patch: Patch, world: World) -> None:
    """Who is fenced believes that there is another owner, and ends."""
    commit = TransactionLog.commit

    async def believing(self: TransactionLog, batch: CommitBatch) -> CommitReceipt:
        try:
            return await commit(self, batch)
        except OutcomeUnknownError as error:
            if isinstance(error.__cause__, ProducerFenced):
                raise MigratedError("somebody else has the id") from error
            raise

    patch.setattr(TransactionLog, "commit", believing)


def top_level_unchecked(patch: Patch, world: World) -> None:
    """Only what stands beside a partition is looked at, as aiokafka's `committed()` does."""

    async def committed(self: ControlPlane, source: TopicPartition) -> Committed | None:
        response = await self.ask_coordinator(
            control.OffsetFetchRequest(self._group, [(source.topic, [source.partition])])
        )
        for _, partitions in response.topics:
            for _, offset, metadata, code in partitions:
                if code == 0 and offset >= 0:
                    return Committed(offset, metadata or "")
        return None

    patch.setattr(ControlPlane, "committed", committed)


def confirmed_before_the_fence_only(patch: Patch, world: World) -> None:
    """The group is asked before the producer starts, and not after."""
    confirm = TaskContext.confirm

    async def early(self: TaskContext) -> None:
        if self.state is State.FENCING:
            await confirm(self)

    patch.setattr(TaskContext, "confirm", early)


def confirmed_after_the_fence_only(patch: Patch, world: World) -> None:
    """The group is asked after the producer started, and not before."""
    confirm = TaskContext.confirm

    async def late(self: TaskContext) -> None:
        if self.state is not State.FENCING:
            await confirm(self)

    patch.setattr(TaskContext, "confirm", late)


def restored_to_the_last_stable_offset(patch: Patch, world: World) -> None:
    """The restore ends where a read-committed reader would say that the log ends."""
    read_committed = 1
    patch.setattr(control, "_READ_UNCOMMITTED", read_committed)


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
