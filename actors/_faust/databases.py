"""Opens the databases of a worker's disk."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from actors._core.logs import escaping
from actors._faust.setup import Setup
from actors.runtime.spec import ActorSpec
from actors.runtime.state.stores import StoreCache
from stores.errors import ForeignDatabaseError, StoreUnavailableError
from stores.folder import DataFolder
from stores.ports import PartitionStore
from stores.rocks import RocksStore
from stores.rocks_options import RocksResources

logger = escaping(logging.getLogger(__name__))


def make_cache(setup: Setup, folder: DataFolder, specs: Sequence[ActorSpec], *, cluster: str) -> StoreCache:
    """Return the cache of a worker's databases, which opens those of a folder."""
    options = setup.app.actor_options
    resources = RocksResources(
        block_cache_bytes=options.rocksdb_cache_bytes,
        write_buffer_bytes=options.rocksdb_write_buffer_bytes,
        databases=sum(spec.partition_count * len(spec.stores) for spec in specs),
    )
    changelog_ids = {name: changelog.topic_id for spec in specs for name, changelog in spec.changelogs.items()}

    def open_store(store: str, partition: int) -> PartitionStore:
        return RocksStore.open(
            folder.store_path(store, partition),
            resources=resources,
            identity=folder.identity(store, partition, cluster),
            changelog_id=changelog_ids.get(store),
            is_any_cluster=setup.lost_changelog.restores,
        )

    return StoreCache(open_store, folder.discard)


async def open_on_disk(cache: StoreCache, folder: DataFolder, specs: Sequence[ActorSpec]) -> None:
    """Open what is on disk: the assignment prefers partitions whose state is here."""
    for spec in specs:
        for store in spec.stores:
            for partition in folder.partitions_on_disk(store.name):
                if partition < spec.partition_count:
                    await _try_open(cache, store.name, partition)


async def _try_open(cache: StoreCache, store: str, partition: int) -> None:
    """Open a store; one that can't be used is no reason not to start: its owner tries again, or stops."""
    try:
        await cache.open(store, partition)
    except (StoreUnavailableError, ForeignDatabaseError) as error:
        logger.warning("store %s, partition %d isn't counted as being on this disk: %s", store, partition, error)
