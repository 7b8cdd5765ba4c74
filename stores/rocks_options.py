"""How the databases and tables of RocksDB are laid out, and the memory that all of a worker share."""

from __future__ import annotations

from typing import Any

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    MemtableFactory,
    Options,
    WriteBufferManager,
)

_UNREACHED = 1 << 20
_BLOOM_BITS_PER_KEY = 10
_WAL_LIMIT_BYTES = 64 << 20
_LOG_FILE_BYTES = 1 << 20
_LEAST_MEMTABLE_BYTES, _MOST_MEMTABLE_BYTES = 512 << 10, 16 << 20
_ARENA_BLOCKS, _MOST_ARENA_BLOCK_BYTES = 64, 128 << 10
_META_MEMTABLE_BYTES, _META_ARENA_BLOCK_BYTES = 1 << 20, 4 << 10


class RocksResources:
    """Memory that all databases of a worker share.

    Args:
        block_cache_bytes: blocks, indexes and filters that were read.
        write_buffer_bytes: memtables of all databases together; a database flushes when they are exceeded.
        databases: how many may be open. An empty memtable takes memory in proportion to its most bytes, for its filter
            and its first block. If all of them took much of `write_buffer_bytes`, each write would flush.
        memtable_bytes: memtable of one database; by default twice its share, from 512 KiB to 16 MiB.
    """

    def __init__(
        self,
        *,
        block_cache_bytes: int = 128 << 20,
        write_buffer_bytes: int = 128 << 20,
        databases: int = 1,
        memtable_bytes: int | None = None,
    ) -> None:
        share = 2 * write_buffer_bytes // max(1, databases)
        self._memtable_bytes = memtable_bytes or max(_LEAST_MEMTABLE_BYTES, min(_MOST_MEMTABLE_BYTES, share))
        self._cache = Cache(block_cache_bytes)
        # A stall would hold the interpreter's lock, and with it the worker's heartbeats.
        self._write_buffers = WriteBufferManager(write_buffer_bytes, False)

    def options(self) -> Any:
        """Return rocksdict's options of a database that draws on these resources."""
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
        """Return the options of the two families.

        With `loading` they are for `RocksStore.load`: memtables that keep what comes as it comes.
        """
        data, meta = self.options(), self.options()
        meta.set_write_buffer_size(_META_MEMTABLE_BYTES)
        meta.set_arena_block_size(_META_ARENA_BLOCK_BYTES)
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
        # RocksDB's own megabyte for each family of each database would fill the memory that all share.
        options.set_arena_block_size(min(_MOST_ARENA_BLOCK_BYTES, self._memtable_bytes // _ARENA_BLOCKS))
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
