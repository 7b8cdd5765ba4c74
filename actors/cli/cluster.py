"""Owners, offsets and partition counts of an app's tasks, from the broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from actors._faust.setup import Setup
from actors._kafka.admin.control import ControlPlane, TopicInfo
from actors._kafka.admin.owners import KafkaOwners
from actors._kafka.consume.logs import KafkaLogs
from actors._kafka.consume.standby_owners import KafkaCopies
from actors.errors import BrokerUnavailableError, ConfigurationError, RestoreError
from actors.ports import OwnerRecord, TopicPartition
from actors.runtime.observe.feeds import HeldTimes
from actors.web.access.tls import Hops
from actors.web.dashboard.group import Room, Seen, ask_worker
from actors.web.workers import WorkerClient
from stores._core.printable import moment

if TYPE_CHECKING:
    from actors.declare.definition import ActorDefinition

MAX_QUESTIONS = 32
"""How many questions to the brokers are under way at a time."""
LOOKED_AT = 100
"""Up to so many offsets behind the committed one are read: markers of transactions take offsets, and aren't waiting."""
LOOK_S = 5.0
UNKNOWN = "unknown"
PAUSED = "paused"

Owners = dict[tuple[str, int], OwnerRecord]
"""(actor, partition) → who took the task over last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """A task and one of its inputs as the broker knows them.

    Attributes:
        partition: None where the input topic doesn't exist; nothing else is known then.
        owner: who took it over last; None where nobody ever did.
        committed: the next offset to handle; None where nothing was ever committed.
        start, end: the input's offsets, of the first record that is left and behind the last.
        waiting: how many records are between what is committed and the end; None where they weren't looked at.
        state: what the owner says of the task ("running", "halted", "paused", …); "unknown" where it doesn't answer.
        reason: why the partition stands still, what its event time waits for, or why the state is unknown; "" where
            there is nothing to say.
    """

    actor: str
    topic: str
    stores: tuple[str, ...]
    partition: int | None = None
    owner: OwnerRecord | None = None
    committed: int | None = None
    start: int = 0
    end: int = 0
    waiting: int | None = None
    state: str = UNKNOWN
    reason: str = ""

    @property
    def next_offset(self) -> int:
        """The offset that is handled next."""
        return max(self.committed or 0, self.start)

    @property
    def lag(self) -> int:
        """How many records wait; how many offsets, where the records weren't looked at."""
        return self.end - self.next_offset if self.waiting is None else self.waiting


def owner_name(owner: OwnerRecord) -> str:
    """Name a worker for a person, with its address if it has one."""
    return f"{owner.worker} {owner.address}".rstrip()


class Cluster:
    """The brokers, for the time of one command. Made by `connect`."""

    def __init__(self, setup: Setup, control: ControlPlane) -> None:
        self._setup = setup
        self._control = control
        self._questions = asyncio.Semaphore(MAX_QUESTIONS)

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(cls, setup: Setup) -> AsyncIterator[Cluster]:
        """Connect, for the time of the block.

        Raises:
            BrokerUnavailableError: no broker answers.
        """
        async with ControlPlane.connect(setup.connection, setup.group) as control:
            yield cls(setup, control)

    async def tasks(self) -> list[TaskRow]:
        """Return every task of the app, by actor, partition and input."""
        definitions = sorted(self._setup.app.actors.values(), key=lambda definition: definition.name)
        inputs = await self._control.topics(name for definition in definitions for name in definition.topic_names)
        owners = await self.owners()
        rows = [row for definition in definitions for row in self._rows(definition, inputs, owners)]
        known = await asyncio.gather(*map(self._with_offsets, rows))
        return await self._with_states(known)

    async def strangers(self) -> list[str]:
        """Say which members of the group get no partitions; none if the group's coordinator can't tell now."""
        try:
            return (await KafkaCopies(self._control, self._setup.group).members()).troubles
        except BrokerUnavailableError:
            return []

    async def owners(self) -> Owners:
        """Return the leader registry; it is empty before the app's first worker ran."""
        topic = self._setup.owners_topic
        # Asking for the offsets of a topic that doesn't exist could make it, with the wrong settings.
        if topic not in await self._control.topics([topic]):
            return {}
        registry = KafkaOwners(topic, KafkaLogs(self._setup.connection, self._control))
        return {(record.actor, record.partition): record for record in await registry.all()}

    async def partition_count(self, store: str) -> int:
        """Return the number of partitions of the store's changelog.

        Raises:
            ConfigurationError: there is no changelog.
        """
        topic = self._setup.changelog_topic(store)
        found = await self._control.topics([topic])
        if topic not in found:
            raise ConfigurationError(
                f"topic {topic}, the changelog of store {store}, isn't on the broker: a worker makes it when it starts"
            )
        return found[topic].partitions

    def _rows(self, definition: ActorDefinition, inputs: Mapping[str, TopicInfo], owners: Owners) -> list[TaskRow]:
        name, stores = definition.name, tuple(store.name for store in definition.stores)
        missing = [topic for topic in definition.topic_names if topic not in inputs]
        count = max((inputs[topic].partitions for topic in definition.topic_names if topic in inputs), default=0)
        return [TaskRow(actor=name, topic=topic, stores=stores) for topic in missing] + [
            TaskRow(actor=name, topic=topic, stores=stores, partition=partition, owner=owners.get((name, partition)))
            for partition in range(count)
            for topic in definition.topic_names
            if topic in inputs and partition < inputs[topic].partitions
        ]

    async def _with_offsets(self, row: TaskRow) -> TaskRow:
        if row.partition is None:
            return row
        source = TopicPartition(row.topic, row.partition)
        async with self._questions:
            # The committed offset first: asked the other way round, a busy task would be ahead of its input's end.
            committed = await self._control.committed(source)
            bounds = await self._control.bounds(source)
            known = replace(
                row, committed=None if committed is None else committed.offset, start=bounds.start, end=bounds.end
            )
            return replace(known, waiting=await self._waiting(source, known))

    async def _waiting(self, source: TopicPartition, row: TaskRow) -> int | None:
        """Count the records that wait, where there may be none but markers; None where they can't be read now."""
        if row.lag > LOOKED_AT:
            return None
        count, logs = 0, KafkaLogs(self._setup.connection, self._control)
        try:
            async with asyncio.timeout(LOOK_S):
                async for records, _ in logs.read(source, row.next_offset, row.end):
                    count += len(records)
        except (TimeoutError, BrokerUnavailableError, RestoreError):
            return None
        return count

    async def _with_states(self, rows: Sequence[TaskRow]) -> list[TaskRow]:
        try:
            workers = WorkerClient(Hops.of(self._setup.app))
        except ConfigurationError as error:
            return [replace(row, reason=f"its owner can't be asked: {error}") for row in rows]
        owners = {row.owner.worker: Seen(row.owner.worker, row.owner.address) for row in rows if row.owner is not None}
        try:
            room = Room()
            await asyncio.gather(*(ask_worker(workers, seen, room) for seen in owners.values()))
        finally:
            await workers.close()
        now_ms = self._setup.app.actor_clock.wall_ms()
        held = HeldTimes([seen.status for seen in owners.values() if seen.status is not None], now_ms)
        return [row if row.owner is None else _as_told(row, owners[row.owner.worker], held) for row in rows]


def _as_told(row: TaskRow, owner: Seen, held: HeldTimes) -> TaskRow:
    told = next((task for task in owner.tasks if (task.actor, task.partition) == (row.actor, row.partition)), None)
    if told is not None and told.paused_at_ms is not None and told.reason is None:
        since = f"since {moment(told.paused_at_ms)}, by {told.paused_by}"
        return replace(row, state=PAUSED, reason=f"{since}; `faust -A … resume {row.actor}` ends it")
    if told is not None:
        return replace(row, state=told.state, reason=told.reason or held.text(told))
    trouble = owner.trouble if owner.status is None else "it doesn't own the partition now"
    return replace(row, reason=f"worker {owner.worker}: {trouble}")
