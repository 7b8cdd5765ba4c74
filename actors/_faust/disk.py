"""The databases on a worker's disk, and what of them it reports to the group's leader."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from actors._core.group.members import TaskId
from actors._core.logs import escaping
from actors._faust.setup import Setup
from actors._kafka.consume.assignor import ActorAssignor
from actors.declare.options import milliseconds
from actors.ports import Clock
from actors.runtime.replicas.standbys import Standbys
from actors.runtime.spec import ActorSpec
from actors.runtime.state.restore import Changelog
from actors.runtime.state.stores import StoreCache
from actors.runtime.worker import Worker
from stores._core.record import Position
from stores.errors import ForeignDatabaseError, StoreError, StoreUnavailableError
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


def ask_if_unheard(specs: Iterable[ActorSpec], assignor: ActorAssignor, ask_for_rebalance: Callable[[], None]) -> None:
    """Have the leader assign again if it doesn't know yet that this worker lost its disk, or which program it runs."""
    if assignor.was_refused:
        logger.info("the process before this one was refused for its program: asking for a rebalance")
        ask_for_rebalance()
        return
    stateful = {spec.name for spec in specs if spec.stores}
    lost = sorted(task for task in assignor.unheard if task.actor in stateful)
    if lost:
        names = ", ".join(f"{task.actor}[{task.partition}]" for task in lost)
        logger.info("%s: assigned again, but nothing is left on this disk: asking for a rebalance", names)
        ask_for_rebalance()


def on_disk(setup: Setup, specs: Iterable[ActorSpec], cache: StoreCache, clock: Clock) -> dict[TaskId, int]:
    """Return the sum of the changelog positions of each task's stores."""
    actors = {store.name: (spec.name, spec.changelogs[store.name]) for spec in specs for store in spec.stores}
    margin_ms = milliseconds(setup.app.actor_options.clock_skew_margin)
    now_ms = clock.wall_ms()
    found: dict[TaskId, int] = {}
    for store, partition, held in cache.opened():
        try:
            position = held.position()
        except StoreError:
            # It is being rebuilt: nothing on disk counts.
            continue
        if position is None or store not in actors:
            continue
        actor, changelog = actors[store]
        # One that is to be written to another topic is worth what it was.
        if position.changelog_id == changelog.topic_id or setup.lost_changelog.restores:
            task = TaskId(actor, partition)
            found[task] = found.get(task, 0) + _worth(position, changelog, now_ms + margin_ms)
    return found


def _worth(position: Position, changelog: Changelog, now_ms: int) -> int:
    """Return the offset up to which a store is certain: one older than `delete.retention.ms` may have to be rebuilt."""
    is_old = now_ms - position.wall_time_ms >= changelog.delete_retention_ms
    return 0 if is_old else position.changelog_offset


def lags(specs: Iterable[ActorSpec], worker: Worker, standbys: Standbys) -> dict[TaskId, int]:
    """Return the lag of the worker's stores, as far as it is known; 0 for tasks that have restored."""
    stateful = {spec.name for spec in specs if spec.stores}
    owned = {task: 0 for task in worker.restored if task.actor in stateful}
    return {**standbys.lags(), **owned}
