"""Limits on what clients may send, ask for and hold: sizes, and one room for all requests."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from aiohttp.http_exceptions import HttpProcessingError

from actors._core.logs import escaping, limited
from actors.web.problems import Problem

logger = escaping(logging.getLogger(__name__))

MAX_PATH_BYTES = 8_000
"""Limit of path and query as sent. aiohttp refuses a request line of more than 8,190 bytes."""
MAX_HEADER_BYTES = 16 * 1024
"""Limit of all headers together. aiohttp refuses a header of more than 8,190 bytes."""
MAX_BODY_BYTES = 1024 * 1024
MAX_BODY_S = 10.0
"""How long a body may take to arrive."""
MAX_SEND_S = 30.0
"""How long a client may take to read an answer that doesn't fit into the connection's buffers."""
LARGE_BYTES = 64 * 1024
"""The least length of such an answer."""
MAX_ANSWER_BYTES = 4 * 1024 * 1024
"""Limit of keys and values in one answer, unless its first value alone is longer."""
MAX_HELD_BYTES = 160 * 1024 * 1024
"""Limit of what all requests hold."""
SPARE_BYTES = 32 * 1024 * 1024
"""The part of it that is reserved for other workers and administrators."""
MAX_CLIENT_BYTES = (MAX_HELD_BYTES - SPARE_BYTES) // 2
"""The share of a reader that is alone, and therefore the limit of a single request."""
REQUEST_BYTES = 256 * 1024
"""The least that a request counts as: at most 512 of all readers run at once, 256 of a single reader."""
STREAM_BYTES = 16 * 1024
"""The least that a stream of events counts as."""
JSON_GROWTH = 32
"""How many times its length decoded JSON takes in memory at most: `[[],[],…]`."""
HANDLER_ARGS: Mapping[str, Any] = {
    "auto_decompress": False,
    "keepalive_timeout": 30.0,
    "lingering_time": 1.0,
    "max_headers": 64,
}
"""aiohttp's settings. Bodies stay compressed, and are refused as such. A connection that sends no complete head within
`keepalive_timeout` is closed. An unread body is discarded for `lingering_time`, so that the client can read the refusal
before the connection closes."""


class Room:
    """The memory of all requests: one limit for all, and a fair share for each client.

    A request holds `REQUEST_BYTES` until its client has read the answer, and what it reads, makes and receives beyond
    that. A client may hold as much as it leaves to others: one alone gets half of all, and two get a third each.
    """

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()

    @property
    def held_bytes(self) -> int:
        """How much all requests hold."""
        return self._held.total()

    @contextmanager
    def enter(self, client: str, *, is_reader: bool = True, has_body_to_come: bool = False) -> Iterator[Reservation]:
        """Open the account of a request while the block runs.

        Raises:
            Problem: 503, the client's share is taken. A request whose body is still to come finds it taken at half of
                what is left, so that a client's slow bodies leave room for its other requests.
        """
        most_bytes = MAX_HELD_BYTES - (SPARE_BYTES if is_reader else 0)
        self.change(client, REQUEST_BYTES, most_bytes, parts=2 if has_body_to_come else 1)
        reservation = Reservation(self, client, most_bytes)
        try:
            yield reservation
        finally:
            reservation.close()

    def change(self, client: str, size: int, most_bytes: int, *, parts: int = 1) -> None:
        """Add `size` bytes, which may be negative, to what a client's requests hold.

        Raises:
            Problem: 503, the client would hold more than is left of `most_bytes` then, divided by `parts`.
        """
        if size > 0 and parts * (self._held[client] + size) > most_bytes - self.held_bytes - size:
            raise Problem(
                503,
                "busy",
                "Too many questions at once",
                f"requests of {client} hold {self._held[client]} bytes, their share of the {most_bytes} bytes that "
                "there are for requests and answers: read the answers, and ask again later",
                retry_after_ms=1000,
            )
        self._held[client] += size
        if not self._held[client]:
            del self._held[client]


class Reservation:
    """The memory that one request holds beyond `REQUEST_BYTES`."""

    def __init__(self, room: Room, client: str, most_bytes: int) -> None:
        self._room = room
        self._client = client
        self._most_bytes = most_bytes
        self._least_bytes = REQUEST_BYTES
        self._bytes = 0

    def take(self, size: int) -> None:
        """Add bytes.

        Raises:
            Problem: 503 if requests hold too much, 500 if this one can never hold as much.
        """
        self.settle(self._bytes + size)

    def settle(self, size: int) -> None:
        """Set how many bytes the request holds; raises as `take` does if that is more than before."""
        more = max(size, self._least_bytes) - max(self._bytes, self._least_bytes)
        if more > 0 and size > MAX_CLIENT_BYTES:
            raise Problem(
                500,
                "large-answer",
                "The answer is too large",
                f"it takes more than the {MAX_CLIENT_BYTES} bytes of memory that a request may hold: ask for less",
            )
        self._room.change(self._client, more, self._most_bytes)
        self._bytes = size

    def stream(self) -> None:
        """Count the request as a stream from now on, which holds less than others, for longer."""
        self.settle(0)
        self._room.change(self._client, STREAM_BYTES - self._least_bytes, self._most_bytes)
        self._least_bytes = STREAM_BYTES

    def close(self) -> None:
        """Free everything that it holds."""
        self.settle(0)
        self._room.change(self._client, -self._least_bytes, self._most_bytes)


class UnreadableRequests(logging.Filter):
    """Replaces aiohttp's tracebacks of requests that it can't parse by one line without the request's text."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record of aiohttp's is written as it is."""
        error = record.exc_info[1] if record.exc_info else None
        # aiohttp quotes an Expect header that isn't text, before any middleware, and fails to send that answer.
        is_expect = isinstance(error, UnicodeEncodeError) and error.object.startswith("Unknown Expect: ")
        if record.levelno < logging.ERROR or not (is_expect or isinstance(error, HttpProcessingError)):
            return limited(record)
        who = record.args[0] if isinstance(record.args, tuple) and record.args else None
        logger.warning(
            "refused an unreadable request, asked by %s: 400 %s",
            who or "a socket of this machine",
            type(error).__name__,
        )
        return False


UNREADABLE = UnreadableRequests()
"""One for all web servers of the process: they share aiohttp's logger."""
