"""What a running worker answers queries with; made when it joins the group, closed before it leaves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from actors._faust.setup import Setup
from actors._kafka.admin.control import ControlPlane
from actors._kafka.admin.owners import KafkaOwners
from actors._kafka.consume.standby_owners import KafkaCopies
from actors.ports import Clock
from actors.runtime.queries.queries import StateReader
from actors.runtime.queries.read_lease import ReadLease, ReadLeaseSettings
from actors.runtime.queries.standby_reads import StandbyReader
from actors.runtime.replicas.standbys import Standbys
from actors.runtime.spec import ActorSpec
from actors.runtime.worker import Worker
from actors.web.problems import Problem, not_ready
from actors.web.queries.routing import Directory, Router
from actors.web.queries.standby_reads import StandbyDirectory, StandbyRouter

if TYPE_CHECKING:
    from actors._faust.app import App


class QueryService:
    """The worker's reader and its way to other workers.

    Attributes:
        actors, stores: the actors by name, and by the names of their stores.
        worker, address: this worker's name, and where its web server is.
        members: gives who is in the group, as the coordinator has it: see `KafkaCopies.members`.
    """

    def __init__(
        self,
        setup: Setup,
        specs: Iterable[ActorSpec],
        *,
        worker: Worker,
        standbys: Standbys,
        control: ControlPlane,
        owners: KafkaOwners,
        clock: Clock,
    ) -> None:
        self.actors: Mapping[str, ActorSpec] = {spec.name: spec for spec in specs}
        self.stores: Mapping[str, ActorSpec] = {
            store.name: spec for spec in self.actors.values() for store in spec.stores
        }
        self.worker, self.address = setup.worker, setup.address
        group = setup.group_settings
        settings = ReadLeaseSettings(
            lasts_s=min(group.session_timeout_ms, group.rebalance_timeout_ms) / 1000,
            renew_s=group.heartbeat_interval_ms / 1000,
            is_exclusive=group.instance_id is None,
        )
        self._lease = ReadLease(control.confirms, settings)
        hops = setup.hops()
        directory = Directory(owners.all, self.worker, lambda: owners.trouble)
        reader = StateReader(worker.task_of, self._lease, clock)
        self.router = Router(reader, directory, hops)
        kept = KafkaCopies(control, setup.group)
        self.members = kept.members
        self.copies = StandbyRouter(
            StandbyReader(worker.task_of, self._lease, clock, standbys.stores_of, reader.pace),
            directory,
            StandbyDirectory(kept.addresses),
            self.address,
            hops,
        )

    def actor(self, name: str) -> ActorSpec:
        """Give the actor of a name.

        Raises:
            Problem: the app has none.
        """
        spec = self.actors.get(name)
        if spec is None:
            known = ", ".join(sorted(self.actors)) or "none"
            raise Problem(404, "unknown-actor", "There is no such actor", f"actor {name!r} isn't one of: {known}")
        return spec

    async def close(self) -> None:
        """Stop answering. May be called twice."""
        await self.router.close()
        await self.copies.close()
        await self._lease.close()


def service_of(app: App) -> QueryService:
    """Give what this process's worker answers with.

    Raises:
        Problem: it doesn't, yet or any more.
    """
    service = app.actor_service.queries
    if service is None:
        raise not_ready("this worker is starting or stopping")
    return service
