"""A copy of a compacted topic, all partitions of it, that follows the topic.

    opening ──▶ following ◀──▶ mending ──▶ closed
                    └────────────┴───────▶ failed     the topic got partitions, or isn't compacted any more

Opening is what a task's takeover does for its store: the copy on disk is caught up or built anew (`Restorer`). While
it follows, a second loop looks at the topic every few seconds. What it finds decides (`actors._core.view_rules`):

- A copy that has reached the end which a look found was all that the log held when the look began. That moment is
  kept with the copy, as its age.
- A topic that was made anew, a log that starts after the copy's position, and a copy that is older than deletes are
  kept are mended: the partition is built anew in a second store, which then takes the first one's place. So readers
  see the old content or the new one, never a part, and the difference of the two is what changed.

Each chunk of records is written to the store with its position, in one step. A process that dies reads it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from actors._core.backoff import Backoff
from actors._core.logs import Reminders, escaping
from actors._core.task.takeover import LogBounds, LostChangelog, Retention, why_not_followed
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
from actors.ports import Clock, LogRecord, StoreProvider, TopicFacts, TopicLogs, TopicPartition
from actors.runtime.cancellation import end, is_cancelled
from actors.runtime.replicas.followed import FollowedStore
from actors.runtime.state.restore import Changelog, Restorer, stored_writes
from stores._core.record import Position
from stores._core.replay import advance
from stores.errors import StoreCorruptedError, StoreError
from stores.ports import PartitionStore

logger = escaping(logging.getLogger(__name__))

POLL_S = 0.5
RETRY = Backoff(0.1, longest_s=2.0)
REMIND_S = 10.0
LONGEST_LOOK_S = 15.0
"""How often the topic is looked at, at least."""
RESTORES_AT_ONCE = 8
DIFFERENCES_AT_ONCE = 1_000
_SLOTS = ("a", "b")

Changed = Callable[[int, Sequence[Change]], Awaitable[None]]


class ViewReplicaStores:
    """The stores of a copy: one for each partition, and a second one while that is built anew.

    `cache` opens them, as the stores `a` and `b`; `on_disk` gives the partitions that one of them has already;
    `release` closes them and their folder at the end.
    """

    def __init__(
        self, cache: StoreProvider, *, on_disk: Callable[[str], Iterable[int]], release: Callable[[], None]
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


@dataclass(slots=True, kw_only=True)
class _PartitionReplica(FollowedStore):
    """One partition.

    Attributes:
        is_suspect: whether a write failed, so that the disk may have something else.
        is_damaged: whether the database can't be read, so that the partition has to be built again.
    """

    is_suspect: bool = False
    is_damaged: bool = False

    def write(self, writes: Iterable[tuple[bytes, bytes | None]], position: Position) -> None:
        """Write to the store."""
        try:
            self.store.apply(writes, position)
        except StoreError:
            self.is_suspect = True
            raise
        self.position = position


class _MustRepairError(Exception):
    """Following on would be wrong."""


class ViewReplica:
    """All partitions of a compacted topic as bytes with write metadata.

    `logs` and `stores` are closed with it; `changed` is awaited with a partition and its changes, in order, after they
    were applied.
    """

    def __init__(
        self,
        topic: str,
        *,
        logs: TopicLogs,
        stores: ViewReplicaStores,
        clock: Clock,
        clock_skew_margin_ms: int,
        changed: Changed,
    ) -> None:
        self.topic = topic
        self._logs = logs
        self._stores = stores
        self.clock = clock
        self._margin_ms = clock_skew_margin_ms
        self._changed = changed
        self._restorer = Restorer(logs, clock, clock_skew_margin_ms=clock_skew_margin_ms, lost=LostChangelog.REBUILD)
        self._facts: TopicFacts | None = None
        self._copies: dict[int, _PartitionReplica] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._must_repair = False
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
            if isinstance(error, StoreCorruptedError) and copy.store.path == error.path:
                copy.is_damaged = self._must_repair = True

    async def moved(self) -> None:
        """Wait until something was applied, or the copy ended."""
        await self._moved.wait()

    async def caught_up(self, partitions: Sequence[int] | None = None) -> None:
        """Wait until all is applied that is committed now, in these partitions or in all.

        Raises:
            BrokerUnavailableError: no broker answers.
        """
        self.check()
        known, facts = self._known(), await self._logs.facts(self.topic)
        if facts is None:
            raise BrokerUnavailableError(f"topic {self.topic} isn't on the broker: nobody can tell what it will hold")
        self._must_repair |= facts != known
        wanted = range(facts.partitions) if partitions is None else partitions
        bounds = await asyncio.gather(*(self._logs.bounds(TopicPartition(self.topic, number)) for number in wanted))
        ends = dict(zip(wanted, (bound.end for bound in bounds), strict=True))
        while not self._has_reached(ends, facts.topic_id):
            await self.moved()
            if self._known().topic_id not in (known.topic_id, facts.topic_id):
                # Made anew once more meanwhile: those ends are nobody's.
                await self.caught_up(partitions)
                return

    def _has_reached(self, ends: Mapping[int, int], topic_id: str) -> bool:
        self.check()
        if self._known().topic_id != topic_id:
            return False
        return all(self._copies[number].position.changelog_offset >= end for number, end in ends.items())

    async def open(self) -> None:
        """Catch up with the topic, and begin to follow it.

        Raises:
            UnknownTopicError: there is no such topic.
            ConfigurationError: it can't be held as a view, or got partitions since the view was kept.
            BrokerUnavailableError: no broker answers.
            StoreError: the folder can't be used.
        """
        facts = await self._logs.facts(self.topic)
        if facts is None:
            raise UnknownTopicError(
                f"topic {self.topic} isn't on the broker: make it (kafka-topics.sh --bootstrap-server BROKER --create "
                f"--topic {self.topic} --partitions 8 --config cleanup.policy=compact), or start the app that owns it"
            )
        self._check_fit(facts)
        await self._restore_all(facts)
        self._facts = facts
        self._tasks = [
            asyncio.create_task(self._run(), name=f"view of {self.topic}"),
            asyncio.create_task(self._look_on(), name=f"looking at {self.topic}"),
        ]

    async def close(self) -> None:
        """Stop following and close the stores. May be called twice."""
        self._is_closed = True
        self._wake()
        tasks, self._tasks = self._tasks, []
        await end(*tasks)
        self._stores.close()
        await self._logs.close()

    async def _restore_all(self, facts: TopicFacts) -> None:
        there = self._stores.partitions()
        opened = {number: await self._stores.open(number) for number in sorted(there | set(range(facts.partitions)))}
        kept = {number for number in there if _is_of(opened[number], facts.topic_id)}
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
        return _PartitionReplica(store=store, position=restored.position)

    def _check_fit(self, facts: TopicFacts) -> None:
        reason = unfit(facts.topic, facts.cleanup_policy, facts.delete_retention_ms, self._margin_ms)
        if reason is not None:
            raise ConfigurationError(reason)

    async def _run(self) -> None:
        """Follow until it is cancelled, or can't go on."""
        retry_s = RETRY.first_s
        while True:
            started_s = self.clock.monotonic()
            try:
                await self._repair()
                await self._follow()
            except (BrokerUnavailableError, RestoreError, StoreError) as error:
                self._say("following", f"following {self.topic}: {error}; it is tried again")
                self._must_repair = True
                if isinstance(error, StoreError):
                    self.doubt(error)
            except asyncio.CancelledError:
                if is_cancelled():
                    raise
                self._must_repair = True
            except Exception as error:
                self._fail(error)
                return
            retry_s = RETRY.first_s if self.clock.monotonic() - started_s > RETRY.longest_s else retry_s
            await self.clock.sleep(retry_s)
            retry_s = RETRY.longer_s(retry_s)

    async def _follow(self) -> None:
        """Apply what comes, until something has to be mended."""
        following = await self._logs.follow(
            {
                TopicPartition(self.topic, number): copy.position.changelog_offset
                for number, copy in self._copies.items()
            },
            {self.topic: self._known().topic_id},
        )
        try:
            while not self._must_repair:
                fetched = await following.poll(POLL_S)
                for source, (records, next_offset) in fetched.items():
                    await self._apply(source.partition, records, next_offset)
        except _MustRepairError:
            self._must_repair = True
        finally:
            await following.close()

    async def _apply(self, partition: int, records: Sequence[LogRecord], next_offset: int) -> None:
        copy, facts = self._copies[partition], self._known()
        if copy.is_too_old(self.clock.wall_ms(), self._kept(facts)):
            raise _MustRepairError
        writes, newest = stored_writes(records)
        changed = list(changes(writes, copy.store.get))
        copy.write(writes, copy.timed(advance(copy.position, newest, next_offset)))
        self._wake()
        if changed:
            await self._changed(partition, changed)

    async def _look_on(self) -> None:
        while True:
            retention_s = (self._known().delete_retention_ms - self._margin_ms) / 1000
            await self.clock.sleep(min(LONGEST_LOOK_S, retention_s / 8))
            try:
                await self._look()
            except (BrokerUnavailableError, StoreError) as error:
                self._say("looking", f"looking at {self.topic}: {error}; it is tried again")
            except asyncio.CancelledError:
                if is_cancelled():
                    raise
            except Exception as error:
                self._fail(error)
                return

    async def _look(self) -> None:
        """Find out whether something has to be mended, and how old the copies are."""
        if self._must_repair:
            return
        asked_ms, facts = self.clock.wall_ms(), await self._logs.facts(self.topic)
        if facts is None:
            self._say(
                "gone", f"topic {self.topic} isn't on the broker any more; its last content is kept until it is there"
            )
            return
        if facts != self._facts:
            self._must_repair = True
            return
        for number in list(self._copies):
            bounds = await self._logs.bounds(TopicPartition(self.topic, number))
            copy = self._copies.get(number)
            if copy is None or self._must_repair:
                return
            if why_not_followed(copy.position, bounds, self.clock.wall_ms(), self._kept(facts)) is not None:
                self._must_repair = True
                return
            self._mark(copy, asked_ms, bounds)

    def _mark(self, copy: _PartitionReplica, asked_ms: int, bounds: LogBounds) -> None:
        """Note the log's end; a copy that is there already is as old as the look."""
        if copy.position.changelog_offset < bounds.end:
            copy.expect(asked_ms, bounds.end)
            return
        position = replace(copy.position, wall_time_ms=asked_ms)
        copy.write((), position)
        copy.mark = None

    def _kept(self, facts: TopicFacts) -> Retention:
        return Retention(facts.topic_id, facts.delete_retention_ms, self._margin_ms)

    async def _repair(self) -> None:
        """Build anew what can't be followed on.

        Raises:
            ConfigurationError: the topic got partitions, or can't be held as a view any more.
        """
        if not self._must_repair:
            return
        known, asked_ms, facts = self._known(), self.clock.wall_ms(), await self._logs.facts(self.topic)
        if facts is None:
            raise BrokerUnavailableError(f"topic {self.topic} isn't on the broker: its last content is kept")
        self._check_fit(facts)
        if facts.topic_id == known.topic_id and facts.partitions != known.partitions:
            raise ConfigurationError(other_partitions(self.topic, known.partitions, facts.partitions))
        for number in range(len(self._copies), facts.partitions):
            # All have a place before the first is built: a start after a crash counts them.
            await self._stores.open(number)
        for number in range(facts.partitions):
            copy, bounds = self._copies.get(number), await self._logs.bounds(TopicPartition(self.topic, number))
            if copy is not None:
                await self._reopen_suspect(number, copy)
                why = why_not_followed(copy.position, bounds, self.clock.wall_ms(), self._kept(facts))
                why = "its database is damaged" if copy.is_damaged else why
                if why is None:
                    if copy.position.changelog_offset >= bounds.end - 1:
                        # The log's last record is never compacted: nothing can have escaped.
                        copy.position = replace(copy.position, wall_time_ms=asked_ms)
                    copy.mark = None
                    continue
                logger.warning("%s[%d]: rebuilding the view: %s", self.topic, number, why)
            await self._rebuild(number, facts)
        for number in [number for number in self._copies if number >= facts.partitions]:
            await self._drop(number)
        self._facts, self._must_repair = facts, False
        self._wake()

    async def _reopen_suspect(self, number: int, copy: _PartitionReplica) -> None:
        """Go on from what the disk has where a write failed."""
        if not copy.is_suspect or copy.is_damaged:
            return
        copy.store = await self._stores.reopen(number)
        # A damaged store was deleted, and has no position: no topic's, then.
        copy.position = copy.store.position() or replace(copy.position, changelog_id="")
        copy.is_suspect = False

    async def _rebuild(self, number: int, facts: TopicFacts) -> None:
        spare = await self._stores.spare(number)
        new, old = await self._restored(spare, facts, number), self._copies.get(number)
        # What a damaged store had isn't known: to those who are told of changes, all of its keys are new.
        before: Iterator[tuple[bytes, bytes]] = iter(()) if old is None or old.is_damaged else old.store.scan()
        differing = differences(before, spare.scan())
        self._copies[number] = new
        self._wake()
        await self._changed_in_parts(number, differing)
        await self._stores.use_spare(number)

    async def _drop(self, number: int) -> None:
        gone = self._copies.pop(number)
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

    def _fail(self, error: Exception) -> None:
        is_expected = isinstance(error, ConfigurationError | UnreadableLogError)
        logger.critical("the view of %s ends: %s", self.topic, error, exc_info=None if is_expected else error)
        self._failure = error
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._wake()

    def _say(self, kind: str, text: str) -> None:
        """Log a warning, one of a kind in a while."""
        if self._reminders.is_due(self.clock.monotonic(), kind):
            logger.warning("%s", text)


def _is_of(store: PartitionStore, topic_id: str) -> bool:
    position = store.position()
    return position is not None and position.changelog_id == topic_id
