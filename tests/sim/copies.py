"""The copies of a node's process: what they say to the group, and who writes to a store."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from actors._core.group.assign import TaskId
from actors._core.group.placement import Copies
from actors._core.task.lifecycle import State
from actors.ports import Clock
from actors.runtime.replicas.standbys import Standbys
from actors.runtime.spec import ActorSpec
from actors.runtime.state.restore import Restorer
from actors.runtime.state.stores import StoreCache
from actors.runtime.task.lost_changelog import StandbyChecks
from actors.runtime.worker import LateSource, Worker
from actors.testing.fakes.ports import FakeGroupView
from actors.testing.fakes.views import FakeTopicLogs
from tests.sim import app
from tests.sim.fakes.source import FakeSource

if TYPE_CHECKING:
    from tests.sim.node import World

_IS_COPY: ContextVar[bool] = ContextVar("is_copy", default=False)
_WRITING = (State.RESTORING, State.CLAIMING, State.RUNNING, State.COMMITTING)


def writes_copy() -> bool:
    """Whether what happens now happens to a copy, in the copies' own loop or a thread that it waits for."""
    return _IS_COPY.get()


class NodeCopies:
    """Made for each process, used in runs with standbys.

    Attributes:
        worker: set once it is made.
    """

    def __init__(
        self,
        world: World,
        spec: ActorSpec,
        *,
        stores: StoreCache,
        restorer: Restorer,
        clock: Clock,
        margin_ms: int,
        sink: LateSource,
    ) -> None:
        self.worker: Worker | None = None
        self._world = world
        self._sink = sink
        self._standbys = Standbys(
            [spec],
            logs=FakeTopicLogs(world.cluster, world.network, chunk_records=world.chunk_records),
            stores=stores,
            clock=clock,
            clock_skew_margin_ms=margin_ms,
            acceptable_lag=world.placement.acceptable_lag,
            task_is_free=lambda task: self._made().is_free(TaskId(app.ACTOR, task.partition)),
            is_working=lambda: bool(self._made().tasks),
            ask_for_rebalance=self._ask,
            checks=StandbyChecks(FakeGroupView(world.cluster, world.network), restorer),
        )

    def start(self) -> None:
        token = _IS_COPY.set(True)
        self._standbys.start()
        _IS_COPY.reset(token)

    async def stop(self) -> None:
        await self._standbys.stop()

    async def release(self, actor: str, partition: int) -> None:
        await self._standbys.release(actor, partition)

    def lags(self) -> dict[TaskId, int]:
        """Give what the leader is told; tasks have the names of their inputs there."""
        found = {TaskId(app.INPUT, task.partition): lag for task, lag in self._standbys.lags().items()}
        return {**found, **{TaskId(app.INPUT, task.partition): 0 for task in self._made().restored}}

    def assign(self, copies: Copies) -> None:
        """Take what the leader says."""
        self._world.audit.counted["warm-up"] += len(copies.warm_ups)
        self._world.audit.counted["standby"] += len(copies.standbys)
        self._standbys.assign(
            Copies(
                frozenset(TaskId(app.ACTOR, task.partition) for task in copies.standbys),
                frozenset(TaskId(app.ACTOR, task.partition) for task in copies.warm_ups),
            )
        )

    def check_write(self, partition: int) -> None:
        """See that no task of this process writes to the stores of which a copy is written to."""
        task = self._made().task_of(TaskId(app.ACTOR, partition))
        if task is not None and task.state in _WRITING:
            self._world.audit.violated(f"one writer: a copy of partition {partition} is written to beside {task!r}")

    def _ask(self) -> None:
        self._world.audit.counted["asked for a rebalance"] += 1
        self._world.audit.note("asks for a rebalance")
        source = self._sink.source
        if isinstance(source, FakeSource):
            source.ask_for_rebalance()

    def _made(self) -> Worker:
        if self.worker is None:
            raise AssertionError("copies are started after the worker is made")
        return self.worker
