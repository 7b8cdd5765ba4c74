"""The digests of an archive's files, in `_digests` beside them, a line a file: CRC-32, bytes, name.

They are written when a batch is written down, and compared before the files are read. Files on other file systems, and
those of batches before there were digests, have none; of these only the checksums of Parquet's pages are compared.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlparse

from spark_replay.errors import ArchiveError, TargetError
from spark_replay.sources.digests import SHARED
from stores._files import crc32, open_private, tighten

DIGESTS = "_digests"
_THREADS = 8
# by path: size, modification time in ns, CRC-32
_seen: dict[Path, tuple[int, int, int]] = {}


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """A file of an archive; how many bytes it had when it was written, and when that was (Unix milliseconds)."""

    uri: str
    size_bytes: int
    modified_ms: int = 0

    @property
    def local(self) -> Path | None:
        """Its path if it is on this machine."""
        parsed = urlparse(self.uri)
        return Path(unquote(parsed.path)) if parsed.scheme == "file" else None


def write_digests(files: Iterable[ArchiveFile]) -> None:
    """Write down what files of a batch that has just ended contain.

    Raises:
        TargetError: The driver doesn't find one as it was written.
        ArchiveError: The digests can't be written.
    """
    by_folder: dict[Path, list[Path]] = {}
    for file in files:
        path = file.local
        if path is None:
            continue
        if not path.exists():
            raise TargetError(f"the driver finds no {path}, which an executor wrote: {SHARED}; begin another archive")
        if path.stat().st_size != file.size_bytes:
            raise TargetError(
                f"{path} has {path.stat().st_size} bytes, and an executor wrote {file.size_bytes}: check the disk, or "
                "the mount; begin another archive"
            )
        # Spark gives files modes of its own. The archive's folder is closed, but a copy's may not be.
        tighten(path)
        by_folder.setdefault(path.parent, []).append(path)
    for folder, paths in by_folder.items():
        digests = _read(folder)
        new = [path for path in paths if path.name not in digests]
        with ThreadPoolExecutor(_THREADS) as pool:
            checksums = list(pool.map(crc32, new))
        try:
            _append(folder / DIGESTS, zip(new, checksums, strict=True))
        except OSError as error:
            raise ArchiveError(f"{folder / DIGESTS} can't be written: {error}") from error


def digested_files(folder: Path, topic: str) -> tuple[Path, ...]:
    """Return the files of a topic of an archive that have digests."""
    files = sorted(folder.glob(f"topic={topic}/day=*/{DIGESTS}"))
    return tuple(digests.with_name(name) for digests in files for name in sorted(_read(digests.parent)))


def require_listed(digested: Iterable[Path], files: Iterable[ArchiveFile]) -> None:
    """Check that the list of an archive's files has those with digests; it is to be read after these.

    Raises:
        ArchiveError: It lacks one.
    """
    listed = {(path.parent.name, path.name) for path in (file.local for file in files) if path is not None}
    for path in digested:
        if (path.parent.name, path.name) not in listed:
            raise ArchiveError(
                f"the archive's _spark_metadata, which lists its files, has lost {path}: restore the archive from a "
                "backup"
            )


def require_sound(files: Iterable[ArchiveFile]) -> None:
    """Check that files that have digests are as they were written.

    Raises:
        ArchiveError: One isn't.
    """
    by_folder: dict[Path, Mapping[str, tuple[int, int]]] = {}
    wanted = []
    for path in filter(None, (file.local for file in files)):
        if path.parent not in by_folder:
            by_folder[path.parent] = _read(path.parent)
        digest = by_folder[path.parent].get(path.name)
        if digest is not None:
            wanted.append((path, digest))
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(lambda pair: _check(*pair), wanted))


def _check(path: Path, digest: tuple[int, int]) -> None:
    try:
        status = path.stat()
        seen = _seen.get(path)
        if seen is None or seen[:2] != (status.st_size, status.st_mtime_ns):
            seen = _seen[path] = (status.st_size, status.st_mtime_ns, crc32(path))
    except OSError as error:
        raise ArchiveError(f"{path} of the archive can't be read: {error.strerror}") from error
    if (seen[2], seen[0]) != digest:
        raise ArchiveError(
            f"{path} of the archive isn't what was written: its CRC-32 is {seen[2]:08x} and was {digest[0]:08x}. "
            "Restore it from a backup"
        )


def _read(folder: Path) -> dict[str, tuple[int, int]]:
    try:
        lines = (folder / DIGESTS).read_text().splitlines()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ArchiveError(f"{folder / DIGESTS} can't be read: {error}") from error
    digests = {}
    for line in lines:
        parts = line.split(" ")
        # a line that a killed run began is written again behind it
        if len(parts) == 4 and parts[3] == "ok" and "/" not in parts[2]:
            digests[parts[2]] = (int(parts[0], 16), int(parts[1]))
    return digests


def _append(file: Path, found: Iterable[tuple[Path, int]]) -> None:
    lines = "".join(f"{crc:08x} {path.stat().st_size} {path.name} ok\n" for path, crc in found)
    if not lines:
        return
    is_new = not file.exists()
    with open_private(file, "a") as handle:
        # ends a line that a killed run began
        handle.write(lines if is_new else f"\n{lines}")
        handle.flush()
        os.fsync(handle.fileno())
