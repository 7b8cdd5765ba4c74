"""How the answers of workers' web servers are read, by other workers and by clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiohttp

MAX_ANSWER_BYTES = 32 * 1024 * 1024
"""A worker's answer ends before: it holds one value, or no more than some MiB."""
IDENTITY = {"Accept-Encoding": "identity"}


class UnusableAnswerError(aiohttp.ClientError):
    """An answer that isn't read to its end."""


def session(*, ssl: Any, **options: Any) -> aiohttp.ClientSession:
    """Return a session that takes answers as they were sent and keeps nothing of them: no decompression, no cookies.

    Args:
        ssl: the context for https, None for Python's default.
        options: as for `aiohttp.ClientSession`.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=True if ssl is None else ssl),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        **options,
    )


async def read_answer(
    reply: aiohttp.ClientResponse,
    *,
    max_bytes: int = MAX_ANSWER_BYTES,
    took: Callable[[int], None] | None = None,
) -> bytes:
    """Read the body of an answer.

    Args:
        reply: the answer.
        max_bytes: its limit; no more is read.
        took: called with the size of each part before it is kept; what it raises ends the reading.

    Raises:
        UnusableAnswerError: it is longer, or encoded, although that wasn't asked for.
        aiohttp.ClientError: the connection ended.
    """
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
