"""A partition of a store in a RocksDB database of its own. The only user of rocksdict.

Two column families, flushed together: `default` (key to stamp and value) and `meta` (`format` and `position`).

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
whatever the log holds is flushed before, by opening the database anew, and what was loaded is flushed before the next
`apply`.

rocksdict keeps the interpreter's lock during a read and a write: while a big batch is written no other thread runs,
the event loop's neither. Hence the triggers with which RocksDB would slow writers down are out of reach here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self
from weakref import WeakSet

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    MemtableFactory,
    Options,
    Rdict,
    WriteBatch,
    WriteBufferManager,
    WriteOptions,
)

from stores._core.record import Position, decode_position, encode_position
from stores._files import remove_tree
from stores.errors import (
    StoreClosedError,
    StoreCorruptedError,
    StoreError,
    StoreFormatError,
    StoreLockedError,
    StoreUnavailableError,
)

FORMAT_VERSION = 1
LOGGED_LOADS = 20_000
"""How many writes a restore has before opening the database twice, which takes some 30 ms, is worth its while."""

_META = "meta"
_FORMAT = b"format"
_POSITION = b"position"
_READER_ATTEMPTS = 200
_READER_CACHE_BYTES = 16 << 20
_UNREACHED = 1 << 20
_BLOOM_BITS_PER_KEY = 10
_WAL_LIMIT_BYTES = 64 << 20
_LOG_FILE_BYTES = 1 << 20
_ARENA_BLOCK_BYTES = 128 << 10
"""By how much a memtable grows. RocksDB's own megabyte for each family of each database would fill the memory that all
share before anything is written."""
_META_MEMTABLE_BYTES = 1 << 20


class RocksResources:
    """Memory that all databases of a worker share.

    Args:
        block_cache_bytes: blocks, indexes and filters that were read.
        write_buffer_bytes: memtables of all databases together; a database flushes when they are exceeded.
        memtable_bytes: memtable of one database.
    """

    def __init__(
        self,
        *,
        block_cache_bytes: int = 128 << 20,
        write_buffer_bytes: int = 128 << 20,
        memtable_bytes: int = 16 << 20,
    ) -> None:
        self._memtable_bytes = memtable_bytes
        self._cache = Cache(block_cache_bytes)
        # A stall would hold the interpreter's lock, and with it the worker's heartbeats.
        self._write_buffers = WriteBufferManager(write_buffer_bytes, False)

    def usage_bytes(self) -> tuple[int, int]:
        """Give what the block cache and the memtables take at the moment."""
        return self._cache.get_usage(), self._write_buffers.get_usage()

    def options(self) -> Any:
        """Give rocksdict's options of a database that draws on these resources."""
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.create_missing_column_families(True)
        # Else the meta family, which never fills a memtable, would keep every write-ahead log.
        options.set_atomic_flush(True)
        options.set_max_total_wal_size(_WAL_LIMIT_BYTES)
        self._size_memtables(options)
        self._lay_out_blocks(options)
        _never_slow_down(options)
        options.set_max_log_file_size(_LOG_FILE_BYTES)
        options.set_keep_log_file_num(2)
        options.set_stats_dump_period_sec(0)
        return options

    def families(self, *, loading: bool = False) -> tuple[Any, Any]:
        """Give the options of the two families.

        With `loading` they are for `RocksStore.load`: memtables that keep what comes as it comes.
        """
        data, meta = self.options(), self.options()
        meta.set_write_buffer_size(_META_MEMTABLE_BYTES)
        _no_filter(meta)
        if loading:
            _no_filter(data)
            for options in (data, meta):
                options.set_memtable_factory(MemtableFactory.vector())
                options.set_allow_concurrent_memtable_write(False)
        return data, meta

    def _size_memtables(self, options: Any) -> None:
        options.set_write_buffer_manager(self._write_buffers)
        options.set_write_buffer_size(self._memtable_bytes)
        options.set_max_write_buffer_number(4)
        options.set_arena_block_size(_ARENA_BLOCK_BYTES)
        # A key that is new in each message is the common case: let the filters answer for it.
        options.set_memtable_whole_key_filtering(True)
        options.set_memtable_prefix_bloom_ratio(0.02)

    def _lay_out_blocks(self, options: Any) -> None:
        blocks = BlockBasedOptions()
        blocks.set_block_cache(self._cache)
        blocks.set_bloom_filter(_BLOOM_BITS_PER_KEY, False)
        blocks.set_cache_index_and_filter_blocks(True)
        blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
        options.set_block_based_table_factory(blocks)
        options.set_compression_type(DBCompressionType.lz4())


def _no_filter(options: Any) -> None:
    options.set_memtable_whole_key_filtering(False)
    options.set_memtable_prefix_bloom_ratio(0.0)


def _never_slow_down(options: Any) -> None:
    options.set_level_zero_slowdown_writes_trigger(_UNREACHED)
    options.set_level_zero_stop_writes_trigger(_UNREACHED)
    options.set_soft_pending_compaction_bytes_limit(0)
    options.set_hard_pending_compaction_bytes_limit(0)


class _Scan:
    """An iterator over the state as of its making, until the database takes the RocksDB iterator away.

    Not `Rdict.items()`: that one ends early, without an error, where a block is corrupted. Bounds are
    checked here because rocksdict takes a lower bound for an upper one.
    """

    __slots__ = ("__weakref__", "_bound", "_database", "_ended", "_reverse", "_rows")

    def __init__(self, database: _Database, rows: Any, start: bytes | None, end: bytes | None, reverse: bool) -> None:
        self._database = database
        self._rows = rows
        self._reverse = reverse
        self._bound = start if reverse else end
        self._ended = False
        if reverse:
            _seek_below(rows, end)
        elif start is None:
            rows.seek_to_first()
        else:
            rows.seek(start)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[bytes, bytes]:
        rows = self._rows
        if rows is None:
            self._raise_if_cut_short()
            raise StopIteration
        if not rows.valid():
            self._finish(rows)
            raise StopIteration
        key: bytes = rows.key()
        bound = self._bound
        if bound is not None and (key < bound if self._reverse else key >= bound):
            self._finish(rows)
            raise StopIteration
        value: bytes = rows.value()
        if self._reverse:
            rows.prev()
        else:
            rows.next()
        return key, value

    def cut_short(self) -> None:
        """Let go of the database, whose lock an iterator would keep."""
        self._rows = None

    def _finish(self, rows: Any) -> None:
        self._ended = True
        self._rows = None
        with self._database.mapped_errors():
            rows.status()

    def _raise_if_cut_short(self) -> None:
        if not self._ended:
            raise StoreClosedError(self._database)


def _seek_below(rows: Any, end: bytes | None) -> None:
    if end is None:
        rows.seek_to_last()
        return
    rows.seek_for_prev(end)
    if rows.valid() and rows.key() == end:
        rows.prev()


class _Database:
    """What an owner's and a reader's database have in common."""

    def __init__(self, path: Path, data: Any) -> None:
        self._path = path
        self._data: Any = data
        self._meta: Any = data.get_column_family(_META)
        self._scans: WeakSet[_Scan] = WeakSet()

    def get(self, key: bytes) -> bytes | None:
        """See `PartitionReader.get`."""
        try:
            raw: bytes | None = self._data.get(key)
        except Exception as error:
            raise self._explain(error) from error
        return raw

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """See `PartitionReader.scan`. An iterator that isn't at its end keeps the files it reads on disk."""
        with self.mapped_errors():
            scan = _Scan(self, self._data.iter(), start, end, reverse)
        self._scans.add(scan)
        return scan

    def position(self) -> Position | None:
        """See `PartitionReader.position`."""
        return self._read_position(_POSITION)

    def close(self) -> None:
        """See `PartitionStore.close`. An iterator that isn't at its end raises `StoreClosedError` then."""
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

    def _explain(self, error: Exception) -> StoreError:
        return StoreClosedError(self) if self._data is None else _explain(self._path, error)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._path)!r})"


class RocksStore(_Database):
    """A `PartitionStore` in RocksDB. Make one with `open`."""

    def __init__(self, path: Path, data: Any, resources: RocksResources) -> None:
        super().__init__(path, data)
        self._resources = resources
        self._meta_handle: Any = data.get_column_family_handle(_META)
        self._position: Position | None = None
        self._past_the_log: Any = None
        self._loaded = 0

    @classmethod
    def open(cls, path: Path | str, *, resources: RocksResources | None = None) -> RocksStore:
        """Open the database in the folder `path`, which is made if need be.

        Args:
            path: the database's folder.
            resources: memory to share with other databases; by default it has its own.

        Raises:
            StoreLockedError: it is open already, in this process or another.
            StoreCorruptedError: it can't be read.
            StoreFormatError: a newer release wrote it.
            StoreUnavailableError: the operating system refused.
        """
        return cls._open(Path(path), resources or RocksResources())

    @classmethod
    def _open(cls, path: Path, resources: RocksResources) -> RocksStore:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreUnavailableError(f"can't make the database's folder {path}: {error}") from error
        store = cls(path, _open_database(path, resources.families()), resources)
        try:
            store._settle_format()
            store._position = store._read_position(_POSITION)
        except BaseException:
            store.close()
            raise
        return store

    def position(self) -> Position | None:
        """See `PartitionReader.position`. It is kept in memory, since every commit asks for it."""
        self._check_open()
        return self._position

    def apply(self, writes: Iterable[tuple[bytes, bytes | None]], position: Position) -> None:
        """See `PartitionStore.apply`. No other thread runs while RocksDB takes the batch: 0.6 µs a write."""
        self._check_open()
        if self._loaded:
            self.settle()
        self._write(writes, position)

    def load(self, writes: Iterable[tuple[bytes, bytes | None]], position: Position) -> None:
        """See `PartitionStore.load`."""
        self._check_open()
        if self._past_the_log is None and self._loaded >= LOGGED_LOADS:
            self._reopen(self._resources.families(loading=True))
            self._past_the_log = WriteOptions()
            self._past_the_log.disable_wal = True
        self._loaded += self._write(writes, position)

    def settle(self) -> None:
        """See `PartitionStore.settle`. RocksDB tells nobody how a flush at its end went; what is there does."""
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
            # From here on the store is what the disk has: whoever comes next restores from there.
            raise StoreUnavailableError(
                f"the database at {self._path} could not be flushed: see whether the disk is full"
            )

    def estimated_keys(self) -> int:
        """See `PartitionStore.estimated_keys`: RocksDB's, wrong by what was overwritten or deleted of late."""
        self._check_open()
        with self.mapped_errors():
            return int(self._data.property_int_value("rocksdb.estimate-num-keys") or 0)

    def wipe(self) -> None:
        """See `PartitionStore.wipe`."""
        self._check_open()
        # What can't be flushed on a full or broken disk is about to be deleted.
        with suppress(StoreError):
            self.close()
        remove_tree(self._path)
        fresh = self._open(self._path, self._resources)
        self._data, self._meta, self._meta_handle = fresh._data, fresh._meta, fresh._meta_handle
        self._position = fresh._position
        self._past_the_log, self._loaded = None, 0

    def close(self) -> None:
        """See `PartitionStore.close`. An iterator that isn't at its end raises `StoreClosedError` then."""
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


class RocksReader(_Database):
    """A `PartitionReader` of a database that another process may be writing to. Make one with `open`.

    It shows one state, that of its opening: the owner's write-ahead log included, later writes not.

    Not a secondary instance of RocksDB: where a table is missing that one shows an older state of a column
    family, without an error. A read-only instance refuses, and here it is opened again if the owner was the
    cause.
    """

    @classmethod
    def open(cls, path: Path | str) -> RocksReader:
        """Open the database in the folder `path` for reading, with or without an owner.

        Changes nothing that an owner reads. Yet rocksdict writes its `rocksdict-config.json` anew, with the same
        content, so that permission to write that file is needed.

        Raises:
            StoreUnavailableError: there is no database, or its files change faster than they can be opened.
            StoreCorruptedError: it can't be read.
            StoreFormatError: a newer release wrote it.
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
                return reader._checked()
            reader.close()
            cause = None
        raise cause or StoreUnavailableError(
            f"the files of the database at {path} change faster than they can be opened: try again"
        )

    def _checked(self) -> Self:
        try:
            with self.mapped_errors():
                raw = self._meta.get(_FORMAT)
            _check_format(self._path, raw or b"%d" % FORMAT_VERSION)
        except BaseException:
            self.close()
            raise
        return self


def _open_database(path: Path, families: tuple[Any, Any], access: Any = None) -> Any:
    data, meta = families
    try:
        return Rdict(str(path), data, {_META: meta}, access or AccessType.read_write())
    except Exception as error:
        raise _explain(path, error) from error


def _version(path: Path) -> tuple[str, int]:
    """Tell the database's version: it differs after any change of its set of files."""
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
        return StoreUnavailableError(f"can't read or write the database at {path}: {text}")
    return StoreError(f"the database at {path}: {text}")
