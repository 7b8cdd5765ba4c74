"""A worker with its consumer in the group: the world's task, fed by the real source."""

from __future__ import annotations

import asyncio
import contextlib

from actors._kafka.admin.control import ControlPlane
from actors._kafka.connection import Connection
from actors._kafka.consume.assignor import ActorAssignor
from actors._kafka.consume.consumer import KafkaSource
from actors._kafka.consume.membership import GroupSettings
from actors.ports import SourceEvents
from actors.runtime.committer import Committer
from actors.runtime.task.task import Task
from actors.runtime.worker import LateSource, Worker
from tests.kafka.helpers import eventually
from tests.kafka.wire.world import ACTOR, MAX_RECORD_BYTES, PROGRESS_S, Stores, World


class Node:
    """One process. Its clients are `{name}-actors`, `{name}-control` and the task's producer."""

    def __init__(
        self,
        world: World,
        name: str,
        *,
        instance_id: str | None = None,
        session_ms: int = 6000,
        rebalance_ms: int = 10_000,
    ) -> None:
        self.name = name
        self._settings = GroupSettings(
            group=world.group,
            instance_id=instance_id,
            session_timeout_ms=session_ms,
            heartbeat_interval_ms=300,
            rebalance_timeout_ms=rebalance_ms,
            fetch_bytes=1_000_000,
            max_poll_records=None,
        )
        self.stores = Stores()
        self.failures: list[BaseException] = []
        self._world = world
        self._connection = Connection((world.proxy.bootstrap,), client_id=name)
        self._open = contextlib.AsyncExitStack()
        self._worker: Worker | None = None
        self._source: KafkaSource | None = None

    @property
    def producer(self) -> str:
        """The client id of what it commits with."""
        return f"{self.name}-commits"

    @property
    def task(self) -> Task | None:
        """Its task, while it has the partition."""
        return None if self._worker is None else next(iter(self._worker.tasks), None)

    @property
    def generation(self) -> int:
        """The group's generation as its consumer knows it, -1 while it is no member."""
        return -1 if self._source is None else self._source.identity().generation

    async def __aenter__(self) -> Node:
        world = self._world
        control = await ControlPlane.open(self._connection, world.group)
        self._open.push_async_callback(control.close)
        committer = Committer(world.writer(self._connection), MAX_RECORD_BYTES)
        self._open.push_async_callback(committer.close)
        sink = LateSource()
        spec = world.spec(self.name)
        self._worker = worker = Worker(
            [spec],
            source=sink,
            services=world.services(self._connection, control, self.stores, sink),
            task_settings=world.settings(self.name),
            revoke_s=2.0,
            member=committer.member,
            task_log=committer.new_log,
            on_failure=self.failures.append,
        )
        self._source = sink.source = source = await self._join(worker)
        self._open.push_async_callback(source.close)
        dispatcher = asyncio.create_task(worker.run())
        dispatcher.add_done_callback(self._dispatched)
        self._open.push_async_callback(asyncio.wait, [dispatcher], timeout=PROGRESS_S)
        self._open.push_async_callback(worker.stop, 5.0)
        return self

    def _dispatched(self, dispatcher: asyncio.Task[None]) -> None:
        error = None if dispatcher.cancelled() else dispatcher.exception()
        if error is not None:
            self.failures.append(error)

    async def _join(self, worker: Worker) -> KafkaSource:
        world = self._world
        return await KafkaSource.open(
            self._connection,
            self._settings,
            [world.input],
            ActorAssignor(
                instance_id=self._settings.instance_id or "",
                address="",
                actors={world.input: ACTOR},
                on_disk=dict,
                leaving=lambda: worker.leaving,
            ),
            SourceEvents(
                joining=worker.joining,
                revoked=worker.revoked,
                assigned=worker.assigned,
                handed_over=worker.handed_over,
                dropped=worker.dropped,
                room=worker.room,
                lost=worker.lost,
                failed=self.failures.append,
            ),
        )

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def did(self, offset: int) -> None:
        """Wait until everything before `offset` is committed."""

        async def committed() -> bool:
            return await self._world.committed() >= offset

        await eventually(committed, deadline_s=PROGRESS_S, what=lambda: f"{self.name} did {offset}: {self.task!r}")
