"""The HTTP client of the project: bounded answers, no cookies, no decompression, and redirects only if asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ssl import SSLContext

import aiohttp
from yarl import URL

CONNECT_S = 1.0
MAX_ANSWER_BYTES = 32 * 1024 * 1024
"""The default limit of an answer. A worker's answer holds one value, or a few MiB of values."""
JSON = "application/json"
_HEADERS = {"Accept-Encoding": "identity"}


class UnusableAnswerError(aiohttp.ClientError):
    """An answer is too long, or has an encoding that was not asked for."""


@dataclass(frozen=True, slots=True)
class HttpReply:
    """An answer with its whole body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpClient:
    """Sends requests. It connects with the first one.

    Args:
        tls: the context for https; Python's default when left out.
        headers: headers of every request.
    """

    def __init__(self, *, tls: SSLContext | None = None, headers: Mapping[str, str] | None = None) -> None:
        self._tls = tls
        self._headers = {**_HEADERS, **(headers or {})}
        self._session: aiohttp.ClientSession | None = None

    async def send(
        self,
        method: str,
        url: str,
        *,
        timeout_s: float,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        max_bytes: int = MAX_ANSWER_BYTES,
        took: Callable[[int], None] | None = None,
        connect_s: float = CONNECT_S,
        redirects: bool = False,
    ) -> HttpReply:
        """Send a request and read the answer.

        Args:
            method: GET or POST.
            url: an encoded URL; its path and query are sent unchanged.
            timeout_s: how long the request may take, connecting and reading included.
            body: JSON, unless `headers` say otherwise.
            headers: further headers.
            max_bytes: the longest body of an answer that is read.
            took: called with the size of each part of the answer before the part is kept; may raise.
            connect_s: how long connecting may take.
            redirects: whether they are followed.

        Raises:
            UnusableAnswerError: the answer is too long or encoded.
            aiohttp.ClientError: the server can't be reached, or the connection ended.
            TimeoutError: the request took too long.
        """
        own = {**({} if body is None else {"Content-Type": JSON}), **(headers or {})}
        limits, target = aiohttp.ClientTimeout(total=timeout_s, connect=connect_s), URL(url, encoded=True)
        async with self._connected().request(
            method, target, data=body, headers=own, allow_redirects=redirects, timeout=limits
        ) as reply:
            return HttpReply(reply.status, reply.headers, await _read(reply, max_bytes, took))

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=True if self._tls is None else self._tls),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                headers=self._headers,
            )
        return self._session

    async def close(self) -> None:
        """Close all connections. May be called twice; the next request connects again."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()


async def _read(reply: aiohttp.ClientResponse, max_bytes: int, took: Callable[[int], None] | None) -> bytes:
    encoding = reply.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise UnusableAnswerError(f"the answer has Content-Encoding {encoding[:20]!r}, which wasn't asked for")
    content = bytearray()
    async for chunk in reply.content.iter_any():
        if len(content) + len(chunk) > max_bytes:
            raise UnusableAnswerError(f"the answer has more than {max_bytes} bytes: it isn't read further")
        if took is not None:
            took(len(chunk))
        content += chunk
    return bytes(content)
