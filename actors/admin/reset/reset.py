"""The steps of a reset. It may die at any of them: run again it finishes, and until then no worker runs on half of it.

    without state    one request commits all offsets: all of them are moved or none
    with state       1. the changelogs are deleted and created again. The leader registry has the ids of the former
                     topics, so that from here on a start is refused: the changelogs were replaced
                     2. read models are emptied: a null value for each key
                     3. one request commits all offsets, with marks that have the ids of the new changelogs
                     4. the registry gets the new ids, and a start is allowed again

Timers, effects that wait, parked messages, remembered ids and answers are stores of their actor, so they go, or stay,
with its state. Stores on workers' disks aren't touched: a worker sees by the marks that they are of former topics.

A worker that joins meanwhile makes the brokers refuse the offsets, which a group without members only takes. One that
had looked at the changelogs before they were deleted stops its partitions by their ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from actors._core.task.takeover import LogBounds
from actors._faust.setup import Setup
from actors._kafka.admin.control import ControlPlane, TopicInfo
from actors._kafka.admin.owners import KafkaOwners, StoreRecord, forget_owners, write_owners, write_stores
from actors._kafka.admin.topics import Topics
from actors._kafka.consume.logs import KafkaLogs
from actors.admin.backfill import chunks
from actors.admin.host import require_stopped
from actors.admin.reset.moves import Move, marked, reowned
from actors.admin.reset.scope import Scope
from actors.admin.reset.targets import LATEST, Target
from actors.declare.arguments import say_unknown
from actors.declare.publishing import published_stores
from actors.errors import ConfigurationError
from actors.ports import CommitBatch, Committed, Output, OwnerRecord, TaskLog, TopicPartition
from actors.runtime.task.former_owners import settle_claims, settled_offset
from stores._core.printable import counted

MAX_QUESTIONS = 32
"""How many questions to the brokers are under way at a time."""
_CARRIED = ("max.message.bytes", "min.insync.replicas")
"""Settings that a changelog keeps when it is created again."""


class Resetter:
    """One reset of the actors of a scope. `look` changes nothing.

    Args:
        setup: the app's settings.
        control: a connection.
        scope: what is reset.
        target: where the offsets go.
        deletes_state: whether state goes too.
    """

    def __init__(
        self, setup: Setup, control: ControlPlane, scope: Scope, target: Target, *, deletes_state: bool
    ) -> None:
        self._setup = setup
        self._control = control
        self._scope = scope
        self._target = target
        self._deletes_state = deletes_state
        self._topics = Topics(setup.connection, control)
        self._logs = KafkaLogs(setup.connection, control)
        self._owners: KafkaOwners | None = None
        self._log: TaskLog | None = None

    async def look(self) -> list[Move]:
        """Return the planned moves.

        Raises:
            ConfigurationError: the offsets don't fit the inputs; a topic is missing.
            BrokerUnavailableError: no broker answers.
        """
        inputs = await self._inputs()
        self._check_stated(inputs)
        if not self._deletes_state:
            await self._check_counts(inputs)
        questions = asyncio.Semaphore(MAX_QUESTIONS)

        async def look(actor: str, source: TopicPartition) -> Move | None:
            async with questions:
                bounds = await self._control.bounds(source)
                offset = await self._offset(source, bounds)
                if offset is None:
                    return None
                before = await self._control.committed(source)
                return Move(actor=actor, source=source, before=before, offset=offset, bounds=bounds)

        moves = await asyncio.gather(*(look(actor, source) for actor, source in self._sources(inputs)))
        return [move for move in moves if move is not None]

    async def perform(self) -> list[Move]:
        """Do it; return what was moved.

        Raises:
            ConfigurationError: a worker runs, or joined meanwhile; as in `look`.
            BrokerUnavailableError: it may be done in part: run it again.
        """
        await require_stopped(self._setup)
        self._log = self._setup.lone_log(self._scope.actors[0].name, 0)
        try:
            await self._log.fence()
            if self._setup.owners_topic in await self._topics.existing([self._setup.owners_topic]):
                self._owners = KafkaOwners(self._setup.owners_topic, self._logs)
                await settle_claims(self._control, self._owners, self._log, self._setup.app.actor_clock)
            listed = [] if self._owners is None else await self._owners.all()
            owners = {(each.actor, each.partition): each for each in listed}
            for actor, source in self._sources(await self._inputs()):
                # What a killed worker left open would change the offsets after this.
                owner = owners.get((actor, source.partition))
                await settled_offset(self._control, self._log, self._setup.app.actor_clock, source, owner)
            moves = await self.look()
            self._check_replaced(moves, owners, await self._inputs())
            ids = await self._begin_state() if self._deletes_state else {}
            epochs, offsets = await self._marks(moves, owners, ids)
            await self._control.commit(offsets)
            await self._record(moves, owners, epochs, ids)
            return moves
        finally:
            await self._log.close()

    async def _inputs(self) -> dict[str, TopicInfo]:
        topics = await self._topics.existing(self._scope.topics)
        if missing := sorted(set(self._scope.topics) - topics.keys()):
            raise ConfigurationError(f"topics {', '.join(missing)} aren't on the broker: there is no offset to choose")
        return topics

    def _sources(self, inputs: Mapping[str, TopicInfo]) -> list[tuple[str, TopicPartition]]:
        """Return the input partitions, each with its actor's name."""
        return [
            (actor.name, TopicPartition(topic, partition))
            for actor in self._scope.actors
            for topic in actor.topic_names
            for partition in range(inputs[topic].partitions)
        ]

    def _check_stated(self, inputs: Mapping[str, TopicInfo]) -> None:
        stated = self._target.offsets
        if stated is None:
            return
        outer = self._scope.outer
        for source in stated:
            if source.topic not in outer:
                raise ConfigurationError(
                    f"{say_unknown('input', [source.topic], outer)}. The inputs: {', '.join(outer)}"
                )
            if source.partition >= inputs[source.topic].partitions:
                raise ConfigurationError(
                    f"{source}: the topic has {counted(inputs[source.topic].partitions, 'partition')}, from 0 on"
                )
        partitions = {TopicPartition(name, number) for name in outer for number in range(inputs[name].partitions)}
        missing = sorted(map(str, partitions - stated.keys()))
        if missing and (self._deletes_state or self._scope.made):
            why = "state is deleted" if self._deletes_state else "records are read by another key"
            raise ConfigurationError(f"{why}, so each partition needs an offset: {', '.join(missing)} have none")

    async def _check_counts(self, inputs: Mapping[str, TopicInfo]) -> None:
        """Refuse to keep state whose actor's input has another number of partitions."""
        by_topic = {self._setup.changelog_topic(store.name): (actor, store) for actor, store in self._scope.stores}
        for name, info in (await self._topics.existing(by_topic)).items():
            actor, store = by_topic[name]
            count = inputs[actor.topic_name].partitions
            if info.partitions != count:
                raise ConfigurationError(
                    f"store {store.name}: topic {name}, its changelog, has {counted(info.partitions, 'partition')}, "
                    f"and topic {actor.topic_name}, the input of actor {actor.name}, has {count}: keys would be looked "
                    "for in the wrong partition. Delete the state too (--state delete), or carry it over to the new "
                    "number (the documentation's page 'Snapshots')"
                )

    def _check_replaced(
        self,
        moves: Sequence[Move],
        owners: Mapping[tuple[str, int], OwnerRecord],
        inputs: Mapping[str, TopicInfo],
    ) -> None:
        """Check that each partition of an input that replaces another one gets an offset."""
        moved = {move.source for move in moves}
        for name in {owner.actor for owner in self._replaced(owners)}:
            topic = self._setup.app.actors[name].topic_name
            wanted = {TopicPartition(topic, number) for number in range(inputs[topic].partitions)}
            if missing := sorted(map(str, wanted - moved)):
                raise ConfigurationError(
                    f"topic {topic} takes the place of another input of actor {name}, so each partition needs an "
                    f"offset: {', '.join(missing)} have none"
                )

    async def _offset(self, source: TopicPartition, bounds: LogBounds) -> int | None:
        """Return where an input partition goes, None if it stays."""
        target = self._target
        if source.topic in self._scope.made:
            # What came of state that is kept was never anywhere else, and is still to be handled.
            return bounds.end if self._deletes_state or source.topic in self._scope.forwarded else None
        if target.offsets is not None:
            offset = target.offsets.get(source)
            if offset is not None and not bounds.start <= offset <= bounds.end:
                raise ConfigurationError(f"{source} has the offsets {bounds.start} to {bounds.end}, and not {offset}")
            return offset
        if target.at_ms is not None:
            at = await self._control.offset_at(source, target.at_ms)
            return bounds.end if at is None else at
        return bounds.end if target.name == LATEST else bounds.start

    async def _marks(
        self, moves: Sequence[Move], owners: Mapping[tuple[str, int], OwnerRecord], ids: Mapping[str, str]
    ) -> tuple[dict[tuple[str, int], int], dict[TopicPartition, Committed]]:
        """Return the new epoch of each task, and what is committed for its inputs."""
        inputs = await self._inputs()
        names = {store.name: self._setup.changelog_topic(store.name) for _, store in self._scope.stores}
        topics = await self._topics.existing(names.values())
        epochs: dict[tuple[str, int], int] = {}
        offsets: dict[TopicPartition, Committed] = {}
        by_task: dict[tuple[str, int], list[Move]] = {}
        for move in moves:
            by_task.setdefault((move.actor, move.source.partition), []).append(move)
        for (name, partition), moved in by_task.items():
            actor = self._setup.app.actors[name]
            topic_ids = {
                topic: await self._control.committed(TopicPartition(topic, partition)) for topic in actor.topic_names
            }
            logs = {store.name: topics[names[store.name]] for store in actor.stores if names[store.name] in topics}
            facts: dict[str, Any] = {
                "committed": topic_ids,
                "owner": owners.get((name, partition)),
                "inputs": {topic: str(inputs[topic].topic_id) for topic in actor.topic_names},
                "changelogs": {store: ids.get(store, str(info.topic_id)) for store, info in logs.items()},
            }
            marks = marked(moved, **facts, is_without_state=self._deletes_state)
            if marks is None:
                await self._require_empty(name, [TopicPartition(info.name, partition) for info in logs.values()])
                marks = marked(moved, **facts, is_without_state=True)
            if marks is not None:
                epochs[name, partition] = marks[0]
                offsets |= marks[1]
        return epochs, offsets

    async def _require_empty(self, actor: str, changelogs: Sequence[TopicPartition]) -> None:
        for source in changelogs:
            bounds = await self._logs.bounds(source)
            if bounds.end > bounds.start:
                raise ConfigurationError(
                    f"actor {actor}: {source} has state, and neither a committed offset nor the leader registry says "
                    "whose: delete the state too (--state delete), or start the workers once with MISSING_OFFSET"
                )

    async def _begin_state(self) -> dict[str, str]:
        """Create the changelogs again, and empty the read models; return the new ids by store."""
        inputs, ids = await self._inputs(), {}
        kept_ms, settings = self._setup.kept_ms(), self._setup.changelog_settings
        for actor, store in self._scope.stores:
            name = self._setup.changelog_topic(store.name)
            description = (await self._topics.existing([name])).get(name)
            before = (await self._topics.configs([name]))[name] if description is not None else {}
            carried = {key: before[key] for key in _CARRIED if key in before}
            replicas = 0 if description is None else description.replicas
            recreated = await self._topics.recreate(
                name,
                partitions=inputs[actor.topic_name].partitions,
                replication_factor=replicas or settings.replication_factor,
                config={**settings.topic_config(kept_ms.get(name)), **carried},
            )
            ids[store.name] = str(recreated.topic_id)
        names = {store.name for _, store in self._scope.stores}
        for topic, (published, _) in published_stores(self._setup.app).items():
            if published.name in names:
                await self._empty(topic)
        return ids

    async def _empty(self, topic: str) -> None:
        """Write a null value for each key that a topic holds."""
        description = (await self._topics.existing([topic])).get(topic)
        if self._log is None:
            raise AssertionError("perform() opens the log")
        for partition in range(0 if description is None else description.partitions):
            source = TopicPartition(topic, partition)
            bounds, keys = await self._logs.bounds(source), dict[bytes, None]()
            async for records, _ in self._logs.read(source, bounds.start, bounds.end):
                for record in records:
                    if record.key is not None and record.value is not None:
                        keys[record.key] = None
                    elif record.key is not None:
                        keys.pop(record.key, None)
            nulls = [Output(topic, partition, key, None, [], None) for key in keys]
            for chunk in chunks(nulls, self._setup.app.actor_options.commit_max_bytes):
                await self._log.commit(CommitBatch(0, {}, outputs=chunk))

    def _replaced(self, owners: Mapping[tuple[str, int], OwnerRecord]) -> list[OwnerRecord]:
        """Return the tasks' records whose actor has another topic as its only input now."""
        topics = {one.name: one.topic_names for one in self._scope.actors}
        return [one for one in owners.values() if one.actor in topics and one.is_of_another(topics[one.actor])]

    async def _record(
        self,
        moves: Sequence[Move],
        owners: Mapping[tuple[str, int], OwnerRecord],
        epochs: Mapping[tuple[str, int], int],
        ids: Mapping[str, str],
    ) -> None:
        """Record the reset in the registry. The stores come last: until then a start without its state is refused."""
        if self._owners is None:
            return
        offsets: dict[tuple[str, int], dict[str, int]] = {}
        for move in moves:
            offsets.setdefault((move.actor, move.source.partition), {})[move.source.topic] = move.offset
        inputs = {topic: str(info.topic_id) for topic, info in (await self._inputs()).items()}
        actors = self._setup.app.actors
        records = [
            reowned(owner, actors[task[0]], epochs[task], offsets[task], inputs=inputs, ids=ids)
            for task, owner in owners.items()
            if task in epochs
        ]
        await write_owners(self._setup.connection, self._setup.owners_topic, records)
        # Of partitions that a former input had, and the new one doesn't have.
        gone = [owner for owner in self._replaced(owners) if (owner.actor, owner.partition) not in epochs]
        await forget_owners(self._setup.connection, self._setup.owners_topic, gone, ())
        stores = await self._owners.stores()
        if written := {
            store: self._begun(stores[store], topic_id) for store, topic_id in ids.items() if store in stores
        }:
            await write_stores(self._setup.connection, self._setup.owners_topic, written)

    def _begun(self, before: StoreRecord, topic_id: str) -> StoreRecord:
        """Return the record of a store that holds nothing: values of any shape may come."""
        version = self._setup.app.value_types[before.store].version
        return msgspec.structs.replace(before, topic_id=topic_id, version=version, shapes=[], former={})


def effects_of_kept_state(scope: Scope) -> list[str]:
    """Return a line for each effect of kept state on records that are handled again."""
    lines = []
    for actor in scope.actors:
        if actor.ids is not None:
            lines.append(f"actor {actor.name}: messages whose ids it remembers (dedupe_by) are skipped")
        if actor.windows:
            lines.append(f"actor {actor.name}: records of windows that are closed are late, whatever their offset")
    return lines
