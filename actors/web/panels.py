"""Panels that other packages add to the dashboard: they show rows of a store, such as the locks of `coordination`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec


class HeldLock(msgspec.Struct, frozen=True, kw_only=True):
    """A lock that has a holder; `expires_ms` is the end of the first holder's lease, Unix milliseconds."""

    name: str
    kind: str
    holders: int
    owner: str
    data: str
    token: int
    expires_ms: int
    is_over: bool
    waiting: int


@dataclass(frozen=True, slots=True)
class LockPanel:
    """A panel of locks; see `panels_of`.

    Attributes:
        actor: the class actor whose state has the locks.
        lock_of: returns the lock of a key, of its stored value and of the time in Unix milliseconds; None for a key
            without a holder.
    """

    actor: str
    lock_of: Callable[[bytes, bytes, int], HeldLock | None]


def panels_of(app: Any) -> list[LockPanel]:
    """Return the panels of an app, to read or to append to."""
    panels: list[LockPanel] = vars(app).setdefault("actors_panels", [])
    return panels
