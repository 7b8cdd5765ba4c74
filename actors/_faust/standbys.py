"""The worker's standbys, and the state on its disk as it reports it to the group's leader."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

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
from stores.errors import StoreError

logger = escaping(logging.getLogger(__name__))


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
