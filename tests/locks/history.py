"""What clients write down, a JSON line an event, and what the checks read of it.

    call ──▶ return ──▶ held, each time the lease is seen to last longer ──▶ ended

Times are seconds of CLOCK_MONOTONIC, which all processes of a machine share. A call is written before its request is
sent, so that what got no answer is known.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

Outcome: TypeAlias = Literal["ok", "refused", "timeout", "lost", "unknown"]
"""refused: busy, conflict, stale token. timeout: the service said so. lost: granted, and over before the answer came.
unknown: no answer, it may be carried out or not."""


class Call(msgspec.Struct, kw_only=True, tag="call"):
    """An operation begins; of what follows `name` only what its `op` has is set."""

    id: str
    at_s: float
    client: str
    op: Literal["acquire", "use", "get", "put", "delete"]
    name: str
    shared: bool = False
    permits: int = 1
    limit: int = 1
    ttl_s: float = 0.0
    patient: bool = True
    grant: str = ""
    token: int = 0
    data: str | None = None
    expected: int | None = None


class Return(msgspec.Struct, kw_only=True, tag="return"):
    """An operation's answer. `held`: of the use of a resource, the lease was held before and after it."""

    id: str
    at_s: float
    outcome: Outcome
    token: int = 0
    held: bool = False
    data: str | None = None
    version: int = 0


class Held(msgspec.Struct, kw_only=True, tag="held"):
    """By now the lease of acquisition `id` lasts until then."""

    id: str
    until_s: float


class Ended(msgspec.Struct, kw_only=True, tag="ended"):
    """The client releases the lease of acquisition `id`, or sees that it is `lost`."""

    id: str
    at_s: float
    lost: bool


Event: TypeAlias = Call | Return | Held | Ended


class Journal:
    """Writes events to a file, each at once."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, event: Event) -> None:
        os.write(self._file, msgspec.json.encode(event) + b"\n")

    def close(self) -> None:
        os.close(self._file)


class Operation(msgspec.Struct, kw_only=True):
    """A call with its answer, and for an acquisition until when its client believed to hold the lock."""

    call: Call
    answer: Return | None = None
    until_s: float = 0.0
    ended: Ended | None = None

    @property
    def outcome(self) -> Outcome:
        return "unknown" if self.answer is None else self.answer.outcome

    @property
    def token(self) -> int:
        """Of an acquisition that was granted."""
        return 0 if self.answer is None else self.answer.token

    @property
    def from_s(self) -> float:
        """When the answer came; the end of time if it didn't."""
        return float("inf") if self.answer is None else self.answer.at_s

    @property
    def believed_until_s(self) -> float:
        """The end of the lease by the client's clock, or its release before that."""
        return self.until_s if self.ended is None else min(self.until_s, self.ended.at_s)

    @property
    def is_holding(self) -> bool:
        """Whether it was granted and held for any time."""
        return self.outcome == "ok" and self.from_s < self.believed_until_s


def read_events(*paths: Path) -> Iterator[Event]:
    """Give what was written to files, each in its order. A line that is still being written is left out."""
    for path in paths:
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                yield msgspec.json.decode(line, type=Event)


def pair(events: Iterable[Event]) -> list[Operation]:
    """Put together what belongs together; in the order of calls."""
    found: dict[str, Operation] = {}
    for event in events:
        match event:
            case Call():
                found[event.id] = Operation(call=event)
            case Return():
                found[event.id].answer = event
            case Held():
                operation = found[event.id]
                operation.until_s = max(operation.until_s, event.until_s)
            case Ended():
                found[event.id].ended = event
    return sorted(found.values(), key=lambda operation: operation.call.at_s)


now_s = time.monotonic
