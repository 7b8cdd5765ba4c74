"""A changelog's partition in memory, for restores."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from actors._core.task.takeover import LogBounds
from actors.ports import LogRecord, TopicPartition

NOW_MS = 1_760_000_000_000


@dataclass(frozen=True)
class Record:
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()
    timestamp: int = 0


class Log:
    """A changelog's partition in memory, given in chunks of `chunk` records."""

    def __init__(self, records: Sequence[Record], *, start: int = 0, end: int | None = None, chunk: int = 3) -> None:
        self.records = list(records)
        self.start = start
        self.end = max([0, *(record.offset + 1 for record in records)]) if end is None else end
        self.chunk = chunk
        self.given: list[int] = []

    def given_from(self, offset: int) -> list[int]:
        """What was read from an offset on; before it a restore only looks."""
        return [given for given in self.given if given >= offset]

    async def bounds(self, partition: TopicPartition) -> LogBounds:
        return LogBounds(self.start, self.end)

    async def read(
        self, partition: TopicPartition, start: int, end: int, topic_id: str = ""
    ) -> AsyncIterator[tuple[Sequence[LogRecord], int]]:
        found = [record for record in self.records if start <= record.offset < end]
        for first in range(0, len(found), self.chunk):
            part = found[first : first + self.chunk]
            self.given += [record.offset for record in part]
            yield part, part[-1].offset + 1
        yield [], end


class Clock:
    now_ms = NOW_MS

    def monotonic(self) -> float:
        return self.now_ms / 1000

    def wall_ms(self) -> int:
        return self.now_ms

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody waits here")
