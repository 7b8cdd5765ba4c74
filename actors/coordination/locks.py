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
re-created.

A claim names one taking of the resource among its owner's. Releases, renewals and give-ups that name one concern that
one only: an owner's program may run twice for a while, when the first one is taken for dead.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

MAX_WAITERS = 1_000
"""Later requests are refused at once: each change writes the whole state."""
MAX_CLAIMS = 1_000
"""A holder doesn't take it again more often."""
FIRST_LEASE_MS = 10_000
"""The longest first lease of an owner that waited: many owners that wait may be dead by then."""

Kind = Literal["lock", "semaphore"]
Reason = Literal["busy", "timeout", "expired", "not-holder", "unknown", "mismatch", "crowded", "broken"]


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A request for the resource, as clients send it.

    Attributes:
        owner: the client; a holder that asks again gets its own token again.
        kind: what the resource is taken for; everyone has to agree as long as it is held or waited for.
        shared: as one of many readers, of a lock.
        permits: how many of a semaphore's.
        limit: how many permits the semaphore has; 1 for a lock.
        ttl_ms: after so long without a renewal the lease is over.
        wait_ms: how long to wait for it; 0 for not at all.
        data: what the holder shows to others.
        claim: names this taking of it; "" for none.
        anew: the owner doesn't know what became of its earlier requests and claims: this one takes their place.
    """

    owner: str
    claim: str = ""
    anew: bool = False
    kind: Kind = "lock"
    shared: bool = False
    permits: int = 1
    limit: int = 1
    ttl_ms: int
    wait_ms: int = 0
    data: str = ""


class Want(Asked, frozen=True, kw_only=True):
    """A request for the resource; events name it by its `id`."""

    id: str


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """An owner that holds it `count` times, until `expires_ms` unless renewed; `claims` are the named ones."""

    owner: str
    token: int
    shared: bool
    permits: int
    count: int
    expires_ms: int
    data: str
    claims: tuple[str, ...] = ()


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
    """Request `id` was granted, `waited_ms` after it was received; its owner holds the resource `count` times."""

    id: str
    token: int
    expires_ms: int
    waited_ms: int
    count: int


class Refused(msgspec.Struct, frozen=True):
    """Request `id` was refused, or its wait ended."""

    id: str
    reason: Reason


class Renewed(msgspec.Struct, frozen=True):
    """Request `id` has moved the end of its lease."""

    id: str
    token: int
    expires_ms: int


class Released(msgspec.Struct, frozen=True):
    """Request `id` has released; its owner still holds the resource `count` times."""

    id: str
    count: int


class Expired(msgspec.Struct, frozen=True):
    """A lease ended without a request."""

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
    agreed = lock
    if not lock.holders and not lock.waiters:
        agreed = msgspec.structs.replace(lock, kind=want.kind, limit=want.limit)
    refusal = _refusal(agreed, want)
    if refusal is not None:
        return lock, [*events, Refused(want.id, refusal)]
    waiter = Waiter(want=want, offset=offset, since_ms=now_ms, deadline_ms=now_ms + want.wait_ms)
    lock, replaced = _queued(agreed, waiter)
    lock, served = _serve(lock, now_ms)
    if want.wait_ms == 0 and any(one is waiter for one in lock.waiters):
        lock = msgspec.structs.replace(lock, waiters=tuple(one for one in lock.waiters if one is not waiter))
        served.append(Refused(want.id, "busy"))
    return lock, events + replaced + served


def renew(lock: Lock, id: str, owner: str, token: int, ttl_ms: int, now_ms: int, *, claim: str = "") -> Step:
    """Let the lease end `ttl_ms` from now, if it isn't over; a renewal never shortens it."""
    lock, events = _overdue(lock, now_ms)
    holder = _holder(lock, owner)
    if holder is None or holder.token != token or not _is_claimed(holder, claim):
        return lock, [*events, Refused(id, _why_not(lock, owner, token, claim))]
    longer = msgspec.structs.replace(holder, expires_ms=max(holder.expires_ms, now_ms + ttl_ms))
    return _with(lock, longer), [*events, Renewed(id, token, longer.expires_ms)]


def release(lock: Lock, id: str, owner: str, token: int, now_ms: int, *, claim: str = "") -> Step:
    """Release once, the `claim` if one is named."""
    lock, events = _overdue(lock, now_ms)
    holder = _holder(lock, owner)
    if holder is None or holder.token != token or not _is_claimed(holder, claim):
        return lock, [*events, Refused(id, _why_not(lock, owner, token, claim))]
    left = _less(holder, claim)
    if left is not None:
        return _with(lock, left), [*events, Released(id, left.count)]
    lock, served = _serve(_without(lock, holder), now_ms)
    return lock, [*events, Released(id, 0), *served]


def give_up(lock: Lock, id: str, owner: str, now_ms: int, *, claim: str = "") -> Step:
    """Take back all that the owner waits for, and holds: it may not know that it was granted.

    With a `claim` that one only, whether it waits or holds.
    """
    lock, events = _overdue(lock, now_ms)
    gone = [one for one in lock.waiters if one.want.owner == owner and claim in ("", one.want.claim)]
    events += [Refused(waiter.want.id, "broken") for waiter in gone]
    lock = msgspec.structs.replace(lock, waiters=tuple(one for one in lock.waiters if one not in gone))
    holder = _holder(lock, owner)
    if holder is not None and _is_claimed(holder, claim):
        left = _less(holder, claim) if claim else None
        lock = _without(lock, holder) if left is None else _with(lock, left)
    lock, served = _serve(lock, now_ms)
    return lock, [*events, Released(id, 0), *served]


def break_all(lock: Lock, id: str, now_ms: int) -> Step:
    """Take it from all holders, for an operator. Their renewals are refused; tokens fence their later writes."""
    lock, events = _overdue(lock, now_ms)
    events += [Expired(holder.owner, holder.token) for holder in lock.holders]
    lock, served = _serve(msgspec.structs.replace(lock, holders=()), now_ms)
    return lock, [*events, Released(id, 0), *served]


def tick(lock: Lock, now_ms: int) -> Step:
    """End the leases and waits that are over."""
    return _overdue(lock, now_ms)


def due_ms(lock: Lock) -> int | None:
    """Return the end of the next lease or wait, None if there is none."""
    ends = [holder.expires_ms for holder in lock.holders] + [waiter.deadline_ms for waiter in lock.waiters]
    return min(ends, default=None)


def _overdue(lock: Lock, now_ms: int) -> Step:
    """End what is over: waits first, since their clients may be gone; then serve the waiters that are left."""
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
        waited_ms = now_ms - waiter.since_ms
        # Who waited for less counts its lease from its request, and may not renew it at once.
        is_long = waited_ms > want.ttl_ms // 3
        ends = now_ms + (min(want.ttl_ms, FIRST_LEASE_MS) if is_long else want.ttl_ms)
        token = max(lock.last_token + 1, waiter.offset)
        if holder is not None:
            token, ends = holder.token, max(holder.expires_ms, ends)
        earlier = None if want.anew else holder
        count = 1 if earlier is None else earlier.count + 1
        claims = () if earlier is None else earlier.claims
        now_holds = Holder(
            owner=want.owner,
            token=token,
            shared=want.shared,
            permits=want.permits,
            count=count,
            expires_ms=ends,
            data=want.data,
            claims=(*claims, want.claim) if want.claim else claims,
        )
        waiting = tuple(other for other in lock.waiters if other is not waiter)
        lock = _with(msgspec.structs.replace(lock, waiters=waiting, last_token=max(lock.last_token, token)), now_holds)
        events.append(Granted(want.id, token, ends, waited_ms, count))
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
    own = [waiter.want for waiter in lock.waiters if waiter.want.owner == want.owner]
    if not want.anew and any(not _is_alike(other, want) for other in own):
        return "mismatch"
    if holder is not None:
        return "crowded" if len(holder.claims) >= MAX_CLAIMS and not want.anew else None
    return "crowded" if len(lock.waiters) >= MAX_WAITERS and not (want.anew and own) else None


def _queued(lock: Lock, waiter: Waiter) -> Step:
    """Add a waiter: as the last, or with `anew` in the place of the owner's earlier request."""
    own = [one for one in lock.waiters if waiter.want.anew and one.want.owner == waiter.want.owner]
    if not own:
        return msgspec.structs.replace(lock, waiters=(*lock.waiters, waiter)), []
    waiters = tuple(waiter if one is own[0] else one for one in lock.waiters if one not in own[1:])
    return msgspec.structs.replace(lock, waiters=waiters), [Refused(one.want.id, "broken") for one in own]


def _is_alike(other: Holder | Want, want: Want) -> bool:
    return (other.shared, other.permits) == (want.shared, want.permits)


def _why_not(lock: Lock, owner: str, token: int, claim: str) -> Reason:
    """Return why an owner's token isn't a holder's: it came too late, or the owner holds nothing."""
    if not lock.last_token and not lock.waiters:
        return "unknown"
    if claim and any(holder.token == token and holder.owner == owner for holder in lock.holders):
        # Released before, or the owner has asked anew since.
        return "expired"
    is_anothers = any(holder.token == token or holder.owner == owner for holder in lock.holders)
    return "expired" if 0 < token <= lock.last_token and not is_anothers else "not-holder"


def _is_claimed(holder: Holder, claim: str) -> bool:
    return not claim or claim in holder.claims


def _less(holder: Holder, claim: str) -> Holder | None:
    """Return the holder with one claim less, None if that was the last."""
    if holder.count == 1:
        return None
    claims = list(holder.claims)
    if claim:
        claims.remove(claim)
    return msgspec.structs.replace(holder, count=holder.count - 1, claims=tuple(claims))


def _holder(lock: Lock, owner: str) -> Holder | None:
    return next((holder for holder in lock.holders if holder.owner == owner), None)


def _with(lock: Lock, holder: Holder) -> Lock:
    """Put a holder in its place among the others, a new one behind them."""
    if _holder(lock, holder.owner) is None:
        return msgspec.structs.replace(lock, holders=(*lock.holders, holder))
    holders = tuple(holder if other.owner == holder.owner else other for other in lock.holders)
    return msgspec.structs.replace(lock, holders=holders)


def _without(lock: Lock, holder: Holder) -> Lock:
    return msgspec.structs.replace(lock, holders=tuple(other for other in lock.holders if other is not holder))
