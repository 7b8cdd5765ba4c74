"""The client with which a worker, or a command, asks other workers: signed requests to announced addresses."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import msgspec
from aiohttp import web

from actors._core.outside import MALFORMED
from actors.errors import NotOwnerError, NotReadyError
from actors.http_client import JSON, MAX_ANSWER_BYTES, HttpClient, HttpReply
from actors.web.access.tls import Hops
from actors.web.problems import CONTENT_TYPE, NO_STORE, Problem

ANSWER_BYTES = "Actors-Answer-Bytes"
"""The header with the number of bytes of keys and values that the asking worker wants at most."""
ANSWER_S = 5.0
REFUSALS = (401, 403)
"""Statuses that concern the asking worker and not its caller: settings differ."""
MAX_TEXT_CHARS = 1_000
"""How much of another worker's error text is passed on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much another worker's answer may hold.

    Attributes:
        answer_bytes: how many bytes of keys and values are asked for; None for requests without that choice.
        max_bytes: the longest body of an answer that is read.
        took: called with the size of each part before the part is kept; may raise.
    """

    answer_bytes: int | None = None
    max_bytes: int = MAX_ANSWER_BYTES
    took: Callable[[int], None] | None = None


NO_LIMITS = Limits()


class WorkerClient:
    """Asks other workers. One is shared by queries and the dashboard.

    Args:
        hops: the keys, certificates and addresses that are allowed.
    """

    def __init__(self, hops: Hops) -> None:
        self._hops = hops
        self._http = HttpClient(tls=hops.tls)

    async def relay(
        self, method: str, path: str, address: str, body: bytes | None, took: Callable[[int], None]
    ) -> web.Response:
        """Pass a request on unchanged, and return the other worker's answer, an error included.

        Raises:
            NotOwnerError: the other worker isn't the owner.
            NotReadyError: the address isn't allowed, or the other worker refuses this one.
            aiohttp.ClientError, TimeoutError: it can't be reached.
        """
        reply = await self._send(method, address, path, body=body, limits=Limits(took=took))
        if reply.status in REFUSALS:
            raise _error_of(reply, address)
        # Never the content type of the other worker: a browser could take the answer for a page of this worker.
        headers = {**NO_STORE, "Content-Type": JSON if reply.status < 300 else CONTENT_TYPE}
        if "Retry-After" in reply.headers:
            headers["Retry-After"] = reply.headers["Retry-After"]
        return web.Response(body=reply.body, status=reply.status, headers=headers)

    async def fetch(
        self,
        method: str,
        address: str,
        path: str,
        *,
        partitions: Collection[int] = (),
        body: bytes | None = None,
        answer_s: float = ANSWER_S,
        limits: Limits = NO_LIMITS,
    ) -> bytes:
        """Ask another worker about some of its partitions, and return the body of its answer.

        Raises:
            NotOwnerError: the other worker doesn't own all of the partitions.
            NotReadyError: it can't answer now, or its address isn't allowed.
            Problem: it refuses the request for what it asks.
            aiohttp.ClientError, TimeoutError: it can't be reached.
        """
        named = ",".join(map(str, partitions))
        reply = await self._send(method, address, path, body=body, named=named, answer_s=answer_s, limits=limits)
        if reply.status != 200:
            raise _error_of(reply, address)
        return reply.body

    async def _send(
        self,
        method: str,
        address: str,
        path: str,
        *,
        body: bytes | None,
        limits: Limits,
        named: str = "",
        answer_s: float = ANSWER_S,
    ) -> HttpReply:
        origin = self._hops.origin(address)
        headers = self._hops.headers(method, origin, path, body=body, partitions=named)
        if limits.answer_bytes is not None:
            headers[ANSWER_BYTES] = str(limits.answer_bytes)
        reply = await self._http.send(
            method,
            origin + path,
            timeout_s=answer_s,
            body=body,
            headers=headers,
            max_bytes=limits.max_bytes,
            took=limits.took,
        )
        if reply.status == 421:
            raise NotOwnerError(f"{address} isn't the owner")
        return reply

    async def close(self) -> None:
        """Close all connections. May be called twice."""
        await self._http.close()


class _ProblemText(msgspec.Struct):
    detail: str = ""
    type: str = ""
    title: str = ""


def _error_of(reply: HttpReply, address: str) -> Exception:
    status = reply.status
    try:
        given = msgspec.json.decode(reply.body, type=_ProblemText)
    except MALFORMED:
        given = _ProblemText()
    detail = given.detail[:MAX_TEXT_CHARS] or f"{address} answered {status}"
    if status in REFUSALS:
        return NotReadyError(f"{address} refuses what this worker passes on ({status}): {detail}")
    if status == 503 or not given.type or not 400 <= status < 600:
        return NotReadyError(detail)
    return Problem(
        status, given.type[:MAX_TEXT_CHARS].rpartition(":")[2] or "failed", given.title[:MAX_TEXT_CHARS], detail
    )
