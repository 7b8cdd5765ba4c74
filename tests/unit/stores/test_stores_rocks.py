"""RocksDB: crashes, locks, damage, formats, and readers beside an owner."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from stores import rocks
from stores._core.record import Position
from stores.errors import (
    StoreClosedError,
    StoreCorruptedError,
    StoreFormatError,
    StoreLockedError,
    StoreUnavailableError,
)
from stores.rocks import RocksReader, RocksResources, RocksStore

ROOT = Path(__file__).parents[3]
SMALL = RocksResources(memtable_bytes=64 << 10)


def at(offset: int) -> Position:
    return Position(offset, offset, 1, 1, "id")


class Child:
    """A process that runs `code` with `path` in sys.argv[1], and says a number for each thing done."""

    def __init__(self, code: str, path: Path) -> None:
        prelude = """
            import sys, time
            from pathlib import Path
            from stores._core.record import Position
            from stores import rocks
            from stores.rocks import RocksReader, RocksResources, RocksStore
            rocks.LOGGED_LOADS = 0
            path = Path(sys.argv[1])
            def at(n): return Position(n, n, 1, 1, "id")
            def say(n): print(n, flush=True)
        """
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(prelude) + textwrap.dedent(code), str(path)],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )

    def __enter__(self):
        return self

    def hear(self) -> int:
        return int(self.process.stdout.readline())

    def kill(self) -> int:
        """Kill it with signal 9; give the last number it said."""
        self.process.send_signal(signal.SIGKILL)
        said = self.process.stdout.read().split()
        self.process.stdout.close()
        self.process.wait()
        return int(said[-1]) if said else 0

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.kill()


APPLY_LOOP = """
    store = RocksStore.open(path, resources=RocksResources(memtable_bytes=256 << 10))
    n = store.position().source_offset if store.position() else 0
    while True:
        n += 1
        store.apply([(b"%04d" % k, b"%d" % n) for k in range(300)], at(n))
        say(n)
"""

QUIET_APPLY_LOOP = """
    store = RocksStore.open(path, resources=RocksResources(memtable_bytes=256 << 10))
    for n in range(1, 1 << 30):
        store.apply([(b"%04d" % k, b"%d" % n) for k in range(300)], at(n))
        if n == 1:
            say(n)
        time.sleep(0.001)
"""

LOAD_LOOP = """
    store = RocksStore.open(path, resources=RocksResources(memtable_bytes=256 << 10))
    n = store.position().source_offset if store.position() else 0
    while True:
        n += 1
        if n % 40:
            store.load([(b"%04d" % k, b"%d" % n) for k in range(300)], at(n))
        else:
            store.apply([(b"%04d" % k, b"%d" % n) for k in range(300)], at(n))
        say(n)
"""


def test_data_and_position_agree_after_kill_9(tmp_path):
    for pause_s in (0.0, 0.03, 0.11, 0.3):
        with Child(APPLY_LOOP, tmp_path / "0") as child:
            child.hear()
            time.sleep(pause_s)
            said = child.kill()
        store = RocksStore.open(tmp_path / "0")
        offset = store.position().source_offset
        assert offset >= said
        assert {raw for _, raw in store.scan()} == {b"%d" % offset}
        assert len(list(store.scan())) == 300
        store.close()


def test_data_and_position_agree_after_kill_9_while_loading(tmp_path):
    for pause_s in (0.0, 0.03, 0.11, 0.3, 0.5):
        with Child(LOAD_LOOP, tmp_path / "0") as child:
            child.hear()
            time.sleep(pause_s)
            said = child.kill()
        assert settled_and_whole(tmp_path / "0") >= said - said % 40, "what an apply settled is kept"


def test_chunks_that_were_not_flushed_go_with_their_positions(tmp_path):
    with Child(LOAD_LOOP.replace("say(n)", "say(n); n % 40 == 20 and time.sleep(60)"), tmp_path / "0") as child:
        while child.hear() != 20:
            pass
        child.kill()
    assert settled_and_whole(tmp_path / "0") < 20


def settled_and_whole(path):
    """Give the position that a loading process left, after a look at whether it is that of the data."""
    store = RocksStore.open(path)
    position = store.position()
    offset = position.source_offset if position else 0
    assert {raw for _, raw in store.scan()} == ({b"%d" % offset} if position else set())
    assert len(list(store.scan())) == (300 if position else 0)
    store.close()
    return offset


@pytest.mark.parametrize("logged", [0, 2, 100])
def test_a_close_keeps_what_was_loaded(tmp_path, monkeypatch, logged):
    monkeypatch.setattr(rocks, "LOGGED_LOADS", logged)
    store = RocksStore.open(tmp_path / "0")
    store.apply([(b"a", b"0"), (b"b", b"0")], at(1))
    store.load([(b"a", b"1"), (b"c", None)], at(2))
    store.load([(b"b", None)], at(3))
    store.close()
    store.close()
    store = RocksStore.open(tmp_path / "0")
    assert (list(store.scan()), store.position()) == ([(b"a", b"1")], at(3))
    store.close()


def test_what_was_loaded_and_cannot_be_flushed_is_no_success(tmp_path, monkeypatch):
    store = RocksStore.open(tmp_path / "0")
    store.apply([(b"a", b"0")], at(1))
    monkeypatch.setattr(store, "_read_position", lambda _: at(1))
    monkeypatch.setattr(rocks, "LOGGED_LOADS", 0)
    store.load([(b"a", b"1")], at(2))
    with pytest.raises(StoreUnavailableError, match=str(tmp_path / "0")):
        store.apply([], at(3))
    assert store.position() == at(1), "whoever comes next has to restore from what the disk has"
    store.close()


def test_a_full_disk_while_loading_is_an_error_and_leaves_a_checkpoint(tmp_path):
    child = """
        import resource, signal
        from stores.errors import StoreError
        store = RocksStore.open(path, resources=RocksResources(memtable_bytes=256 << 10))
        store.apply([(b"%04d" % k, b"0") for k in range(300)], at(1))
        store.load([], at(1))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        n = 1
        try:
            for n in range(2, 500):
                store.load([(b"%04d" % k, b"%0100d" % n) for k in range(300)], at(n))
            store.apply([], at(n))
        except StoreError as error:
            say(n)
            time.sleep(60)
    """
    with Child(child, tmp_path / "0") as process:
        assert process.hear() > 1
    store = RocksStore.open(tmp_path / "0")
    offset = store.position().source_offset
    assert {int(raw) for _, raw in store.scan()} == {offset if offset > 1 else 0}
    store.close()


def test_a_reader_beside_a_writing_owner_sees_one_point(tmp_path):
    offsets = []
    with Child(QUIET_APPLY_LOOP, tmp_path / "0") as child:
        child.hear()
        deadline = time.monotonic() + 4
        while len(offsets) < 40 and time.monotonic() < deadline:
            reader = RocksReader.open(tmp_path / "0")
            offset = reader.position().source_offset
            rows = list(reader.scan())
            assert {raw for _, raw in rows} == {b"%d" % offset}
            assert len(rows) == 300
            assert reader.get(b"0299") == b"%d" % offset
            assert reader.position().source_offset == offset
            reader.close()
            offsets.append(offset)
    assert offsets == sorted(offsets)
    assert len(set(offsets)) >= 10


def test_a_reader_keeps_its_point_while_the_owner_compacts_and_deletes(tmp_path):
    with Child(QUIET_APPLY_LOOP, tmp_path / "0") as child:
        child.hear()
        reader = RocksReader.open(tmp_path / "0")
        offset = reader.position().source_offset
        files = set(os.listdir(tmp_path / "0"))
        deadline = time.monotonic() + 4
        while files <= set(os.listdir(tmp_path / "0")) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not files <= set(os.listdir(tmp_path / "0")), "the owner deleted nothing: the test says nothing"
        assert {raw for _, raw in reader.scan()} == {b"%d" % offset}
        reader.close()


def test_a_reader_leaves_no_trace_and_locks_nobody_out(tmp_path):
    store = RocksStore.open(tmp_path / "0")
    store.apply([(b"a", b"1")], at(1))
    before = {path: path.stat().st_size for path in (tmp_path / "0").iterdir()}
    reader = RocksReader.open(tmp_path / "0")
    assert reader.get(b"a") == b"1"
    assert before == {path: path.stat().st_size for path in (tmp_path / "0").iterdir()}
    store.apply([(b"a", b"2")], at(2))
    store.close()
    RocksStore.open(tmp_path / "0").close()
    assert reader.get(b"a") == b"1"
    reader.close()
    reader.close()
    with pytest.raises(StoreClosedError):
        reader.get(b"a")


def test_a_reader_of_nothing(tmp_path):
    with pytest.raises(StoreUnavailableError, match="no database"):
        RocksReader.open(tmp_path / "0")
    assert not (tmp_path / "0").exists()


def test_a_reader_beside_a_loading_owner_sees_one_point(tmp_path):
    offsets = []
    quiet = LOAD_LOOP.replace("say(n)", "time.sleep(0.001); n == 1 and say(n)").replace("n % 40", "n % 400")
    with Child(quiet, tmp_path / "0") as child:
        child.hear()
        deadline = time.monotonic() + 10
        while len(set(offsets)) < 8 and time.monotonic() < deadline:
            try:
                reader = RocksReader.open(tmp_path / "0")
            except StoreUnavailableError:
                continue
            position = reader.position()
            offset = position.source_offset if position else 0
            assert {raw for _, raw in reader.scan()} == ({b"%d" % offset} if position else set())
            reader.close()
            offsets.append(offset)
    assert offsets == sorted(offsets)
    assert len(set(offsets)) == 8


def test_an_owner_locks_other_owners_out(tmp_path):
    store = RocksStore.open(tmp_path / "0")
    with pytest.raises(StoreLockedError, match=str(tmp_path / "0")):
        RocksStore.open(tmp_path / "0")
    store.close()
    with Child("store = RocksStore.open(path); say(1); time.sleep(60)", tmp_path / "0") as child:
        child.hear()
        with pytest.raises(StoreLockedError, match=str(tmp_path / "0")):
            RocksStore.open(tmp_path / "0")
    RocksStore.open(tmp_path / "0").close()


def test_close_lets_go_at_once_whatever_is_half_read(tmp_path):
    store = RocksStore.open(tmp_path / "0")
    store.apply([(b"a", b"1"), (b"b", b"1")], at(1))
    half_read, not_begun, read = store.scan(), store.scan(reverse=True), store.scan()
    next(half_read)
    assert len(list(read)) == 2
    store.close()
    other = RocksStore.open(tmp_path / "0")
    for rows in (half_read, not_begun):
        with pytest.raises(StoreClosedError):
            next(rows)
    assert list(read) == []
    other.close()


class FullDisk:
    """Stands before an open database, whose last flush it fails."""

    def __init__(self, database) -> None:
        self.database = database

    def close(self):
        self.database.close()
        raise Exception("IO error: No space left on device: While appending to file")  # noqa: TRY002


def test_a_close_that_the_disk_refuses_says_why_and_is_over(tmp_path):
    store = RocksStore.open(tmp_path / "0")
    store.apply([(b"a", b"1")], at(1))
    store._data = FullDisk(store._data)
    with pytest.raises(StoreUnavailableError, match=r"No space left.* Free some space: nothing is lost"):
        store.close()
    store.close()
    store = RocksStore.open(tmp_path / "0")
    assert (store.position(), store.get(b"a")) == (at(1), b"1")
    store._data = FullDisk(store._data)
    store.wipe()
    assert (store.position(), store.get(b"a")) == (None, None)
    store.close()


def test_a_write_that_is_refused_moves_no_position(tmp_path, monkeypatch):
    store = RocksStore.open(tmp_path / "0")
    store.apply([(b"a", b"1")], at(1))

    def refuse(*_):
        raise StoreUnavailableError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(store, "_write", refuse)
        with pytest.raises(StoreUnavailableError):
            store.apply([(b"a", b"2")], at(2))
    assert (store.position(), store.get(b"a")) == (at(1), b"1")
    store.close()


@pytest.fixture
def closed_store(tmp_path):
    """A database with a table file of incompressible values, closed."""
    store = RocksStore.open(tmp_path / "0")
    store.apply([(b"%05d" % k, os.urandom(200)) for k in range(2_000)], at(1))
    store.close()
    return tmp_path / "0"


def table_of(path: Path) -> Path:
    return max(path.glob("*.sst"), key=lambda file: file.stat().st_size)


def overwrite(file: Path, at_byte: int, size: int) -> None:
    with file.open("r+b") as handle:
        handle.seek(at_byte)
        handle.write(b"\xaa" * size)


def test_a_table_cut_short_is_corruption(closed_store):
    os.truncate(table_of(closed_store), 1_000)
    with pytest.raises(StoreCorruptedError) as caught:
        RocksStore.open(closed_store)
    assert caught.value.path == closed_store
    assert str(closed_store) in str(caught.value)


@pytest.mark.parametrize("damage", ["table", "manifest", "current"])
def test_missing_files_are_corruption(closed_store, damage):
    file = {"table": table_of(closed_store), "manifest": next(closed_store.glob("MANIFEST*"))}.get(damage)
    if file is None:
        (closed_store / "CURRENT").write_text("nonsense")
    else:
        file.unlink()
    with pytest.raises(StoreCorruptedError):
        RocksStore.open(closed_store)
    with pytest.raises(StoreCorruptedError):
        RocksReader.open(closed_store)


def test_a_damaged_block_is_corruption_and_not_the_end_of_a_scan(closed_store):
    overwrite(table_of(closed_store), 100_000, 8_000)
    store = RocksStore.open(closed_store)
    for reverse in (False, True):
        with pytest.raises(StoreCorruptedError):
            list(store.scan(reverse=reverse))
    with pytest.raises(StoreCorruptedError):
        [store.get(b"%05d" % k) for k in range(2_000)]
    store.close()
    RocksReader.open(closed_store).close()


def test_a_newer_format_is_refused_by_owner_and_reader(closed_store):
    def set_format(raw: bytes) -> None:
        options = Options(raw_mode=True)
        database = Rdict(str(closed_store), options, {"meta": options})
        meta = database.get_column_family("meta")
        meta.put(b"format", raw)
        database.close()

    set_format(b"2")
    for _ in range(2):
        with pytest.raises(StoreFormatError, match="format 2"):
            RocksStore.open(closed_store)
    with pytest.raises(StoreFormatError, match="format 2"):
        RocksReader.open(closed_store)
    set_format(b"x")
    with pytest.raises(StoreCorruptedError, match="format"):
        RocksStore.open(closed_store)


def test_a_path_that_is_a_file_is_unavailable(tmp_path):
    (tmp_path / "0").write_text("")
    with pytest.raises(StoreUnavailableError, match=str(tmp_path / "0")):
        RocksStore.open(tmp_path / "0")


def test_databases_share_their_resources(tmp_path):
    resources = RocksResources(block_cache_bytes=8 << 20, write_buffer_bytes=8 << 20)
    stores = [RocksStore.open(tmp_path / str(n), resources=resources) for n in range(2)]
    before = resources._write_buffers.get_usage()
    stores[0].apply([(b"%05d" % k, b"x" * 1_000) for k in range(1_000)], at(1))
    one = resources._write_buffers.get_usage()
    stores[1].apply([(b"%05d" % k, b"x" * 1_000) for k in range(1_000)], at(1))
    both = resources._write_buffers.get_usage()
    assert before < one < both
    for store in stores:
        store.close()


def test_many_databases_that_hold_little_leave_the_shared_memory_free(tmp_path):
    resources = RocksResources(write_buffer_bytes=4 << 20, databases=32)
    stores = [RocksStore.open(tmp_path / str(n), resources=resources) for n in range(32)]
    for store in stores:
        store.apply([(b"k", b"x")], at(1))
    used = resources._write_buffers.get_usage()
    assert used < 2 << 20, "writes would flush"
    assert not [*tmp_path.rglob("*.sst")]
    for store in stores:
        store.close()


def test_a_reader_opens_again_when_the_files_changed_meanwhile(closed_store, monkeypatch):
    told = [("m", 1), ("m", 2), ("m", 2), ("m", 2)]
    monkeypatch.setattr(rocks, "_version", lambda _: told.pop(0))
    RocksReader.open(closed_store).close()
    assert told == []
    numbers = iter(range(10**6))
    monkeypatch.setattr(rocks, "_version", lambda _: ("m", next(numbers)))
    monkeypatch.setattr(rocks, "_READER_ATTEMPTS", 3)
    with pytest.raises(StoreUnavailableError, match="try again"):
        RocksReader.open(closed_store)


def test_a_close_flushes_both_families_at_one_point_before_it_lets_go(tmp_path, monkeypatch):
    monkeypatch.setattr(rocks, "LOGGED_LOADS", 0)
    store = RocksStore.open(tmp_path / "0")
    store.load([(b"a", b"1")], at(2))
    unflushed = []
    close = rocks._Database.close

    def look_and_close(self):
        name = "rocksdb.num-entries-active-mem-table"
        unflushed.append((self._data.property_value(name), self._meta.property_value(name)))
        close(self)

    with monkeypatch.context() as patch:
        patch.setattr(rocks._Database, "close", look_and_close)
        store.close()
    assert unflushed == [("0", "0")]
