"""Changes to files that a crash leaves either done or not begun."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

DISCARDED = ".discarded"


def write_atomically(path: Path, content: str) -> None:
    """Write the file so that others see the old content or the new, also after a power loss."""
    draft = path.with_name(path.name + ".tmp")
    with draft.open("w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    _sync(path.parent)


def remove_tree(path: Path) -> None:
    """Delete the folder. It is gone from its name at once: nobody opens what is half deleted."""
    doomed = path.with_name(path.name + DISCARDED)
    shutil.rmtree(doomed, ignore_errors=True)
    if path.exists():
        path.rename(doomed)
        _sync(path.parent)
        shutil.rmtree(doomed)


def replace_tree(path: Path, by: Path) -> None:
    """Put the folder `by` in the place of `path`: a crash leaves the one, none, or the other, wholly on disk."""
    for file in by.iterdir():
        _sync(file)
    _sync(by)
    remove_tree(path)
    by.rename(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
