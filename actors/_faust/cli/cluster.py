"""What the broker knows of an app's tasks: owners, offsets, partition counts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from actors._faust.setup import Setup
from actors._kafka.control import ControlPlane, TopicInfo
from actors._kafka.logs import KafkaLogs
from actors._kafka.owners import KafkaOwners
from actors.errors import ConfigurationError
from actors.ports import OwnerRecord, TopicPartition

if TYPE_CHECKING:
    from actors._faust.definition import ActorDefinition

MAX_QUESTIONS = 32
"""How many questions to the brokers are under way at a time."""

Owners = dict[tuple[str, int], OwnerRecord]
"""(actor, partition) → who took the task over last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatus:
    """A task as the broker knows it.

    Attributes:
        partition: None where the input topic doesn't exist; nothing else is known then.
        owner: who took it over last; None where nobody ever did.
        committed: the next offset to handle; None where nothing was ever committed.
        start, end: the input's offsets, of the first record that is left and behind the last.
    """

    actor: str
    topic: str
    stores: tuple[str, ...]
    partition: int | None = None
    owner: OwnerRecord | None = None
    committed: int | None = None
    start: int = 0
    end: int = 0

    @property
    def lag(self) -> int:
        """How many offsets are between what is committed and the end."""
        return self.end - max(self.committed or 0, self.start)


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

    async def tasks(self) -> list[TaskStatus]:
        """Give every task of the app, by actor and partition."""
        definitions = sorted(self._setup.app.actors.values(), key=lambda definition: definition.name)
        inputs = await self._control.topics(definition.topic_name for definition in definitions)
        owners = await self.owners()
        rows = [
            row
            for definition in definitions
            for row in self._rows(definition, inputs.get(definition.topic_name), owners)
        ]
        return list(await asyncio.gather(*map(self._with_offsets, rows)))

    async def owners(self) -> Owners:
        """Give the leader registry; it is empty before the app's first worker ran."""
        topic = self._setup.owners_topic
        # Asking for the offsets of a topic that doesn't exist could make it, with the wrong settings.
        if topic not in await self._control.topics([topic]):
            return {}
        registry = KafkaOwners(topic, KafkaLogs(self._setup.connection, self._control))
        return {(record.actor, record.partition): record for record in await registry.all()}

    async def partition_count(self, store: str) -> int:
        """Give how many partitions the store's changelog has.

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

    def _rows(self, definition: ActorDefinition, topic: TopicInfo | None, owners: Owners) -> list[TaskStatus]:
        name, stores = definition.name, tuple(store.name for store in definition.stores)
        if topic is None:
            return [TaskStatus(actor=name, topic=definition.topic_name, stores=stores)]
        return [
            TaskStatus(
                actor=name,
                topic=topic.name,
                stores=stores,
                partition=partition,
                owner=owners.get((name, partition)),
            )
            for partition in range(topic.partitions)
        ]

    async def _with_offsets(self, row: TaskStatus) -> TaskStatus:
        if row.partition is None:
            return row
        source = TopicPartition(row.topic, row.partition)
        async with self._questions:
            # The committed offset first: asked the other way round, a busy task would be ahead of its input's end.
            committed = await self._control.committed(source)
            bounds = await self._control.bounds(source)
        return TaskStatus(
            actor=row.actor,
            topic=row.topic,
            stores=row.stores,
            partition=row.partition,
            owner=row.owner,
            committed=None if committed is None else committed.offset,
            start=bounds.start,
            end=bounds.end,
        )
