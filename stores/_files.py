"""Files that only their owner can read, and changes to them that a crash leaves either done or not begun.

Files are made with mode 0600 and folders with 0700. A folder with the setgid bit is shared with its group: what is made
in it may have the group's rights as well, as far as the umask allows.
"""

from __future__ import annotations

import os
import shutil
import stat
import zlib
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

DISCARDED = ".discarded"
_READ_BYTES = 1 << 20


def make_folder(path: Path) -> None:
    """Make a folder that others can't enter, with those above it; a folder that exists stays as it is."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(mode=0o777 & _rights(path.parent.stat()), exist_ok=True)


def open_private(path: Path, mode: str) -> IO[Any]:
    """Open a file for writing that others can't read; one that exists is closed to them."""

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags, 0o666 & _rights(path.absolute().parent.stat()))

    file = open(path, mode, encoding=None if "b" in mode else "utf-8", opener=opener)  # noqa: SIM115
    tighten(path)
    return file


def tighten(path: Path) -> None:
    """Take away others' rights to a file or folder, which may be missing; a link, or another user's, stays as it is."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return
    try:
        found = os.fstat(handle)
        kind, mode = stat.S_IFMT(found.st_mode), stat.S_IMODE(found.st_mode)
        wanted = mode & _rights(found if kind == stat.S_IFDIR else path.absolute().parent.stat())
        if kind in (stat.S_IFDIR, stat.S_IFREG) and wanted != mode:
            with suppress(PermissionError):
                os.fchmod(handle, wanted)
    finally:
        os.close(handle)


def tighten_tree(folder: Path) -> None:
    """Take away others' rights to a folder and all that is in it."""
    tighten(folder)
    for where, folders, files in os.walk(folder):
        for name in (*folders, *files):
            tighten(Path(where, name))


def _rights(folder: os.stat_result) -> int:
    """Return the mode bits that may be set in a folder."""
    return 0o7770 if folder.st_mode & stat.S_ISGID else 0o7700


def write_atomically(path: Path, content: str) -> None:
    """Write the file so that others see the old content or the new, also after a power loss."""
    draft = path.with_name(path.name + ".tmp")
    # Made here: an old draft may be open to others, or a link to another file.
    draft.unlink(missing_ok=True)
    with open_private(draft, "x") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync(path.parent)


def remove_tree(path: Path) -> None:
    """Delete the folder. It is gone from its name at once: nobody opens what is half deleted."""
    doomed = path.with_name(path.name + DISCARDED)
    shutil.rmtree(doomed, ignore_errors=True)
    if path.exists():
        path.rename(doomed)
        sync(path.parent)
        shutil.rmtree(doomed)


def replace_tree(path: Path, by: Path) -> None:
    """Put the folder `by` in the place of `path`: a crash leaves the one, none, or the other, wholly on disk."""
    for file in by.iterdir():
        sync(file)
    sync(by)
    remove_tree(path)
    by.rename(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def crc32(file: Path) -> int:
    """Return the CRC-32 of a file's content. Other threads run meanwhile."""
    found = 0
    with file.open("rb") as handle:
        while chunk := handle.read(_READ_BYTES):
            found = zlib.crc32(chunk, found)
    return found
