"""What a running worker answers queries with; made when it joins the group, closed before it leaves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from actors._faust.queries.copies import CopyDirectory, CopyRouter
from actors._faust.queries.routing import Directory, Router
from actors._faust.setup import Setup
from actors._kafka.control import ControlPlane
from actors._kafka.copies import KafkaCopies
from actors._kafka.owners import KafkaOwners
from actors.ports import Clock
from actors.runtime.copy_queries import CopyReader
from actors.runtime.lease import Lease, LeaseSettings
from actors.runtime.queries import StateReader
from actors.runtime.spec import ActorSpec
from actors.runtime.standbys import Standbys
from actors.runtime.worker import Worker


class QueryService:
    """The worker's reader and its way to other workers.

    Attributes:
        actors, stores: the actors by name, and by the names of their stores.
        worker, address: this worker's name, and where its web server is.
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
        settings = LeaseSettings(
            lasts_s=min(group.session_timeout_ms, group.rebalance_timeout_ms) / 1000,
            renew_s=group.heartbeat_interval_ms / 1000,
            is_exclusive=group.instance_id is None,
        )
        self._lease = Lease(control.confirms, settings)
        hops = setup.hops()
        directory = Directory(owners.all, self.worker)
        self.router = Router(StateReader(worker.task_of, self._lease, clock), directory, hops)
        self.copies = CopyRouter(
            CopyReader(worker.task_of, self._lease, clock, standbys.stores_of),
            directory,
            CopyDirectory(KafkaCopies(control, setup.group).addresses),
            self.address,
            hops,
        )

    async def close(self) -> None:
        """Stop answering. May be called twice."""
        await self.router.close()
        await self.copies.close()
        await self._lease.close()
