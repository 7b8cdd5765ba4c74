"""Reads the copies that this worker keeps, for queries that take an older answer.

A copy is a prefix of the committed changelog. How old an answer may be is known from the looks at the log's end: all
that was committed before the last look whose end the copy has reached is in it. So the answer's staleness is the time
since that look, and an upper bound. A copy that never reached one, or is being rebuilt, gives no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from actors._core.group.members import TaskId
from actors.errors import NotReadyError
from actors.ports import Clock
from actors.runtime.queries.pace import Pace
from actors.runtime.queries.queries import HeldTask, StateReader
from actors.runtime.queries.read_lease import ReadLease
from actors.runtime.spec import ActorSpec
from actors.runtime.task.task import Task
from stores.ports import PartitionStore

StandbyStores = Callable[[str, int], tuple[Mapping[str, PartitionStore], int] | None]
"""A function to the stores of a copy by name, and the time in Unix milliseconds up to which the copy is complete."""


class StandbyReader(StateReader):
    """Reads of the partitions that this worker owns, and of its copies of others."""

    def __init__(
        self,
        task_of: Callable[[TaskId], Task | None],
        lease: ReadLease,
        clock: Clock,
        stores_of: StandbyStores,
        pace: Pace | None = None,
    ) -> None:
        super().__init__(task_of, lease, clock, pace)
        self._stores_of = stores_of

    def has(self, spec: ActorSpec, partition: int) -> bool:
        """Return whether the partition is assigned to this worker, or a copy of it can be read."""
        return super().has(spec, partition) or self._stores_of(spec.name, partition) is not None

    async def hold(self, spec: ActorSpec, partitions: Collection[int]) -> list[HeldTask]:
        """Return partitions to be read before the next await; see `StateReader.hold`."""
        owned = [partition for partition in partitions if super(StandbyReader, self).has(spec, partition)]
        held = await super().hold(spec, owned) if owned else []
        now_ms = self._clock.wall_ms()
        for partition in partitions:
            if partition not in owned:
                copy = self._copy(spec, partition, now_ms)
                if copy is None:
                    raise NotReadyError(f"partition {partition} of actor {spec.name}: the copy here isn't ready")
                held.append(copy)
        return held

    def _copy(self, spec: ActorSpec, partition: int, now_ms: int) -> HeldTask | None:
        found = self._stores_of(spec.name, partition)
        if found is None:
            return None
        stores, current_ms = found
        return HeldTask(partition, stores, now_ms, staleness_ms=max(0, now_ms - current_ms))
