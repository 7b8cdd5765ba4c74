"""What every `PartitionStore` does, the reference and the product."""

import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from actors.testing.driving import DiskStore
from stores import rocks
from stores._core.record import Position
from stores._core.snapshot import table_file
from stores.errors import SnapshotError, StoreClosedError
from stores.memory import MemoryStore
from stores.rocks import RocksResources, RocksStore
from stores.tables import write_tables
from tests.examples import examples
from tests.sim.fakes.disk import Disk
from tests.sim.fakes.loop import Process, VirtualLoop

KEYS = st.sampled_from([b"", b"\x00", b"a", b"a\x00", b"a\xff", b"b", b"\xff", b"\xff\xff"])
WRITES = st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=30)), max_size=12)
BOUNDS = st.none() | KEYS | st.binary(max_size=2)
RESOURCES = RocksResources(memtable_bytes=64 << 10)


def at(offset: int) -> Position:
    return Position(offset, offset * 2, 1_760_000_000_000 + offset, 3, "topic-id")


@pytest.fixture(autouse=True, scope="module")
def _loads_go_past_the_log():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rocks, "LOGGED_LOADS", 0)
        yield


@pytest.fixture(params=["memory", "rocks"])
def store(request, tmp_path):
    opened = MemoryStore() if request.param == "memory" else RocksStore.open(tmp_path / "0", resources=RESOURCES)
    yield opened
    opened.close()


@pytest.fixture(params=["memory", "rocks", "driver", "simulated"])
def empty(request, tmp_path):
    """A store of each kind, also the one on a simulated disk."""
    if request.param == "simulated":
        loop = VirtualLoop()
        yield Disk()._open(Process(loop, "process"), "store", 0)
        loop.close()
        return
    if request.param == "rocks":
        opened = RocksStore.open(tmp_path / "0", resources=RESOURCES)
    else:
        opened = MemoryStore() if request.param == "memory" else DiskStore("store", 0).open()
    yield opened
    opened.close()


@pytest.fixture(params=["apply", "load"])
def write(request, store):
    return getattr(store, request.param)


def test_a_new_store_is_empty(store):
    assert store.get(b"a") is None
    assert list(store.scan()) == []
    assert store.position() is None


def test_writes_and_position_are_there(store, write):
    write([(b"a", b"1"), (b"b", b"2")], at(1))
    assert store.get(b"a") == b"1"
    assert store.position() == at(1)
    write([(b"a", None), (b"c", b"3")], at(2))
    assert list(store.scan()) == [(b"b", b"2"), (b"c", b"3")]
    assert store.position() == at(2)


def test_the_last_write_of_a_key_wins(store, write):
    write([(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"b", None)], at(1))
    assert list(store.scan()) == [(b"a", b"2")]
    write([(b"a", None), (b"a", b"3")], at(2))
    assert store.get(b"a") == b"3"


def test_no_writes_move_the_position(store, write):
    write([(b"a", b"1")], at(1))
    write([], at(2))
    assert store.position() == at(2)
    assert store.get(b"a") == b"1"


def test_writes_may_come_from_a_scan_of_the_store_itself(store, write):
    write([(b"a", b"1"), (b"b", b"2")], at(1))
    write(((key, raw + b"!") for key, raw in store.scan()), at(2))
    assert list(store.scan()) == [(b"a", b"1!"), (b"b", b"2!")]


def test_writes_that_raise_leave_nothing(store, write):
    def broken():
        yield b"a", b"1"
        raise LookupError("the changelog broke off")

    with pytest.raises(LookupError):
        write(broken(), at(1))
    assert store.get(b"a") is None
    assert store.position() is None


def test_a_big_chunk_with_duplicates_and_deletes(store, write):
    count = 8_000
    store.apply([(b"%06d" % n, b"old") for n in range(count)], at(1))
    chunk = [(b"%06d" % (n * 7 % count), b"%d" % n) for n in range(count)]
    chunk += [(b"%06d" % n, None) for n in range(0, count, 3)]
    chunk += [(b"%06d" % n, b"again") for n in range(0, count, 6)]
    expected = {b"%06d" % n: b"old" for n in range(count)}
    for key, raw in chunk:
        if raw is None:
            expected.pop(key, None)
        else:
            expected[key] = raw
    write(chunk, at(2))
    assert list(store.scan()) == sorted(expected.items())
    assert store.get(b"000003") is None
    assert store.get(b"000006") == b"again"
    assert store.position() == at(2)


def test_a_drop_removes_a_range_and_leaves_the_position(empty):
    rows = [(key, b"1") for key in (b"", b"a", b"a\x00", b"b", b"b\x00", b"c", b"\xff\xff")]
    empty.apply(rows, at(1))
    empty.drop(b"a\x00", b"b\x00")
    assert [key for key, _ in empty.scan()] == [b"", b"a", b"b\x00", b"c", b"\xff\xff"]
    assert [key for key, _ in empty.scan(b"a", b"c", reverse=True)] == [b"b\x00", b"a"]
    assert (empty.get(b"a\x00"), empty.get(b"b"), empty.position()) == (None, None, at(1))
    empty.drop(b"c", b"c")
    empty.apply([(b"b", b"new")], at(2))
    assert (empty.get(b"b"), empty.get(b"c"), empty.position()) == (b"new", b"1", at(2))


def test_a_drop_reaches_what_was_loaded(store):
    store.load([(b"a", b"1"), (b"b", b"1")], at(1))
    store.drop(b"a", b"b")
    store.load([(b"c", b"1")], at(2))
    store.settle()
    assert list(store.scan()) == [(b"b", b"1"), (b"c", b"1")]


def test_a_drop_is_there_after_the_database_is_opened_again(tmp_path):
    store = RocksStore.open(tmp_path / "0", resources=RESOURCES)
    store.apply([(b"a", b"1"), (b"b", b"1")], at(1))
    store.drop(b"a", b"b")
    store.close()
    store = RocksStore.open(tmp_path / "0", resources=RESOURCES)
    assert (list(store.scan()), store.position()) == ([(b"b", b"1")], at(1))
    store.close()


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_includes_its_start_and_not_its_end(store, write, reverse):
    keys = [b"", b"\x00", b"a", b"a\x00", b"b", b"\xff", b"\xff\xff"]
    write([(key, b"1") for key in keys], at(1))
    bounds = [None, *keys, b"a\x00\x00", b"\xff\xff\xff"]
    for start in bounds:
        for end in bounds:
            expected = [k for k in keys if (start is None or k >= start) and (end is None or k < end)]
            got = [key for key, _ in store.scan(start, end, reverse=reverse)]
            assert got == (expected[::-1] if reverse else expected), (start, end)


def test_a_scan_is_as_of_its_call(store, write):
    write([(b"a", b"1"), (b"b", b"1")], at(1))
    store.apply([(b"c", b"1")], at(1))
    begun, not_begun = store.scan(), store.scan(reverse=True)
    assert next(begun) == (b"a", b"1")
    store.apply([(b"b", None), (b"c", b"2"), (b"d", b"2")], at(2))
    assert list(begun) == [(b"b", b"1"), (b"c", b"1")]
    assert list(not_begun) == [(b"c", b"1"), (b"b", b"1"), (b"a", b"1")]


def test_wipe_forgets_everything(store, write):
    write([(b"a", b"1")], at(1))
    store.wipe()
    assert list(store.scan()) == []
    assert store.position() is None
    write([(b"b", b"1")], at(2))
    assert list(store.scan()) == [(b"b", b"1")]


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.get(b"a"),
        lambda store: store.scan(),
        lambda store: store.position(),
        lambda store: store.apply([], at(1)),
        lambda store: store.drop(b"a", b"b"),
        lambda store: store.load([], at(1)),
        lambda store: store.settle(),
        lambda store: store.wipe(),
        lambda store: store.load_snapshot(Content({}, at(1))),
    ],
    ids=["get", "scan", "position", "apply", "drop", "load", "settle", "wipe", "snapshot"],
)
def test_a_closed_store_says_so(store, call):
    store.apply([(b"a", b"1")], at(1))
    store.close()
    store.close()
    with pytest.raises(StoreClosedError):
        call(store)


@settings(max_examples=examples(30), deadline=None)
@given(
    batches=st.lists(WRITES, max_size=4),
    start=BOUNDS,
    end=BOUNDS,
    reverse=st.booleans(),
    loading=st.booleans(),
)
def test_rocks_does_what_memory_does(batches, start, end, reverse, loading):
    memory = MemoryStore()
    with tempfile.TemporaryDirectory() as folder:
        store = RocksStore.open(Path(folder) / "0", resources=RESOURCES)
        for offset, writes in enumerate(batches):
            memory.apply(writes, at(offset))
            (store.load if loading else store.apply)(writes, at(offset))
        assert list(store.scan(start, end, reverse=reverse)) == list(memory.scan(start, end, reverse=reverse))
        assert store.position() == memory.position()
        store.close()


class Content:
    """A snapshot of rows, in tables made for the purpose."""

    def __init__(self, rows: dict[bytes, bytes], position: Position, *, table_bytes: int = 1) -> None:
        self.position = position
        self._rows = sorted(rows.items())
        self._table_bytes = table_bytes

    def place(self, folder: Path) -> list[Path]:
        made = write_tables(self._rows, lambda number: folder / table_file(0, number), table_bytes=self._table_bytes)
        return [folder / table.file for table in made]

    def rows(self):
        return iter(self._rows)


class Useless(Content):
    def place(self, folder: Path) -> list[Path]:
        (folder / "half.sst").write_bytes(b"half")
        raise SnapshotError("damaged")

    def rows(self):
        yield from self._rows
        raise SnapshotError("damaged")


def test_a_snapshot_is_content_and_position_of_an_empty_store(empty):
    rows = {b"%05d" % number: b"%d" % number for number in range(3_000)} | {b"": b"1", b"\xff\xff": b"2"}
    empty.load_snapshot(Content(rows, at(7)))
    assert list(empty.scan()) == sorted(rows.items())
    assert empty.position() == at(7)
    empty.load([(b"00001", None), (b"00002", b"new")], at(8))
    empty.apply([(b"00003", None), (b"aaa", b"new")], at(9))
    rows = {**rows, b"00002": b"new", b"aaa": b"new"}
    del rows[b"00001"], rows[b"00003"]
    assert list(empty.scan()) == sorted(rows.items())
    assert empty.position() == at(9)


def test_a_snapshot_without_keys_is_a_position(empty):
    empty.load_snapshot(Content({}, at(7)))
    assert (list(empty.scan()), empty.position()) == ([], at(7))


def test_a_snapshot_that_is_no_good_leaves_an_empty_store(empty):
    with pytest.raises(SnapshotError, match="damaged"):
        empty.load_snapshot(Useless({b"a": b"1"}, at(7)))
    assert (list(empty.scan()), empty.position()) == ([], None)
    empty.apply([(b"b", b"2")], at(1))
    assert list(empty.scan()) == [(b"b", b"2")]


def test_a_snapshot_is_for_an_empty_store(empty):
    empty.apply([(b"a", b"1")], at(1))
    with pytest.raises(SnapshotError, match="isn't empty"):
        empty.load_snapshot(Content({b"b": b"2"}, at(7)))
    assert (list(empty.scan()), empty.position()) == ([(b"a", b"1")], at(1))
    empty.wipe()
    empty.load_snapshot(Content({b"b": b"2"}, at(7)))
    assert (list(empty.scan()), empty.position()) == ([(b"b", b"2")], at(7))
