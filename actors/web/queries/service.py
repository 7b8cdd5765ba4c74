"""The parts that answer a worker's queries; made when the worker joins the group, closed before it leaves."""

from __future__ import annotations

from collections.abc import Mapping

from actors._faust.app import App
from actors._faust.extensions import StartingWorker
from actors._kafka.consume.standby_owners import KafkaCopies
from actors.ports import Clock
from actors.runtime.queries.queries import StateReader
from actors.runtime.queries.read_lease import ReadLease
from actors.runtime.spec import ActorSpec
from actors.web.access.tls import Hops
from actors.web.problems import Problem, not_ready
from actors.web.queries.routing import Directory, Router
from actors.web.queries.standby_reads import StandbyDirectory, StandbyRouter
from actors.web.workers import WorkerClient


class QueryService:
    """The worker's readers and routers.

    Args:
        parts: the worker.
        hops: how this worker asks others.
        clock: the app's clock.

    Attributes:
        actors: the actors by name.
        stores: the actors by the names of their stores.
        worker: this worker's name.
        address: the address of this worker's web server, as it announces it.
        workers: asks other workers.
        router: routes queries to owners.
        standby_router: routes queries with `read=standby`.
        members: asks the coordinator for the members of the group: see `KafkaCopies.members`.
    """

    def __init__(self, parts: StartingWorker, hops: Hops, clock: Clock) -> None:
        setup, task_of = parts.setup, parts.worker.task_of
        self.actors: Mapping[str, ActorSpec] = {spec.name: spec for spec in parts.specs}
        self.stores: Mapping[str, ActorSpec] = {
            store.name: spec for spec in self.actors.values() for store in spec.stores
        }
        self.worker, self.address = setup.worker, setup.address
        group = setup.group_settings
        self._lease = ReadLease(
            parts.control.confirms,
            lasts_s=min(group.session_timeout_ms, group.rebalance_timeout_ms) / 1000,
            renew_s=group.heartbeat_interval_ms / 1000,
            is_exclusive=group.instance_id is None,
        )
        self.workers = WorkerClient(hops)
        directory = Directory(parts.owners.all, self.worker, lambda: parts.owners.trouble)
        reader = StateReader(task_of, self._lease, clock)
        self.router = Router(reader, directory, self.workers)
        kept = KafkaCopies(parts.control, setup.group)
        self.members = kept.members
        self.standby_router = StandbyRouter(
            StateReader(task_of, self._lease, clock, parts.standbys.stores_of, reader.pace),
            directory,
            self.workers,
            StandbyDirectory(kept.addresses),
            self.address,
        )

    def actor(self, name: str) -> ActorSpec:
        """Return the actor of a name; `Problem` if the app has none."""
        spec = self.actors.get(name)
        if spec is None:
            known = ", ".join(sorted(self.actors)) or "none"
            raise Problem(404, "unknown-actor", "There is no such actor", f"actor {name!r} isn't one of: {known}")
        return spec

    async def close(self) -> None:
        """Stop answering. May be called twice."""
        await self.workers.close()
        await self._lease.close()


def service_of(host: App) -> QueryService:
    """Return the query service of this process's worker.

    Raises:
        Problem: 503, the worker is starting or stopping.
    """
    service: QueryService | None = host.extensions["web"].queries
    if service is None:
        raise not_ready("this worker is starting or stopping")
    return service
