"""Limits on what clients may send, ask for and hold: sizes, rates, requests under way, memory of answers."""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict
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
MAX_HELD_BYTES = 128 * 1024 * 1024
"""Limit of the memory that all requests hold."""
MAX_CALLER_BYTES = MAX_HELD_BYTES // 2
"""Limit of the memory that the requests of one caller hold, and therefore of a single request."""
JSON_GROWTH = 32
"""How many times its length decoded JSON takes in memory at most: `[[],[],…]`."""
MAX_CLIENTS = 10_000
"""How many clients' rates are remembered."""
HANDLER_ARGS: Mapping[str, Any] = {
    "auto_decompress": False,
    "keepalive_timeout": 30.0,
    "lingering_time": 1.0,
    "max_headers": 64,
}
"""aiohttp's settings. Bodies stay compressed, and are refused as such. A connection that sends no complete head within
`keepalive_timeout` is closed. An unread body is discarded for `lingering_time`, so that the client can read the refusal
before the connection closes."""


class Rates:
    """A token bucket per client, for the clients seen last.

    Args:
        per_s: the sustained rate; 0 for no limit.
        burst: how many requests may come at once.
    """

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s = per_s
        self._burst = max(burst, 1.0)
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str, now_s: float | None = None) -> float:
        """Count a request. Return how many seconds the client has to wait, 0 if it needn't."""
        if not self._per_s:
            return 0.0
        now_s = time.monotonic() if now_s is None else now_s
        left, then_s = self._left.pop(client, (self._burst, now_s))
        left = min(self._burst, left + (now_s - then_s) * self._per_s)
        wait_s = 0.0
        if left >= 1:
            left -= 1
        else:
            wait_s = (1 - left) / self._per_s
        self._left[client] = left, now_s
        if len(self._left) > MAX_CLIENTS:
            self._left.popitem(last=False)
        return wait_s


class Places:
    """A number of requests that may be under way, and the share of one client.

    Args:
        what: what takes a place, for the error text.
        total: how many places there are.
        share: how many of them one client may take.
    """

    def __init__(self, what: str, total: int, share: int) -> None:
        self._what = what
        self._total = total
        self._share = share
        self._taken: Counter[str] = Counter()

    @contextmanager
    def place(self, client: str) -> Iterator[None]:
        """Take a place while the block runs.

        Raises:
            Problem: 503, all places are taken, or the client's share is.
        """
        if self._taken.total() >= self._total:
            raise _busy(f"{self._total} {self._what} are under way")
        if self._taken[client] >= self._share:
            raise _busy(f"{self._share} {self._what} of {client} are under way")
        self._taken[client] += 1
        try:
            yield
        finally:
            self._taken[client] -= 1
            if not self._taken[client]:
                del self._taken[client]


def _busy(detail: str) -> Problem:
    return Problem(503, "busy", "Too many questions at once", detail, retry_after_ms=1000)


class Memory:
    """The memory that requests hold: what they have read, made or received, until the client has read the answer."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()

    @property
    def held_bytes(self) -> int:
        """How much all requests hold."""
        return self._held.total()

    @contextmanager
    def reserve(self, caller: str) -> Iterator[Reservation]:
        """Open the account of a request while the block runs."""
        reservation = Reservation(self, caller)
        try:
            yield reservation
        finally:
            reservation.settle(0)

    def change(self, caller: str, own: int, size: int) -> None:
        """Add `size`, which may be negative, to the `own` bytes that a request holds.

        Raises:
            Problem: 500 if the request can never hold as much, 503 if others hold too much now.
        """
        if size > 0 and own + size > MAX_CALLER_BYTES:
            raise Problem(
                500,
                "large-answer",
                "The answer is too large",
                f"it takes more than the {MAX_CALLER_BYTES} bytes of memory that a request may hold: ask for less",
            )
        if size > 0 and (self._held[caller] + size > MAX_CALLER_BYTES or self.held_bytes + size > MAX_HELD_BYTES):
            raise Problem(
                503,
                "busy",
                "Other answers take all memory that there is for answers",
                f"answers may take {MAX_HELD_BYTES} bytes together, and {MAX_CALLER_BYTES} of one caller, until they "
                "are read: ask again later",
                retry_after_ms=1000,
            )
        self._held[caller] += size
        if not self._held[caller]:
            del self._held[caller]


class Reservation:
    """The memory of one request. It counts from `LARGE_BYTES` on."""

    def __init__(self, memory: Memory, caller: str) -> None:
        self._memory = memory
        self._caller = caller
        self._bytes = 0
        self._counted = 0

    def take(self, size: int) -> None:
        """Add bytes.

        Raises:
            Problem: 503 if requests hold too much, 500 if this one can never hold as much.
        """
        self.settle(self._bytes + size)

    def settle(self, size: int) -> None:
        """Set how many bytes the request holds; raises as `take` does if that is more than before."""
        counted = size if size > LARGE_BYTES else 0
        if counted != self._counted:
            self._memory.change(self._caller, self._counted, counted - self._counted)
        self._bytes, self._counted = size, counted


class UnreadableRequests(logging.Filter):
    """Replaces aiohttp's tracebacks of requests that it can't parse by one line without the request's text."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether a record of aiohttp's is written as it is."""
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
