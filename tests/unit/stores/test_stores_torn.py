"""Databases that were copied while a worker used them: the copy is the state at its position, or it is refused."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from actors.runtime.state.stores import StoreCache
from stores import rocks, rocks_logs
from stores._core.record import Position
from stores.errors import StoreCorruptedError, StoreError
from stores.rocks import RocksReader, RocksResources, RocksStore
from tests.unit.stores.test_stores_rocks import Child

SMALL = RocksResources(memtable_bytes=128 << 10)


def at(offset: int) -> Position:
    return Position(offset, offset, 1, 1, "id")


def fill(store: RocksStore, first: int, count: int) -> None:
    for number in range(first, first + count):
        store.apply([(b"%06d" % number, bytes(25) + b"v" * 1000)], at(number + 1))


def copied_whole(source: Path, target: Path) -> bool:
    """Copy all but the logs; say whether no compaction replaced a file meanwhile."""
    target.mkdir()
    files = {file for file in source.iterdir() if file.suffix != ".log"}
    try:
        for file in files:
            shutil.copy(file, target)
    except FileNotFoundError:
        return False
    return files == {file for file in source.iterdir() if file.suffix != ".log"}


def torn_copy(source: Path, target: Path) -> None:
    """Copy the manifest and the tables, then, when the log of that time was flushed and deleted, the next log."""
    store = RocksStore.open(source, resources=SMALL)
    fill(store, 0, 500)
    while not copied_whole(source, target):
        shutil.rmtree(target)
    fill(store, 500, 400)
    store.close()
    store = RocksStore.open(source, resources=RocksResources())
    fill(store, 900, 100)
    for file in source.glob("*.log"):
        shutil.copy(file, target)
    store.close()


def test_a_copy_with_later_logs_than_its_manifest_is_refused(tmp_path: Path) -> None:
    torn_copy(tmp_path / "0", tmp_path / "copy")
    for opens in (RocksReader.open, RocksStore.open):
        with pytest.raises(StoreCorruptedError, match="copied while a worker used them"):
            opens(tmp_path / "copy")  # type: ignore[operator]


def test_without_the_check_the_copy_lacks_keys_at_a_current_position(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(rocks, "why_torn", lambda path: None)
    torn_copy(tmp_path / "0", tmp_path / "copy")
    copy = RocksStore.open(tmp_path / "copy")
    assert copy.position() == at(1000)
    assert len(list(copy.scan())) < 1000
    copy.close()


def test_a_copy_that_is_refused_is_deleted_and_begun_again_with_a_line_that_says_so(tmp_path: Path, caplog) -> None:
    torn_copy(tmp_path / "0", tmp_path / "copy")
    cache = StoreCache(lambda *_: RocksStore.open(tmp_path / "copy"), lambda *_: shutil.rmtree(tmp_path / "copy"))
    with caplog.at_level(logging.ERROR):
        store = asyncio.run(cache.open("counts", 3))
    assert store.position() is None
    assert "store counts, partition 3 is deleted, to be restored from its changelog" in caplog.text
    assert "copied while a worker used them" in caplog.text
    cache.close()


class Copied:
    """A database that is written to while its files are copied, one after the other, in some order."""

    def __init__(self, folder: Path, random: Random) -> None:
        self.source, self.target = folder / "source", folder / "copy"
        self._random = random
        self._store = RocksStore.open(self.source, resources=SMALL)
        self._state: dict[bytes, bytes] = {}
        self.states = [dict(self._state)]
        self._load_share = 0.0

    def write(self, commits: int) -> None:
        random = self._random
        for _ in range(commits):
            writes = []
            for _ in range(random.choice([0, 1, 3])):
                value = random.choice([None, b"x" * random.choice([10, 500, 3000]) + b"%d" % len(self.states)])
                writes.append((b"%03d" % random.randrange(200), value))
            for key, raw in writes:
                self._state.pop(key, None)
                if raw is not None:
                    self._state[key] = raw
            write = self._store.load if random.random() < self._load_share else self._store.apply
            write(writes, at(len(self.states)))
            self.states.append(dict(self._state))

    def copy(self) -> None:
        random = self._random
        self.write(random.choice([0, 5, 100, 300]))
        self._load_share = random.choice([0, 0, 0, 0.9])
        self.target.mkdir()
        for _ in range(random.choice([1, 1, 2])):
            files = sorted(self.source.iterdir())
            random.choice([lambda files: None, random.shuffle, list.reverse, logs_last])(files)
            self._copy(files)
        if random.random() < 0.7:
            self._copy(sorted(self.source.glob("*.log")))
        self._store.close()

    def _copy(self, files: list[Path]) -> None:
        random = self._random
        for file in files:
            if random.random() < 0.3:
                self.write(random.choice([1, 30, 150]))
            if random.random() < 0.05:
                self._store.close()
                self._store = RocksStore.open(self.source, resources=SMALL)
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(file, self.target)


def logs_last(files: list[Path]) -> None:
    files.sort(key=lambda file: file.suffix == ".log")


@pytest.mark.parametrize("seed", range(25))
def test_a_copy_in_any_order_is_the_state_at_its_position_or_is_refused(tmp_path: Path, monkeypatch, seed: int) -> None:
    monkeypatch.setattr(rocks, "LOGGED_LOADS", 50)
    copied = Copied(tmp_path, Random(seed))
    copied.copy()
    try:
        store = RocksStore.open(copied.target)
    except StoreError:
        return
    position = store.position()
    assert dict(store.scan()) == copied.states[0 if position is None else position.source_offset]
    store.close()


def test_a_worker_that_was_killed_finds_its_database_whole(tmp_path: Path) -> None:
    code = """
        import random
        resources = RocksResources(memtable_bytes=128 << 10)
        rocks.LOGGED_LOADS = 50
        store = RocksStore.open(path, resources=resources)
        position = store.position()
        number = position.source_offset if position else 0
        write = random.choice([store.apply, store.load])
        while True:
            number += 1
            write([(b"%03d" % random.randrange(200), random.randbytes(2000))], at(number))
            if number % 100 == 0:
                say(number)
    """
    for rounds in range(8):
        with Child(code, tmp_path / "0") as child:
            for _ in range(1 + rounds % 3):
                child.hear()
            child.kill()
        assert rocks_logs.why_torn(tmp_path / "0") is None


@pytest.mark.parametrize("damage", [lambda raw: b"", lambda raw: raw[: len(raw) // 2], lambda raw: b"\xff" * len(raw)])
def test_a_manifest_that_cannot_be_read_is_for_rocksdb_to_refuse(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    store = RocksStore.open(tmp_path / "0", resources=SMALL)
    fill(store, 0, 20)
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "0", copy)
    store.close()
    for manifest in copy.glob("MANIFEST-*"):
        manifest.write_bytes(damage(manifest.read_bytes()))
    rocks_logs.why_torn(copy)
    with pytest.raises(StoreError):
        RocksStore.open(copy)
