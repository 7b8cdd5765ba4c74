"""A simulated disk: stores that outlive the processes that opened them.

A write is there wholly or not at all. With a killed process its newest `load`s may go, back to the checkpoint of one
before them, as `stores.ports` documents. A disk may also fall back to an older checkpoint, as after a loss of power,
refuse to write, and be damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from actors.runtime.state.stores import StoreCache
from stores._core.record import Position
from stores.errors import (
    ForeignDatabaseError,
    SnapshotError,
    StoreClosedError,
    StoreCorruptedError,
    StoreLockedError,
    StoreUnavailableError,
)
from stores.ports import SnapshotContent
from tests.sim.fakes.loop import Process

Writes = Iterable[tuple[bytes, bytes | None]]
CHECKPOINTS_KEPT = 8


@dataclass(slots=True, eq=False)
class Files:
    """What lies on the disk for one partition of one store."""

    store: str
    partition: int
    data: dict[bytes, bytes] = field(default_factory=dict)
    position: Position | None = None
    is_damaged: bool = False
    older: list[tuple[dict[bytes, bytes], Position | None]] = field(default_factory=list)
    unsettled: int = 0
    opened_by: DiskStore | None = None

    def check(self) -> None:
        """Raise `StoreCorruptedError` if they are damaged."""
        if self.is_damaged:
            raise StoreCorruptedError(Path(f"{self.store}-{self.partition}"), "damaged by the simulation")

    def lose(self, count: int) -> None:
        """Fall back by `count` checkpoints."""
        for _ in range(count):
            self.data, self.position = self.older.pop()
        self.unsettled = max(0, self.unsettled - count)


class Disk:
    """The disk of one machine.

    Attributes:
        is_full: writes are refused while it is true.
        transactional_id: what the workers with this disk commit with.
        on_write: called after each write with the kind ("apply", "load", "snapshot" or "wipe") and the files.
        on_delete: called with the files when a store is deleted.
    """

    def __init__(self) -> None:
        self.is_full = False
        self.transactional_id = ""
        self.on_write: Callable[[str, Files], None] | None = None
        self.on_delete: Callable[[Files], None] | None = None
        self._files: dict[tuple[str, int], Files] = {}

    def files(self) -> list[Files]:
        """Return all that is on the disk."""
        return list(self._files.values())

    def places(self) -> list[tuple[str, int]]:
        """Return store and partition of all folders."""
        return list(self._files)

    def swap(self, store: str, partition: int, other: int) -> None:
        """Swap the folders of two partitions of a store."""
        first, second = (store, partition), (store, other)
        self._files[first], self._files[second] = self._files[second], self._files[first]

    @property
    def is_swapped(self) -> bool:
        """Whether a folder lies where it doesn't belong."""
        return any(place != (files.store, files.partition) for place, files in self._files.items())

    def move_back(self) -> None:
        """Move all folders to where they belong."""
        self._files = {(files.store, files.partition): files for files in self._files.values()}

    def cache(self, process: Process) -> StoreCache:
        """Return the stores of a process."""
        return StoreCache(lambda store, partition: self._open(process, store, partition), self._delete)

    def erase(self) -> None:
        """Lose everything."""
        self._files.clear()

    def fall_back(self, choose: Callable[[int], int]) -> None:
        """Lose the newest writes of each store; `choose(n)` says how many of the `n` checkpoints that are kept."""
        for files in self._files.values():
            files.lose(choose(len(files.older) + 1))

    def lose_loads(self, choose: Callable[[int], int]) -> None:
        """Lose the newest of the loads that aren't settled; `choose(n)` says how many of `n - 1`."""
        for files in self._files.values():
            files.lose(choose(min(files.unsettled, len(files.older)) + 1))

    def _open(self, process: Process, store: str, partition: int) -> DiskStore:
        process.reach_now("store to open")
        files = self._files.setdefault((store, partition), Files(store, partition))
        holder = files.opened_by
        if holder is not None and not holder.is_closed:
            raise StoreLockedError(f"store {store}[{partition}] is open")
        files.check()
        if (files.store, files.partition) != (store, partition):
            raise ForeignDatabaseError(f"{store}[{partition}] has the folder of {files.store}[{files.partition}]")
        if files.position is None:
            files.data.clear()
        files.opened_by = DiskStore(self, files, process)
        return files.opened_by

    def _delete(self, store: str, partition: int) -> None:
        files = self._files.pop((store, partition), None)
        if files is not None and self.on_delete is not None:
            self.on_delete(files)


class DiskStore:
    """A `stores.ports.PartitionStore` on a simulated disk."""

    def __init__(self, disk: Disk, files: Files, process: Process) -> None:
        self._disk = disk
        self._files = files
        self._process = process
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<DiskStore {self._files.store}[{self._files.partition}]>"

    @property
    def path(self) -> Path:
        """See `stores.ports.PartitionStore`."""
        return Path(f"{self._files.store}-{self._files.partition}")

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, by its process or by that one's death."""
        return self._is_closed or self._process.is_dead

    def get(self, key: bytes) -> bytes | None:
        """See `stores.ports.PartitionReader.get`."""
        self._check_open()
        self._files.check()
        return self._files.data.get(key)

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """See `stores.ports.PartitionReader.scan`."""
        self._check_open()
        self._files.check()
        data = self._files.data
        keys = [key for key in data if (start is None or key >= start) and (end is None or key < end)]
        return iter([(key, data[key]) for key in sorted(keys, reverse=reverse)])

    def position(self) -> Position | None:
        """See `stores.ports.PartitionReader.position`."""
        self._check_open()
        return self._files.position

    def apply(self, writes: Writes, position: Position) -> None:
        """See `stores.ports.PartitionStore.apply`."""
        self._write("apply", writes, position)

    def drop(self, start: bytes, end: bytes) -> None:
        """See `stores.ports.PartitionStore.drop`."""
        self._check_open()
        for key in [key for key in self._files.data if start <= key < end]:
            del self._files.data[key]

    def load(self, writes: Writes, position: Position) -> None:
        """See `stores.ports.PartitionStore.load`."""
        self._write("load", writes, position)

    def settle(self) -> None:
        """See `stores.ports.PartitionStore.settle`."""
        self._begin("settle")
        self._files.unsettled = 0

    def estimated_keys(self) -> int:
        """See `stores.ports.PartitionStore.estimated_keys`."""
        return len(self._files.data)

    def load_snapshot(self, content: SnapshotContent) -> None:
        """See `stores.ports.PartitionStore.load_snapshot`."""
        if self.position() is not None:
            raise SnapshotError(f"{self} isn't empty: a snapshot is for a store that is")
        self._write("snapshot", list(content.rows()), content.position)

    def wipe(self) -> None:
        """See `stores.ports.PartitionStore.wipe`."""
        self._begin("wipe")
        self._files.data, self._files.position = {}, None
        self._files.older.clear()
        self._files.unsettled = 0
        self._written("wipe")

    def close(self) -> None:
        """See `stores.ports.PartitionStore.close`."""
        self._is_closed = True

    def _write(self, kind: str, writes: Writes, position: Position) -> None:
        self._begin(kind)
        files = self._files
        files.older.append((dict(files.data), files.position))
        del files.older[:-CHECKPOINTS_KEPT]
        for key, raw in writes:
            if raw is None:
                files.data.pop(key, None)
            else:
                files.data[key] = raw
        files.unsettled = files.unsettled + 1 if kind == "load" else 0
        files.position = position
        self._written(kind)

    def _begin(self, kind: str) -> None:
        self._check_open()
        self._process.reach_now(f"{kind} to write")
        self._files.check()
        if self._disk.is_full:
            raise StoreUnavailableError(f"{self}: no space left on the simulated disk")

    def _written(self, kind: str) -> None:
        if self._disk.on_write is not None:
            self._disk.on_write(kind, self._files)
        self._process.reach_now(f"{kind} written")

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreClosedError(self)
