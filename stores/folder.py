"""A worker's data folder: one app's, in one process at a time, with a folder for each store and partition.

worker.json                   app, format version, and an id of the folder
worker.lock                   flock, and the pid of its holder
stores/{store}/{partition}/   a RocksDB database

Other users can't enter `stores`: its mode protects the databases in it, whose files RocksDB makes with modes of its
own. The data folder itself may be one that the user named, and keeps its mode.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import stat
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stores._core.identity import DatabaseIdentity
from stores._core.outside import MISSHAPEN
from stores._core.printable import printable
from stores._files import make_folder, remove_tree, tighten, write_atomically
from stores.errors import (
    ForeignFolderError,
    StoreClosedError,
    StoreError,
    StoreFormatError,
    StoreLockedError,
    StoreUnavailableError,
)

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1

_ABOUT = "worker.json"
_LOCK = "worker.lock"
_STORES = "stores"
_STORE_NAME = re.compile(r"[A-Za-z0-9._~-]+")
"""No app can declare a store with a tilde: such a name is the runtime's own."""


class DataFolder:
    """Where a worker's databases lie. Make one with `open` or `inspect`.

    Attributes:
        path: the folder.
        app: the app it belongs to.
        id: made with the folder.
    """

    def __init__(self, path: Path, about: _About, lock: int | None) -> None:
        self.path = path
        self.app = about.app
        self.id = about.id
        self._lock = lock

    @classmethod
    def open(cls, path: Path | str, *, app: str) -> DataFolder:
        """Take the folder for this process, and make it if need be.

        Raises:
            StoreLockedError: another process has it.
            ForeignFolderError: it belongs to another app, or isn't a data folder.
            StoreFormatError: a newer release made it.
            StoreUnavailableError: the operating system refused.
        """
        path = Path(path).absolute()
        try:
            make_folder(path)
            lock = _take_lock(path)
        except OSError as error:
            raise StoreUnavailableError(
                f"can't use the data folder {path}: {error}; mend that or choose another datadir"
            ) from error
        try:
            about = _settle_owner(path, app)
            _make_stores(path)
        except BaseException:
            os.close(lock)
            raise
        return cls(path, about, lock)

    @classmethod
    def inspect(cls, path: Path | str, *, app: str | None = None) -> DataFolder:
        """Look at a folder that another process may have; nothing can be discarded.

        Args:
            path: the folder.
            app: the app it must belong to, None for any.

        Raises:
            ForeignFolderError: it belongs to another app, or isn't a data folder.
            StoreFormatError: a newer release made it.
        """
        path = Path(path).absolute()
        about = _read_about(path)
        if about is None:
            raise ForeignFolderError(f"{path} isn't a data folder, {_ABOUT} is missing: check the datadir")
        _check_app(path, about, about.app if app is None else app)
        return cls(path, about, None)

    def store_path(self, store: str, partition: int) -> Path:
        """Return the folder of a partition's database.

        Raises:
            StoreError: the name, the number or a symbolic link leads out of the data folder. RocksDB deletes files in
                its folder, and a damaged database is deleted as a whole.
        """
        if not _is_store_name(store) or partition < 0:
            raise StoreError(
                f"store {store!r}, partition {partition} has no place in {self.path}: "
                "names have letters, digits, '.', '_', '-' and '~', partitions start at 0"
            )
        name = os.path.join(_STORES, store, str(partition))
        path, real = self.path / name, os.path.realpath(self.path / name)
        if real != os.path.join(os.path.realpath(self.path), name):
            raise StoreError(
                f"{path} is a symbolic link, or lies behind one, and leads to {real}: move the database to "
                f"{self.path}, or delete the link; only the data folder as a whole may be a link"
            )
        return path

    def identity(self, store: str, partition: int, cluster: str = "") -> DatabaseIdentity:
        """Return the identity of a database in this place."""
        return DatabaseIdentity(cluster, self.app, store, partition)

    def partitions_on_disk(self, store: str) -> list[int]:
        """Return the partitions of `store` that have a database here, in order."""
        names = _folders(self.store_path(store, 0).parent)
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def stores_on_disk(self) -> list[str]:
        """Return the names of the stores that have a database here, in order."""
        names = sorted(filter(_is_store_name, _folders(self.path / _STORES)))
        return [name for name in names if self.partitions_on_disk(name)]

    def discard(self, store: str, partition: int) -> None:
        """Delete a partition's database, which must be closed. Does nothing when there is none.

        Raises:
            StoreClosedError: the folder is closed, or only inspected.
            StoreError: the name, the number or a symbolic link leads out of the data folder.
        """
        path = self.store_path(store, partition)
        if self._lock is None:
            raise StoreClosedError(self)
        try:
            remove_tree(path)
        except OSError as error:
            raise StoreUnavailableError(f"can't delete the database at {path}: {error}") from error

    def close(self) -> None:
        """Release the folder. May be called twice."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __repr__(self) -> str:
        return f"DataFolder({str(self.path)!r})"


def if_copied(path: Path | str) -> str:
    """Return the remedy if two workers have the id of this folder, as part of a sentence."""
    return (
        f"two workers have the id of the data folder {path}: one folder is most likely a copy of the other. Stop one "
        f"of the workers; before it starts again, delete {_ABOUT} in its folder, or give it a datadir of its own"
    )


@dataclass(frozen=True, slots=True)
class _About:
    app: str
    format: int
    id: str


def _take_lock(path: Path) -> int:
    lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        pid = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        raise StoreLockedError(
            f"the data folder {path} is in use by process {pid}: stop that worker or choose another datadir"
        ) from error
    os.ftruncate(lock, 0)
    os.pwrite(lock, b"%d\n" % os.getpid(), 0)
    return lock


def _make_stores(path: Path) -> None:
    """Make the folder of the databases, closed to other users, and warn where that doesn't keep them out."""
    stores = path / _STORES
    try:
        make_folder(stores)
        tighten(stores)
        above, found = path.stat(), stores.stat()
    except OSError as error:
        raise StoreUnavailableError(f"can't make {stores}: {error}") from error
    is_shared = above.st_mode & stat.S_IWOTH and not above.st_mode & stat.S_ISVTX
    is_foreign = not {above.st_uid, found.st_uid} <= {os.geteuid(), 0}
    if found.st_mode & stat.S_IRWXO or is_shared or is_foreign:
        logger.warning(
            "the data folder %s isn't protected from other users of this machine (%s of user %d; in it %s, %s of user "
            "%d): they can read or replace the state. Give both to this worker's user, with mode 0700",
            printable(str(path)),
            stat.filemode(above.st_mode),
            above.st_uid,
            _STORES,
            stat.filemode(found.st_mode),
            found.st_uid,
        )


def _settle_owner(path: Path, app: str) -> _About:
    about = _read_about(path)
    if about is not None:
        _check_app(path, about, app)
        return about
    made = _About(app, FORMAT_VERSION, uuid.uuid4().hex)
    try:
        write_atomically(path / _ABOUT, json.dumps(asdict(made)) + "\n")
    except OSError as error:
        raise StoreUnavailableError(f"can't write {path / _ABOUT}: {error}") from error
    return made


def _read_about(path: Path) -> _About | None:
    try:
        raw: Any = json.loads((path / _ABOUT).read_text(encoding="utf-8"))
        return _About(str(raw["app"]), int(raw["format"]), str(raw["id"]))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreUnavailableError(f"can't read {path / _ABOUT}: {error}") from error
    except MISSHAPEN as error:
        raise ForeignFolderError(
            f"{path / _ABOUT} doesn't say which app the folder belongs to ({error!r}): choose "
            "another datadir, or delete the folder to have it restored from the changelogs"
        ) from error


def _check_app(path: Path, about: _About, app: str) -> None:
    if about.format > FORMAT_VERSION:
        raise StoreFormatError(
            f"the data folder {path} has format {about.format}, this release reads up to {FORMAT_VERSION}: "
            "use the release that made it, or choose another datadir"
        )
    if about.app != app:
        raise ForeignFolderError(
            f"the data folder {path} belongs to the app {about.app!r}, not {app!r}: choose another datadir"
        )


def _is_store_name(name: str) -> bool:
    return _STORE_NAME.fullmatch(name) is not None and name not in (".", "..")


def _folders(path: Path) -> list[str]:
    try:
        return [entry.name for entry in path.iterdir() if entry.is_dir()]
    except FileNotFoundError:
        return []
