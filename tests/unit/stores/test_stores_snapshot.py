"""Snapshots on disk: how a store takes one, what a crash leaves, and what is refused."""

import os
import subprocess
import sys
import textwrap
import zlib
from pathlib import Path

import pytest

from stores._core.record import Position
from stores._core.snapshot import SNAPSHOT_MANIFEST, decode_snapshot
from stores.errors import SnapshotError, StoreError
from stores.memory import MemoryStore
from stores.rocks import RocksReader, RocksStore
from stores.snapshot import SnapshotFolder
from stores.tables import write_tables
from tests.snapshots import with_own_crc32, write_snapshot

ROOT = Path(__file__).parents[3]
ROWS = {b"%06d" % number: os.urandom(60) for number in range(5_000)}
AT = Position(7, 9, 1_760_000_000_000, 3, "id")


@pytest.fixture
def folder(tmp_path):
    return write_snapshot(
        tmp_path / "snapshots", {0: (ROWS, AT), 1: ({}, AT)}, partition_count=3, table_bytes=64 << 10
    ).parent


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (folder / "store").iterdir()}


def manifest_with(folder: Path, **changes: object) -> None:
    file = folder / "store" / SNAPSHOT_MANIFEST
    text = file.read_text()
    for old, new in changes.values():
        assert old in text
        text = text.replace(old, new)
    file.write_text(with_own_crc32(text))


def test_a_manifest_survives_its_encoding(folder):
    manifest = decode_snapshot((folder / "store" / SNAPSHOT_MANIFEST).read_text())
    assert [(part.partition, part.keys, part.position) for part in manifest.partitions] == [(0, 5_000, AT), (1, 0, AT)]
    assert len(manifest.partitions[0].tables) > 1, "one table says nothing of their order"


@pytest.mark.parametrize("copied", [False, True])
def test_a_snapshot_stays_as_it_is_whatever_stores_do_with_it(folder, tmp_path, monkeypatch, copied):
    before = contents(folder)
    if copied:
        monkeypatch.setattr(os, "link", lambda *_, **__: (_ for _ in ()).throw(OSError("another file system")))
    stores = [RocksStore.open(tmp_path / str(number)) for number in range(2)]
    for store in stores:
        store.load_snapshot(SnapshotFolder(folder, app="app").find("store", 0))
        assert dict(store.scan()) == ROWS
    tables = list((tmp_path / "0").glob("*.sst"))
    assert any(table.stat().st_nlink > 1 for table in tables) != copied
    stores[0].apply([(key, None) for key in ROWS], Position(8, 10, 1, 4, "id"))
    stores[0]._data.compact_range(None, None)
    assert list(stores[0].scan()) == []
    stores[0].wipe()
    assert dict(stores[1].scan()) == ROWS
    for store in stores:
        store.close()
    assert contents(folder) == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["0", "1", "snapshots"]


def test_a_memory_store_takes_the_same(folder):
    store = MemoryStore()
    store.load_snapshot(SnapshotFolder(folder, app="app").find("store", 0))
    assert (dict(store.scan()), store.position()) == (ROWS, AT)


def test_a_store_from_a_snapshot_can_be_read_beside_its_owner(folder, tmp_path):
    store = RocksStore.open(tmp_path / "0")
    store.load_snapshot(SnapshotFolder(folder, app="app").find("store", 0))
    reader = RocksReader.open(tmp_path / "0")
    assert (dict(reader.scan()), reader.position()) == (ROWS, AT)
    reader.close()
    store.close()


def test_what_there_is_no_snapshot_of(folder):
    snapshots = SnapshotFolder(folder, app="app")
    assert snapshots.find("other", 0) is None
    assert snapshots.find("store", 2) is None
    assert SnapshotFolder(folder / "none", app="app").find("store", 0) is None


def test_a_snapshot_of_another_app_or_store_is_refused(folder):
    with pytest.raises(SnapshotError, match="of app 'app', not of 'store' of 'mine'"):
        SnapshotFolder(folder, app="mine").find("store", 0)
    (folder / "store").rename(folder / "moved")
    with pytest.raises(SnapshotError, match="is of store 'store'"):
        SnapshotFolder(folder, app="app").find("moved", 0)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("{", "", "not a manifest: Expected `object`"),
        ('"format": 1', '"format": 2', "snapshot of format 2, this release reads format 1"),
        ('"partition_count": 3', '"partition_count": 1', "of 1"),
        ('"partition": 1', '"partition": 0', "twice"),
        ('"keys"', '"key"', "required field `keys`"),
        ("partition-00000-0000.sst", "../partition.sst", "files lie beside the manifest"),
        ("partition-00000-0000.sst", "/etc/passwd", "files lie beside the manifest"),
        ("partition-00000-0000.sst", "..", "files lie beside the manifest"),
        ("partition-00000-0000.sst", "a\\u0000.sst", "files lie beside the manifest"),
        ("{", "[" * 100_000, "Expected `object`"),
        ('"changelog_offset": 9', f'"changelog_offset": {2**63}', "<= 9223372036854775807"),
        ('"changelog_offset": 9', '"changelog_offset": -9', "negative position"),
        ('"changelog_offset": 9', '"changelog_offset": "9"', "Expected `int`, got `str`"),
    ],
)
def test_a_manifest_that_cannot_be_read_is_refused(folder, old, new, text):
    manifest_with(folder, change=(old, new))
    with pytest.raises(SnapshotError, match=text):
        SnapshotFolder(folder, app="app").find("store", 0)


def test_a_link_to_a_table_is_copied_so_that_nobody_can_exchange_it(folder, tmp_path):
    table = folder / "store" / "partition-00000-0001.sst"
    elsewhere = tmp_path / "elsewhere.sst"
    table.rename(elsewhere)
    table.symlink_to(elsewhere)
    store = RocksStore.open(tmp_path / "0")
    store.load_snapshot(SnapshotFolder(folder, app="app").find("store", 0))
    elsewhere.write_bytes(b"another")
    assert dict(store.scan()) == ROWS
    store.close()
    assert not any(file.is_symlink() for file in (tmp_path / "0").iterdir())


def test_a_name_that_no_file_can_have_is_refused_like_a_missing_file(folder, tmp_path):
    manifest_with(folder, change=("partition-00000-0000.sst", "x" * 300))
    store = RocksStore.open(tmp_path / "0")
    with pytest.raises(SnapshotError, match="File name too long"):
        store.load_snapshot(SnapshotFolder(folder, app="app").find("store", 0))
    store.close()


def flip(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (flip, "isn't the file that seed.json lists"),
        (lambda file: os.truncate(file, 100), "100 bytes"),
        (Path.unlink, "No such file"),
    ],
    ids=["a bit", "cut short", "missing"],
)
def test_a_damaged_table_leaves_an_empty_store_and_no_trace(folder, tmp_path, damage, text):
    damage(folder / "store" / "partition-00000-0001.sst")
    store = RocksStore.open(tmp_path / "0")
    with pytest.raises(SnapshotError, match=text):
        store.load_snapshot(SnapshotFolder(folder, app="app").find("store", 0))
    assert (list(store.scan()), store.position()) == ([], None)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["0", "snapshots"]
    store.close()


def test_a_table_that_is_none_is_refused_though_its_checksum_is_right(folder, tmp_path):
    snapshot = write_snapshot(tmp_path / "other", {0: ({b"a": b"1"}, AT)})
    (snapshot / "partition-00000-0000.sst").write_bytes(b"no table")
    text = (snapshot / SNAPSHOT_MANIFEST).read_text()
    table = decode_snapshot(text).partitions[0].tables[0]
    text = text.replace(str(table.crc32), str(zlib.crc32(b"no table")))
    text = with_own_crc32(text.replace(f'"size_bytes": {table.size_bytes}', '"size_bytes": 8'))
    (snapshot / SNAPSHOT_MANIFEST).write_text(text)
    store = RocksStore.open(tmp_path / "0")
    with pytest.raises(SnapshotError, match="no database could be made of the snapshot"):
        store.load_snapshot(SnapshotFolder(snapshot.parent, app="app").find("store", 0))
    assert store.position() is None
    store.close()


def test_keys_out_of_order_are_an_error(tmp_path):
    with pytest.raises(StoreError, match="can't write the table"):
        list(write_tables([(b"b", b"1"), (b"a", b"1")], lambda number: tmp_path / str(number)))
    with pytest.raises(StoreError, match="can't write the table"):
        list(write_tables([(b"b", b"1")], lambda number: tmp_path / "none" / str(number)))


CHILD = """
    import os, signal, sys
    from pathlib import Path
    from stores import _files, rocks
    from stores.snapshot import Snapshot, SnapshotFolder
    from stores.rocks import RocksStore
    folder, path, point = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]

    def after(holder, name, at):
        real = getattr(holder, name)
        def wrapped(*args, **kwargs):
            done = real(*args, **kwargs)
            if armed and at == point:
                os.kill(os.getpid(), signal.SIGKILL)
            return done
        setattr(holder, name, wrapped)

    armed = False
    after(os, "link", "linking")
    after(Snapshot, "place", "placed")
    after(rocks, "encode_position", "ingested")
    after(RocksStore, "_build", "built")
    after(_files, "remove_tree", "removed")
    after(rocks, "replace_tree", "exchanged")
    store = RocksStore.open(path)
    armed = True
    store.load_snapshot(SnapshotFolder(folder, app="app").find("store", 0))
    after(RocksStore, "position", "over")
    store.position()
"""


@pytest.mark.parametrize("point", ["linking", "placed", "ingested", "built", "removed", "exchanged", "over"])
def test_a_kill_at_any_step_leaves_an_empty_store_or_the_snapshot(folder, tmp_path, point):
    before = contents(folder)
    path = tmp_path / "data" / "0"
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(CHILD), folder, path, point], cwd=ROOT, check=False)
    assert done.returncode == -9
    store = RocksStore.open(path)
    is_loaded = point in ("exchanged", "over")
    assert (dict(store.scan()), store.position()) == ((ROWS, AT) if is_loaded else ({}, None))
    if not is_loaded:
        store.load_snapshot(SnapshotFolder(folder, app="app").find("store", 0))
    assert (dict(store.scan()), store.position()) == (ROWS, AT)
    store.close()
    assert [entry.name for entry in path.parent.iterdir() if not entry.name.endswith(".discarded")] == ["0"]
    assert contents(folder) == before
