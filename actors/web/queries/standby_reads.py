"""Routes queries with `read=standby`: to this worker's standby, else to the owner, else to another worker's standby."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TypeVar

import aiohttp
from aiohttp import web

from actors._core.group.members import TaskId
from actors.errors import ActorsError, NotOwnerError, NotReadyError
from actors.runtime.queries.standby_reads import StandbyReader
from actors.runtime.spec import ActorSpec
from actors.web.access.signature import HOP
from actors.web.queries.routing import Directory, Here, Router, There
from actors.web.workers import WorkerClient

T = TypeVar("T")

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

    def __init__(
        self,
        reader: StandbyReader,
        directory: Directory,
        workers: WorkerClient,
        standbys: StandbyDirectory,
        address: str,
    ) -> None:
        super().__init__(reader, directory, workers)
        self._standbys = standbys
        self._address = address

    async def scatter(
        self, request: web.Request, spec: ActorSpec, partitions: Collection[int], *, here: Here[T], there: There[T]
    ) -> list[T]:
        """Have each partition answered by its owner or a standby, else as `Router.scatter`."""
        left, answers, tried = list(partitions), [], {(self._address, partition) for partition in partitions}
        trouble: BaseException | None = None
        steps: list[Callable[..., Awaitable[dict[str, list[int]]]]] = [self._mine]
        if HOP not in request.headers:
            steps += [self._owned, *[self._kept] * STANDBYS_ASKED]
        for step in steps:
            jobs = await step(spec, left, tried)
            tried |= {(address, partition) for address, theirs in jobs.items() for partition in theirs}
            asked = [here(theirs) if not address else there(address, theirs) for address, theirs in jobs.items()]
            for theirs, answer in zip(jobs.values(), await asyncio.gather(*asked, return_exceptions=True), strict=True):
                if isinstance(answer, (*self.elsewhere, aiohttp.ClientError, TimeoutError, OSError)):
                    trouble = answer
                elif isinstance(answer, BaseException):
                    raise answer
                else:
                    answers.append(answer)
                    left = [partition for partition in left if partition not in theirs]
            if not left:
                return answers
        if HOP in request.headers:
            raise trouble if isinstance(trouble, NotReadyError) else NotOwnerError(f"partitions {left} aren't here")
        raise NotReadyError(
            f"actor {spec.name}: neither the owner of partitions {left} nor a standby answers: {trouble}"
        )

    async def _mine(self, spec: ActorSpec, left: Collection[int], _: object) -> dict[str, list[int]]:
        mine = [partition for partition in left if self.reader.has(spec, partition)]
        return {"": mine} if mine else {}

    async def _owned(self, spec: ActorSpec, left: Collection[int], _: object) -> dict[str, list[int]]:
        try:
            owners = await self.directory.owners(since_s=time.monotonic())
        except NotReadyError:
            return {}
        found: dict[str, list[int]] = {}
        for partition in left:
            owner = owners.get((spec.name, partition))
            if owner is not None and owner.address and owner.worker != self.directory.worker:
                found.setdefault(owner.address, []).append(partition)
        return found

    async def _kept(
        self, spec: ActorSpec, left: Collection[int], tried: Collection[tuple[str, int]]
    ) -> dict[str, list[int]]:
        known = await self._standbys.addresses()
        found: dict[str, list[int]] = {}
        for partition in left:
            for address in known.get(TaskId(spec.name, partition), ()):
                if (address, partition) not in tried:
                    found.setdefault(address, []).append(partition)
                    break
        return found
