"""Snapshots: a folder with the state of stores as RocksDB tables, for workers whose disk has nothing yet.

{folder}/{store}/seed.json                       see `stores._core.snapshot`; written last
{folder}/{store}/partition-00000-0000.sst …      see `stores.tables`

Nothing here writes to the folder, and files once named by a manifest aren't changed: a new snapshot
makes new files. So many workers may share it, and each may link its tables.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stores._core.record import Position
from stores._core.snapshot import SNAPSHOT_MANIFEST, SnapshotPartition, decode_snapshot
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
        folder = self.path / store
        try:
            text = (folder / SNAPSHOT_MANIFEST).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise SnapshotError(f"{folder / SNAPSHOT_MANIFEST} can't be read: {error}") from error
        try:
            manifest = decode_snapshot(text)
        except ValueError as error:
            raise SnapshotError(f"{folder / SNAPSHOT_MANIFEST}: {error}") from error
        if (manifest.app, manifest.store) != (self.app, store):
            raise SnapshotError(
                f"the snapshot in {folder} is of store {manifest.store!r} of app {manifest.app!r}, not of {store!r} of "
                f"{self.app!r}"
            )
        parts = {part.partition: part for part in manifest.partitions}
        if partition not in parts:
            return None
        return Snapshot(folder, manifest.changelog, manifest.partition_count, parts[partition])

    def __repr__(self) -> str:
        return f"SnapshotFolder({str(self.path)!r})"


def _link_or_copy(source: Path, target: Path) -> None:
    """Link the file, or copy it: to another file system, or where it may not be opened for writing.

    RocksDB opens a file for writing once, to sync it.
    """
    if os.access(source, os.W_OK):
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
