"""A partition of a store in a RocksDB database of its own.

Two column families, flushed together: `default` (key to metadata and value) and `meta` (`format`, `position` and
`identity`: which partition of which store it is).

What holds after a crash:

`apply` writes data and position in one `WriteBatch`, to the write-ahead log first. The log isn't synced:

- A killed process loses nothing, since what it wrote is with the operating system.
- A machine that stops may lose the log's tail. Batches are recovered whole and in order, so what is left is
  an older checkpoint whose position and data agree, and the changelog replays the rest. Should recovery
  refuse (a hole in the middle of the log), that is a `StoreCorruptedError`, and the changelog has
  everything.

`load` writes data and position in one batch too, but after the first `LOGGED_LOADS` past the log, into memtables that
aren't sorted before a thread of RocksDB's own flushes them: a third of the time. Both families are flushed at the same
point, so a crash leaves the checkpoint of some chunk. A batch in the log must never lie behind one that isn't there:
whatever the log holds is flushed before, by opening the database again, and what was loaded is flushed before the next
`apply`.

`load_snapshot` builds a database of its own beside the store's, in `{path}.seeding`, and puts it in the store's place
when it is complete and synced. Where the process dies:

- before the exchange: the store is empty, as it was, and what lies beside it is deleted when the store is opened;
- in the exchange, between the removal of the empty database and the new one's renaming: there is no database, so that
  the next to open it makes an empty one;
- after it: the store has the snapshot's content and position. Neither is there without the other, since both were in
  the new database before it got its name.

The snapshot's files are linked into the new database, or copied where they lie on another file system, then checked,
then moved in: RocksDB never has a name of the snapshot's own, and writes to no table. A worker's snapshot is a whole
database, of which RocksDB changes what is no table: that is always copied.

rocksdict keeps the interpreter's lock during a read and a write: while a big batch is written no other thread runs,
the event loop's neither. Hence the triggers with which RocksDB would slow writers down are out of reach here.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self
from weakref import WeakSet

from rocksdict import AccessType, Checkpoint, IngestExternalFileOptions, Rdict, WriteBatch, WriteOptions

from stores._core.identity import DatabaseIdentity, decode_identity, encode_identity, why_foreign
from stores._core.record import Position, decode_position, encode_position
from stores._core.snapshot import DATABASE_FILE
from stores._files import make_folder, remove_tree, replace_tree
from stores.errors import (
    ForeignDatabaseError,
    SnapshotError,
    StoreClosedError,
    StoreCorruptedError,
    StoreError,
    StoreFormatError,
    StoreLockedError,
    StoreUnavailableError,
)
from stores.ports import SnapshotContent
from stores.rocks_logs import why_torn
from stores.rocks_options import RocksResources
from stores.rocks_scan import Scan

FORMAT_VERSION = 1
LOGGED_LOADS = 20_000
"""How many writes a restore has before opening the database twice, which takes some 30 ms, is worth its while."""

FIGURES = (
    "estimate-num-keys",
    "live-sst-files-size",
    "total-sst-files-size",
    "cur-size-all-mem-tables",
    "estimate-table-readers-mem",
    "estimate-pending-compaction-bytes",
    "num-running-compactions",
    "num-running-flushes",
    "block-cache-usage",
    "block-cache-capacity",
)
LOADING = ".seeding"
_META = "meta"
_FORMAT = b"format"
_POSITION = b"position"
_IDENTITY = b"identity"
_READER_ATTEMPTS = 200
_READER_CACHE_BYTES = 16 << 20


class _Database:
    """The common part of an owner's and a reader's database."""

    def __init__(self, path: Path, data: Any) -> None:
        self._path = path
        self._data: Any = data
        self._meta: Any = data.get_column_family(_META)
        self._scans: WeakSet[Scan] = WeakSet()

    @property
    def path(self) -> Path:
        """The database's folder."""
        return self._path

    def get(self, key: bytes) -> bytes | None:
        """Return a key's value with its metadata."""
        try:
            raw: bytes | None = self._data.get(key)
        except Exception as error:
            raise self._explain(error) from error
        return raw

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Return the rows of a range of keys. An iterator that isn't at its end keeps the files it reads on disk."""
        with self.mapped_errors():
            scan = Scan(self, self._data.iter(), start, end, reverse)
        self._scans.add(scan)
        return scan

    def position(self) -> Position | None:
        """Return the committed position."""
        return self._read_position(_POSITION)

    def estimated_keys(self) -> int:
        """Return RocksDB's estimate, wrong by recent overwrites and deletes."""
        with self.mapped_errors():
            return int(self._data.property_int_value("rocksdb.estimate-num-keys") or 0)

    def close(self) -> None:
        """Release files and locks. An iterator that isn't at its end raises `StoreClosedError` then."""
        if self._data is None:
            return
        for scan in list(self._scans):
            scan.cut_short()
        data, self._data, self._meta = self._data, None, None
        try:
            data.close()
        except Exception as error:
            raise _explain(self._path, error) from error

    @contextmanager
    def mapped_errors(self) -> Iterator[None]:
        """Turn what rocksdict raises into this package's errors."""
        try:
            yield
        except StoreError:
            raise
        except Exception as error:
            raise self._explain(error) from error

    def _read_position(self, name: bytes) -> Position | None:
        with self.mapped_errors():
            raw = self._meta.get(name)
        try:
            return None if raw is None else decode_position(raw)
        except ValueError as error:
            raise StoreCorruptedError(self._path, error) from error

    def _check_identity(self, mine: DatabaseIdentity, *, is_any_cluster: bool = False) -> DatabaseIdentity | None:
        """Refuse a database that was made for something else; return what it was made for, None if it doesn't say."""
        with self.mapped_errors():
            raw = self._meta.get(_IDENTITY)
        try:
            found = None if raw is None else decode_identity(raw)
        except ValueError as error:
            raise StoreCorruptedError(self._path, error) from error
        if found is None or found.fits(mine) or (is_any_cluster and found.is_of_another_cluster(mine)):
            return found
        raise ForeignDatabaseError(why_foreign(self._path, found, mine))

    def _explain(self, error: Exception) -> StoreError:
        return StoreClosedError(self) if self._data is None else _explain(self._path, error)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._path)!r})"


class RocksStore(_Database):
    """A `PartitionStore` in RocksDB. Make one with `open`."""

    def __init__(
        self, path: Path, data: Any, resources: RocksResources, identity: DatabaseIdentity | None = None
    ) -> None:
        super().__init__(path, data)
        self._resources = resources
        self._identity = identity
        self._refusal: ForeignDatabaseError | None = None
        self._meta_handle: Any = data.get_column_family_handle(_META)
        self._position: Position | None = None
        self._past_the_log: Any = None
        self._loaded = 0

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        resources: RocksResources | None = None,
        identity: DatabaseIdentity | None = None,
        changelog_id: str | None = None,
        is_any_cluster: bool = False,
    ) -> RocksStore:
        """Open the database in the folder `path`, which is made if need be.

        Args:
            path: the database's folder.
            resources: memory to share with other databases; by default it has its own.
            identity: what it must have been made for, None for anything. A database without a position takes it, as
                does one without an identity or of another cluster, if its position is in the topic `changelog_id`.
            changelog_id: the id of the store's changelog, None for any.
            is_any_cluster: open one that was made for another cluster too. It can't be wiped then.

        Raises:
            StoreLockedError: it is open already, in this process or another.
            StoreCorruptedError: it can't be read.
            StoreFormatError: a newer release wrote it.
            StoreUnavailableError: the operating system refused.
            ForeignDatabaseError: it was made for something else; nothing is changed.
        """
        store = cls._open(Path(path), resources or RocksResources(), identity)
        try:
            store._settle_identity(changelog_id, is_any_cluster=is_any_cluster)
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    def _open(cls, path: Path, resources: RocksResources, identity: DatabaseIdentity | None) -> RocksStore:
        try:
            make_folder(path)
        except OSError as error:
            raise StoreUnavailableError(f"can't make the database's folder {path}: {error}") from error
        store = cls(path, _open_database(path, resources.families()), resources, identity)
        # What a process left that died while it loaded a snapshot; the lock says that it is nobody's work now.
        shutil.rmtree(_beside(path), ignore_errors=True)
        try:
            store._settle_format()
            store._position = store._read_position(_POSITION)
        except BaseException:
            store.close()
            raise
        return store

    def position(self) -> Position | None:
        """Return the committed position, kept in memory since every commit asks for it."""
        self._check_open()
        return self._position

    def apply(self, writes: Iterable[tuple[bytes, bytes | None]], position: Position) -> None:
        """Write one batch to RocksDB. No other thread runs while RocksDB takes the batch: 0.6 µs a write."""
        self._check_open()
        if self._loaded:
            self.settle()
        self._write(writes, position)

    def drop(self, start: bytes, end: bytes) -> None:
        """Write one tombstone for a range of keys; compactions remove them."""
        self._check_open()
        if self._loaded:
            self.settle()
        with self.mapped_errors():
            self._data.delete_range(start, end)

    def load(self, writes: Iterable[tuple[bytes, bytes | None]], position: Position) -> None:
        """Apply a chunk of a restore."""
        self._check_open()
        if self._past_the_log is None and self._loaded >= LOGGED_LOADS:
            self._reopen(self._resources.families(loading=True))
            self._past_the_log = WriteOptions()
            self._past_the_log.disable_wal = True
        self._loaded += self._write(writes, position)

    def settle(self) -> None:
        """Flush loaded writes. RocksDB doesn't report a failed flush, so the files on disk are checked."""
        self._check_open()
        self._loaded = 0
        if self._past_the_log is None:
            return
        loaded, sequence = self._position, self._data.latest_sequence_number()
        self._reopen(self._resources.families())
        try:
            self._position = self._read_position(_POSITION)
        except BaseException:
            self.close()
            raise
        if self._position != loaded or self._data.latest_sequence_number() < sequence:
            # From here on the store is what the disk has: the next owner restores from there.
            raise StoreUnavailableError(
                f"the database at {self._path} could not be flushed: see whether the disk is full"
            )

    def begin_flush(self) -> None:
        """Let RocksDB flush in its own thread, so that `checkpoint` has little left to flush."""
        self._check_open()
        with self.mapped_errors():
            self._data.flush(wait=False)

    def checkpoint(self, folder: Path) -> None:
        """Make a database in the new folder `folder`, of the same file system, with links to the tables as they are.

        No other thread runs meanwhile: some 10 ms, and what a flush takes.
        """
        self._check_open()
        with self.mapped_errors():
            Checkpoint(self._data).create_checkpoint(str(folder))

    def figures(self) -> dict[str, int]:
        """Return RocksDB's own figures by their names without `rocksdb.`; what both families share counts once."""
        self._check_open()
        with self.mapped_errors():
            read = self._data.property_int_value
            return {name: int(read(f"rocksdb.{name}") or 0) for name in FIGURES}

    def wipe(self) -> None:
        """Remove all content. A database of another cluster is refused: it may be the only copy of its state."""
        self._check_open()
        if self._refusal is not None:
            raise self._refusal
        # What can't be flushed on a full or broken disk is about to be deleted.
        with suppress(StoreError):
            self.close()
        remove_tree(self._path)
        self._become(self.open(self._path, resources=self._resources, identity=self._identity))

    def load_snapshot(self, content: SnapshotContent) -> None:
        """Take content and position of a snapshot."""
        self._check_open()
        if self._position is not None:
            raise SnapshotError(f"{self} isn't empty: a snapshot is for a store that is")
        work = _beside(self._path)
        shutil.rmtree(work, ignore_errors=True)
        try:
            self._build(work / "tables", work / "database", content)
        except BaseException as error:
            shutil.rmtree(work, ignore_errors=True)
            if isinstance(error, SnapshotError) or not isinstance(error, StoreError | OSError):
                raise
            raise SnapshotError(f"no database could be made of the snapshot: {error}") from error
        with suppress(StoreError):
            self.close()
        try:
            replace_tree(self._path, work / "database")
        except OSError as error:
            raise StoreUnavailableError(f"can't put the snapshot's database at {self._path}: {error}") from error
        self._become(self.open(self._path, resources=self._resources, identity=self._identity))

    def _build(self, tables: Path, database: Path, content: SnapshotContent) -> None:
        """Make a database of the snapshot's content and position, and close it."""
        tables.mkdir(parents=True)
        files = [str(file) for file in content.place(tables)]
        is_database = (tables / DATABASE_FILE).exists()
        if is_database:
            tables.rename(database)
        built = self.open(database, resources=self._resources, identity=self._identity)
        try:
            position = built.position() or content.position
            if replace(position, wall_time_ms=content.position.wall_time_ms) != content.position:
                raise SnapshotError(f"its database is at {position}, and the manifest says {content.position}")
            with built.mapped_errors():
                if files and not is_database:
                    built._data.ingest_external_file(files, _moving())
                built._meta.put(_POSITION, encode_position(content.position))
                # Tables are synced as they are taken; the position mustn't be left to a log that isn't.
                built._meta.flush()
        finally:
            built.close()

    def _become(self, fresh: RocksStore) -> None:
        self._data, self._meta, self._meta_handle = fresh._data, fresh._meta, fresh._meta_handle
        self._position = fresh._position
        self._past_the_log, self._loaded, self._refusal = None, 0, None

    def close(self) -> None:
        """Release files and locks. An iterator that isn't at its end raises `StoreClosedError` then."""
        self._meta_handle = None
        if self._past_the_log is None or self._data is None:
            super().close()
            return
        # `flush` takes one family, and so does rocksdict's `close` at first; this takes all at one point.
        self._data.cancel_all_background(True)
        with suppress(StoreError):  # "Shutdown in progress", which is what was asked for
            super().close()

    def _reopen(self, families: tuple[Any, Any]) -> None:
        self.close()
        self._past_the_log = None
        self._data = _open_database(self._path, families)
        self._meta = self._data.get_column_family(_META)
        self._meta_handle = self._data.get_column_family_handle(_META)

    def _write(self, writes: Iterable[tuple[bytes, bytes | None]], position: Position) -> int:
        """Write a batch and give how much is in it."""
        batch = WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        for key, raw in writes:
            if raw is None:
                delete(key)
            else:
                put(key, raw)
        put(_POSITION, encode_position(position), self._meta_handle)
        count = int(batch.len())
        with self.mapped_errors():
            self._data.write(batch, self._past_the_log)
        self._position = position
        return count

    def _check_open(self) -> None:
        if self._data is None:
            raise StoreClosedError(self)

    def _settle_format(self) -> None:
        with self.mapped_errors():
            raw = self._meta.get(_FORMAT)
            if raw is None:
                self._meta.put(_FORMAT, b"%d" % FORMAT_VERSION)
                return
        _check_format(self._path, raw)

    def _settle_identity(self, changelog_id: str | None, *, is_any_cluster: bool) -> None:
        mine, position = self._identity, self._position
        if mine is None:
            return
        # No topic of another cluster has the same id.
        is_taken = position is not None and position.changelog_id == changelog_id
        found = self._check_identity(mine, is_any_cluster=is_any_cluster or is_taken)
        if found is None:
            is_taken = is_taken or position is None or changelog_id is None
        elif found.fits(mine):
            return
        elif not is_taken:
            self._refusal = ForeignDatabaseError(why_foreign(self._path, found, mine))
        if is_taken:
            with self.mapped_errors():
                self._meta.put(_IDENTITY, encode_identity(mine))


class RocksReader(_Database):
    """A `PartitionReader` of a database that another process may be writing to. Make one with `open`.

    It shows one state, that of its opening: the owner's write-ahead log included, later writes not.

    Not a secondary instance of RocksDB: where a table is missing that one shows an older state of a column
    family, without an error. A read-only instance refuses, and here it is opened again if the owner was the
    cause.
    """

    @classmethod
    def open(cls, path: Path | str, *, identity: DatabaseIdentity | None = None) -> RocksReader:
        """Open the database in the folder `path` for reading, with or without an owner.

        Changes nothing that an owner reads. Yet rocksdict writes its `rocksdict-config.json` again, with the same
        content, so that permission to write that file is needed.

        Raises:
            StoreUnavailableError: there is no database, or its files change faster than they can be opened.
            StoreCorruptedError: it can't be read.
            StoreFormatError: a newer release wrote it.
            ForeignDatabaseError: it was made for something else than `identity`.
        """
        path = Path(path)
        families = RocksResources(block_cache_bytes=_READER_CACHE_BYTES).families()
        families[0].create_if_missing(False)
        # All tables are opened at once and stay so: the owner may delete them.
        families[0].set_max_open_files(-1)
        cause: StoreError | None = None
        for _ in range(_READER_ATTEMPTS):
            before = _version(path)
            try:
                reader = cls(path, _open_database(path, families, AccessType.read_only(False)))
            except StoreError as error:
                cause = error if _version(path) == before else None
                continue
            # The manifest, the tables and the logs are read one after the other. Before the owner deletes a
            # table or a log it adds to the manifest: while that is unchanged all three are of one version.
            if _version(path) == before:
                return reader._checked(identity)
            reader.close()
            cause = None
        raise cause or StoreUnavailableError(
            f"the files of the database at {path} change faster than they can be opened: try again"
        )

    def _checked(self, identity: DatabaseIdentity | None) -> Self:
        try:
            with self.mapped_errors():
                raw = self._meta.get(_FORMAT)
            _check_format(self._path, raw or b"%d" % FORMAT_VERSION)
            if identity is not None:
                self._check_identity(identity)
        except BaseException:
            self.close()
            raise
        return self


def _beside(path: Path) -> Path:
    return path.with_name(path.name + LOADING)


def _moving() -> Any:
    """Return options that move tables in without writing to them: they may be links to a snapshot's files."""
    options = IngestExternalFileOptions()
    options.set_move_files(True)
    options.set_allow_global_seqno(False)
    return options


def _open_database(path: Path, families: tuple[Any, Any], access: Any = None) -> Any:
    data, meta = families
    torn = why_torn(path)
    if torn is not None:
        raise StoreCorruptedError(
            path, f"{torn}: the files were copied while a worker used them, or the machine lost power"
        )
    try:
        return Rdict(str(path), data, {_META: meta}, access or AccessType.read_write())
    except Exception as error:
        raise _explain(path, error) from error


def _version(path: Path) -> tuple[str, int]:
    """Return the database's version, which differs after any change of its set of files."""
    try:
        manifest = (path / "CURRENT").read_text(errors="replace").strip()
    except OSError as error:
        raise StoreUnavailableError(f"there is no database at {path}: {error}") from error
    try:
        return manifest, (path / manifest).stat().st_size
    except OSError:
        return manifest, -1


def _check_format(path: Path, raw: bytes) -> None:
    try:
        version = int(raw)
    except ValueError as error:
        raise StoreCorruptedError(path, f"its format is {raw!r}") from error
    if version > FORMAT_VERSION:
        raise StoreFormatError(
            f"the database at {path} has format {version}, this release reads up to {FORMAT_VERSION}: "
            "use the release that wrote it, or delete the folder to have it restored from the changelog"
        )


def _explain(path: Path, error: Exception) -> StoreError:
    """Choose the error by RocksDB's text, which is all that rocksdict gives."""
    text = str(error)
    if "lock hold by current process" in text or "While lock file" in text:
        return StoreLockedError(
            f"the database at {path} is open in this process or another already ({text}): close it there"
        )
    if text.startswith("Corruption") or "No such file or directory" in text:
        return StoreCorruptedError(path, text)
    if text.startswith("IO error") or "os error" in text:
        remedy = ". Free some space: nothing is lost, and it goes on then" if "No space left" in text else ""
        return StoreUnavailableError(f"can't read or write the database at {path}: {text}{remedy}")
    return StoreError(f"the database at {path}: {text}")
