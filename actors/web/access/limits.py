"""How much a client may ask for, and how much is written about those that were refused."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from aiohttp.http_exceptions import HttpProcessingError

from actors._core.logs import escaping, limited

logger = escaping(logging.getLogger(__name__))

MAX_PATH_BYTES = 8_000
"""Of the path with its query, as it was sent. aiohttp ends requests whose first line has more than 8,190 bytes."""
MAX_HEADER_BYTES = 16 * 1024
"""Of all headers; aiohttp takes 8,190 bytes for one."""
MAX_BODY_BYTES = 1024 * 1024
MAX_BODY_S = 10.0
"""How long a body may take to arrive."""
MAX_SEND_S = 30.0
"""How long a client may take to read an answer that doesn't fit into the connection's buffers."""
LARGE_BYTES = 64 * 1024
"""The least length of such an answer."""
HANDLER_ARGS: Mapping[str, Any] = {
    "auto_decompress": False,
    "keepalive_timeout": 30.0,
    "lingering_time": 1.0,
    "max_headers": 64,
}
"""How aiohttp reads requests. Bodies stay compressed, and are refused as they are; a connection is closed that brings
no whole head of a request within `keepalive_timeout`; a body that nobody wants is thrown away for `lingering_time`, so
that the client can read why, before the connection is closed."""
MAX_CLIENTS = 10_000
LOG_LINES_PER_S = 10


class Rates:
    """A token bucket per client, for the clients that were seen last.

    Args:
        per_s: what each may do for long; 0 for no limit.
        burst: what each may do at once.
    """

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s = per_s
        self._burst = max(burst, 1.0)
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str, now_s: float | None = None) -> float:
        """Count a request, and give how many seconds the client has to wait: 0 if it may go on."""
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


class RefusalLog:
    """Writes one line for each refused request, so many in a second, and then how many more there were."""

    def __init__(self) -> None:
        self._second = 0
        self._lines = 0
        self._unwritten = 0
        self._timer: asyncio.TimerHandle | None = None

    def write(self, who: str, what: str, why: str) -> None:
        """Write a line; the texts come from outside, and are written so that they stay in it."""
        second = int(time.monotonic())
        if second != self._second:
            self.flush()
            self._second, self._lines = second, 0
        if self._lines < LOG_LINES_PER_S:
            self._lines += 1
            logger.warning("refused %s, asked by %s: %s", ascii(what)[1:-1], ascii(who)[1:-1], ascii(why)[1:-1])
            return
        if self._timer is None:
            # Nothing may be refused for long after this.
            self._timer = asyncio.get_running_loop().call_later(1.0, self.flush)
        self._unwritten += 1

    def flush(self) -> None:
        """Write how many lines weren't written."""
        timer, self._timer = self._timer, None
        if timer is not None:
            # One at a time: those of former seconds would each write a line a second for as long as it goes on.
            timer.cancel()
        unwritten, self._unwritten = self._unwritten, 0
        if unwritten:
            logger.warning("refused %d more requests within a second; no line was written for each", unwritten)


class UnreadableRequests(logging.Filter):
    """Writes one line for a request that aiohttp can't read and refuses before the guard, in place of a traceback."""

    def __init__(self) -> None:
        super().__init__()
        self._log = RefusalLog()

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether a record of aiohttp's is to be written as it is."""
        error = record.exc_info[1] if record.exc_info else None
        # aiohttp quotes an Expect header that isn't text, before any middleware, and can't send the answer.
        is_expect = isinstance(error, UnicodeEncodeError) and error.object.startswith("Unknown Expect: ")
        if record.levelno < logging.ERROR or not (is_expect or isinstance(error, HttpProcessingError)):
            return limited(record)
        who = str(record.args[0] or "") if isinstance(record.args, tuple) and record.args else ""
        # Never the error's text: it has what was sent.
        self._log.write(who or "a socket of this machine", "an unreadable request", f"400 {type(error).__name__}")
        return False


UNREADABLE = UnreadableRequests()
"""One for all web servers of the process: they share aiohttp's logger."""
