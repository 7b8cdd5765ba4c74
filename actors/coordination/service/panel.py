"""What the dashboard shows of the lock service's state."""

from __future__ import annotations

from actors.coordination.service.resource import Resource
from actors.web.dashboard.waiting import ERROR_CHARS, HeldLock


def held_lock(name: str, resource: Resource, now_ms: int) -> HeldLock | None:
    """Return the lock of a name; None if nobody holds it."""
    lock = resource.lock
    if not lock.holders:
        return None
    first, now = lock.holders[0], max(now_ms, resource.clock_ms)
    return HeldLock(
        name=name,
        kind=f"semaphore of {lock.limit}" if lock.kind == "semaphore" else "lock",
        holders=len(lock.holders),
        owner=first.owner,
        data=first.data[:ERROR_CHARS],
        token=first.token,
        expires_ms=first.expires_ms,
        is_over=all(holder.expires_ms <= now for holder in lock.holders),
        waiting=len(lock.waiters),
    )
