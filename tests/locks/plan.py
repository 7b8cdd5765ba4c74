"""What the clients fight for: fifty locks, and a few nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LOCKS = 50
NODES = 5
WAIT_S = 90.0
"""So long a patient client waits. Nobody holds a lock for long, so one who isn't served by then never will be."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A lock: for one, for many readers or one writer, or a semaphore of so many permits."""

    name: str
    mode: Literal["lock", "readers", "semaphore"]
    ttl_s: float
    limit: int = 1


def _kind(number: int) -> Kind:
    # The first names are the ones fought for: kinds and lengths take turns, so that each is among them.
    ttl_s = (4.0, 5.0, 6.0)[number % 3]
    if number % 10 == 3:
        return Kind(f"readers-{number}", "readers", ttl_s)
    if number % 10 == 6:
        return Kind(f"semaphore-{number}", "semaphore", ttl_s, limit=3)
    return Kind(f"lock-{number}", "lock", ttl_s)


KINDS = tuple(_kind(number) for number in range(LOCKS))
MAX_TTL_S = max(kind.ttl_s for kind in KINDS)
NODE_NAMES = tuple(f"node-{number}" for number in range(NODES))
