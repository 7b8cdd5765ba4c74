"""Routes queries to the owners of partitions, in one hop.

The leader registry names the worker that took a partition over last. It may be out of date: a worker answers only for
partitions that it owns, and 421 otherwise. Then the registry is read again.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TypeVar

import aiohttp
from aiohttp import web

from actors._core.logs import escaping
from actors.errors import ActorsError, NotOwnerError, NotReadyError
from actors.ports import OwnerRecord
from actors.runtime.queries.queries import StateReader
from actors.runtime.spec import ActorSpec
from actors.web.access.limits import MAX_ANSWER_BYTES
from actors.web.access.signature import HOP, PARTITIONS
from actors.web.workers import ANSWER_BYTES, WorkerClient

logger = escaping(logging.getLogger(__name__))

T = TypeVar("T")

REGISTRY_S = 3.0
REGISTRY_REST_S = 0.2
"""The least time between two looks at the registry."""
MAX_PARTITIONS = 100_000
KNOWN = 0.0
"""A time before all others: accepts the registry as it was read last."""

Owners = Mapping[tuple[str, int], OwnerRecord]
Here = Callable[[list[int]], Awaitable[T]]
There = Callable[[str, list[int]], Awaitable[T]]
HERE = ""
"""This worker, in the place of an address."""
Places = dict[str, list[int]]
"""Partitions by the address of the worker to ask about them."""
Tried = Collection[tuple[str, int]]
"""The addresses that were asked, each with a partition."""
Step = Callable[[ActorSpec, list[int], Tried], Awaitable[Places]]


class Directory:
    """The leader registry, read when it is needed.

    Args:
        read: returns all of the registry's records as they are now.
        worker: this worker's name in it.
        trouble: tells which records can't be read, "" if all can.
    """

    def __init__(
        self, read: Callable[[], Awaitable[Sequence[OwnerRecord]]], worker: str, trouble: Callable[[], str] = str
    ) -> None:
        self._read = read
        self.worker = worker
        self.trouble = trouble
        self._owners: Owners = {}
        self._read_s = -math.inf
        self._failure: tuple[float, str] = (-math.inf, "")
        self._lock = asyncio.Lock()

    async def owners(self, *, since_s: float) -> Owners:
        """Return each task's last owner record, as of `since_s` of the monotonic clock or later, or just before.

        Raises:
            NotReadyError: the registry can't be read.
        """
        async with self._lock:
            now_s = time.monotonic()
            if self._read_s < since_s and now_s - self._read_s >= REGISTRY_REST_S:
                await self._refresh(now_s)
        return self._owners

    async def _refresh(self, now_s: float) -> None:
        failed_s, reason = self._failure
        # Those who waited behind a look that failed don't wait for another one each.
        if now_s - failed_s < REGISTRY_REST_S:
            raise NotReadyError(reason)
        try:
            async with asyncio.timeout(REGISTRY_S):
                records = await self._read()
        except (ActorsError, TimeoutError, OSError) as error:
            self._failure = time.monotonic(), f"who owns what can't be looked up: {_words(error)}"
            raise NotReadyError(self._failure[1]) from error
        self._owners = {(record.actor, record.partition): record for record in records}
        self._read_s = now_s

    async def addresses(self, spec: ActorSpec, partitions: Collection[int], *, since_s: float) -> dict[str, list[int]]:
        """Return the partitions by the address of their last owner, which isn't this worker.

        Raises:
            NotReadyError: one has no owner that could be asked.
        """
        owners = await self.owners(since_s=since_s)
        found: dict[str, list[int]] = {}
        for partition in partitions:
            owner = owners.get((spec.name, partition))
            where = f"partition {partition} of actor {spec.name}"
            if owner is None:
                raise NotReadyError(f"{where}: no worker has taken it over yet")
            if owner.worker == self.worker:
                raise NotReadyError(f"{where}: it is between two owners")
            if not owner.address:
                raise NotReadyError(f"{where}: its owner, worker {owner.worker}, has no web server")
            found.setdefault(owner.address, []).append(partition)
        return found


class Router:
    """Routes queries to the owners of their partitions.

    Attributes:
        elsewhere: errors after which another worker may answer.
        unanswered: what an error says when none did.
    """

    elsewhere: tuple[type[Exception], ...] = (NotOwnerError,)
    unanswered = "the owner doesn't answer"

    def __init__(self, reader: StateReader, directory: Directory, workers: WorkerClient) -> None:
        self.reader = reader
        self.directory = directory
        self.workers = workers

    async def scatter(
        self, request: web.Request, spec: ActorSpec, partitions: Collection[int], *, here: Here[T], there: There[T]
    ) -> list[T]:
        """Have each partition answered by a worker that may; the answers are in no order.

        Args:
            request: the client's; one that was passed on isn't passed on again.
            spec: the actor.
            partitions: the partitions.
            here: answers for partitions of this worker.
            there: asks the worker at an address about partitions.

        Raises:
            NotOwnerError: the request was passed on to this worker, and a partition isn't here.
            NotReadyError: no worker answers for one of them at the moment.
        """
        left, answers, tried = list(partitions), [], set[tuple[str, int]]()
        trouble: BaseException | None = None
        for step in self._steps(request):
            places = await step(spec, left, tried)
            tried |= {(address, partition) for address, theirs in places.items() for partition in theirs}
            # Nothing is awaited from the choice of the places on: what is made is what is waited for.
            asked = [there(address, theirs) if address else here(theirs) for address, theirs in places.items()]
            done = await asyncio.gather(*asked, return_exceptions=True)
            for theirs, answer in zip(places.values(), done, strict=True):
                if not isinstance(answer, BaseException):
                    answers.append(answer)
                    left = [partition for partition in left if partition not in theirs]
                elif isinstance(answer, (*self.elsewhere, aiohttp.ClientError, TimeoutError, OSError)):
                    trouble = answer
                else:
                    raise answer
            if not left:
                return answers
        if HOP in request.headers:
            raise trouble if isinstance(trouble, NotReadyError) else _not_here(spec, left)
        raise NotReadyError(f"actor {spec.name}, partitions {left}: {self.unanswered}: {_words(trouble)}")

    def _steps(self, request: web.Request) -> Sequence[Step]:
        """Return functions to the places to ask, one after the other, about the partitions that are left."""
        # First the owners in memory, then those in the registry.
        return [partial(self._owners, request, since_s) for since_s in (KNOWN, time.monotonic())]

    async def _owners(
        self, request: web.Request, since_s: float, spec: ActorSpec, left: list[int], tried: Tried
    ) -> Places:
        places = await self._mine(spec, left, tried)
        others = [partition for partition in left if partition not in places.get(HERE, ())]
        if others and HOP in request.headers:
            raise _not_here(spec, others)
        try:
            return places | (await self.directory.addresses(spec, others, since_s=since_s) if others else {})
        except NotReadyError:
            if since_s == KNOWN:
                return {}
            raise

    async def _mine(self, spec: ActorSpec, left: list[int], _: Tried) -> Places:
        mine = [partition for partition in left if self.reader.has(spec, partition)]
        return {HERE: mine} if mine else {}


def _not_here(spec: ActorSpec, partitions: list[int]) -> NotOwnerError:
    return NotOwnerError(f"partitions {partitions} of actor {spec.name} aren't this worker's")


def _words(error: BaseException | None) -> str:
    return str(error) or type(error).__name__


def wanted(request: web.Request, partition_count: int) -> list[int]:
    """Return the partitions of a request: the ones that another worker asks for, each once, or all.

    Raises:
        NotOwnerError: they aren't the actor's.
    """
    header = request.headers.get(PARTITIONS)
    if HOP not in request.headers or header is None:
        return list(range(partition_count))
    try:
        found = [int(number) for number in header[:MAX_PARTITIONS].split(",")]
    except ValueError:
        raise NotOwnerError(f"partitions {header[:100]!r}") from None
    if any(not 0 <= partition < partition_count for partition in found):
        raise NotOwnerError(f"partitions {header[:100]!r} of {partition_count}")
    return list(dict.fromkeys(found))


def answer_bytes(request: web.Request) -> int:
    """Return how many bytes of keys and values an answer may have: another worker wants its share only."""
    given = request.headers.get(ANSWER_BYTES, "") if HOP in request.headers else ""
    if given.isascii() and given.isdigit() and len(given) < 12:
        return min(int(given), MAX_ANSWER_BYTES)
    return MAX_ANSWER_BYTES
