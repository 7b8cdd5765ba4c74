"""A changelog that lost its tail, as in an unclean leader election: the store that has it isn't touched unasked."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from actors import App, Context
from actors._core.task.commit import CommitMark
from actors._core.task.completed import encode_finished
from actors._core.task.takeover import LostChangelog
from actors._core.task.topic_ids import TopicIds
from actors.errors import LogWentBackError, LostChangelogError
from actors.ports import ChangelogWrites, Committed, OwnerRecord, TopicPartition
from actors.runtime.state.restore import NO_COMMIT, Changelog, LastCommit, Restored, Restorer
from actors.runtime.state.stores import store_commit
from actors.runtime.task.lost_changelog import last_commit, write_back
from actors.testing import ActorTestDriver
from stores._core.identity import DatabaseIdentity
from stores._core.record import METADATA_BYTES, METADATA_HEADER, Position, encode_metadata
from stores.errors import ForeignDatabaseError
from stores.memory import MemoryStore
from stores.ports import PartitionStore
from stores.rocks import RocksStore
from tests.logs import NOW_MS, Clock, Log, Record

DAY_MS = 86_400_000
CHANGELOG = Changelog("store", "app--store-changelog", "id", DAY_MS, 1_000_000, 4)
SOURCE = TopicPartition(CHANGELOG.topic, 1)
Write = tuple[bytes, bytes | None]


@dataclass
class World:
    """A log, and owners who write to it and to their own stores as commits do: a marker follows each commit."""

    log: Log = field(default_factory=lambda: Log([], end=0))
    input: int = 0
    changelog: Changelog = CHANGELOG
    claimed_id: str = ""
    since: int = 0

    def commit(self, store: MemoryStore, writes: Sequence[Write], *, epoch: int) -> None:
        """Commit what one input led to."""
        metadata = encode_metadata(epoch, self.input)
        self.input += 1
        for offset, (key, value) in enumerate(writes, self.log.end):
            self.log.records.append(Record(offset, key, value, ((METADATA_HEADER, metadata),)))
        self.log.end += len(writes)
        position = Position(self.input, self.log.end, NOW_MS, epoch, self.changelog.topic_id)
        store.apply([(key, None if value is None else metadata + value) for key, value in writes], position)
        self.log.end += 1

    def lose(self, end: int) -> None:
        """Lose all from an offset on."""
        self.log.records = [record for record in self.log.records if record.offset < end]
        self.log.end = end

    def recreate(self) -> None:
        """Have the topic deleted and created again."""
        self.lose(0)
        self.claimed_id, self.changelog = self.changelog.topic_id, replace(self.changelog, topic_id="id now")

    def restore(self, store: PartitionStore, lost: LostChangelog, **options: object) -> Restored:
        restorer = Restorer(self.log, Clock(), clock_skew_margin_ms=1000, lost=lost)
        options = {"last": LastCommit(None, self.claimed_id, (self.input,))} | options
        return asyncio.run(restorer.restore(store, self.changelog, 1, **options))

    def take_over(self, *, epoch: int, store: MemoryStore | None = None) -> MemoryStore:
        """Have an owner restore its store, and claim."""
        held = self.restore(MemoryStore() if store is None else store, LostChangelog.STOP)
        held.store.apply([], replace(held.position, source_offset=self.input, epoch=epoch))
        return held.store  # type: ignore[return-value]

    def write_back(self, held: Restored, *, epoch: int, max_bytes: int = 1_000, commits: int = 1_000) -> Restored:
        """Write back what was lost; after so many commits the process dies."""
        left = commits

        async def commit(writes: ChangelogWrites) -> int:
            nonlocal left
            if not left:
                raise asyncio.CancelledError
            left -= 1
            for offset, (key, (metadata, value)) in enumerate(writes.items(), self.log.end):
                self.log.records.append(Record(offset, key, value, ((METADATA_HEADER, metadata),)))
            self.log.end += len(writes) + 1
            return self.log.end - 1

        async def written() -> None:
            self.claimed_id = self.changelog.topic_id

        position = replace(held.position, changelog_id=self.changelog.topic_id)
        claimed = replace(held, position=replace(position, source_offset=self.input, epoch=epoch))
        work = write_back(
            claimed,
            MemoryStore(),
            SOURCE,
            logs=self.log,
            commit=commit,
            written=written,
            since=self.since,
            delete_retention_ms=DAY_MS,
            now_ms=NOW_MS,
            max_bytes=max_bytes,
        )
        return asyncio.run(work)

    def folded(self) -> dict[bytes, bytes]:
        """What the log holds."""
        found: dict[bytes, bytes] = {}
        for record in self.log.records:
            found.pop(record.key, None)
            if record.value is not None:
                found[record.key] = record.value
        return found


def content(store: PartitionStore) -> dict[bytes, bytes]:
    return {key: raw[METADATA_BYTES:] for key, raw in store.scan()}


def owned() -> tuple[World, MemoryStore]:
    """An owner whose last commits the log lost."""
    world = World()
    store = world.take_over(epoch=1)
    world.commit(store, [(b"a", b"1"), (b"b", b"1"), (b"c", b"1")], epoch=1)
    kept = world.log.end
    world.commit(store, [(b"a", b"2"), (b"b", None)], epoch=1)
    world.commit(store, [(b"d", b"2")], epoch=1)
    world.lose(kept)
    return world, store


KEPT = {b"a": b"2", b"c": b"1", b"d": b"2"}


def test_a_log_that_ends_before_the_store_stops_the_partition_and_names_the_choice() -> None:
    world, store = owned()
    with pytest.raises(LostChangelogError, match="ends at 4, before the checkpoint at 8") as refused:
        world.restore(store, LostChangelog.STOP)
    assert 'lost_changelog="restore"' in str(refused.value)
    assert 'lost_changelog="rebuild"' in str(refused.value)
    assert content(store) == KEPT


def test_a_log_that_others_wrote_to_since_stops_the_partition() -> None:
    """It is as long as before, or longer: only the records tell."""
    world, store = owned()
    other = world.take_over(epoch=2)
    for number in range(3):
        world.commit(other, [(b"e", b"%d" % number)], epoch=2)
    position = store.position()
    assert position is not None
    assert position.changelog_offset <= world.log.end
    with pytest.raises(LostChangelogError, match="rewritten before the checkpoint at 8 of epoch 1: offset 4 is of"):
        world.restore(store, LostChangelog.STOP)
    assert content(store) == KEPT


def test_a_log_that_has_grown_to_the_very_same_end_stops_the_partition() -> None:
    world, store = owned()
    other = world.take_over(epoch=2)
    world.commit(other, [(b"e", b"1"), (b"f", b"1"), (b"g", b"1"), (b"h", b"1")], epoch=2)
    assert store.position().changelog_offset == world.log.end - 1  # type: ignore[union-attr]
    with pytest.raises(LostChangelogError, match="rewritten"):
        world.restore(store, LostChangelog.STOP, last=LastCommit(2))


@pytest.mark.parametrize(("count", "end"), [(1, 5), (1, 8), (10, 17)], ids=["behind", "to it", "past it"])
def test_a_commit_whose_records_begin_before_the_store_is_noticed_at_once(count: int, end: int) -> None:
    world, store = owned()
    writes = {b"k%d" % number: (b"", b"v") for number in range(count)}
    with pytest.raises(LogWentBackError, match=f"begin at offset {end - count}, before the checkpoint at 8"):
        asyncio.run(store_commit(store, writes, [9], end, NOW_MS, 1, 1))
    world.lose(100)
    with pytest.raises(LostChangelogError, match="what a commit found"):
        world.restore(store, LostChangelog.STOP, doubt="what a commit found")


def test_rebuild_takes_what_the_log_has() -> None:
    world, store = owned()
    held = world.restore(store, LostChangelog.REBUILD)
    assert content(store) == world.folded() == {b"a": b"1", b"b": b"1", b"c": b"1"}
    assert held.position.changelog_offset == world.log.end


@pytest.mark.parametrize("max_bytes", [1, 1_000])
def test_restore_writes_back_what_the_log_lost(max_bytes: int) -> None:
    world, store = owned()
    held = world.restore(store, LostChangelog.RESTORE)
    assert held.is_ahead
    held = world.write_back(held, epoch=2, max_bytes=max_bytes)
    assert content(store) == world.folded() == KEPT
    again = world.restore(store, LostChangelog.STOP)
    assert content(store) == KEPT
    assert content(world.take_over(epoch=3)) == KEPT
    assert (again.position.epoch, again.position.source_offset) == (2, world.input)


def test_what_others_wrote_since_stays() -> None:
    world, store = owned()
    other = world.take_over(epoch=2)
    world.commit(other, [(b"a", b"9"), (b"c", None), (b"e", b"9")], epoch=2)
    held = world.restore(store, LostChangelog.RESTORE)
    assert held.is_ahead
    world.write_back(held, epoch=3)
    assert content(store) == world.folded() == {b"a": b"9", b"d": b"2", b"e": b"9"}
    assert content(world.take_over(epoch=4, store=other)) == content(store)


def test_a_store_that_stands_behind_what_was_written_back_notices() -> None:
    """As a copy that followed the log for a while longer than the owner."""
    world, store = owned()
    copy = MemoryStore()
    position = store.position()
    assert position is not None
    copy.apply([(b"z", encode_metadata(1, 1) + b"1")], replace(position, changelog_offset=6))
    world.write_back(world.restore(store, LostChangelog.RESTORE), epoch=2)
    with pytest.raises(LostChangelogError, match="rewritten"):
        world.restore(copy, LostChangelog.STOP)


def test_deletes_that_may_be_forgotten_since_leave_rebuild_alone() -> None:
    world, store = owned()
    other = world.take_over(epoch=2)
    world.commit(other, [(b"c", None)], epoch=2)
    position = store.position()
    assert position is not None
    store.apply([], replace(position, wall_time_ms=NOW_MS - DAY_MS))
    held = world.restore(store, LostChangelog.RESTORE)
    with pytest.raises(LostChangelogError, match="which keys were deleted is unknown"):
        world.write_back(held, epoch=3)


def test_a_write_back_from_an_old_store_that_dies_is_done_again() -> None:
    world, store = owned()
    position = store.position()
    assert position is not None
    store.apply([], replace(position, wall_time_ms=NOW_MS - 2 * DAY_MS))
    with pytest.raises(asyncio.CancelledError):
        world.write_back(world.restore(store, LostChangelog.RESTORE), epoch=2, max_bytes=1, commits=1)
    world.write_back(world.restore(store, LostChangelog.RESTORE), epoch=3)
    assert content(store) == world.folded() == KEPT


def test_a_changelog_that_was_created_again_stops_the_partition_and_names_both_ids() -> None:
    for is_known in (True, False):
        world, store = owned()
        world.recreate()
        world.claimed_id = world.claimed_id if is_known else ""
        with pytest.raises(LostChangelogError, match="the topic with the id id, and is the topic with the id id now"):
            world.restore(store, LostChangelog.STOP)
        assert content(store) == KEPT


def test_a_commit_that_landed_on_the_changelog_that_was_created_again_is_kept() -> None:
    """Its owner takes over again: its records lie before what the store has."""
    world, store = owned()
    world.recreate()
    landed = MemoryStore()
    world.commit(landed, [(b"a", b"3"), (b"c", None)], epoch=1)
    held = world.restore(store, LostChangelog.RESTORE, doubt="what a commit found")
    assert held.is_ahead
    world.write_back(held, epoch=2)
    assert content(store) == world.folded() == {b"a": b"3", b"d": b"2"}
    assert content(world.restore(store, LostChangelog.STOP).store) == content(store)  # type: ignore[arg-type]
    assert content(world.take_over(epoch=3)) == content(store)


@pytest.mark.parametrize("index", [0, 1])
def test_a_commit_of_an_overtaken_input_that_landed_on_the_new_topic_is_kept(index: int) -> None:
    """With concurrency its offset is below the store's position."""
    world, store = owned()
    position = store.position()
    assert position is not None
    store.apply([(b"c", encode_metadata(1, 2, input=1) + b"1")], replace(position, source_offset=8, more_offsets=(8,)))
    world.recreate()
    landed = ((METADATA_HEADER, encode_metadata(1, 6, input=index)),)
    world.log.records += [Record(0, b"new", b"3", landed), Record(1, b"c", b"3", landed)]
    world.log.end, world.input = 3, 8
    world.write_back(world.restore(store, LostChangelog.RESTORE), epoch=2)
    assert content(store) == world.folded() == {b"a": b"2", b"c": b"3", b"d": b"2", b"new": b"3"}


def test_what_is_written_back_to_another_topic_is_whole_only_when_the_mark_says_so() -> None:
    world, store = owned()
    world.recreate()
    with pytest.raises(asyncio.CancelledError):
        world.write_back(world.restore(store, LostChangelog.RESTORE), epoch=2, max_bytes=1, commits=1)
    for other in (store, MemoryStore()):
        with pytest.raises(LostChangelogError, match="id now"):
            world.restore(other, LostChangelog.STOP)
    world.write_back(world.restore(store, LostChangelog.RESTORE), epoch=3)
    assert content(store) == world.folded() == KEPT
    assert content(world.take_over(epoch=4)) == KEPT


@pytest.mark.parametrize("dies_after", [1, 1_000])
def test_what_is_written_back_does_not_count_for_an_input_that_was_created_again_too(dies_after: int) -> None:
    """Its offsets are those of the former input: neither the store's next restore nor another disk's takes them."""
    world, store = owned()
    world.recreate()
    world.input, world.since = 0, 2
    with contextlib.suppress(asyncio.CancelledError):
        world.write_back(world.restore(store, LostChangelog.RESTORE), epoch=2, max_bytes=1, commits=dies_after)
    if dies_after == 1:
        world.write_back(world.restore(store, LostChangelog.RESTORE), epoch=3)
    assert content(world.restore(store, LostChangelog.STOP).store) == KEPT  # type: ignore[arg-type]
    elsewhere = world.restore(MemoryStore(), LostChangelog.STOP)
    assert content(elsewhere.store) == world.folded() == KEPT  # type: ignore[arg-type]
    assert elsewhere.position.epoch < world.since
    owner = world.take_over(epoch=4)
    world.commit(owner, [(b"a", b"3")], epoch=4)
    assert world.restore(MemoryStore(), LostChangelog.STOP).position.source_offset == 1


def test_a_store_of_the_former_changelog_is_rebuilt_when_the_owner_has_gone_on() -> None:
    """As after the last step of a write-back whose store didn't learn of it, and as a standby's."""
    world, store = owned()
    copy = MemoryStore()
    copy.apply([(b"z", encode_metadata(1, 1) + b"1")], store.position())  # type: ignore[arg-type]
    world.recreate()
    world.write_back(world.restore(store, LostChangelog.RESTORE), epoch=2)
    assert content(world.restore(copy, LostChangelog.STOP).store) == KEPT  # type: ignore[arg-type]


@pytest.mark.parametrize("lost", [LostChangelog.STOP, LostChangelog.RESTORE])
@pytest.mark.parametrize("has_followed", [False, True])
def test_an_empty_disk_is_no_copy_of_a_changelog_that_was_created_again(
    lost: LostChangelog, has_followed: bool
) -> None:
    """Neither is the disk of a standby that has followed the new topic."""
    world, _ = owned()
    world.recreate()
    store = MemoryStore()
    if has_followed:
        world.commit(store, [(b"a", b"3")], epoch=1)
    before = content(store)
    with pytest.raises(LostChangelogError, match=r"this worker has no copy of it.*rebuild"):
        world.restore(store, lost)
    assert content(store) == before
    assert content(world.restore(store, LostChangelog.REBUILD).store) == world.folded()  # type: ignore[arg-type]


def test_a_database_of_a_lost_cluster_is_written_to_the_new_one_and_never_emptied(tmp_path: Path) -> None:
    world, memory = owned()
    position, state = memory.position(), content(memory)
    assert position is not None
    former = DatabaseIdentity("lost", "app", "store", 1)
    store = RocksStore.open(tmp_path / "1", identity=former)
    store.apply(list(memory.scan()), position)
    store.close()
    world.recreate()

    def opened(*, is_any_cluster: bool) -> RocksStore:
        mine, changelog_id = replace(former, cluster="new"), world.changelog.topic_id
        return RocksStore.open(tmp_path / "1", identity=mine, changelog_id=changelog_id, is_any_cluster=is_any_cluster)

    store = opened(is_any_cluster=True)
    # An owner that began with an empty disk.
    gone_on = LastCommit(1, world.changelog.topic_id, (1,))
    with pytest.raises(ForeignDatabaseError):
        world.restore(store, LostChangelog.RESTORE, last=gone_on)
    assert content(store) == state
    world.write_back(world.restore(store, LostChangelog.RESTORE, last=NO_COMMIT), epoch=9)
    assert world.folded() == content(store) == state
    store.close()
    store = opened(is_any_cluster=False)
    assert not world.restore(store, LostChangelog.STOP).is_ahead
    assert content(store) == state
    store.close()


def test_an_older_copy_is_not_written_back_while_another_worker_may_have_a_newer_one() -> None:
    world, store = owned()
    older, position = MemoryStore(), store.position()
    assert position is not None
    older.apply([(b"a", encode_metadata(1, 1) + b"1")], replace(position, source_offset=1))
    world.recreate()
    with pytest.raises(LostChangelogError, match=r"ends at input offset 1, and inputs before 3 .*restore_older"):
        world.restore(older, LostChangelog.RESTORE)
    # A commit of another owner that landed there says nothing of what this one lacks.
    world.commit(MemoryStore(), [(b"x", b"1")], epoch=5)
    with pytest.raises(LostChangelogError, match="restore_older"):
        world.restore(older, LostChangelog.RESTORE)
    assert content(older) == {b"a": b"1"}
    world.write_back(world.restore(older, LostChangelog.RESTORE_OLDER), epoch=6)
    assert content(older) == world.folded() == {b"a": b"1", b"x": b"1"}


def test_a_later_commit_on_the_new_topic_says_nothing_of_those_that_both_lack() -> None:
    """As after a power failure that took several commits from the disk, the first of which were to the old topic."""
    world, store = owned()
    older, position = MemoryStore(), store.position()
    assert position is not None
    older.apply([(b"a", encode_metadata(1, 1) + b"1")], replace(position, source_offset=2))
    world.recreate()
    world.commit(MemoryStore(), [(b"c", b"3")], epoch=1)
    with pytest.raises(LostChangelogError, match=r"ends at input offset 2, and inputs before 4 .*restore_older"):
        world.restore(older, LostChangelog.RESTORE)


def test_a_copy_that_is_older_in_one_input_is_older() -> None:
    world, store = owned()
    position = store.position()
    assert position is not None
    store.apply([], replace(position, more_offsets=(4,)))
    world.recreate()
    mark = CommitMark(1, 1, "n").encode()

    def last() -> LastCommit:
        return replace(last_commit(world.changelog, found), changelog_id=world.claimed_id)

    found = [Committed(world.input, mark), Committed(5, mark)]
    with pytest.raises(LostChangelogError, match=r"ends at input offset 3, 4, and inputs before 3, 5 .*restore_older"):
        world.restore(store, LostChangelog.RESTORE, last=last())
    found[1] = Committed(4, mark)
    assert world.restore(store, LostChangelog.RESTORE, last=last()).is_ahead


def test_without_the_commit_only_the_last_owners_store_is_written_back() -> None:
    """As when the input was deleted, and the group's offsets with it: another worker's store may be older."""
    world, store = owned()
    position = store.position()
    assert position is not None
    older = MemoryStore()
    older.apply([(b"a", encode_metadata(1, 0) + b"1")], position)
    store.apply([], replace(position, epoch=2))
    world.recreate()
    last = last_commit(world.changelog, [None], OwnerRecord("actor", 1, 2, "w", "", 1))
    with pytest.raises(LostChangelogError, match="is of epoch 1, and the partition had an owner in epoch 2: another"):
        world.restore(older, LostChangelog.RESTORE, last=last)
    assert world.restore(older, LostChangelog.RESTORE_OLDER, last=last).is_ahead
    assert world.restore(store, LostChangelog.RESTORE, last=last).is_ahead


def test_without_the_commit_the_registry_names_the_changelog() -> None:
    """As when input and changelog were both re-created: a worker without a copy doesn't begin with empty state."""
    world, store = owned()
    former = world.changelog
    world.recreate()
    owner = OwnerRecord("actor", 1, 1, "w", "", 1, changelog_ids={"store": former.topic_id})
    last = last_commit(world.changelog, [None], owner)
    with pytest.raises(LostChangelogError, match="this worker has no copy"):
        world.restore(MemoryStore(), LostChangelog.RESTORE, last=last)
    assert world.restore(store, LostChangelog.RESTORE, last=last).is_ahead
    # A copy of a topic before that isn't what was lost, and one is no reason to give up a whole changelog.
    gone_on = last_commit(world.changelog, [None], replace(owner, changelog_ids={"store": world.changelog.topic_id}))
    restored = world.restore(store, LostChangelog.RESTORE, last=gone_on)
    assert content(restored.store) == world.folded()
    renamed = replace(former, store="new", other_names=("store",))
    assert last_commit(renamed, [None], owner).changelog_id == former.topic_id


def test_the_last_commit_names_the_changelog_that_it_was_to() -> None:
    known, at = str(uuid.UUID(int=7)), {"epoch": 3, "transaction": 1, "nonce": "n"}
    marks = (
        (CommitMark(**at, topics=TopicIds.of("", {"store": known})), known),
        # The store is new.
        (CommitMark(**at, topics=TopicIds.of("", {"other": known})), ""),
    )
    for mark, expected in marks:
        assert last_commit(CHANGELOG, [Committed(9, mark.encode())]) == LastCommit(3, expected, (9,))
    finished = encode_finished(9, {11})
    assert last_commit(CHANGELOG, [Committed(9, CommitMark(**at, finished=finished).encode())]).reached == (12,)
    assert last_commit(CHANGELOG, [Committed(9, "set by hand")]) == last_commit(CHANGELOG, [None]) == NO_COMMIT


def test_the_last_commit_of_a_program_that_had_the_store_under_another_name_counts() -> None:
    renamed = replace(CHANGELOG, store="new", other_names=("newer", "old"))
    known = str(uuid.UUID(int=7))
    for store, expected in (("new", known), ("newer", known), ("old", known), ("other", "")):
        mark = CommitMark(3, 1, "n", topics=TopicIds.of("", {store: known}))
        assert last_commit(renamed, [Committed(9, mark.encode())]).changelog_id == expected


KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
COMMITS = st.lists(
    st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=1)), min_size=1, max_size=3, unique_by=lambda w: w[0]),
    max_size=6,
)


@given(before=COMMITS, lost=COMMITS, since=COMMITS, dies_after=st.integers(0, 3))
def test_a_write_back_that_dies_is_done_again(before: list, lost: list, since: list, dies_after: int) -> None:
    """Whatever the log lost, and whoever wrote since: both sides end with the newest of each key."""
    world = World()
    store = world.take_over(epoch=1)
    for writes in before:
        world.commit(store, writes, epoch=1)
    kept = world.log.end
    for writes in lost:
        world.commit(store, writes, epoch=1)
    world.lose(kept)
    expected = content(store)
    other = world.take_over(epoch=2)
    for writes in since:
        world.commit(other, writes, epoch=2)
        for key, value in writes:
            expected.pop(key, None)
            if value is not None:
                expected[key] = value
    held = world.restore(store, LostChangelog.RESTORE)
    assert held.is_ahead == bool(lost), "a loss is noticed, and nothing else is taken for one"
    if not lost:
        assert content(store) == world.folded() == expected
        return
    try:
        world.write_back(held, epoch=3, max_bytes=1, commits=dies_after)
    except asyncio.CancelledError:
        held = world.restore(store, LostChangelog.RESTORE)
        assert held.is_ahead
        world.write_back(held, epoch=4, max_bytes=1)
    assert content(store) == world.folded() == expected
    assert content(world.restore(store, LostChangelog.STOP).store) == expected  # type: ignore[arg-type]


def test_a_write_back_that_dies_leaves_the_mark_with_the_lost_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a worker without a copy would take the new topic, which has nothing yet, for the state."""
    monkeypatch.setattr("actors.testing.machine.Restorer", partial(Restorer, lost=LostChangelog.RESTORE))
    app = App("w", store="memory://")
    topic, held = app.topic("in", key_type=str, value_type=int), app.store("held", value_type=int)
    begun = asyncio.Event()

    @app.actor(topic, stores=[held])
    async def keep(ctx: Context, value: int) -> None:
        held.set(ctx.key, value)

    async def never_ends(*_: Any, **__: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    with ActorTestDriver(app, partitions=1) as driver:
        driver.send(topic, key="a", value=1)
        driver._kill()
        driver._cluster.make_topic("w--held-changelog", 1, is_compacted=True)
        with monkeypatch.context() as patch:
            patch.setattr("actors.runtime.task.lost_changelog.write_back", never_ends)
            driver._run(driver._restart(settle=False))
            driver.advance(1, settle=False)
            assert begun.is_set()
        driver.crash(keep_disk=False, settle=False)
        driver.advance(1, settle=False)
        assert driver._worker is not None
        (task,) = driver._worker.tasks
        assert "this worker has no copy" in str(task.halted_by)
