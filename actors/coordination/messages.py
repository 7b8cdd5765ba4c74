"""The messages between clients and the service: JSON with the tag `type` and the version `v` of the protocol.

All times are milliseconds. A `claim` is made up by the client: it names what a request takes, so that renewing it,
giving it back or withdrawing the request concerns nothing else, though another program runs under the same name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

from actors.coordination.locks import Asked, Holder
from actors.coordination.locks import Reason as LockReason
from actors.coordination.registry import Member

VERSION = 1
ACTOR = "coordination"
"""The name of the service's actor."""
MAX_WAIT_MS = 12 * 3600 * 1000
MAX_TTL_MS = 24 * 3600 * 1000
MAX_NAME = 200
MAX_DATA = 64 * 1024
"""Bytes of UTF-8."""

Reason: TypeAlias = (
    LockReason
    | Literal["malformed", "protocol", "misplaced", "ttl", "short-ttl", "conflict", "absent", "parties", "argument"]
)


class Envelope(msgspec.Struct):
    """The fields of a request that are decoded first."""

    v: int = 0
    type: str = ""


class Request(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """The base of requests."""

    v: int = VERSION


class Acquire(Asked, frozen=True, kw_only=True, tag_field="type", tag="acquire"):
    """Take a lock or a semaphore. Answer: `Grant` or `Refusal`."""

    v: int = VERSION


class Renew(Request, frozen=True, kw_only=True, tag="renew"):
    """Move the end of a lease. Answer: `Done` or `Refusal`."""

    owner: str
    token: int
    ttl_ms: int
    claim: str = ""


class Release(Request, frozen=True, kw_only=True, tag="release"):
    """Release once. Answer: `Done` or `Refusal`."""

    owner: str
    token: int
    claim: str = ""


class GiveUp(Request, frozen=True, kw_only=True, tag="give-up"):
    """Take back what an owner waits for, and holds, or of that one claim only. Answer: `Done`."""

    owner: str
    claim: str = ""


class Break(Request, frozen=True, kw_only=True, tag="break"):
    """Take a lock from all who hold it. Answer: `Done`."""


class Look(Request, frozen=True, kw_only=True, tag="look"):
    """Ask for the `View`."""


class Watch(Request, frozen=True, kw_only=True, tag="watch"):
    """Ask for the `View` as soon as its version is above `after`, or after `wait_ms` as it is.

    A waiter gets `Changed` in the place of a large one, and reads the node itself.
    """

    after: int
    wait_ms: int


class Put(Request, frozen=True, kw_only=True, tag="put"):
    """Write the node, or delete it with data None, if its version is as expected. Answer: `Done` or `Refusal`.

    An ephemeral node has a session and a ttl.
    """

    data: str | None
    expected: int | None = None
    session: str = ""
    ttl_ms: int | None = None
    claim: str = ""


class Keep(Request, frozen=True, kw_only=True, tag="keep"):
    """A session's sign of life for its ephemeral node. Answer: `Done` or `Refusal`."""

    session: str
    ttl_ms: int


class Drop(Request, frozen=True, kw_only=True, tag="drop"):
    """Delete the node if it is of that session and claim. Answer: `Done` or `Refusal`."""

    session: str
    claim: str = ""


class Join(Request, frozen=True, kw_only=True, tag="join"):
    """Become a member, or show something else as one. Answer: `Done`."""

    member: str
    ttl_ms: int
    data: str = ""
    claim: str = ""


class Beat(Request, frozen=True, kw_only=True, tag="beat"):
    """A member's sign of life. Answer: `Done` or `Refusal`."""

    member: str
    ttl_ms: int
    claim: str = ""


class Leave(Request, frozen=True, kw_only=True, tag="leave"):
    """Be no member any more. Answer: `Done`."""

    member: str
    claim: str = ""


class Enter(Request, frozen=True, kw_only=True, tag="enter"):
    """Wait at the barrier until so many parties do. Answer: `Done` with the generation, or `Refusal`."""

    party: str
    parties: int
    wait_ms: int
    claim: str = ""


class Withdraw(Request, frozen=True, kw_only=True, tag="withdraw"):
    """Take back what a `Put`, `Join` or `Enter` with that claim led to, if anything. Answer: `Done`."""

    claim: str


class Tick(Request, frozen=True, kw_only=True, tag="tick"):
    """The timer's message: something may be overdue."""


LockRequest: TypeAlias = Acquire | Renew | Release | GiveUp | Break
GroupRequest: TypeAlias = Join | Beat | Leave
AnyRequest: TypeAlias = LockRequest | Look | Watch | Put | Keep | Drop | GroupRequest | Enter | Withdraw | Tick


class Grant(msgspec.Struct, frozen=True, tag="grant"):
    """The lease, `waited_ms` after the request came. `count`: how often the owner holds it.

    `ttl_ms` is how long it lasts unless it is renewed: less than was asked for after a long wait.
    """

    token: int
    waited_ms: int
    count: int
    ttl_ms: int


class Done(msgspec.Struct, frozen=True, tag="done"):
    """It is done. `number`: of a node its version, of a barrier its generation, of a release how often it is held."""

    number: int = 0


class Refusal(msgspec.Struct, frozen=True, tag="refusal"):
    """Nothing was done, for a reason that programs and one that people understand."""

    reason: Reason
    text: str


class View(msgspec.Struct, frozen=True, kw_only=True, tag="view"):
    """A resource as clients see it.

    Attributes:
        version: grows with each change of what follows.
        holders: of the lock; for an election the leader.
        waiting: how many wait for the lock.
        last_token: of the lock.
        data: of the node, None if it is missing.
        data_version: of the node.
        members: of the group, in the order in which they joined.
    """

    version: int
    holders: tuple[Holder, ...]
    waiting: int
    last_token: int
    data: str | None
    data_version: int
    members: tuple[Member, ...]


class Changed(msgspec.Struct, frozen=True, tag="changed"):
    """There is a `View` of this version, or a later one."""

    version: int


Reply: TypeAlias = Grant | Done | Refusal | View | Changed

encode = msgspec.json.Encoder().encode
decode_envelope: Callable[[bytes], Envelope] = msgspec.json.Decoder(Envelope).decode
decode_request: Callable[[bytes], AnyRequest] = msgspec.json.Decoder(AnyRequest).decode
decode_reply: Callable[[bytes], Reply] = msgspec.json.Decoder(Reply).decode


def problem(request: AnyRequest, least_ttl_ms: int) -> Refusal | None:
    """Return why a request can't be meant, None if it can."""
    ttl_ms = getattr(request, "ttl_ms", None)
    if ttl_ms is not None and not 0 < ttl_ms <= MAX_TTL_MS:
        return Refusal("ttl", f"a ttl of {ttl_ms} ms: it has to be more than 0 and at most {MAX_TTL_MS} ms")
    if ttl_ms is not None and ttl_ms < least_ttl_ms:
        return Refusal(
            "short-ttl",
            f"a ttl of {ttl_ms} ms is shorter than {least_ttl_ms} ms, a few of the service's commit intervals: no "
            "renewal would come in time",
        )
    for name in ("owner", "session", "member", "party", "claim"):
        given = getattr(request, name, None)
        may_be_empty = name == "claim" or (isinstance(request, Put) and ttl_ms is None)
        if given is not None and not int(not may_be_empty) <= len(given) <= MAX_NAME:
            return Refusal("argument", f"{name}={given[:40]!r}: it has to be a text of 1 to {MAX_NAME} characters")
    data = getattr(request, "data", None) or ""
    if len(data) > MAX_DATA // 4 and len(data.encode(errors="surrogatepass")) > MAX_DATA:
        return Refusal("argument", f"data has more than {MAX_DATA} bytes: keep it elsewhere and its name here")
    if isinstance(request, Withdraw) and not request.claim:
        return Refusal("argument", "a withdrawal needs a claim")
    if isinstance(request, Put) and request.session and ttl_ms is None:
        return Refusal("argument", "an ephemeral node needs a ttl_ms beside its session")
    return _wrong_number(request)


def _wrong_number(request: AnyRequest) -> Refusal | None:
    bounds = {"wait_ms": (0, MAX_WAIT_MS), "permits": (1, 1 << 31), "limit": (1, 1 << 31), "parties": (1, 1_000)}
    for name, (least, most) in bounds.items():
        given = getattr(request, name, None)
        if given is not None and not least <= given <= most:
            return Refusal("argument", f"{name}={given}: it has to be {least} to {most}")
    return None
