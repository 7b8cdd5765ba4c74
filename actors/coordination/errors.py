"""Errors of the client. Each says what happened, to which resource, and what to do."""

from __future__ import annotations

from actors.coordination.messages import Refusal
from actors.errors import ActorsError


class CoordinationError(ActorsError):
    """The root of this package's errors; `reason` is the service's word for it, where it said one."""

    def __init__(self, text: str, reason: str = "") -> None:
        self.reason = reason
        super().__init__(text)


class CoordinationTimeoutError(CoordinationError):
    """No reply arrived in time, or no holder released the lock in time."""


class BusyError(CoordinationError):
    """Somebody else has it, or too many wait for it already."""


class LeaseLostError(CoordinationError):
    """The lease is over: somebody else may have it by now."""


class NotHolderError(CoordinationError):
    """Somebody else has it: only the owner that was granted a lease renews and releases it."""


class UnknownLockError(CoordinationError):
    """There was never a holder of a lock of that name."""


class LockMismatchError(CoordinationError):
    """It is in use as another kind of lock, with another number of permits, or is held by the same owner otherwise."""


class TtlError(CoordinationError):
    """A time to live that is too short for the service, longer than a day, or no time."""


class ConflictError(CoordinationError):
    """The node has another version than expected: somebody else changed it."""


class ProtocolError(CoordinationError):
    """The service speaks another version of the protocol, or doesn't understand the request."""


_TYPES: dict[str, tuple[type[CoordinationError], str]] = {
    "busy": (BusyError, "try again later, or wait for it with timeout=…"),
    "crowded": (BusyError, "let fewer wait for it, watch it or join it, or show less data"),
    "timeout": (CoordinationTimeoutError, "wait longer, or look who holds it"),
    "broken": (CoordinationTimeoutError, "the wait was given up"),
    "expired": (LeaseLostError, "acquire it again; resources that check tokens refuse the old one"),
    "not-holder": (NotHolderError, "use the lease that acquire gave"),
    "unknown": (UnknownLockError, "look at the name"),
    "mismatch": (LockMismatchError, "use the same kind and the same number of permits everywhere"),
    "ttl": (TtlError, ""),
    "short-ttl": (TtlError, "use a longer one"),
    "conflict": (ConflictError, "read it again and decide again"),
    "absent": (LeaseLostError, "it was removed since no renewal arrived in time: create it again"),
    "parties": (LockMismatchError, "all who wait at a barrier have to expect the same number"),
    "malformed": (ProtocolError, "send what actors.coordination.messages describes"),
    "protocol": (ProtocolError, "use the client of the service's version"),
    "misplaced": (ProtocolError, "create a new client: the topic may have other partitions than it knows of"),
    "argument": (CoordinationError, ""),
}


def error_of(what: str, refusal: Refusal) -> CoordinationError:
    """Return the error for what the service said to a request, `what` naming the request for people."""
    kind, advice = _TYPES[refusal.reason]
    return kind(f"{what}: {refusal.text}" + (f": {advice}" if advice else ""), refusal.reason)
