"""Routes queries with `read=standby`: to this worker's standby, else to the owner, else to another worker's standby."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from aiohttp import web

from actors._core.group.members import TaskId
from actors.errors import ActorsError, NotOwnerError, NotReadyError
from actors.runtime.queries.queries import StateReader
from actors.runtime.spec import ActorSpec
from actors.web.access.signature import HOP
from actors.web.queries.routing import Directory, Places, Router, Step, Tried
from actors.web.workers import WorkerClient

KNOWN_S = 1.0
"""How long the group's answer about its standbys is used."""
ASK_S = 2.0
STANDBYS_ASKED = 2
"""How many standbys of a partition are asked before the query fails."""


class StandbyDirectory:
    """The workers that keep standbys. If the group doesn't answer, its last answer stands.

    Args:
        read: returns the addresses of standbys by task.
    """

    def __init__(self, read: Callable[[], Awaitable[Mapping[TaskId, list[str]]]]) -> None:
        self._read = read
        self._known: Mapping[TaskId, list[str]] = {}
        self._read_s = float("-inf")
        self._lock = asyncio.Lock()

    async def addresses(self) -> Mapping[TaskId, list[str]]:
        """Return the addresses of the workers that keep a standby, by task."""
        async with self._lock:
            if time.monotonic() - self._read_s >= KNOWN_S:
                try:
                    async with asyncio.timeout(ASK_S):
                        self._known = await self._read() or self._known
                except (ActorsError, TimeoutError):
                    pass
                self._read_s = time.monotonic()
        return self._known


class StandbyRouter(Router):
    """Routes queries that owners and standbys may answer.

    Args:
        reader: reads this worker's own partitions and standbys.
        directory: the owners.
        workers: asks other workers.
        standbys: the workers that keep standbys.
        address: this worker's own address.
    """

    elsewhere = (NotOwnerError, NotReadyError)
    unanswered = "neither the owner nor a standby answers"

    def __init__(
        self,
        reader: StateReader,
        directory: Directory,
        workers: WorkerClient,
        standbys: StandbyDirectory,
        address: str,
    ) -> None:
        super().__init__(reader, directory, workers)
        self._standbys = standbys
        self._address = address

    def _steps(self, request: web.Request) -> Sequence[Step]:
        return [self._mine] if HOP in request.headers else [self._mine, self._owned, *[self._kept] * STANDBYS_ASKED]

    async def _owned(self, spec: ActorSpec, left: list[int], _: Tried) -> Places:
        try:
            owners = await self.directory.owners(since_s=time.monotonic())
        except NotReadyError:
            return {}
        places: Places = {}
        for partition in left:
            owner = owners.get((spec.name, partition))
            if owner is not None and owner.address and owner.worker != self.directory.worker:
                places.setdefault(owner.address, []).append(partition)
        return places

    async def _kept(self, spec: ActorSpec, left: list[int], tried: Tried) -> Places:
        standbys, places = await self._standbys.addresses(), Places()
        for partition in left:
            for address in standbys.get(TaskId(spec.name, partition), ()):
                if address != self._address and (address, partition) not in tried:
                    places.setdefault(address, []).append(partition)
                    break
        return places
