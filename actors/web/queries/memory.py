"""How much memory the requests of a web server may hold, all together, and until when.

What a request has read, made or received is counted from `LARGE_BYTES` on. Its answer is counted until the client has
read it: a client that doesn't read is hung up on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from actors.web.access.guard import caller_of, client_of, sent
from actors.web.access.limits import LARGE_BYTES
from actors.web.problems import Handler, Problem

MAX_ANSWER_BYTES = 4 * 1024 * 1024
"""Of keys and values in one answer, unless its first value alone is longer."""
MAX_HELD_BYTES = 128 * 1024 * 1024
MAX_CALLER_BYTES = MAX_HELD_BYTES // 2
"""What the requests of one caller may hold, and so the most that a single request can."""
JSON_GROWTH = 32
"""How much memory decoded JSON takes at most, in times of its bytes: `[[],[],…]`."""


class Memory:
    """The memory that requests may hold."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()

    @property
    def held_bytes(self) -> int:
        """How much all requests hold."""
        return self._held.total()

    @contextmanager
    def reserve(self, caller: str) -> Iterator[Reservation]:
        """Open the account of a request, for as long as the block lasts."""
        reservation = Reservation(self, caller)
        try:
            yield reservation
        finally:
            reservation.settle(0)

    def change(self, caller: str, own: int, size: int) -> None:
        """Count what a request holds more, or less, than the `own` that it held before.

        Raises:
            Problem: it is too much.
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
    """What one request holds."""

    def __init__(self, memory: Memory, caller: str) -> None:
        self._memory = memory
        self._caller = caller
        self._bytes = 0
        self._counted = 0

    def take(self, size: int) -> None:
        """Count bytes that the request holds from now on.

        Raises:
            Problem: 503 if requests hold too much, 500 if this one will never get so much.
        """
        self.settle(self._bytes + size)

    def settle(self, size: int) -> None:
        """Set how many bytes the request holds; raises as `take` does where that is more than before."""
        counted = size if size > LARGE_BYTES else 0
        if counted != self._counted:
            self._memory.change(self._caller, self._counted, counted - self._counted)
        self._bytes, self._counted = size, counted


MEMORY: web.AppKey[Memory] = web.AppKey("actors_memory", Memory)
RESERVATION: web.RequestKey[Reservation] = web.RequestKey("actors_reservation", Reservation)


@web.middleware
async def bounded(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Count what a request holds, from its body on until its answer is sent."""
    with request.config_dict[MEMORY].reserve(client_of(request, caller_of(request))) as reservation:
        request[RESERVATION] = reservation
        if request.body_exists and not request.can_read_body:
            # The guard has read it.
            reservation.take(len(await request.read()))
        response = await handler(request)
        if isinstance(response, web.Response):
            reservation.settle(response.content_length or 0)
        return await sent(request, response)


def bound(web_app: web.Application, part: web.Application) -> None:
    """Count what the requests to a part of a web server hold, with those to its other parts; before `protect`."""
    if MEMORY not in web_app:
        web_app[MEMORY] = Memory()
    part.middlewares.append(bounded)
