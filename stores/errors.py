"""Everything that `stores` raises on purpose. Each error is named after what to do about it."""

from __future__ import annotations

from pathlib import Path


class StoreError(Exception):
    """Root of all errors of this package."""


class StoreClosedError(StoreError):
    """The store was closed before the call: a defect of the caller."""

    def __init__(self, store: object) -> None:
        super().__init__(f"{store} is closed")


class StoreLockedError(StoreError):
    """Another process (or another object of this one) has it open: stop that one first."""


class StoreCorruptedError(StoreError):
    """Files on disk can't be read: delete them and restore from the changelog.

    Attributes:
        path: the database's folder.
        cause: what RocksDB said.
    """

    def __init__(self, path: Path, cause: object) -> None:
        super().__init__(f"the database at {path} is corrupted ({cause}): delete the folder, to have it restored")
        self.path = path
        self.cause = cause


class StoreFormatError(StoreError):
    """A newer release wrote it: use that release, or delete it to have it restored from the changelog."""


class StoreUnavailableError(StoreError):
    """The operating system refused a read or write: no space, no permission, a broken disk."""


class ForeignFolderError(StoreError):
    """The data folder isn't this app's: choose another `datadir`."""


class ForeignDatabaseError(StoreError):
    """The database holds another partition, store, app or cluster: its folder was moved or copied here."""


class UnknownStoreError(StoreError):
    """There is no such store on this disk."""


class SnapshotError(StoreError):
    """A snapshot can't be used; the store is empty, as it was: restore it from the changelog."""
