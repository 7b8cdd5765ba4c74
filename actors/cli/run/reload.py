"""Which files a worker of `faust dev` is reloaded for."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

_REST_S = 0.3
_SKIPPED = frozenset(("__pycache__", "node_modules"))

Seen = Mapping[str, int]


def look(folder: Path) -> Seen:
    """Return when each Python file below a folder was changed, in nanoseconds.

    Hidden folders and virtual environments are skipped.
    """
    found = {}
    for place, folders, files in os.walk(folder):
        if "pyvenv.cfg" in files:
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _SKIPPED]
        for name in files:
            if name.endswith(".py"):
                path = os.path.join(place, name)
                try:
                    found[path] = os.stat(path).st_mtime_ns
                except OSError:
                    # An editor replaces files.
                    continue
    return found


async def changed(folder: Path, seen: Seen) -> list[str]:
    """Wait until a Python file below a folder isn't as it was seen, and return the names of those that aren't."""
    while True:
        await asyncio.sleep(_REST_S)
        now = await asyncio.to_thread(look, folder)
        if now != seen:
            differ = {path for path, _ in set(now.items()) ^ set(seen.items())}
            return sorted(path.removeprefix(f"{folder}{os.sep}") for path in differ)
