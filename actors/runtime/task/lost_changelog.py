"""Finds out that a changelog was replaced, and writes what one lost back to it, from the store that still has it.

A changelog is known by its topic's id. Each commit's mark has the ids that its takeover looked at, so that a commit
which lands on another topic of that name says what it was meant for. The mark keeps a lost changelog's id until all is
written back: whoever takes over before that finds the loss again.

The store and the whole log are compared key by key. Write metadata tells which of two values is newer, so that what
another owner wrote since the loss stays. A key that only the log has was deleted from the store, unless its metadata
is above all that the store has seen. Nothing else may write to the log meanwhile: the task has fenced and claimed the
partition.

The records are written with the new owner's epoch. A copy that stands behind the loss finds them before its position
with an epoch that it hasn't seen, and so learns that it can't be followed on.

If the process dies in here, the store keeps the position from before the loss. The next takeover begins from the start:
what was written back by then is equal in both, or newer in the log. If it dies between the mark and the store's new
position, the store is rebuilt from the log, which has all of it.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter

from actors._core.logs import escaping
from actors._core.task.commit import CommitMark, parse_mark
from actors._core.task.completed import decode_finished
from actors._core.task.takeover import LogBounds, why_replaced
from actors._core.task.topic_ids import TopicIds
from actors.errors import LostChangelogError, RestoreError
from actors.ports import ChangelogWrites, CommitBatch, Committed, GroupView, Logs, OwnerRecord, TopicPartition
from actors.runtime.inputs.progress import InputProgress
from actors.runtime.spec import ActorSpec
from actors.runtime.state.restore import (
    NO_COMMIT,
    Changelog,
    LastCommit,
    Restored,
    Restorer,
    choice,
    metadata_of,
    stored_writes,
)
from actors.runtime.task.context import TaskContext
from actors.runtime.task.identity import changelog_ids
from actors.runtime.threads import finish_in_thread
from stores._core.overlay import WRITE_OVERHEAD_BYTES
from stores._core.printable import moment
from stores._core.record import METADATA_BYTES, METADATA_VERSION, Position, decode_metadata, with_epoch
from stores.ports import PartitionStore

logger = escaping(logging.getLogger(__name__))

_DELETED, _THERE = b"\0", b"\1"
"""The byte behind the write metadata in the folded log: a delete has write metadata too."""
_AGE_BYTES = 17
"""Version, epoch and input offset at the front of write metadata: bytes that grow with time."""


@dataclass(slots=True)
class _Chunk:
    """Differences that go together: to the log, and to the store."""

    to_log: dict[bytes, tuple[bytes, bytes | None]]
    to_store: dict[bytes, bytes | None]
    size: int = 0


@dataclass(frozen=True, slots=True)
class _Epochs:
    """The epoch of what is written back: the owner's; below `since` for what was written below it."""

    epoch: int
    since: int

    def renumbered(self, with_metadata: bytes) -> bytes:
        epoch = self.epoch if decode_metadata(with_metadata).epoch >= self.since else self.since - 1
        return with_epoch(with_metadata[:METADATA_BYTES], epoch)


async def write_back(
    held: Restored,
    folded: PartitionStore,
    source: TopicPartition,
    *,
    logs: Logs,
    commit: Callable[[ChangelogWrites], Awaitable[int]],
    written: Callable[[], Awaitable[None]],
    since: int,
    delete_retention_ms: int,
    now_ms: int,
    max_bytes: int,
) -> Restored:
    """Bring log and store to the same content, and give the store with its new position.

    `held` has the position that the store shall have: the new owner's epoch and input offset. `folded` is a store for
    the log's content, which is emptied first. `commit` writes to the log and gives its next offset; `written` is called
    when the log has all, only then the store gets its new position. What was written before epoch `since` keeps an
    epoch below it.

    Raises:
        LostChangelogError: others have deleted keys since, and compaction may have removed the deletes.
    """
    store, before = held.store, held.store.position()
    if before is None:
        raise AssertionError("a store without a position is ahead of nothing")
    bounds = await logs.bounds(source)
    epoch = await _fold(logs, source, held.position.changelog_id, bounds, folded)
    if epoch <= before.epoch:
        # Nobody else wrote: the store is the truth as of now. If the process dies in here, the next attempt finds
        # records of this one in the log, and has to tell that no deletes of others have been forgotten since.
        before = replace(before, wall_time_ms=now_ms)
        await finish_in_thread(store.apply, [], before)
    elif now_ms - before.wall_time_ms >= delete_retention_ms:
        raise LostChangelogError(
            f"{source}: others wrote to the topic since it lost records, and the store is older than "
            f"delete.retention.ms={delete_retention_ms}: which keys were deleted is unknown. Rebuild the "
            'store from the topic: start the worker once with lost_changelog="rebuild"'
        )
    end, count = bounds.end, 0
    # What the last owner wrote to another topic is newer than the store, also at an offset below the store's: actors
    # with concurrency finish inputs out of order.
    seen = before if before.changelog_id == held.position.changelog_id else before.at((0,))
    chunks = _differences(store, folded, seen, _Epochs(held.position.epoch, since), max_bytes)
    while (chunk := await finish_in_thread(next, chunks, None)) is not None:
        if chunk.to_log:
            end = await commit(chunk.to_log)
            count += len(chunk.to_log)
        await finish_in_thread(store.apply, list(chunk.to_store.items()), before)
    await written()
    position = replace(held.position, changelog_offset=end, wall_time_ms=now_ms)
    await finish_in_thread(store.apply, [], position)
    logger.warning("%s: wrote %d keys back that the topic had lost", source, count)
    return replace(held, position=position, is_ahead=False)


async def write_to_changelog(
    context: TaskContext, store: str, held: Restored, inputs: Sequence[InputProgress]
) -> Restored:
    """Write what a changelog lost back to it, as the partition's owner. Only then the store's epoch is the new one."""
    services, changelog = context.services, context.spec.changelogs[store]
    partition = context.partition

    async def commit(writes: ChangelogWrites) -> int:
        receipt = await context.log.commit(
            CommitBatch(partition, context.marked(inputs), changelogs={changelog.topic: writes})
        )
        return receipt.changelog_offsets[changelog.topic]

    async def written() -> None:
        if context.claimed is not None and context.claimed.changelog_ids[store] != changelog.topic_id:
            new_id = {store: changelog.topic_id}
            for one in inputs:
                one.topics = one.topics.with_changelogs(new_id)
            context.claimed = replace(context.claimed, changelog_ids={**context.claimed.changelog_ids, **new_id})
            owner = services.encode_owner(context.claimed)
            await context.log.commit(CommitBatch(partition, context.marked(inputs), outputs=[owner]))

    folded = await services.stores.open(f"{store}~log", partition)
    try:
        return await write_back(
            replace(held, position=replace(held.position, changelog_id=changelog.topic_id)),
            folded,
            TopicPartition(changelog.topic, partition),
            logs=services.logs,
            commit=commit,
            written=written,
            since=max(one.topics.since for one in inputs),
            delete_retention_ms=changelog.delete_retention_ms,
            now_ms=services.clock.wall_ms(),
            max_bytes=context.settings.policy.max_bytes,
        )
    finally:
        await services.stores.discard(f"{store}~log", partition)


def require_changelogs(spec: ActorSpec, topics: TopicIds) -> None:
    """Check that an actor's changelogs, whose ids of now are in `topics`, are those of the worker's start.

    Raises:
        LostChangelogError: another topic has the name of one. Only a start looks at its settings.
        RestoreError: one isn't on the broker.
    """
    for changelog in spec.changelogs.values():
        now = topics.changelog_id(changelog.store)
        if not now:
            raise RestoreError(
                f"topic {changelog.topic}, the changelog of store {changelog.store} with the id {changelog.topic_id}, "
                "isn't on the broker: it was deleted. The store on this worker's disk is kept. To write it to a new "
                'topic, stop all workers and start this one once with lost_changelog="restore" (or LOST_CHANGELOG in '
                "the environment)"
            )
        if now != changelog.topic_id:
            raise LostChangelogError(
                choice(changelog.topic, f"while this worker ran, {why_replaced(changelog.topic_id, now)}")
            )


def last_commit(
    changelog: Changelog, found: Sequence[Committed | None], owner: OwnerRecord | None = None
) -> LastCommit:
    """Return what the inputs' committed offsets, or else the registry, say of the last commit to a changelog."""
    marks = [None if committed is None else parse_mark(committed.metadata) for committed in found]
    mark = next(filter(None, marks), None)
    epoch = 0 if owner is None else owner.epoch
    if mark is None:
        if owner is None:
            return NO_COMMIT
        known = (owner.changelog_ids.get(store, "") for store in (changelog.store, *changelog.other_names))
        return LastCommit(owner.epoch, next(filter(None, known), ""), is_marked=False, owner=epoch)
    known_id = mark.topics.changelog_id(changelog.store, *changelog.other_names)
    reached = tuple(map(_reached, found, marks))
    if epoch:
        epoch = max(epoch, *(each.epoch for each in marks if each is not None))
    return LastCommit(
        mark.epoch, known_id, reached, owner=epoch, transaction=mark.transaction if epoch == mark.epoch else 0
    )


def _reached(committed: Committed | None, mark: CommitMark | None) -> int:
    if committed is None or mark is None:
        return 0
    return max(decode_finished(committed.offset, mark.finished), default=committed.offset - 1) + 1


@dataclass(frozen=True, slots=True)
class StandbyChecks:
    """The checks of a standby before it goes on: only the partition's owner writes anything back."""

    group: GroupView
    restorer: Restorer

    async def require_changelogs(self, spec: ActorSpec) -> None:
        """Check the changelogs as the function `require_changelogs` does."""
        found = await self.group.topic_ids(changelog.topic for changelog in spec.changelogs.values())
        require_changelogs(spec, TopicIds.of("", changelog_ids(spec, found)))

    async def why_rebuilt(
        self, spec: ActorSpec, partition: int, changelog: Changelog, at: Position, bounds: LogBounds
    ) -> str | None:
        """Return why the copy is rebuilt, as `Restorer.why_rebuilt` does.

        A copy of another topic is kept until an owner has gone on with this one.
        """
        claimed_id = at.changelog_id
        if claimed_id != changelog.topic_id:
            found = [await self.group.committed(TopicPartition(topic, partition)) for topic in spec.topics]
            claimed_id = last_commit(changelog, found).changelog_id or claimed_id
        return await self.restorer.why_rebuilt(at, changelog, partition, bounds, claimed_id)


def explained(
    error: LostChangelogError,
    positions: Mapping[str, Position | None],
    found: Sequence[Committed | None],
    owner: OwnerRecord | None,
) -> LostChangelogError:
    """Add what an operator needs to find the newest copy: where the group is, where these stores are, who had it."""
    facts = []
    marks = [(one.offset, mark) for one in found if one is not None and (mark := parse_mark(one.metadata)) is not None]
    if marks:
        offsets = ", ".join(str(offset) for offset, _ in marks)
        facts.append(f"the last commit was at input offset {offsets} in epoch {marks[0][1].epoch}")
    for name, at in positions.items():
        held_at = "" if at is None else ", ".join(map(str, at.offsets))
        has = "is empty" if at is None else f"is at input offset {held_at} of epoch {at.epoch}"
        facts.append(f"the store {name} of this worker {has}")
    if owner is not None:
        facts.append(f"the last owner is {owner.worker}, since {moment(owner.at_ms)}")
    return LostChangelogError(f"{error}. For comparison: {'; '.join(facts)}")


async def _fold(logs: Logs, source: TopicPartition, topic_id: str, bounds: LogBounds, folded: PartitionStore) -> int:
    """Put the last record of each key into an empty store; return the highest epoch."""
    await finish_in_thread(folded.wipe)
    epoch, nowhere = 0, Position(0, 0, 0, 0, "")
    async for records, _ in logs.read(source, bounds.start, bounds.end, topic_id):
        _, newest = stored_writes(records)
        epoch = max(epoch, *(decode_metadata(metadata).epoch for metadata in newest))
        folded.load(
            [
                (
                    record.key,
                    metadata_of(record.headers) + (_DELETED if record.value is None else _THERE + record.value),
                )
                for record in records
                if record.key is not None
            ],
            nowhere,
        )
    await finish_in_thread(folded.settle)
    return epoch


def _differences(
    store: PartitionStore, folded: PartitionStore, before: Position, epochs: _Epochs, max_bytes: int
) -> Iterator[_Chunk]:
    chunk = _Chunk({}, {})
    for key, own, logged in _side_by_side(store.scan(), folded.scan()):
        if own is None and logged is not None:
            if logged[METADATA_BYTES:] == _DELETED:
                continue
            if _is_unseen(logged, before):
                chunk.to_store[key] = _value_of(logged)
            else:
                chunk.to_log[key] = epochs.renumbered(logged), None
        elif own is not None and logged is not None and _is_older(own, logged, before):
            chunk.to_store[key] = _value_of(logged)
        elif own is not None and (logged is None or own != _value_of(logged)):
            # Of two records with the same write metadata, which timers write, the log has the older one: the store
            # saw both.
            metadata = epochs.renumbered(own)
            chunk.to_log[key] = metadata, own[METADATA_BYTES:]
            chunk.to_store[key] = metadata + own[METADATA_BYTES:]
        else:
            continue
        chunk.size += len(key) + max(len(own or b""), len(logged or b"")) + WRITE_OVERHEAD_BYTES
        if chunk.size >= max_bytes:
            yield chunk
            chunk = _Chunk({}, {})
    if chunk.size:
        yield chunk


def _is_older(own: bytes, logged: bytes, before: Position) -> bool:
    """Return whether the log's write of a key came after the store's."""
    if own[0] == logged[0] == METADATA_VERSION:
        return own[:_AGE_BYTES] < logged[:_AGE_BYTES]
    # Offsets of different inputs say nothing of each other.
    return own[:METADATA_BYTES] != logged[:METADATA_BYTES] and _is_unseen(logged, before)


def _is_unseen(logged: bytes, before: Position) -> bool:
    """Return whether a record was written after the store's position."""
    metadata = decode_metadata(logged)
    return metadata.epoch > 0 and not before.covers(metadata)


def _value_of(logged: bytes) -> bytes | None:
    """Return what a store keeps of a folded record."""
    start = METADATA_BYTES + len(_THERE)
    return None if logged[METADATA_BYTES:start] == _DELETED else logged[:METADATA_BYTES] + logged[start:]


def _side_by_side(
    left: Iterator[tuple[bytes, bytes]], right: Iterator[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes | None, bytes | None]]:
    """Return each key of two scans with what either has."""
    merged = heapq.merge(((key, 0, raw) for key, raw in left), ((key, 1, raw) for key, raw in right))
    for key, group in groupby(merged, key=itemgetter(0)):
        found = {side: raw for _, side, raw in group}
        yield key, found.get(0), found.get(1)
