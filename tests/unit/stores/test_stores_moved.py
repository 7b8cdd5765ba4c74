"""Databases whose folders were swapped, moved or copied: another's content is never used, and never deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from actors.runtime.state.stores import StoreCache
from stores._core.identity import DatabaseIdentity, decode_identity, encode_identity
from stores._core.record import Position
from stores.errors import ForeignDatabaseError, StoreCorruptedError
from stores.export import export_store
from stores.folder import DataFolder
from stores.rocks import RocksReader, RocksStore

MINE = DatabaseIdentity("cluster-1", "shop", "counts", 0)
AT = Position(1, 2, 3, 4, "changelog-1")
OTHERS = [
    replace(MINE, cluster="cluster-2"),
    replace(MINE, app="other"),
    replace(MINE, store="names"),
    replace(MINE, partition=1),
]


def write(path: Path, identity: DatabaseIdentity | None, position: Position = AT) -> None:
    store = RocksStore.open(path, identity=identity)
    store.apply([(b"k", bytes(25) + b"v")], position)
    store.close()


def keys(path: Path, identity: DatabaseIdentity | None = None) -> int:
    store = RocksStore.open(path, identity=identity)
    try:
        return len(list(store.scan()))
    finally:
        store.close()


@pytest.mark.parametrize("other", OTHERS, ids=["cluster", "app", "store", "partition"])
def test_a_database_of_another_place_is_refused_by_both_names_and_left_as_it_is(
    tmp_path: Path, other: DatabaseIdentity
) -> None:
    write(tmp_path / "0", other)
    for _ in range(2):
        with pytest.raises(ForeignDatabaseError) as refused:
            RocksStore.open(tmp_path / "0", identity=MINE)
        assert f"is of {other}, and belongs to {MINE}" in str(refused.value)
        assert "move the folder back" in str(refused.value)
    assert keys(tmp_path / "0", other) == 1


def test_a_cluster_that_is_not_known_refuses_nothing(tmp_path: Path) -> None:
    write(tmp_path / "0", MINE)
    assert keys(tmp_path / "0", replace(MINE, cluster="")) == 1
    assert keys(tmp_path / "0", MINE) == 1


def test_a_database_of_an_earlier_release_takes_the_identity_if_its_changelog_is_the_stores(tmp_path: Path) -> None:
    for name, changelog_id, is_taken in (("a", "changelog-1", True), ("b", "changelog-2", False), ("c", None, True)):
        write(tmp_path / name, None)
        RocksStore.open(tmp_path / name, identity=MINE, changelog_id=changelog_id).close()
        if is_taken:
            with pytest.raises(ForeignDatabaseError):
                RocksStore.open(tmp_path / name, identity=OTHERS[3])
        else:
            assert keys(tmp_path / name, OTHERS[3]) == 1


def test_a_database_of_a_lost_cluster_is_kept_until_it_follows_a_changelog_of_this_one(tmp_path: Path) -> None:
    lost, here = OTHERS[0], replace(AT, changelog_id="changelog-2")
    write(tmp_path / "0", lost)
    with pytest.raises(ForeignDatabaseError, match=r"If cluster cluster-2 is lost, .* page 'Disasters'"):
        RocksStore.open(tmp_path / "0", identity=MINE, changelog_id="changelog-2")
    store = RocksStore.open(tmp_path / "0", identity=MINE, changelog_id="changelog-2", is_any_cluster=True)
    with pytest.raises(ForeignDatabaseError):
        store.wipe()
    store.close()
    # Until the whole state is written to the new changelog, its owner may die: the database has the former identity.
    assert keys(tmp_path / "0", lost) == 1
    store = RocksStore.open(tmp_path / "0", identity=MINE, changelog_id="changelog-2", is_any_cluster=True)
    store.apply([], here)
    store.close()
    RocksStore.open(tmp_path / "0", identity=MINE, changelog_id="changelog-2").close()
    with pytest.raises(ForeignDatabaseError):
        RocksStore.open(tmp_path / "0", identity=lost)
    store = RocksStore.open(tmp_path / "0", identity=MINE)
    store.wipe()
    store.close()


@pytest.mark.parametrize("other", OTHERS[1:], ids=["app", "store", "partition"])
def test_a_database_of_another_place_is_refused_also_where_another_clusters_is_not(
    tmp_path: Path, other: DatabaseIdentity
) -> None:
    for path, found in (("0", other), ("1", replace(other, cluster="cluster-2"))):
        write(tmp_path / path, found)
        for changelog_id in (None, "changelog-1", "changelog-2"):
            with pytest.raises(ForeignDatabaseError) as refused:
                RocksStore.open(tmp_path / path, identity=MINE, changelog_id=changelog_id, is_any_cluster=True)
            assert "is lost" not in str(refused.value)


def wiped(store: RocksStore) -> None:
    store.apply([(b"k", bytes(25) + b"v")], AT)
    store.wipe()


def loaded(store: RocksStore) -> None:
    store.load([(b"k", bytes(25) + b"v")], AT)
    store.settle()


def from_snapshot(store: RocksStore) -> None:
    class Snapshot:
        position = AT

        def place(self, folder: Path) -> list[Path]:
            return []

        def rows(self) -> list[tuple[bytes, bytes]]:
            return []

    store.load_snapshot(Snapshot())  # type: ignore[arg-type]


@pytest.mark.parametrize("work", [wiped, loaded, from_snapshot])
def test_a_database_keeps_the_identity_of_its_place(tmp_path: Path, work: Callable[[RocksStore], None]) -> None:
    store = RocksStore.open(tmp_path / "0", identity=MINE)
    work(store)
    store.close()
    with pytest.raises(ForeignDatabaseError):
        RocksStore.open(tmp_path / "0", identity=OTHERS[3])


def test_an_identity_that_cannot_be_read_is_damage(tmp_path: Path) -> None:
    write(tmp_path / "0", MINE)
    store = RocksStore.open(tmp_path / "0")
    store._meta.put(b"identity", b"[]")
    store.close()
    with pytest.raises(StoreCorruptedError, match="not an identity"):
        RocksStore.open(tmp_path / "0", identity=MINE)
    assert decode_identity(encode_identity(MINE).replace(b"{", b'{"later":1,')) == MINE


def test_commands_refuse_another_partitions_database(tmp_path: Path) -> None:
    folder = DataFolder.open(tmp_path / "data", app="shop")
    write(folder.store_path("counts", 0), folder.identity("counts", 1, "cluster-1"))
    with pytest.raises(ForeignDatabaseError):
        RocksReader.open(folder.store_path("counts", 0), identity=folder.identity("counts", 0))
    with pytest.raises(ForeignDatabaseError):
        export_store(
            folder.path,
            "counts",
            tmp_path / "out",
            app="shop",
            changelog="log",
            placement="key",
            partition_count=2,
            worker="w",
            now_ms=0,
        )
    folder.close()


def test_a_cache_deletes_no_database_of_another_place(tmp_path: Path) -> None:
    write(tmp_path / "0", OTHERS[3])
    deleted: list[int] = []
    cache = StoreCache(lambda _, n: RocksStore.open(tmp_path / str(n), identity=MINE), lambda _, n: deleted.append(n))
    with pytest.raises(ForeignDatabaseError):
        asyncio.run(cache.open("counts", 0))
    assert not deleted
