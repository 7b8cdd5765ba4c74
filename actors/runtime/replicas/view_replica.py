"""A copy of a compacted topic, all partitions of it, that follows the topic.

    opening ──▶ following ──▶ closed
                    └───────▶ failed     the topic got partitions, or isn't compacted any more

Opening is what a task's takeover does for its store: the copy on disk is caught up or rebuilt (`Restorer`). Then
`actors.runtime.replicas.follower` follows all partitions. What can't be followed on is rebuilt in a second store,
which then takes the first one's place. So readers see the old content or the new one, never a part, and the difference
of the two is what changed. Every few seconds the view looks whether the topic is still the same one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from actors._core.backoff import Backoff
from actors._core.logs import Reminders, escaping
from actors._core.task.takeover import LostChangelog, Retention, why_not_followed
from actors._core.view_rules import Change, changes, differences, other_partitions, unfit
from actors.errors import (
    BrokerUnavailableError,
    ConfigurationError,
    RestoreError,
    UnknownTopicError,
    UnreadableLogError,
    ViewClosedError,
    ViewFailedError,
)
from actors.ports import Clock, TopicFacts, TopicLogs, TopicPartition
from actors.runtime.cancellation import end
from actors.runtime.replicas.follower import FollowedStore, Follower, Policy
from actors.runtime.replicas.log_ends import Look
from actors.runtime.state.restore import Changelog, Restorer
from actors.runtime.state.stores import StoreCache
from stores.errors import StoreCorruptedError, StoreError
from stores.ports import PartitionStore

logger = escaping(logging.getLogger(__name__))

REMIND_S = 10.0
LONGEST_LOOK_S = 15.0
"""How often the topic is looked at, at least."""
RESTORES_AT_ONCE = 8
DIFFERENCES_AT_ONCE = 1_000
_SLOTS = ("a", "b")

Changed = Callable[[int, Sequence[Change]], Awaitable[None]]


class ViewReplicaStores:
    """The stores of a copy: one for each partition, and a second one while that is rebuilt.

    `cache` opens them, as the stores `a` and `b`; `on_disk` gives the partitions that one of them has already;
    `release` closes them and their folder at the end.
    """

    def __init__(
        self, cache: StoreCache, *, on_disk: Callable[[str], Iterable[int]], release: Callable[[], None]
    ) -> None:
        self._cache = cache
        self._on_disk = on_disk
        self._release = release
        self._slots: dict[int, str] = {}

    def partitions(self) -> set[int]:
        """Return the partitions that were kept."""
        return {number for slot in _SLOTS for number in self._on_disk(slot)}

    async def open(self, partition: int) -> PartitionStore:
        """Return the partition's store, the newer one if a rebuild was cut short."""
        found: list[tuple[int, str, PartitionStore]] = []
        for slot in _SLOTS:
            if partition in self._on_disk(slot):
                store = await self._cache.open(slot, partition)
                position = store.position()
                found.append((-1 if position is None else position.wall_time_ms, slot, store))
        if not found:
            self._slots[partition] = _SLOTS[0]
            return await self._cache.open(_SLOTS[0], partition)
        _, self._slots[partition], store = max(found, key=lambda one: one[0])
        if len(found) > 1:
            await self._cache.discard(self._other(partition), partition)
        return store

    async def reopen(self, partition: int) -> PartitionStore:
        """Return what the disk has, after a write failed."""
        slot = self._slots[partition]
        await self._cache.reopen(slot, partition)
        return await self._cache.open(slot, partition)

    async def spare(self, partition: int) -> PartitionStore:
        """Return an empty store beside the partition's own."""
        other = self._other(partition)
        await self._cache.discard(other, partition)
        return await self._cache.open(other, partition)

    async def use_spare(self, partition: int) -> None:
        """Delete the partition's own store; the spare one is its own now."""
        used, self._slots[partition] = self._slots.get(partition), self._other(partition)
        if used is not None:
            await self._cache.discard(used, partition)

    async def discard(self, partition: int) -> None:
        """Delete a partition that the topic doesn't have any more."""
        slot = self._slots.pop(partition, None)
        if slot is not None:
            await self._cache.discard(slot, partition)

    def close(self) -> None:
        """Close all. May be called twice."""
        self._release()

    def _other(self, partition: int) -> str:
        return _SLOTS[1] if self._slots.get(partition) == _SLOTS[0] else _SLOTS[0]


@dataclass(frozen=True, slots=True)
class ViewParts:
    """The parts of an open view; `logs` and `stores` are closed with it."""

    logs: TopicLogs
    stores: ViewReplicaStores
    clock: Clock
    clock_skew_margin_ms: int


@dataclass(slots=True, kw_only=True)
class _PartitionReplica(FollowedStore):
    """One partition.

    Attributes:
        is_damaged: whether the database can't be read, so that the partition has to be built again.
    """

    is_damaged: bool = False


class ViewReplica(Policy[_PartitionReplica]):
    """All partitions of a compacted topic as bytes with write metadata.

    `changed` is awaited with a partition and its changes, in order, after they were applied.
    """

    pause = Backoff(0.1, longest_s=2.0)

    def __init__(self, topic: str, parts: ViewParts, changed: Changed) -> None:
        self.topic = topic
        self._logs = logs = parts.logs
        self._stores = parts.stores
        self.clock = clock = parts.clock
        self._margin_ms = margin_ms = parts.clock_skew_margin_ms
        self._changed = changed
        self._restorer = Restorer(logs, clock, clock_skew_margin_ms=margin_ms, lost=LostChangelog.REBUILD)
        self._facts: TopicFacts | None = None
        self._copies: dict[int, _PartitionReplica] = {}
        self._follower = Follower(self, logs=logs, clock=clock)
        self._running: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()
        self._failure: Exception | None = None
        self._is_closed = False
        self._reminders = Reminders(REMIND_S)

    @property
    def stores(self) -> Mapping[int, PartitionStore]:
        """The open stores by partition.

        Raises:
            ViewFailedError: the topic isn't followed any more.
            ViewClosedError: it is closed.
        """
        self.check()
        return {number: copy.store for number, copy in self._copies.items()}

    def store(self, partition: int) -> PartitionStore:
        """Return the store of one partition; raises as `stores`."""
        self.check()
        return self._copies[partition].store

    @property
    def partitions(self) -> int:
        """How many partitions there are; raises as `stores`."""
        self.check()
        return len(self._copies)

    def check(self) -> None:
        """Raise what ended it, if it has ended; see `stores`."""
        if self._failure is not None:
            raise ViewFailedError(f"the view of {self.topic} has ended: {self._failure}") from self._failure
        if self._is_closed or self._facts is None:
            raise ViewClosedError(f"the view of {self.topic} isn't open: use it inside `async with view:`")

    def doubt(self, error: StoreError) -> None:
        """Note that a read of one of the stores raised: what is damaged is built again from the topic, soon."""
        for copy in self._copies.values():
            if isinstance(error, StoreCorruptedError) and copy.store.path == error.path and not copy.is_damaged:
                copy.is_damaged = True
                self._follower.fail(copy.source, error)

    async def moved(self) -> None:
        """Wait until something was applied, or the copy ended."""
        await self._moved.wait()

    async def caught_up(self) -> None:
        """Wait until all is applied that is committed now.

        Raises:
            BrokerUnavailableError: no broker answers.
        """
        self.check()
        known, facts = self._known(), await self._logs.facts(self.topic)
        if facts is None:
            raise BrokerUnavailableError(f"topic {self.topic} isn't on the broker: nobody can tell what it will hold")
        if facts != known:
            self._follower.wake()
        sources = [TopicPartition(self.topic, number) for number in range(facts.partitions)]
        bounds = await asyncio.gather(*map(self._logs.bounds, sources))
        while not self._has_reached([bound.end for bound in bounds], facts.topic_id):
            await self.moved()
            if self._known().topic_id not in (known.topic_id, facts.topic_id):
                # Rebuilt once more meanwhile: those ends are nobody's.
                await self.caught_up()
                return

    def _has_reached(self, ends: Sequence[int], topic_id: str) -> bool:
        self.check()
        positions = [copy.position for _, copy in sorted(self._copies.items())]
        return len(positions) == len(ends) and all(
            position.changelog_id == topic_id and position.changelog_offset >= end
            for position, end in zip(positions, ends, strict=True)
        )

    async def open(self) -> None:
        """Catch up with the topic, and begin to follow it. A topic that changes under the read is read again.

        Raises:
            UnknownTopicError: there is no such topic.
            ConfigurationError: it can't be held as a view, or got partitions since the view was kept.
            BrokerUnavailableError: no broker answers.
            RestoreError: reading all of it took longer than the topic keeps deletes.
            StoreError: the folder can't be used.
        """
        failures = 0
        while self._facts is None:
            facts, begun_s = await self._fitting_facts(), self.clock.monotonic()
            try:
                await self._restore_all(facts)
                self._follow_topic(facts)
            except RestoreError as error:
                if (self.clock.monotonic() - begun_s) * 1000 >= facts.delete_retention_ms:
                    raise
                self.failed(error)
                self._copies.clear()
                failures += 1
                await self.clock.sleep(self.pause.delay_s(failures))
        self._running = asyncio.create_task(self._run(), name=f"view of {self.topic}")

    async def close(self) -> None:
        """Stop following and close the stores. May be called twice."""
        self._is_closed = True
        self._wake()
        running, self._running = self._running, None
        await end(running)
        self._stores.close()
        await self._logs.close()

    async def _fitting_facts(self) -> TopicFacts:
        facts = await self._logs.facts(self.topic)
        if facts is None:
            raise UnknownTopicError(
                f"topic {self.topic} isn't on the broker: make it (kafka-topics.sh --bootstrap-server BROKER --create "
                f"--topic {self.topic} --partitions 8 --config cleanup.policy=compact), or start the app that owns it"
            )
        self._check_fit(facts)
        return facts

    async def _restore_all(self, facts: TopicFacts) -> None:
        there = self._stores.partitions()
        opened = {number: await self._stores.open(number) for number in sorted(there | set(range(facts.partitions)))}
        positions = {number: opened[number].position() for number in there}
        kept = [number for number, at in positions.items() if at is not None and at.changelog_id == facts.topic_id]
        if kept and (len(there) < facts.partitions or max(kept) >= facts.partitions):
            raise ConfigurationError(other_partitions(self.topic, len(there), facts.partitions))
        for number in [number for number in opened if number >= facts.partitions]:
            del opened[number]
            await self._stores.discard(number)
        room = asyncio.Semaphore(RESTORES_AT_ONCE)

        async def restore(number: int, store: PartitionStore) -> None:
            async with room:
                try:
                    self._copies[number] = await self._restored(store, facts, number)
                except StoreCorruptedError as error:
                    logger.warning("%s[%d]: rebuilding the view: %s", self.topic, number, error)
                    self._copies[number] = await self._restored(await self._stores.spare(number), facts, number)
                    await self._stores.use_spare(number)

        restores = [asyncio.create_task(restore(number, store)) for number, store in opened.items()]
        try:
            await asyncio.gather(*restores)
        finally:
            await end(*restores)

    async def _restored(self, store: PartitionStore, facts: TopicFacts, partition: int) -> _PartitionReplica:
        changelog = Changelog(
            store="",
            topic=facts.topic,
            topic_id=facts.topic_id,
            delete_retention_ms=facts.delete_retention_ms,
            max_record_bytes=facts.max_record_bytes,
            partition_count=facts.partitions,
        )
        restored = await self._restorer.restore(store, changelog, partition)
        store.apply((), restored.position)
        return _PartitionReplica(
            source=TopicPartition(facts.topic, partition),
            store=store,
            position=restored.position,
            kept=Retention(facts.topic_id, facts.delete_retention_ms, self._margin_ms),
        )

    def _check_fit(self, facts: TopicFacts) -> None:
        reason = unfit(facts.topic, facts.cleanup_policy, facts.delete_retention_ms, self._margin_ms)
        if reason is not None:
            raise ConfigurationError(reason)

    async def _run(self) -> None:
        """Follow until it is cancelled, or can't go on."""
        try:
            await self._follower.run()
        except Exception as error:
            is_expected = isinstance(error, ConfigurationError | UnreadableLogError)
            logger.critical("the view of %s ends: %s", self.topic, error, exc_info=None if is_expected else error)
            self._failure = error
            self._wake()

    def _follow_topic(self, facts: TopicFacts) -> None:
        self._facts = facts
        self._follower.want(TopicPartition(self.topic, number) for number in range(facts.partitions))

    async def look(self) -> None:
        """Learn whether the topic is another one, before what can't be followed on is rebuilt.

        Raises:
            ConfigurationError: the topic got partitions, or can't be held as a view any more.
        """
        known, facts = self._known(), await self._logs.facts(self.topic)
        if facts is None:
            raise BrokerUnavailableError(f"topic {self.topic} isn't on the broker: its last content is kept")
        if facts == known:
            return
        self._check_fit(facts)
        if facts.topic_id == known.topic_id and facts.partitions != known.partitions:
            raise ConfigurationError(other_partitions(self.topic, known.partitions, facts.partitions))
        for number in range(len(self._copies), facts.partitions):
            # All have a place before the first is built: a start after a crash counts them.
            await self._stores.open(number)
        self._follower.drop_all()
        self._follow_topic(facts)

    async def open_store(self, source: TopicPartition, look: Look, failure: Exception | None) -> _PartitionReplica:
        """Return a partition, rebuilt if it can't be followed on."""
        number, facts, copy = source.partition, self._known(), self._copies.get(source.partition)
        why = None if copy is None else await self._why_rebuilt(copy, look, failure)
        if copy is None or why is not None:
            if why is not None:
                logger.warning("%s: rebuilding the view: %s", source, why)
            copy = await self._rebuild(number, facts)
        if len(self._follower.held) + 1 == facts.partitions:
            for surplus in [surplus for surplus in self._copies if surplus >= facts.partitions]:
                await self._drop(surplus)
        return copy

    async def _why_rebuilt(self, copy: _PartitionReplica, look: Look, failure: Exception | None) -> str | None:
        """Return why a partition can't be followed on; None after its position was read again where a write failed."""
        facts, number, bounds = self._known(), copy.source.partition, look.bounds
        if copy.is_damaged or isinstance(failure, StoreCorruptedError):
            copy.is_damaged = True
            return "its database is damaged"
        if isinstance(failure, StoreError):
            copy.store = await self._stores.reopen(number)
            # A damaged store was deleted, and has no position: no topic's, then.
            copy.position = copy.store.position() or replace(copy.position, changelog_id="")
        copy.kept = Retention(facts.topic_id, facts.delete_retention_ms, self._margin_ms)
        copy.mark = copy.current_ms = None
        if (why := why_not_followed(copy.position, bounds, self.clock.wall_ms(), copy.kept)) is not None:
            return why
        if copy.position.changelog_offset >= bounds.end - 1:
            # The log's last record is never compacted: nothing can have escaped.
            copy.position = replace(copy.position, wall_time_ms=look.asked_ms)
        return None

    async def write(self, store: _PartitionReplica, writes: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Write a chunk, and report its changes."""
        changed = list(changes(writes, store.store.get))
        store.store.apply(writes, store.position)
        self._wake()
        if changed:
            await self._changed(store.source.partition, changed)

    @property
    def look_pause_s(self) -> float:  # type: ignore[override]
        """Often enough for the age of an idle copy to stay far below the time that deletes are kept."""
        return min(LONGEST_LOOK_S, (self._known().delete_retention_ms - self._margin_ms) / 8000)

    def failed(self, error: Exception, source: TopicPartition | None = None, pause_s: float = 0.0) -> None:
        """Log an error, or raise it: what isn't the brokers' or a store's ends the view."""
        if not isinstance(error, BrokerUnavailableError | RestoreError | StoreError):
            raise error
        if self._reminders.is_due(self.clock.monotonic()):
            logger.warning("following %s: %s; it is tried again", source or self.topic, error)

    async def _rebuild(self, number: int, facts: TopicFacts) -> _PartitionReplica:
        spare = await self._stores.spare(number)
        new, old = await self._restored(spare, facts, number), self._copies.get(number)
        # What a damaged store had is unknown: to callbacks, all of its keys are new.
        before: Iterator[tuple[bytes, bytes]] = iter(()) if old is None or old.is_damaged else old.store.scan()
        differing = differences(before, spare.scan())
        self._copies[number] = new
        self._wake()
        await self._changed_in_parts(number, differing)
        await self._stores.use_spare(number)
        return new

    async def _drop(self, number: int) -> None:
        gone = self._copies.pop(number)
        self._wake()
        await self._changed_in_parts(number, differences(gone.store.scan(), iter(())))
        await self._stores.discard(number)

    async def _changed_in_parts(self, number: int, differing: Iterator[Change]) -> None:
        while part := list(islice(differing, DIFFERENCES_AT_ONCE)):
            await self._changed(number, part)

    def _known(self) -> TopicFacts:
        if self._facts is None:
            raise ViewClosedError(f"the view of {self.topic} isn't open")
        return self._facts

    def _wake(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()
