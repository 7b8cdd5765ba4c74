"""A restore refuses records that no owner in the registry can have written, where the last commit tells."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from actors._core.task.commit import CommitMark
from actors._core.task.takeover import LostChangelog
from actors._core.task.topic_ids import TopicIds
from actors.errors import LostChangelogError
from actors.ports import Committed, OwnerRecord
from actors.runtime.state.restore import Changelog, LastCommit, Restored, Restorer
from actors.runtime.task.lost_changelog import last_commit
from stores._core.record import METADATA_HEADER, Position, encode_metadata
from stores.memory import MemoryStore
from tests.logs import NOW_MS, Clock, Log, Record

TOPIC_ID = "0199c0de-0000-7000-8000-000000000001"
CHANGELOG = Changelog("store", "app--store-changelog", TOPIC_ID, 86_400_000, 1_000_000, 4)
TOPICS = TopicIds.of("", {"store": TOPIC_ID})
OWNER = OwnerRecord("actor", 1, 5, "worker", "", NOW_MS, transactional_id="app-0", changelog_ids={"store": TOPIC_ID})
AT = Position(10, 2, NOW_MS - 1000, 5, TOPIC_ID, transaction=7)
"""Where the last owner's own store is: behind record 1, in front of its transaction's marker."""


def put(offset: int, epoch: int, source_offset: int = 3) -> Record:
    return Record(offset, b"k", b"%d" % offset, ((METADATA_HEADER, encode_metadata(epoch, source_offset)),))


OWN = [put(0, 4), put(1, 5)]
UNSIGNED = Record(3, b"k", b"foreign")


def last(transaction: int = 7, *, owner: OwnerRecord | None = OWNER, topics: TopicIds = TOPICS) -> LastCommit:
    mark = CommitMark(5, transaction, "nonce", topics=topics)
    return last_commit(CHANGELOG, [Committed(10, mark.encode())], owner)


def store_at(position: Position | None) -> MemoryStore:
    store = MemoryStore()
    if position is not None:
        store.apply([(b"k", encode_metadata(5, 3) + b"1")], position)
    return store


def restore(
    records: list[Record],
    position: Position | None = AT,
    *,
    commit: LastCommit | None = None,
    lost: LostChangelog = LostChangelog.STOP,
) -> tuple[Restored, MemoryStore]:
    store = store_at(position)
    restorer = Restorer(Log([*OWN, *records]), Clock(), clock_skew_margin_ms=1000, lost=lost)
    return asyncio.run(restorer.restore(store, CHANGELOG, 1, last=commit or last())), store


@pytest.mark.parametrize(
    ("record", "position", "transaction", "why"),
    [
        (put(3, 6), AT, 7, "it is of epoch 6, and the partition's last owner has epoch 5"),
        (put(3, 6), None, 7, "it is of epoch 6, and the partition's last owner has epoch 5"),
        (put(3, 5), AT, 7, "the store has the last commit, number 7 of epoch 5, already"),
        (put(3, 4), AT, 8, "it is of epoch 4, and lies behind the position of a store of epoch 5"),
        (UNSIGNED, AT, 8, "it has no write metadata, and lies behind the position of a store of epoch 5"),
    ],
)
@pytest.mark.parametrize("lost", [LostChangelog.STOP, LostChangelog.RESTORE])
def test_a_record_that_no_owner_can_have_written_is_refused(
    record: Record, position: Position | None, transaction: int, why: str, lost: LostChangelog
) -> None:
    with pytest.raises(LostChangelogError) as refused:
        restore([record], position, commit=last(transaction), lost=lost)
    text = str(refused.value)
    assert text.startswith(
        f"app--store-changelog[1] offset 3, key 'k': {why}. No owner of the partition can have written"
    )
    assert 'lost_changelog="rebuild"' in text


def test_the_store_keeps_what_it_has_when_a_record_is_refused() -> None:
    store = store_at(AT)
    restorer = Restorer(Log([*OWN, put(3, 5)]), Clock(), clock_skew_margin_ms=1000)
    for _ in range(2):
        with pytest.raises(LostChangelogError):
            asyncio.run(restorer.restore(store, CHANGELOG, 1, last=last()))
    assert list(store.scan()) == [(b"k", encode_metadata(5, 3) + b"1")]


def test_an_older_record_behind_a_new_one_is_refused_again_after_the_process_died() -> None:
    """The chunk with the owner's record is in the store, with a position that a later restore continues at."""
    records = [put(3, 5), put(4, 5), put(5, 5), put(6, 4)]
    store = store_at(AT)
    restorer = Restorer(Log([*OWN, *records], chunk=1), Clock(), clock_skew_margin_ms=1000)
    for _ in range(2):
        with pytest.raises(LostChangelogError, match="offset 6, "):
            asyncio.run(restorer.restore(store, CHANGELOG, 1, last=last(9)))


def test_an_operator_takes_the_record_as_state() -> None:
    found, store = restore([put(3, 6)], lost=LostChangelog.REBUILD)
    assert list(store.scan()) == [(b"k", encode_metadata(6, 3) + b"3")]
    assert found.position.epoch == 6


@pytest.mark.parametrize(
    ("records", "position", "commit"),
    [
        # A commit that the store missed when its process died.
        ([put(3, 5)], AT, last(8)),
        # Read into an empty store, or a copy that followed the log: the last transaction isn't known there.
        ([put(3, 5)], None, last()),
        ([put(3, 5)], replace(AT, transaction=0), last()),
        ([UNSIGNED], replace(AT, transaction=0), last()),
        # An owner that isn't in the registry, or wrote to another topic.
        ([put(3, 6)], AT, last(owner=None)),
        ([put(3, 6)], None, last(topics=TopicIds.of("", {}))),
        # The registry has a newer owner than the mark, which an operator set back.
        ([put(3, 6)], AT, last(owner=replace(OWNER, epoch=6))),
        ([put(3, 6)], AT, LastCommit()),
    ],
)
def test_what_an_owner_may_have_written_is_restored(
    records: list[Record], position: Position | None, commit: LastCommit
) -> None:
    found, _ = restore(records, position, commit=commit)
    assert found.position.changelog_offset == 4


def test_a_copy_that_took_such_a_record_before_is_refused() -> None:
    with pytest.raises(LostChangelogError, match="took records of epoch 6, the last owner's is 5"):
        restore([], replace(AT, epoch=6, transaction=0))
