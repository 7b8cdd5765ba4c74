"""Who owns a partition, and how a question gets to that worker: in one hop or not at all.

The leader registry names the worker that took a partition over last. What it says may be out of date, and nothing
depends on it: who is asked answers only for what it owns, and says so otherwise. Then the registry is read again.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import aiohttp
import msgspec
from aiohttp import web
from yarl import URL

from actors import http_client as _http
from actors._core.logs import escaping
from actors._core.outside import MALFORMED
from actors.errors import ActorsError, NotOwnerError, NotReadyError
from actors.ports import OwnerRecord
from actors.runtime.queries.queries import StateReader
from actors.runtime.spec import ActorSpec
from actors.web.access.signature import HOP, PARTITIONS
from actors.web.access.tls import Hops
from actors.web.problems import CONTENT_TYPE, NO_STORE, Problem
from actors.web.queries.memory import MAX_ANSWER_BYTES

logger = escaping(logging.getLogger(__name__))

T = TypeVar("T")

ANSWER_BYTES = "Actors-Answer-Bytes"
"""How many bytes of keys and values another worker wants to get."""
REGISTRY_S = 3.0
REGISTRY_REST_S = 0.2
"""The least time between two looks at the registry."""
CONNECT_S = 1.0
ANSWER_S = 5.0
MAX_PARTITIONS = 100_000
JSON = "application/json"
NOT_THE_CALLERS = (401, 403, 429)
"""What another worker says to this one, and not to who asked: their settings differ, or it has too much to do."""
KNOWN = 0.0
"""Before any time of the monotonic clock: the registry as it was read last."""

Owners = Mapping[tuple[str, int], OwnerRecord]
Here = Callable[[list[int]], Awaitable[T]]
There = Callable[[str, list[int]], Awaitable[T]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much another worker's answer may hold.

    Attributes:
        answer_bytes: how many bytes of keys and values are asked for; None where that isn't up to the asker.
        max_bytes: the answer's length; no more is read.
        took: called with the size of each part before it is kept; may raise.
    """

    answer_bytes: int | None = None
    max_bytes: int = _http.MAX_ANSWER_BYTES
    took: Callable[[int], None] | None = None


NO_SHARE = Limits()
MAX_WORDS = 1_000
"""How many characters of another worker's words are passed on."""


class Directory:
    """The leader registry, read when it is needed.

    Args:
        read: gives all of the registry's records as they are now.
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
        """Give who took each task over last, as it was at `since_s` of the monotonic clock or later, or just before.

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
        """Give the partitions by the address of their last owner, which isn't this worker.

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
    """Brings questions to the owners of their partitions.

    Attributes:
        elsewhere: what this worker may raise for a partition that another one could answer for.
    """

    elsewhere: tuple[type[Exception], ...] = (NotOwnerError,)

    def __init__(self, reader: StateReader, directory: Directory, hops: Hops | None = None) -> None:
        self.reader = reader
        self.directory = directory
        self._hops = hops or Hops()
        self._session: aiohttp.ClientSession | None = None

    async def scatter(
        self, request: web.Request, spec: ActorSpec, partitions: Collection[int], *, here: Here[T], there: There[T]
    ) -> list[T]:
        """Have each of the partitions answered by its owner; the order of the answers is none.

        Args:
            request: what is asked; one that was passed on isn't passed on again.
            spec: whose partitions they are.
            partitions: the partitions.
            here: answers for partitions of this worker.
            there: asks the worker at an address about partitions.

        Raises:
            NotOwnerError: the request was passed on to this worker, and it isn't the owner.
            NotReadyError: one of them has no owner at the moment.
        """
        left, answers = list(partitions), []
        trouble: BaseException | None = None
        # First by what is known of the owners, then by what the registry says now.
        for since_s in (KNOWN, time.monotonic()):
            try:
                jobs = await self._jobs(request, spec, left, since_s, here=here, there=there)
            except NotReadyError:
                if since_s == KNOWN:
                    continue
                raise
            done = await asyncio.gather(*(job for _, job in jobs), return_exceptions=True)
            left = []
            for (asked, _), answer in zip(jobs, done, strict=True):
                if isinstance(answer, NotOwnerError | aiohttp.ClientError | TimeoutError | OSError):
                    left += asked
                    trouble = answer
                elif isinstance(answer, BaseException):
                    raise answer
                else:
                    answers.append(answer)
            if not left:
                return answers
        raise NotReadyError(f"actor {spec.name}: the owner of partitions {left} doesn't answer: {_words(trouble)}")

    async def _jobs(
        self,
        request: web.Request,
        spec: ActorSpec,
        partitions: Collection[int],
        since_s: float,
        *,
        here: Here[T],
        there: There[T],
    ) -> list[tuple[list[int], Awaitable[T]]]:
        mine = [partition for partition in partitions if self.reader.has(spec, partition)]
        others = [partition for partition in partitions if partition not in mine]
        if others and HOP in request.headers:
            raise NotOwnerError(f"partitions {others} of actor {spec.name} aren't this worker's")
        addresses = await self.directory.addresses(spec, others, since_s=since_s) if others else {}
        # Nothing is awaited from here on: what is made is what is waited for.
        jobs = [(theirs, there(address, theirs)) for address, theirs in addresses.items()]
        return [(mine, here(mine)), *jobs] if mine else jobs

    async def relay(
        self, request: web.Request, address: str, body: bytes | None, *, took: Callable[[int], None] | None = None
    ) -> web.Response:
        """Have another worker answer a request as it is; `took` as in `Limits`.

        Raises:
            NotOwnerError: it isn't the owner.
            NotReadyError: its address isn't one that is asked.
            aiohttp.ClientError: it can't be reached.
        """
        origin = self._hops.origin(address)
        url = URL(origin + request.rel_url.raw_path_qs, encoded=True)
        headers = {**self._hops.headers(request.method, origin, url.raw_path_qs, body=body), **_http.IDENTITY}
        if body is not None:
            headers["Content-Type"] = "application/json"
        async with self._client().request(
            request.method, url, data=body, headers=headers, allow_redirects=False
        ) as reply:
            content = await _http.read_answer(reply, took=took)
            if reply.status == 421:
                raise NotOwnerError(f"{address} isn't the owner")
            if reply.status in NOT_THE_CALLERS:
                raise _problem_of(reply.status, content, address)
            # Never the type that the other one says: a browser would take the answer for a page of this worker.
            kept = {**NO_STORE, "Content-Type": JSON if reply.status == 200 else CONTENT_TYPE}
            if "Retry-After" in reply.headers:
                kept["Retry-After"] = reply.headers["Retry-After"]
            return web.Response(body=content, status=reply.status, headers=kept)

    async def fetch(
        self,
        method: str,
        address: str,
        path: str,
        *,
        body: bytes | None = None,
        partitions: Collection[int],
        answer_s: float = ANSWER_S,
        limits: Limits = NO_SHARE,
    ) -> bytes:
        """Ask another worker about some of its partitions, and give the body of its answer.

        Raises:
            NotOwnerError: it isn't the owner of all.
            aiohttp.ClientError: it can't be reached.
            NotReadyError: it can't answer now, or its address isn't one that is asked.
            Problem: what it says is wrong with the question.
        """
        origin = self._hops.origin(address)
        url, named = URL(origin + path, encoded=True), ",".join(map(str, partitions))
        headers = self._hops.headers(method, origin, url.raw_path_qs, body=body, partitions=named)
        headers |= _http.IDENTITY
        if limits.answer_bytes is not None:
            headers[ANSWER_BYTES] = str(limits.answer_bytes)
        if body is not None:
            headers["Content-Type"] = "application/json"
        timeout = aiohttp.ClientTimeout(total=answer_s, connect=CONNECT_S)
        async with self._client().request(
            method, url, data=body, headers=headers, allow_redirects=False, timeout=timeout
        ) as reply:
            content = await _http.read_answer(reply, max_bytes=limits.max_bytes, took=limits.took)
            if reply.status == 200:
                return content
            if reply.status == 421:
                raise NotOwnerError(f"{address} isn't the owner")
            raise _problem_of(reply.status, content, address)

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=ANSWER_S, connect=CONNECT_S)
            self._session = _http.session(ssl=self._hops.tls, timeout=timeout)
        return self._session

    async def close(self) -> None:
        """Disconnect. May be called twice."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()


def _words(error: BaseException | None) -> str:
    return str(error) or type(error).__name__


def wanted(request: web.Request, partition_count: int) -> list[int]:
    """Give the partitions that a request is about: those that another worker asks for, each once, or all.

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
    """Tell how many bytes of keys and values an answer may have: another worker wants its share only."""
    given = request.headers.get(ANSWER_BYTES, "") if HOP in request.headers else ""
    if given.isascii() and given.isdigit() and len(given) < 12:
        return min(int(given), MAX_ANSWER_BYTES)
    return MAX_ANSWER_BYTES


def wants_all(request: web.Request) -> bool:
    """Tell whether the worker that passed a request on is of a release that knows complete answers only."""
    return HOP in request.headers and ANSWER_BYTES not in request.headers


class _Said(msgspec.Struct):
    detail: str = ""
    type: str = ""
    title: str = ""


def _problem_of(status: int, content: bytes, address: str) -> Exception:
    try:
        said = msgspec.json.decode(content, type=_Said)
    except MALFORMED:
        said = _Said()
    detail = said.detail[:MAX_WORDS] or f"{address} answered {status}"
    if status in NOT_THE_CALLERS:
        return NotReadyError(f"{address} refuses what this worker passes on ({status}): {detail}")
    if status == 503 or not said.type or not 400 <= status < 600:
        return NotReadyError(detail)
    return Problem(status, said.type[:MAX_WORDS].rpartition(":")[2] or "failed", said.title[:MAX_WORDS], detail)
