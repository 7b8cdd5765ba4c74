"""An HTTP service as a sink's target: batches as JSON arrays, with an idempotency key."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote

import msgspec
from typing_extensions import override

from actors._core.logs import error_text
from actors._core.outside import MALFORMED
from actors.errors import ActorsError, Rejected
from actors.http_client import HttpClient, HttpReply
from actors.sinks.batch import Batch, Target

REFUSED = frozenset((400, 409, 413, 415, 422))
"""Statuses by which a service refuses what is in a batch, or its size; any other failure is tried again."""
LONGEST_WAIT_S = 3600.0
MAX_SHOWN = 300
MAX_ANSWER_BYTES = 1 << 20


class ServiceError(ActorsError):
    """A service answered with an error that may pass."""


class Webhook(Target):
    """A URL that gets each batch by POST, as a JSON array of its rows: at least once.

    The header `Idempotency-Key` is the topic, partition, first and last offset of the batch, and the same when the
    batch is sent again; `Fencing-Token` is its token. A worker that takes a partition over may cut batches elsewhere:
    a service that is to count each record once compares their offsets, so put these into the rows. A service that
    answers 400, 409, 413, 415 or 422 refuses the batch, which is halved then. After 429 or 503 the sink waits as
    `Retry-After` says, an hour at most.

    Args:
        url: an encoded URL.
        headers: of every request, as for authentication.
        timeout: how long an answer may take.
    """

    def __init__(
        self, url: str, *, headers: Mapping[str, str] | None = None, timeout: timedelta = timedelta(seconds=30)
    ) -> None:
        self._url = url
        self._timeout_s = timeout.total_seconds()
        self._client = HttpClient(headers=headers)

    @override
    async def write(self, batch: Batch, rows: Sequence[Any]) -> None:
        body = [row for row in rows if row is not None]
        if not body:
            return
        try:
            content = msgspec.json.encode(body)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise Rejected(f"the rows can't become JSON: {error_text(error)}") from error
        headers = {"Idempotency-Key": batch.id, "Fencing-Token": str(batch.token)}
        while True:
            reply = await self._client.send(
                "POST",
                self._url,
                body=content,
                headers=headers,
                timeout_s=self._timeout_s,
                max_bytes=MAX_ANSWER_BYTES,
            )
            if 200 <= reply.status < 300:
                return
            wait_s = _wait_s(reply)
            if wait_s is None:
                break
            await asyncio.sleep(wait_s)
        text = f"the service answered {reply.status}: {_shown(reply)}"
        raise Rejected(text) if reply.status in REFUSED else ServiceError(text)

    @override
    async def close(self) -> None:
        await self._client.close()


class GetJson:
    """Loads JSON for `actors.sinks.Lookup` from a service; nothing for a key that it answers with 404.

    Args:
        url: has `{key}` where the key stands, which is quoted.
        headers: of every request, as for authentication.
        timeout: how long an answer may take.
    """

    def __init__(
        self, url: str, *, headers: Mapping[str, str] | None = None, timeout: timedelta = timedelta(seconds=10)
    ) -> None:
        self._url = url
        self._timeout_s = timeout.total_seconds()
        self._client = HttpClient(headers=headers)

    async def __call__(self, key: Any) -> Any:
        """Return the answer for a key, None if there is none."""
        url = self._url.replace("{key}", quote(str(key), safe=""))
        reply = await self._client.send("GET", url, timeout_s=self._timeout_s)
        if reply.status == 404:
            return None
        if reply.status != 200:
            raise ServiceError(f"{url} answered {reply.status}: {_shown(reply)}")
        try:
            return msgspec.json.decode(reply.body)
        except MALFORMED as error:
            raise ServiceError(f"{url}: the answer isn't JSON: {error}") from error

    async def close(self) -> None:
        """Disconnect. May be called twice."""
        await self._client.close()


def _shown(reply: HttpReply) -> str:
    return reply.body[:MAX_SHOWN].decode(errors="replace")


def _wait_s(reply: HttpReply) -> float | None:
    """Return how long to wait as the service says, None if it doesn't."""
    said = reply.headers.get("Retry-After", "") if reply.status in (429, 503) else ""
    if not said:
        return None
    try:
        wait_s = float(said)
    except ValueError:
        try:
            at = parsedate_to_datetime(said)
        except ValueError:
            return None
        wait_s = (at.astimezone(UTC) - datetime.now(UTC)).total_seconds()
    return None if math.isnan(wait_s) else min(max(wait_s, 0.0), LONGEST_WAIT_S)
