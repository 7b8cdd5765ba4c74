"""Object storage as a place of snapshots, in the layout of `stores.snapshot`.

Nothing relies on a rename or on a list of objects being complete: a manifest names its files, and is written last.
Errors of obstore become `SnapshotError`, with the first line of their text.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError, NotSupportedError, PreconditionError
from obstore.store import LocalStore, from_url

from actors.errors import ConfigurationError
from stores._core.snapshot import SnapshotTable
from stores._files import make_folder, open_private
from stores.errors import SnapshotError
from stores.snapshot import Snapshot, find_newest

CHUNK_BYTES = 8 << 20
"""How much a request transfers. Less than this in `REQUEST_S` is a failure: the changelog is faster."""
REQUEST_S, CONNECT_S = 30.0, 5.0
RETRIES_S = 15.0
"""No request is repeated later than this after its begin."""
AGAIN_S = 30.0
"""How long a failure stands for all partitions: each would wait as long for the same answer."""
ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT")

Version = dict[str, str]
"""Entity tag and version of an object, which a conditional write compares."""


class Objects:
    """Snapshots of an app in object storage, an `actors.ports.Snapshots`. Make one with `open`.

    Attributes:
        uri: where they are.
        folder: where files lie on this machine until a store has them; on the file system of the stores.
    """

    def __init__(self, uri: str, store: Any, *, app: str, folder: Path) -> None:
        self.uri = uri.rstrip("/")
        self.app = app
        self.folder = folder
        self._store = store
        self._failure = ""
        self._fails_until_s = 0.0

    @classmethod
    def open(cls, uri: str, *, app: str, folder: Path) -> Objects:
        """Return the snapshots at a URI, without connecting. Credentials are those of the environment.

        Raises:
            ConfigurationError: obstore knows no such URI.
        """
        options: dict[str, Any] = {"mkdir": True}
        if not uri.startswith("file:"):
            limits = {"timeout": timedelta(seconds=REQUEST_S), "connect_timeout": timedelta(seconds=CONNECT_S)}
            # These options take the place of the environment's. An endpoint without TLS was named by its URI.
            is_plain = any(os.environ.get(name, "").startswith("http://") for name in ENDPOINTS)
            retries = {"max_retries": 5, "retry_timeout": timedelta(seconds=RETRIES_S)}
            options = {"client_options": {**limits, "allow_http": is_plain}, "retry_config": retries}
        try:
            store: Any = from_url(uri, **options)
        except (BaseError, ValueError, TypeError) as error:
            raise ConfigurationError(f"state_snapshot={uri!r}: {_first_line(error)}") from error
        return cls(uri, store, app=app, folder=folder)

    def find(self, store: str, partition: int) -> Snapshot | None:
        """Return a partition's snapshot, None if there is none. Reads the manifest, not the files. Blocks."""
        if time.monotonic() < self._fails_until_s:
            raise SnapshotError(f"{self._failure} (asked before)")
        newest = find_newest(self._read, self.app, store, partition)
        if newest is None:
            return None
        file, manifest, part = newest
        source = "/".join(filter(None, [file.rpartition("/")[0], part.folder]))
        return _ObjectSnapshot(Path(), manifest.changelog, manifest.partition_count, part, self, source)

    def _read(self, file: str) -> bytes | None:
        try:
            with self.errors(file):
                return bytes(obstore.get(self._store, file).bytes())
        except NotFoundError:
            return None
        except SnapshotError as error:
            self._failure, self._fails_until_s = str(error), time.monotonic() + AGAIN_S
            raise

    async def read(self, file: str) -> tuple[bytes, Version] | None:
        """Return an object with its version, None if there is none."""
        try:
            with self.errors(file):
                result = await obstore.get_async(self._store, file)
                raw = bytes(await result.bytes_async())
        except NotFoundError:
            return None
        version = {"e_tag": result.meta["e_tag"], "version": result.meta["version"]}
        return raw, {name: text for name, text in version.items() if text is not None}

    async def fetch(self, file: str, table: SnapshotTable, target: Path) -> None:
        """Download a file of a snapshot, and compare it with what the manifest says.

        Raises:
            SnapshotError: it differs, or can't be read.
        """
        crc, size_bytes = 0, 0
        with open_private(target, "wb") as out:
            for start in range(0, table.size_bytes, CHUNK_BYTES):
                try:
                    with self.errors(file):
                        chunk = await obstore.get_range_async(self._store, file, start=start, length=CHUNK_BYTES)
                except NotFoundError:
                    raise SnapshotError(f"{self.uri}/{file} is missing") from None
                crc = await asyncio.to_thread(_append, out, chunk, crc)
                size_bytes += len(chunk)
        if (size_bytes, crc) != (table.size_bytes, table.crc32):
            raise SnapshotError(
                f"{self.uri}/{file} isn't the file that its manifest lists ({size_bytes} of {table.size_bytes} bytes): "
                "damaged"
            )

    async def put(self, file: str, source: Path) -> None:
        """Upload a file, in parts if it is large."""
        if isinstance(self._store, LocalStore):
            # Others can't enter it: the files have the modes that the process's umask gives.
            await asyncio.to_thread(make_folder, Path(str(self._store.prefix)) / file.partition("/")[0])
        with self.errors(file):
            await obstore.put_async(self._store, file, source, chunk_size=CHUNK_BYTES, max_concurrency=2)

    async def replace(self, file: str, raw: bytes, version: Version | None) -> bool:
        """Write an object if it still is of that version, None for one that doesn't exist; return whether it was."""
        mode: Any = "create" if version is None else version
        try:
            with self.errors(file):
                await obstore.put_async(self._store, file, raw, mode=mode)
        except (AlreadyExistsError, PreconditionError, NotFoundError):
            return False
        except NotSupportedError:
            # Folders know no versions: there the comparison before has to do.
            with self.errors(file):
                await obstore.put_async(self._store, file, raw)
        return True

    async def folders(self, prefix: str) -> list[str]:
        """Return the names of the folders below a prefix."""
        with self.errors(prefix):
            listing = await obstore.list_with_delimiter_async(self._store, prefix)
        return [str(path).rpartition("/")[2] for path in listing["common_prefixes"]]

    async def remove(self, prefix: str) -> None:
        """Delete all objects below a prefix."""
        with self.errors(prefix):
            async for objects in obstore.list(self._store, prefix):
                await obstore.delete_async(self._store, [str(entry["path"]) for entry in objects])

    @contextmanager
    def errors(self, file: str) -> Iterator[None]:
        """Turn what obstore raises into `SnapshotError`; what a caller decides by stays as it is."""
        try:
            yield
        except (AlreadyExistsError, PreconditionError, NotSupportedError):
            raise
        except (BaseError, OSError) as error:
            text = str(error)
            if isinstance(error, NotFoundError | FileNotFoundError) and "NoSuchBucket" not in text:
                raise NotFoundError(text) from None
            why = "the bucket doesn't exist" if "NoSuchBucket" in text else _first_line(error)
            raise SnapshotError(f"{self.uri}/{file}: {why}") from error

    def __str__(self) -> str:
        return self.uri


@dataclass(frozen=True, slots=True)
class _ObjectSnapshot(Snapshot):
    """A snapshot whose files are in object storage; its own `folder` is nowhere."""

    objects: Objects
    source: str

    def __str__(self) -> str:
        return f"the snapshot in {self.objects.uri}/{self.source}"

    @asynccontextmanager
    async def fetched(self) -> AsyncIterator[Snapshot]:
        """Download the files into a folder that exists for the time of the context."""
        make_folder(self.objects.folder)
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=self.objects.folder) as folder:
            for table in self.part.tables:
                await self.objects.fetch(f"{self.source}/{table.file}", table, Path(folder, table.file))
            yield Snapshot(Path(folder), self.changelog, self.partition_count, self.part)


def _append(out: IO[bytes], chunk: Any, crc: int) -> int:
    out.write(chunk)
    return zlib.crc32(chunk, crc)


def _first_line(error: BaseException) -> str:
    """Return an error's text without the dump of its causes."""
    return " ".join(str(error).partition("Debug source:")[0].split()) or type(error).__name__
