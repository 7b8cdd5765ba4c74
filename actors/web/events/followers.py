"""A client that follows a store: its position, and the events that wait for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

import msgspec

from actors.web.events.positions import StreamPosition
from actors.web.problems import Problem

MAX_WAITING_BYTES = 1024 * 1024
"""How much may wait for a client; one event may be longer."""
HEARTBEAT_S = 15.0
RETRY_MS = 1_000
"""After so long a browser connects again."""
EVENT_OVERHEAD_BYTES = 100


class EventStream:
    """One client's stream.

    Args:
        key: the raw key that it follows, None for all.
        offsets: the next offsets that it has to get; the broadcast moves them.
        tag: of the changelog.
        clock_s: returns the time, Unix seconds.
        take: counts the bytes that wait; may raise `Problem`.

    Attributes:
        ends: while it is behind, the offsets from which on it gets what the broadcast reads.
        reset: why it had to begin at the end of the log instead of its position, "" if it didn't.
    """

    def __init__(
        self,
        key: bytes | None,
        offsets: dict[int, int],
        *,
        tag: str,
        clock_s: Callable[[], float],
        take: Callable[[int], None],
        reset: str = "",
    ) -> None:
        self.key = key
        self.offsets = offsets
        self.ends: dict[int, int] = {}
        self.reset = reset
        self._tag = tag
        self._clock_s = clock_s
        self._take = take
        self._queue: deque[bytes] = deque()
        self._later: list[tuple[int, int, bytes]] = []
        self._bytes = 0
        self._end: tuple[str, str] | None = None
        self._wake = asyncio.Event()
        self._drained = asyncio.Event()

    def put(self, partition: int, next_offset: int, event: bytes) -> None:
        """Add an event that the broadcast has read; while the follower is behind it waits for those before."""
        if self.ends:
            self._later.append((partition, next_offset, event))
            self._count(len(event))
            return
        self.put_missed(partition, next_offset, event)

    def put_missed(self, partition: int, next_offset: int, event: bytes) -> None:
        """Add an event at its place, unless it is before the follower's position."""
        if self._end is not None or next_offset <= self.offsets[partition]:
            return
        self.offsets[partition] = next_offset
        block = b"id: %s\n%s" % (self._id(), event)
        self._queue.append(block)
        self._count(len(block) + EVENT_OVERHEAD_BYTES)
        self._wake.set()

    def caught_up(self) -> None:
        """Go on with what the broadcast has read meanwhile."""
        self.offsets |= {partition: max(end, self.offsets[partition]) for partition, end in self.ends.items()}
        self.ends = {}
        later, self._later = self._later, []
        self._count(-sum(len(event) for _, _, event in later))
        for partition, next_offset, event in later:
            self.put_missed(partition, next_offset, event)

    def moved(self, partition: int, next_offset: int) -> None:
        """Note that the broadcast has read up to an offset; what of it concerns the follower is put."""
        if not self.ends and next_offset > self.offsets[partition]:
            self.offsets[partition] = next_offset

    def end(self, kind: str, reason: str) -> None:
        """End the stream with an event; what still waits is dropped, since the client's last id is before it."""
        if self._end is None:
            self._end = kind, reason
            self._queue.clear()
            self._later.clear()
            self._wake.set()
            self._drained.set()

    async def has_room(self, timeout_s: float) -> None:
        """Wait until half of what may wait is free; end the stream if that takes too long."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._end is None and self._bytes > MAX_WAITING_BYTES // 2:
                    self._drained.clear()
                    await self._drained.wait()
        except TimeoutError:
            self._cut()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the stream's text as it comes, until it ends."""
        kind, content = ("reset", {"reason": self.reset}) if self.reset else ("position", {})
        yield b"retry: %d\nid: %s\n%s" % (RETRY_MS, self._id(), block_of(kind, msgspec.json.encode(content)))
        while True:
            if self._queue:
                chunk = b"".join(self._queue)
                self._queue.clear()
                self._count(sum(len(event) for _, _, event in self._later) - self._bytes)
                self._drained.set()
                yield chunk
            elif self._end is not None:
                kind, reason = self._end
                yield block_of(kind, msgspec.json.encode({"reason": reason}))
                return
            else:
                self._wake.clear()
                try:
                    async with asyncio.timeout(HEARTBEAT_S):
                        await self._wake.wait()
                except TimeoutError:
                    # The client's position moves on, also where nothing changes.
                    yield b": \n\n" if self.ends else b"id: %s\n\n" % self._id()

    def _id(self) -> bytes:
        return str(StreamPosition(self.offsets, self._tag, int(self._clock_s()))).encode()

    def _count(self, size: int) -> None:
        self._bytes += size
        if size <= 0:
            self._take(self._bytes)
            return
        if self._bytes > MAX_WAITING_BYTES and len(self._queue) + len(self._later) > 1:
            self._cut()
            return
        try:
            self._take(self._bytes)
        except Problem:
            self._cut()

    def _cut(self) -> None:
        self.end("cut", "the client reads too slowly: connect again with the last id")


def block_of(kind: str, content: bytes) -> bytes:
    """Return an event without its id; `content` is one line of JSON."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), content)
