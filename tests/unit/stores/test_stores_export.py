"""The export, of a stopped worker and beside a running one."""

import json
import subprocess
import sys
from pathlib import Path
from struct import pack

import pyarrow.parquet as pq
import pytest

import stores.export
from stores._core.manifest import decode_manifest
from stores._core.record import Position
from stores.errors import ForeignFolderError, StoreError, UnknownStoreError
from stores.export import export_store
from stores.folder import DataFolder
from stores.rocks import RocksStore

ROOT = Path(__file__).parents[3]
OWNER = """
import sys, time
from struct import pack
from stores._core.record import Position
from stores.folder import DataFolder
from stores.rocks import RocksResources, RocksStore
folder = DataFolder.open(sys.argv[1], app="dispatcher")
store = RocksStore.open(folder.store_path("seen", 0), resources=RocksResources(memtable_bytes=256 << 10))
for n in range(1, 1 << 30):
    raw = pack(">BQqq", 1, 5, n, 0) + b"%d" % n
    store.apply([(b"%04d" % k, raw) for k in range(300)], Position(n, n, 1, 5, "id"))
    if n == 100:
        print("up", flush=True)
    time.sleep(0.001)
"""


def at(offset: int) -> Position:
    return Position(offset, offset * 2, 3, 4, "topic-id")


def raw(value: bytes, offset: int, expires_at_ms: int = 0, place: int | None = None) -> bytes:
    version, packed = (1, offset) if place is None else (2, offset << 16 | place)
    return pack(">BQqq", version, 4, packed, expires_at_ms) + value


def export(folder: Path, to: Path, store: str = "seen", **others):
    told = {
        "app": "dispatcher",
        "changelog": "dispatcher--seen-changelog",
        "placement": "key",
        "partition_count": 4,
        "worker": "w1",
        "now_ms": 1_760_000_000_000,
    }
    return export_store(folder, store, to, **(told | others))


@pytest.fixture
def folder(tmp_path):
    """Partition 0 with 5 keys, 1 empty with a position, 2 without a position, 3 with no database in it."""
    opened = DataFolder.open(tmp_path / "data", app="dispatcher")
    writes = {
        0: [(b"k%d" % n, raw(b"v%d" % n, n, n * 10, None if n < 3 else n - 3)) for n in range(5)],
        1: [(b"gone", None)],
        2: None,
    }
    for partition, batch in writes.items():
        store = RocksStore.open(opened.store_path("seen", partition))
        if batch is not None:
            store.apply(batch, at(7 + partition))
        store.close()
    opened.store_path("seen", 3).mkdir()
    opened.close()
    return opened.path


def test_files_and_manifest_hold_what_the_store_holds(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(stores.export, "ROW_GROUP_ROWS", 2)
    told = []
    manifest = export(folder, tmp_path / "out", progress=lambda *heard: told.append(heard))
    table = pq.read_table(tmp_path / "out" / "w1" / "partition-00000.parquet")
    assert {field.name: str(field.type) for field in table.schema} == {
        "partition": "int32",
        "key": "binary",
        "value": "binary",
        "source_offset": "int64",
        "epoch": "int64",
        "expires_at_ms": "int64",
        "input": "int32",
    }
    assert table.to_pylist() == [
        {
            "partition": 0,
            "key": b"k%d" % n,
            "value": b"v%d" % n,
            "source_offset": n,
            "epoch": 4,
            "expires_at_ms": n * 10,
            "input": None if n < 3 else n - 3,
        }
        for n in range(5)
    ]
    assert pq.ParquetFile(tmp_path / "out" / "w1" / "partition-00000.parquet").num_row_groups == 3
    assert told == [(0, 2), (0, 4), (0, 5), (1, 0)]
    text = (tmp_path / "out" / "w1" / "manifest.json").read_text()
    assert decode_manifest(text) == manifest
    assert json.loads(text) == {
        "format": 1,
        "app": "dispatcher",
        "store": "seen",
        "changelog": "dispatcher--seen-changelog",
        "placement": "key",
        "worker": "w1",
        "exported_at_ms": 1_760_000_000_000,
        "partition_count": 4,
        "partitions": [
            {
                "partition": partition,
                "file": f"partition-0000{partition}.parquet",
                "keys": keys,
                "position": {
                    "source_offset": 7 + partition,
                    "changelog_offset": 14 + partition * 2,
                    "wall_time_ms": 3,
                    "epoch": 4,
                    "changelog_id": "topic-id",
                },
            }
            for partition, keys in ((0, 5), (1, 0))
        ],
        "crc32": 2320847214,
    }
    assert sorted(path.name for path in (tmp_path / "out" / "w1").iterdir()) == [
        "manifest.json",
        "partition-00000.parquet",
        "partition-00001.parquet",
    ]


def test_an_export_beside_a_running_owner_is_of_one_point(tmp_path):
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "data")], stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    try:
        assert owner.stdout.readline() == "up\n"
        seen = []
        for _ in range(5):
            manifest = export(tmp_path / "data", tmp_path / "out")
            (part,) = manifest.partitions
            rows = pq.read_table(tmp_path / "out" / "w1" / part.file).to_pylist()
            assert len(rows) == part.keys == 300
            assert {row["source_offset"] for row in rows} == {part.position.source_offset}
            assert {row["value"] for row in rows} == {b"%d" % part.position.source_offset}
            seen.append(part.position.source_offset)
        assert len(set(seen)) > 1
    finally:
        owner.kill()
        owner.communicate()


def test_an_unknown_store_is_told_the_known_ones(folder, tmp_path):
    with pytest.raises(UnknownStoreError, match=r"'locks'.*there is seen"):
        export(folder, tmp_path / "out", store="locks")
    assert not (tmp_path / "out").exists()


def test_a_folder_of_another_app_is_refused(folder, tmp_path):
    with pytest.raises(ForeignFolderError, match="'dispatcher', not 'other'"):
        export(folder, tmp_path / "out", app="other")


@pytest.mark.parametrize("worker", ["", ".", "..", "a/b", "../w1"])
def test_a_worker_s_name_can_t_lead_out(folder, tmp_path, worker):
    with pytest.raises(StoreError, match="worker name"):
        export(folder, tmp_path / "out", worker=worker)


def test_a_row_group_of_large_values_has_few_rows(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(stores.export, "ROW_GROUP_BYTES", 60)  # keys and values of a row have 29 bytes
    export(folder, tmp_path / "out")
    metadata = pq.ParquetFile(tmp_path / "out" / "w1" / "partition-00000.parquet").metadata
    assert [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)] == [3, 2]


def test_an_export_that_breaks_off_leaves_no_manifest_and_no_half_file(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(stores.export, "ROW_GROUP_ROWS", 2)
    export(folder, tmp_path / "out")

    def break_off(partition, keys):
        raise LookupError

    with pytest.raises(LookupError):
        export(folder, tmp_path / "out", progress=break_off)
    assert not (tmp_path / "out" / "w1" / "manifest.json").exists()
    assert list((tmp_path / "out" / "w1").glob("*.tmp")) == []


def test_a_place_that_can_t_be_written_is_a_store_error(folder, tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(StoreError, match="can't write the export"):
        export(folder, tmp_path / "out")
