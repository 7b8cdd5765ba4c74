"""Checks of this machine: the settings, the data folder and its disk, the limit of open files, Java."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from actors._faust.startup.open_files import why_none_fits
from actors.cli.doctor.report import Level, Result
from actors.errors import ActorsError
from actors.local_kafka.errors import ToolMissingError
from actors.local_kafka.jars import java as find_java
from stores.errors import StoreError
from stores.folder import DataFolder

if TYPE_CHECKING:
    from actors._faust.setup import Setup

LEAST_FREE_BYTES = 1 << 30
LEAST_FREE = 0.05
"""As a part of the disk."""
MOUNTS = Path("/proc/self/mounts")
_IN_MEMORY = frozenset(("tmpfs", "ramfs"))
_REMOTE = frozenset(
    ("9p", "ceph", "cifs", "fuse.glusterfs", "fuse.sshfs", "glusterfs", "lustre", "nfs", "nfs4", "smb3")
)


def settings(setup: Setup) -> Iterator[Result]:
    """Check the app's settings, as a worker does when it starts."""
    try:
        setup.check_settings()
    except ActorsError as error:
        yield Result("settings", Level.ERROR, str(error), "`faust -A APP settings` shows where each setting is from")


def folder(setup: Setup) -> Iterator[Result]:
    """Check whose the data folder is, its format, and whether this user may write there."""
    path = setup.folder
    if path.exists():
        try:
            DataFolder.inspect(path, app=str(setup.app.conf.id))
        except StoreError as error:
            yield Result("folder", Level.ERROR, str(error), "Choose the app's own datadir with -D")
    there = _existing(path)
    if not there.is_dir():
        yield Result("folder", Level.ERROR, f"{there} isn't a folder", f"Choose another datadir than {path} with -D")
    elif not os.access(there, os.R_OK | os.W_OK | os.X_OK):
        yield Result(
            "folder", Level.ERROR, f"this user may not write in {there}", "Give it to the worker's user, or use -D"
        )


def disk(setup: Setup) -> Iterator[Result]:
    """Check the kind of the data folder's file system, and how much of it is free."""
    there = _existing(setup.folder)
    kind = file_system(there)
    if kind in _IN_MEMORY:
        yield Result(
            "disk",
            Level.WARNING,
            f"the data folder {setup.folder} is in memory ({kind}): after a restart of the machine all state is read "
            "from the changelogs again",
            "Choose a folder on a disk with -D",
        )
    elif kind in _REMOTE:
        yield Result(
            "disk",
            Level.WARNING,
            f"the data folder {setup.folder} is on another machine ({kind}): RocksDB needs a file system whose locks "
            "and syncs can be relied on, and each read waits for the network",
            "Choose a folder on a local disk or block device with -D",
        )
    elif kind == "overlay":
        yield Result(
            "disk",
            Level.WARNING,
            f"the data folder {setup.folder} is in a container's own layer, and goes with the container: the next one "
            "reads all state from the changelogs again",
            "Mount a volume, and choose it with -D",
        )
    size = shutil.disk_usage(there)
    if size.free < max(LEAST_FREE_BYTES, LEAST_FREE * size.total):
        yield Result(
            "disk",
            Level.WARNING,
            f"{size.free / 2**30:.1f} of {size.total / 2**30:.1f} GiB are free at {there}: a store that can't be "
            "written stops its partitions",
            "Free some, enlarge the volume, or choose another folder with -D",
        )


def files(setup: Setup) -> Iterator[Result]:
    """Check that the limit of open files suffices for one partition. The soft limit is raised as a worker does it."""
    few = why_none_fits(max((len(one.stores) for one in setup.app.actors.values()), default=0))
    if few is not None:
        yield Result("files", Level.ERROR, *few)


def java() -> Iterator[Result]:
    """Check that there is a Java for `faust dev` and spark_replay. No worker needs it."""
    try:
        find_java()
    except ToolMissingError as error:
        what, _, remedy = str(error).partition(": ")
        yield Result("java", Level.NOTE, f"{what}; workers don't need it, `faust dev` and spark_replay do", remedy)


def file_system(path: Path) -> str:
    """Return the kind of the file system that a path is on, "" where the system doesn't tell."""
    try:
        lines = MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    real, best, kind = os.path.realpath(path), -1, ""
    for line in lines:
        parts = line.split()
        if len(parts) < 3:
            continue
        # Spaces and other separators are written in octal.
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), parts[1])
        # Of two on one place, the later one is on top.
        if len(point) >= best and (real == point or real.startswith(point.rstrip("/") + "/")):
            best, kind = len(point), parts[2]
    return kind


def _existing(path: Path) -> Path:
    """Return the path, or the nearest folder above that is there."""
    path = path.absolute()
    return next((one for one in (path, *path.parents) if one.exists()), path)
