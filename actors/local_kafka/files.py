"""File locks, and files that are replaced whole."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on `path`, across processes; the kernel frees it if the holder dies."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if _is_still(path, file.fileno()):
                yield
                return


def _is_still(path: Path, fd: int) -> bool:
    # the holder before us may have deleted the folder: then others lock a new file
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def replace_text(path: Path, text: str) -> None:
    """Writes `text` to `path` so that a reader sees the old text or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
