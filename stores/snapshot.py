"""Snapshots: a folder with the state of stores as RocksDB tables, for workers whose disk has nothing yet.

{folder}/{store}/seed.json                       see `stores._core.snapshot`; written last
{folder}/{store}/partition-00000-0000.sst …      see `stores.tables`
{folder}/{store}/partition-00000/seed.json       a worker's, of one partition; written last
{folder}/{store}/partition-00000/{folder}/…      the files of its database

Nothing here writes to the folder, and files once named by a manifest aren't changed: a new snapshot
makes new files. So many workers may share it, and each may link its tables.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from stores._core.record import Position
from stores._core.snapshot import (
    SNAPSHOT_MANIFEST,
    TABLE_SUFFIX,
    SnapshotManifest,
    SnapshotPartition,
    decode_snapshot,
    manifests,
)
from stores._files import crc32
from stores.errors import SnapshotError
from stores.rocks import RocksStore


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One partition of a snapshot. Also a `stores.ports.SnapshotContent`."""

    folder: Path
    changelog: str
    partition_count: int
    part: SnapshotPartition

    def __str__(self) -> str:
        return f"the snapshot in {self.folder}"

    @property
    def position(self) -> Position:
        """The position that the content belongs to."""
        return self.part.position

    @property
    def keys(self) -> int:
        """How many keys it holds."""
        return self.part.keys

    @asynccontextmanager
    async def fetched(self) -> AsyncIterator[Snapshot]:
        """Return the content with its files on this machine, where they are."""
        yield self

    def place(self, folder: Path) -> list[Path]:
        """Link the tables into a folder, or copy them where file system or rights allow no links."""
        placed = []
        for table in self.part.tables:
            source, target = self.folder / table.file, folder / table.file
            try:
                _link_or_copy(source, target)
                size_bytes = target.stat().st_size
                # What was linked or copied is looked at, so that nobody can exchange it afterwards.
                sound = size_bytes == table.size_bytes and crc32(target) == table.crc32
            except OSError as error:
                raise SnapshotError(f"{source} can't be used: {error}") from error
            if not sound:
                raise SnapshotError(
                    f"{source} isn't the file that {SNAPSHOT_MANIFEST} lists ({size_bytes} bytes): damaged"
                )
            placed.append(target)
        return placed

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows, from a database that exists for the time of the call."""
        with tempfile.TemporaryDirectory(prefix="snapshot-") as folder:
            store = RocksStore.open(Path(folder) / "0")
            try:
                store.load_snapshot(self)
                yield from store.scan()
            finally:
                store.close()


class SnapshotFolder:
    """A folder with snapshots of an app's stores.

    Args:
        path: the folder.
        app: the app they must be of.
    """

    def __init__(self, path: Path | str, *, app: str) -> None:
        self.path = Path(path)
        self.app = app

    def find(self, store: str, partition: int) -> Snapshot | None:
        """Return a partition's snapshot, None if there is none. Reads the manifest, not the tables.

        Raises:
            SnapshotError: the manifest can't be read, or is of another app or store.
        """
        newest = find_newest(self._read, self.app, store, partition)
        if newest is None:
            return None
        file, manifest, part = newest
        folder = (self.path / file).parent / part.folder
        return Snapshot(folder, manifest.changelog, manifest.partition_count, part)

    def _read(self, file: str) -> bytes | None:
        try:
            return (self.path / file).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SnapshotError(f"{self.path / file} can't be read: {error}") from error

    def __str__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"SnapshotFolder({str(self.path)!r})"


def find_newest(
    read: Callable[[str], bytes | None], app: str, store: str, partition: int
) -> tuple[str, SnapshotManifest, SnapshotPartition] | None:
    """Return the newest snapshot of a partition with its manifest and the manifest's file, None if there is none.

    Raises:
        SnapshotError: a manifest can't be read, or is of another app or store.
    """
    snapshots = []
    for file in manifests(store, partition):
        raw = read(file)
        if raw is None:
            continue
        manifest = read_manifest(raw, file, app=app, store=store)
        snapshots += [(file, manifest, part) for part in manifest.partitions if part.partition == partition]
    return max(snapshots, key=lambda snapshot: snapshot[2].position.wall_time_ms, default=None)


def read_manifest(raw: bytes, file: str, *, app: str, store: str) -> SnapshotManifest:
    """Decode the manifest in `file`; `SnapshotError` if it is none, or is of another app or store."""
    try:
        manifest = decode_snapshot(raw)
    except ValueError as error:
        raise SnapshotError(f"{file}: {error}") from error
    if (manifest.app, manifest.store) != (app, store):
        raise SnapshotError(
            f"the snapshot of {file} is of store {manifest.store!r} of app {manifest.app!r}, not of {store!r} of "
            f"{app!r}"
        )
    return manifest


def _link_or_copy(source: Path, target: Path) -> None:
    """Link the table, or copy it: to another file system, or where it may not be opened for writing.

    RocksDB opens a table for writing once, to sync it; files of a database that are no tables it changes.
    """
    if source.suffix == TABLE_SUFFIX and os.access(source, os.W_OK):
        try:
            os.link(source, target, follow_symlinks=False)
        except OSError:
            pass
        else:
            if not target.is_symlink():
                return
        # What a symbolic link leads to could be exchanged afterwards.
        target.unlink(missing_ok=True)
    shutil.copyfile(source, target)
