"""Locks with leases, of one resource: who holds it, who waits, and what each request leads to.

    acquire ──▶ holder, if it fits and nobody waits ──▶ released, expired or broken
       └──────▶ waiter, in the order of requests ──▶ holder, or timed out

Every function takes the state, the time and a request, and gives the new state and the events that answer requests.
What is overdue is seen to first, so that a late timer makes no difference; whoever now comes first is served last.

One rule for all kinds: a semaphore has `limit` permits; a plain lock is one with a single permit, and its readers hold
it together. Only the first waiter can be next, so a writer isn't starved by readers that come later, nor one who wants
many permits by those who want few.

Fencing token of a grant: max(last token + 1, offset of the request that won it). The last token is kept for ever, so
tokens grow though offsets can go back: grants aren't first come, first served once requests give up, and topics can be
made anew.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

MAX_WAITERS = 1_000
"""Who comes later is refused at once: the state is written anew with every change."""

Kind = Literal["lock", "semaphore"]
Reason = Literal["busy", "timeout", "expired", "not-holder", "unknown", "mismatch", "crowded", "broken"]


class Want(msgspec.Struct, frozen=True, kw_only=True):
    """A request for the resource.

    Attributes:
        id: of the request, by which events name it.
        owner: who asks; a holder that asks again gets its own token again.
        kind: what the resource is taken for; everyone has to agree as long as it is held or waited for.
        shared: as one of many readers, of a lock.
        permits: how many of a semaphore's.
        limit: how many permits the semaphore has; 1 for a lock.
        ttl_ms: after so long without a renewal the lease is over.
        wait_ms: how long to wait for it; 0 for not at all.
        data: what the holder shows to others.
    """

    id: str
    owner: str
    kind: Kind = "lock"
    shared: bool = False
    permits: int = 1
    limit: int = 1
    ttl_ms: int
    wait_ms: int = 0
    data: str = ""


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """One who holds it, `count` times, until `expires_ms` unless that is renewed."""

    owner: str
    token: int
    shared: bool
    permits: int
    count: int
    expires_ms: int
    data: str


class Waiter(msgspec.Struct, frozen=True, kw_only=True):
    """A request that waits since `since_ms`, at the latest until `deadline_ms`. `offset` is the request's."""

    want: Want
    offset: int
    since_ms: int
    deadline_ms: int


class Lock(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a resource. Waiters are in the order of their requests. `last_token` 0: nobody ever held it."""

    kind: Kind = "lock"
    limit: int = 1
    holders: tuple[Holder, ...] = ()
    waiters: tuple[Waiter, ...] = ()
    last_token: int = 0


class Granted(msgspec.Struct, frozen=True):
    """Request `id` holds it, `count` times by now, for `waited_ms` after it was received."""

    id: str
    token: int
    expires_ms: int
    waited_ms: int
    count: int


class Refused(msgspec.Struct, frozen=True):
    """Request `id` came to nothing."""

    id: str
    reason: Reason


class Renewed(msgspec.Struct, frozen=True):
    """Request `id` has moved the end of its lease."""

    id: str
    token: int
    expires_ms: int


class Released(msgspec.Struct, frozen=True):
    """Request `id` has let go; its owner still holds it `count` times."""

    id: str
    count: int


class Expired(msgspec.Struct, frozen=True):
    """A lease ended without anybody asking for it."""

    owner: str
    token: int


Event: TypeAlias = Granted | Refused | Renewed | Released | Expired
Step: TypeAlias = tuple[Lock, list[Event]]


def acquire(lock: Lock, want: Want, now_ms: int, offset: int) -> Step:
    """Grant the request, let it wait, or refuse it: "busy", "timeout", "crowded", or "mismatch".

    A mismatch is a request for another kind or limit than those who hold it or wait for it, one for more permits than
    there are, or one by a holder that wants it in another way.
    """
    lock, events = _overdue(lock, now_ms)
    if not lock.holders and not lock.waiters:
        lock = msgspec.structs.replace(lock, kind=want.kind, limit=want.limit)
    refusal = _refusal(lock, want)
    if refusal is not None:
        return lock, [*events, Refused(want.id, refusal)]
    waiter = Waiter(want=want, offset=offset, since_ms=now_ms, deadline_ms=now_ms + want.wait_ms)
    lock = msgspec.structs.replace(lock, waiters=(*lock.waiters, waiter))
    lock, served = _serve(lock, now_ms)
    if want.wait_ms == 0 and lock.waiters and lock.waiters[-1] is waiter:
        lock = msgspec.structs.replace(lock, waiters=lock.waiters[:-1])
        served.append(Refused(want.id, "busy"))
    return lock, events + served


def renew(lock: Lock, id: str, owner: str, token: int, ttl_ms: int, now_ms: int) -> Step:
    """Let the lease end `ttl_ms` from now, if it isn't over; a renewal never shortens it."""
    lock, events = _overdue(lock, now_ms)
    holder = _holder(lock, owner)
    if holder is None or holder.token != token:
        return lock, [*events, Refused(id, _why_not(lock, owner, token))]
    longer = msgspec.structs.replace(holder, expires_ms=max(holder.expires_ms, now_ms + ttl_ms))
    return _with(lock, longer), [*events, Renewed(id, token, longer.expires_ms)]


def release(lock: Lock, id: str, owner: str, token: int, now_ms: int, *, entirely: bool = False) -> Step:
    """Let go once, or `entirely`, however often the owner has asked for it."""
    lock, events = _overdue(lock, now_ms)
    holder = _holder(lock, owner)
    if holder is None or holder.token != token:
        return lock, [*events, Refused(id, _why_not(lock, owner, token))]
    count = 0 if entirely else holder.count - 1
    if count:
        return _with(lock, msgspec.structs.replace(holder, count=count)), [*events, Released(id, count)]
    lock, served = _serve(_without(lock, holder), now_ms)
    return lock, [*events, Released(id, 0), *served]


def give_up(lock: Lock, id: str, owner: str, now_ms: int, *, only_waits: bool = False) -> Step:
    """Take back all that the owner waits for, and, unless `only_waits`, holds: it may not know that it was granted."""
    lock, events = _overdue(lock, now_ms)
    events += [Refused(waiter.want.id, "broken") for waiter in lock.waiters if waiter.want.owner == owner]
    lock = msgspec.structs.replace(
        lock,
        waiters=tuple(waiter for waiter in lock.waiters if waiter.want.owner != owner),
        holders=tuple(holder for holder in lock.holders if only_waits or holder.owner != owner),
    )
    lock, served = _serve(lock, now_ms)
    return lock, [*events, Released(id, 0), *served]


def break_all(lock: Lock, id: str, now_ms: int) -> Step:
    """Take it from all who hold it, for an operator. They are told when they renew; tokens fence what they still do."""
    lock, events = _overdue(lock, now_ms)
    events += [Expired(holder.owner, holder.token) for holder in lock.holders]
    lock, served = _serve(msgspec.structs.replace(lock, holders=()), now_ms)
    return lock, [*events, Released(id, 0), *served]


def tick(lock: Lock, now_ms: int) -> Step:
    """End the leases and waits that are over."""
    return _overdue(lock, now_ms)


def due_ms(lock: Lock) -> int | None:
    """Give when the next lease or wait is over, None if there is none."""
    ends = [holder.expires_ms for holder in lock.holders] + [waiter.deadline_ms for waiter in lock.waiters]
    return min(ends, default=None)


def _overdue(lock: Lock, now_ms: int) -> Step:
    """End what is over: waits first, for whoever asked may be gone; then whoever waits is served."""
    due = due_ms(lock)
    if due is None or due > now_ms:
        return lock, []
    events: list[Event] = [
        Refused(waiter.want.id, "timeout") for waiter in lock.waiters if waiter.deadline_ms <= now_ms
    ]
    events += [Expired(holder.owner, holder.token) for holder in lock.holders if holder.expires_ms <= now_ms]
    lock = msgspec.structs.replace(
        lock,
        waiters=tuple(waiter for waiter in lock.waiters if waiter.deadline_ms > now_ms),
        holders=tuple(holder for holder in lock.holders if holder.expires_ms > now_ms),
    )
    lock, served = _serve(lock, now_ms)
    return lock, events + served


def _serve(lock: Lock, now_ms: int) -> Step:
    """Grant what can be granted: again to holders wherever they wait, else to the first, and the first after it."""
    events: list[Event] = []
    while (waiter := _next(lock)) is not None:
        want, holder = waiter.want, _holder(lock, waiter.want.owner)
        if holder is None:
            token, count, ends = max(lock.last_token + 1, waiter.offset), 1, now_ms + want.ttl_ms
        else:
            token, count, ends = holder.token, holder.count + 1, max(holder.expires_ms, now_ms + want.ttl_ms)
        now_holds = Holder(
            owner=want.owner,
            token=token,
            shared=want.shared,
            permits=want.permits,
            count=count,
            expires_ms=ends,
            data=want.data,
        )
        waiting = tuple(other for other in lock.waiters if other is not waiter)
        lock = _with(msgspec.structs.replace(lock, waiters=waiting, last_token=max(lock.last_token, token)), now_holds)
        events.append(Granted(want.id, token, ends, now_ms - waiter.since_ms, count))
    return lock, events


def _next(lock: Lock) -> Waiter | None:
    for waiter in lock.waiters:
        holder = _holder(lock, waiter.want.owner)
        if holder is not None and _is_alike(holder, waiter.want):
            return waiter
    if lock.waiters and _fits(lock, lock.waiters[0].want):
        return lock.waiters[0]
    return None


def _fits(lock: Lock, want: Want) -> bool:
    if lock.kind == "semaphore":
        return sum(holder.permits for holder in lock.holders) + want.permits <= lock.limit
    return not lock.holders or (want.shared and all(holder.shared for holder in lock.holders))


def _refusal(lock: Lock, want: Want) -> Reason | None:
    holder = _holder(lock, want.owner)
    is_other = (want.kind, want.limit) != (lock.kind, lock.limit) or want.permits > lock.limit
    if is_other or (holder is not None and not _is_alike(holder, want)):
        return "mismatch"
    if any(waiter.want.owner == want.owner and not _is_alike(waiter.want, want) for waiter in lock.waiters):
        return "mismatch"
    return "crowded" if len(lock.waiters) >= MAX_WAITERS and holder is None else None


def _is_alike(other: Holder | Want, want: Want) -> bool:
    return (other.shared, other.permits) == (want.shared, want.permits)


def _why_not(lock: Lock, owner: str, token: int) -> Reason:
    """Tell one that came too late from one that holds nothing."""
    if not lock.last_token and not lock.waiters:
        return "unknown"
    is_anothers = any(holder.token == token or holder.owner == owner for holder in lock.holders)
    return "expired" if 0 < token <= lock.last_token and not is_anothers else "not-holder"


def _holder(lock: Lock, owner: str) -> Holder | None:
    return next((holder for holder in lock.holders if holder.owner == owner), None)


def _with(lock: Lock, holder: Holder) -> Lock:
    others = tuple(other for other in lock.holders if other.owner != holder.owner)
    return msgspec.structs.replace(lock, holders=(*others, holder))


def _without(lock: Lock, holder: Holder) -> Lock:
    return msgspec.structs.replace(lock, holders=tuple(other for other in lock.holders if other is not holder))
