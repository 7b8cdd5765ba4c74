"""Brings a store to the end of its changelog.

The end is the high watermark, read after the stable committed offsets: whatever an earlier owner committed lies before
it, and nobody but this task writes behind it. Reading is read-committed, so what lies before it and isn't given belongs
to an aborted transaction, or is a marker.

A store without a position may begin from a snapshot, whose content is that of the log up to an offset. It counts as a
checkpoint from the moment before its maker began to read: too old a one isn't taken, and like any other checkpoint it
is given up when deletes may have escaped it by the end of the restore. One that can't be used costs a line in the log.

A changelog may lose its tail: in an unclean leader election, or with a broker's disk. Then it ends before the store's
position, or others have written since and the records before the position aren't those that the store has seen. Or it
is deleted, and another topic has its name. All of it is looked for before anything is written; `LostChangelog` says
what happens then (`actors.runtime.task.lost_changelog`).

If the process dies in here, the store holds a prefix of the log's effects with the position of that prefix, and
keeps the wall time of the checkpoint that the restore began from: the age that matters for missed deletes is the age of
the oldest content.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace

from actors._core.logs import escaping
from actors._core.task.takeover import (
    LogBounds,
    LostChangelog,
    Restore,
    RestoreFacts,
    RestoreStep,
    Retention,
    decide_restore,
    missed_tombstones,
    plan_restore,
    why_foreign,
    why_not_followed,
    why_rewritten,
)
from actors.errors import LostChangelogError, RestoreError, show_bytes
from actors.ports import Clock, LogRecord, Logs, Snapshot, Snapshots, TopicPartition
from actors.runtime.meters import RestoreMeter
from actors.runtime.threads import finish_in_thread
from stores._core.record import (
    BEFORE_INPUT,
    INPUT_PLACE,
    METADATA_BYTES,
    METADATA_HEADER,
    METADATA_VERSION,
    SOURCE_PLACE,
    Position,
    decode_metadata,
)
from stores._core.replay import NO_METADATA, advance
from stores.errors import SnapshotError
from stores.ports import PartitionStore

logger = escaping(logging.getLogger(__name__))

_TOO_OLD = "its checkpoint is older than deletes are kept, some may have escaped it"
_CLOCK_SET = "the clock was set, or the machine was suspended, while it was read: deletes may have escaped it"
_OLDER = (
    'another worker may have a newer one. Start that one with lost_changelog="restore"; or, if there is none, this one '
    'with lost_changelog="restore_older", which loses what the commits in between wrote (both also as LOST_CHANGELOG '
    "in the environment)"
)
LONG_READ = 20_000
LONG_READS_AT_ONCE = 4
"""How many restores of more than `LONG_READ` offsets a worker runs side by side: it bounds memory, and more would only
make all of them late."""


LOOK_BACK = 200
"""How many offsets before a position are looked at for records that the store hasn't seen."""


@dataclass(frozen=True, slots=True)
class Changelog:
    """A store's changelog topic as the broker has it.

    `other_names` are those under which the app's programs have had the store; marks of commits name it by one of them.
    """

    store: str
    topic: str
    topic_id: str
    delete_retention_ms: int
    max_record_bytes: int
    partition_count: int
    other_names: tuple[str, ...] = ()

    def kept(self, margin_ms: int) -> Retention:
        """Return the retention of deletes, where clocks may differ by `margin_ms`."""
        return Retention(self.topic_id, self.delete_retention_ms, margin_ms)


@dataclass(frozen=True, slots=True)
class LastCommit:
    """A partition's last commit.

    Attributes:
        epoch: of its owner, None if that is unknown.
        changelog_id: the id of the store's changelog as its owner knew it, "" if that is unknown.
        reached: for each input the offset behind the last record that is committed.
        is_marked: whether the group still has the commit; else it is known from the leader registry, as it was when its
            owner took over. Brokers delete the offsets of an input with the input.
        owner: the highest epoch that an owner had; 0 if that is unknown.
        transaction: the commit's number in that epoch, 0 if that is unknown.
    """

    epoch: int | None = None
    changelog_id: str = ""
    reached: tuple[int, ...] = ()
    is_marked: bool = True
    owner: int = 0
    transaction: int = 0


NO_COMMIT = LastCommit()


@dataclass(frozen=True, slots=True)
class Restored:
    """A store at the end of its changelog; `position.source_offset` is what the state itself knows of the input.

    `is_ahead` says that it isn't there: it has records that the changelog lost.
    """

    store: PartitionStore
    position: Position
    is_empty: bool
    is_ahead: bool = False


class Restorer:
    """Restores the stores of one worker, empty ones from `snapshots` if there are some.

    `lost` says what happens with a store whose changelog lost records.
    """

    def __init__(
        self,
        logs: Logs,
        clock: Clock,
        *,
        clock_skew_margin_ms: int,
        snapshots: Snapshots | None = None,
        lost: LostChangelog = LostChangelog.STOP,
    ) -> None:
        self._logs = logs
        self._clock = clock
        self._snapshots = snapshots
        self._lost = lost
        self._margin_ms = clock_skew_margin_ms
        self._long_reads = asyncio.Semaphore(LONG_READS_AT_ONCE)
        self._reading = 0

    @property
    def is_busy(self) -> bool:
        """Return whether a long read is under way, or waits for its turn."""
        return self._reading > 0

    async def restore(
        self,
        store: PartitionStore,
        changelog: Changelog,
        partition: int,
        meter: RestoreMeter | None = None,
        *,
        last: LastCommit = NO_COMMIT,
        doubt: str | None = None,
    ) -> Restored:
        """Read what the store lacks; rebuild it where its checkpoint can't be continued. `meter` gets the progress.

        `last` is the partition's last commit: a store that was its owner's own needs no look at the records before its
        position. `doubt` is what a commit found that shows that the changelog lost records.

        Returns:
            The store at the log's end; `is_ahead` if it has records that the changelog lost and wasn't touched.

        Raises:
            LostChangelogError: the changelog lost records, or has some that no owner can have written, and no operator
                has chosen what to do.
            RestoreError: the log changed under the read, or reading took longer than deletes are kept.
        """
        source = TopicPartition(changelog.topic, partition)
        meter = RestoreMeter() if meter is None else meter
        if last.changelog_id != changelog.topic_id or self._lost is LostChangelog.REBUILD:
            last = replace(last, owner=0)
        asked_ms, asked_s = self._clock.wall_ms(), self._clock.monotonic()
        position, bounds = store.position(), await self._logs.bounds(source)
        claimed_id = last.changelog_id or ("" if position is None else position.changelog_id)
        facts = RestoreFacts(position, bounds, changelog.topic_id, claimed_id, doubt)
        may_use_snapshot = self._snapshots is not None
        while True:
            step, plan = decide_restore(facts, self._lost)
            if plan.wipe is not None:
                logger.warning("%s: rebuilding the store: %s", source, plan.wipe)
                await finish_in_thread(store.wipe)
                may_use_snapshot &= not (facts.doubt or facts.rewritten or facts.missed)
                asked_ms, asked_s = self._clock.wall_ms(), self._clock.monotonic()
                bounds = await self._logs.bounds(source)
                facts = RestoreFacts(None, bounds, changelog.topic_id)
                continue
            if step is not RestoreStep.READ:
                return await self._not_read(store, source, facts, step, plan, last)
            if facts.position is None and may_use_snapshot:
                may_use_snapshot = False
                position = await self.begin_from_snapshot(store, changelog, partition, bounds)
                facts = replace(facts, position=position, claimed_id="")
                continue
            try:
                restored = await self._read(store, source, facts, plan, asked_ms, meter, last)
            except _RewrittenError as error:
                facts = replace(facts, rewritten=str(error))
                continue
            took_ms = int((self._clock.monotonic() - asked_s) * 1000)
            if not self._is_missed(plan, facts.position, asked_ms, took_ms, changelog):
                return replace(restored, position=replace(restored.position, wall_time_ms=asked_ms))
            if facts.position is None and took_ms >= changelog.delete_retention_ms:
                raise RestoreError(
                    f"{source}: reading all of it took longer than delete.retention.ms="
                    f"{changelog.delete_retention_ms}, deletes may have escaped it: raise the topic's setting"
                )
            facts = replace(facts, missed=_CLOCK_SET if facts.position is None else _TOO_OLD)

    def _is_missed(
        self, plan: Restore, position: Position | None, asked_ms: int, took_ms: int, changelog: Changelog
    ) -> bool:
        """Return whether deletes may have escaped a restore from this position that began at `asked_ms`."""
        now_ms = self._clock.wall_ms()
        if position is not None:
            kept = changelog.kept(self._margin_ms)
            return missed_tombstones(plan, kept, since_ms=position.wall_time_ms, now_ms=now_ms)
        # A clock that was set back hides how long the read took; a monotonic one hides how long the machine slept.
        now_ms = max(now_ms, asked_ms + took_ms, key=lambda at_ms: abs(at_ms - asked_ms))
        return missed_tombstones(plan, changelog.kept(0), since_ms=asked_ms, now_ms=now_ms)

    async def _not_read(
        self,
        store: PartitionStore,
        source: TopicPartition,
        facts: RestoreFacts,
        step: RestoreStep,
        plan: Restore,
        last: LastCommit,
    ) -> Restored:
        """Return the store as it is, if it is the copy to write back.

        Raises:
            LostChangelogError: it isn't, or no operator has chosen what to do.
        """
        lost = str(plan.lost)
        if step is RestoreStep.ASK_FOR_COPY or facts.position is None:
            raise LostChangelogError(_no_copy(source, lost))
        if step is RestoreStep.ASK_OPERATOR:
            raise LostChangelogError(choice(source, lost))
        if self._lost is LostChangelog.RESTORE and facts.claimed_id not in ("", facts.topic_id):
            await self._require_newest(facts.position, source, facts, last, lost)
        return Restored(store, facts.position, is_empty=False, is_ahead=True)

    async def _require_newest(
        self, position: Position, source: TopicPartition, facts: RestoreFacts, last: LastCommit, lost: str
    ) -> None:
        """Refuse to write a store to another topic that lacks what was committed last, unless the topic has it.

        Raises:
            LostChangelogError: it lacks that: another worker may have a newer store, which would be given up.
        """
        if not last.is_marked and last.epoch is not None and position.epoch < last.epoch:
            raise LostChangelogError(
                f"{source}: {lost}. This worker's store is of epoch {position.epoch}, and the partition had an owner "
                f"in epoch {last.epoch}: {_OLDER}"
            )
        known = [position.offset_of(index) or 0 for index in range(len(last.reached))]
        lacking = {place for place in enumerate(known) if place[1] < last.reached[place[0]]}
        if not lacking or not last.is_marked:
            return
        async for records, _ in self._logs.read(source, facts.bounds.start, facts.bounds.end, facts.topic_id):
            for record in records:
                metadata = decode_metadata(metadata_of(record.headers))
                if metadata.epoch == position.epoch:
                    lacking.discard((metadata.input, metadata.source_offset))
                if not lacking:
                    # The very next commit landed on the new topic. A later record alone says nothing of those before.
                    return
        raise LostChangelogError(
            f"{source}: {lost}. This worker's store ends at input offset {', '.join(map(str, known))}, and inputs "
            f"before {', '.join(map(str, last.reached))} are committed: {_OLDER}"
        )

    async def why_rebuilt(
        self, position: Position, changelog: Changelog, partition: int, bounds: LogBounds, claimed_id: str
    ) -> str | None:
        """Return why a copy of this position has to be rebuilt, None if it can be followed on.

        Raises:
            LostChangelogError: the log lacks what the copy has, and it isn't to be rebuilt: only an owner writes back.
        """
        source = TopicPartition(changelog.topic, partition)
        facts = RestoreFacts(position, bounds, changelog.topic_id, claimed_id)
        step, plan = decide_restore(facts, self._lost)
        if step is RestoreStep.READ:
            start = max(bounds.start, position.changelog_offset - LOOK_BACK)
            async for records, _ in self._logs.read(source, start, position.changelog_offset, position.changelog_id):
                facts = replace(facts, rewritten=facts.rewritten or _why_rewritten(position, records))
            step, plan = decide_restore(facts, self._lost)
        if plan.lost is not None and step is not RestoreStep.REBUILD:
            raise LostChangelogError(choice(source, plan.lost))
        kept = changelog.kept(self._margin_ms)
        return plan.wipe or why_not_followed(position, bounds, self._clock.wall_ms(), kept)

    async def begin_from_snapshot(
        self, store: PartitionStore, changelog: Changelog, partition: int, bounds: LogBounds
    ) -> Position | None:
        """Put a snapshot into an empty store, if there is one that fits; give the store's position.

        Raises:
            StoreError: the store failed, see `stores.ports.PartitionStore.load_snapshot`.
        """
        snapshots, source = self._snapshots, TopicPartition(changelog.topic, partition)
        if snapshots is None:
            return None
        started_s = self._clock.monotonic()
        try:
            async with self._long_reads:
                snapshot = await finish_in_thread(snapshots.find, changelog.store, source.partition)
                if snapshot is None:
                    logger.info("%s: there is no snapshot of it in %s", source, snapshots)
                    return None
                self._check(snapshot, changelog, bounds)
                async with snapshot.fetched() as content:
                    await finish_in_thread(store.load_snapshot, content)
        except SnapshotError as error:
            logger.warning("%s: the snapshot isn't used, the changelog has everything: %s", source, error)
            return None
        seconds = self._clock.monotonic() - started_s
        logger.info("%s: begun with %d keys of %s in %.2f s", source, snapshot.keys, snapshot, seconds)
        return store.position()

    def _check(self, snapshot: Snapshot, changelog: Changelog, bounds: LogBounds) -> None:
        if snapshot.changelog != changelog.topic:
            raise SnapshotError(f"it is of topic {snapshot.changelog}")
        if snapshot.partition_count != changelog.partition_count:
            raise SnapshotError(
                f"it is of {snapshot.partition_count} partitions, the topic has {changelog.partition_count}"
            )
        is_of_topic = snapshot.position.changelog_id == changelog.topic_id
        plan = plan_restore(snapshot.position, bounds, changelog.topic_id)
        if self._lost is not LostChangelog.REBUILD and is_of_topic and plan.lost is not None:
            # The snapshot has what the changelog lost: it is for the operator to choose.
            return
        why = why_not_followed(snapshot.position, bounds, self._clock.wall_ms(), changelog.kept(self._margin_ms))
        if why is not None:
            raise SnapshotError(f"{why}: make a new snapshot")

    async def _read(
        self,
        store: PartitionStore,
        source: TopicPartition,
        facts: RestoreFacts,
        plan: Restore,
        asked_ms: int,
        meter: RestoreMeter,
        last: LastCommit,
    ) -> Restored:
        """Read, and give each chunk to the store at once: in a thread that would hold the loop up as long.

        Only records of the position's topic: the store never gets those of another one with its name. What lies shortly
        before the plan's start is only looked at, unless the store was the last owner's own.

        Raises:
            LostChangelogError: no owner can have written a record; the store doesn't get its chunk.
        """
        begin = facts.position or begin_position(plan.start, asked_ms, facts.topic_id)
        if last.owner and begin.epoch > last.owner:
            raise _foreign(f"{source}: the store took records of epoch {begin.epoch}, the last owner's is {last.owner}")
        is_own = begin.epoch == last.epoch and plan.start == plan.end
        start = plan.start if is_own else max(facts.bounds.start, plan.start - LOOK_BACK)
        meter.begins(plan.start, plan.end)
        async with self._turn(is_long=plan.end - plan.start > LONG_READ):
            position, count = begin, 0
            started_s = self._clock.monotonic()
            async for found, next_offset in self._logs.read(source, start, plan.end, begin.changelog_id):
                records = found
                if start < plan.start:
                    why = _why_rewritten(begin, found)
                    if why is not None:
                        raise _RewrittenError(why)
                    records = [record for record in found if record.offset >= plan.start]
                    start = next_offset
                    if next_offset <= plan.start:
                        continue
                writes, newest = stored_writes(records)
                is_after_own = position.transaction and position.epoch == last.owner
                if last.owner and (is_after_own or max(decode_metadata(raw).epoch for raw in newest) > last.owner):
                    _require_own(source, records, position, last)
                position = advance(position, newest, next_offset)
                store.load(writes, _unfinished(position, plan))
                count += len(records)
                meter.read(next_offset, len(records))
            store.load((), _unfinished(position, plan))
            await finish_in_thread(store.settle)
            position = replace(position, changelog_offset=plan.end)
            if count:
                seconds = max(self._clock.monotonic() - started_s, 1e-6)
                logger.info("%s: restored %d records in %.2f s", source, count, seconds)
            return Restored(store, position, is_empty=position.epoch == 0 and count == 0)

    @contextlib.asynccontextmanager
    async def _turn(self, *, is_long: bool) -> AsyncIterator[None]:
        """Wait until a long read may begin."""
        self._reading += is_long
        try:
            async with self._long_reads if is_long else contextlib.nullcontext():
                yield
        finally:
            self._reading -= is_long


class _RewrittenError(Exception):
    """The log has other records before the store's position than the store has seen."""


def choice(source: TopicPartition | str, lost: str) -> str:
    """Say that a changelog lacks what a store has, and what an operator can do."""
    return (
        f"{source}: {lost}. The topic lacks records that the stores of workers have. To "
        "keep the store and write what is missing back to the topic, start the partition's owner once with "
        'lost_changelog="restore"; to rebuild the store from what the topic has, which drops what was lost, with '
        'lost_changelog="rebuild" (both also as LOST_CHANGELOG in the environment). The store is left as it is until '
        "then"
    )


def _no_copy(source: TopicPartition, lost: str) -> str:
    return (
        f"{source}: {lost}. The state is lost with the former topic, and this worker has no copy of it. If another "
        "worker has one, as the partition's former owner may, start that one, and stop this one, with "
        'lost_changelog="restore": it writes its store to the topic. To give up the state, and begin with what the '
        'topic has, start this worker once with lost_changelog="rebuild" (both also as LOST_CHANGELOG in the '
        "environment)"
    )


def _why_rewritten(position: Position, records: Iterable[LogRecord]) -> str | None:
    for record in records:
        if record.offset >= position.changelog_offset:
            break
        # As in `stored_writes`, what has no key is no state.
        why = None if record.key is None else why_rewritten(position, record.offset, metadata_of(record.headers))
        if why is not None:
            return why
    return None


def _require_own(source: TopicPartition, records: Iterable[LogRecord], position: Position, last: LastCommit) -> None:
    for record in records:
        metadata = decode_metadata(metadata_of(record.headers))
        why = why_foreign(metadata, position, owner=last.owner, transaction=last.transaction)
        if why is not None and record.key is not None:
            raise _foreign(f"{source} offset {record.offset}, key {show_bytes(record.key)}: {why}")


def _foreign(found: str) -> LostChangelogError:
    return LostChangelogError(
        f"{found}. No owner of the partition can have written it: another program writes to the changelog. Take away "
        "its right to write; `python -m spark_replay validate --invariants` names its records. To go on with all that "
        'the topic has, start the partition\'s owner once with lost_changelog="rebuild" (or LOST_CHANGELOG in the '
        "environment), and then write the keys again through the actor. The store is left as it is until then"
    )


def begin_position(start: int, since_ms: int, topic_id: str) -> Position:
    """Return the position of an empty store, as old as the read that begins at `start`."""
    return Position(source_offset=0, changelog_offset=start, wall_time_ms=since_ms, epoch=0, changelog_id=topic_id)


def stored_writes(records: Iterable[LogRecord]) -> tuple[list[tuple[bytes, bytes | None]], list[bytes]]:
    """Return the store's writes of records, in the log's order, and the highest write metadata of each input.

    Records of another program get empty write metadata; records without a key are no state. Write metadata compares as
    bytes: version, epoch, input offset, big-endian. Those from before the first input have a place of their own.
    """
    writes: list[tuple[bytes, bytes | None]] = []
    newest: dict[bytes, bytes] = {}
    highest = NO_METADATA
    for record in records:
        key, value, headers = record.key, record.value, record.headers
        if key is None:
            continue
        metadata = headers[0][1] if len(headers) == 1 and headers[0][0] == METADATA_HEADER else _metadata(headers)
        if len(metadata) != METADATA_BYTES:
            metadata = NO_METADATA
        elif metadata[0] == METADATA_VERSION and metadata[9] < BEFORE_INPUT:
            highest = max(highest, metadata)
        else:
            place = metadata[SOURCE_PLACE if metadata[9] >= BEFORE_INPUT else INPUT_PLACE]
            newest[place] = max(newest.get(place, b""), metadata)
        writes.append((key, None if value is None else metadata + value))
    return writes, [highest, *newest.values()]


def _metadata(headers: Iterable[tuple[str, bytes]]) -> bytes:
    """Return the last write metadata among a record's headers."""
    metadata = NO_METADATA
    for name, value in headers:
        if name == METADATA_HEADER:
            metadata = value
    return metadata


def metadata_of(headers: Iterable[tuple[str, bytes]]) -> bytes:
    """Return a record's write metadata as the store keeps it: empty write metadata for another program's record."""
    metadata = _metadata(headers)
    return metadata if len(metadata) == METADATA_BYTES else NO_METADATA


def _unfinished(position: Position, plan: Restore) -> Position:
    """Return the position to keep on disk until the restore is known to be good.

    It stays far enough from the log's end for the next restore to look at the checkpoint's age, which this one, if it
    dies here, hasn't done yet. The claim writes the real one.
    """
    return replace(position, changelog_offset=max(plan.start, min(position.changelog_offset, plan.end - 2)))
