"""Signatures of requests between workers: each is for one request to one worker, for a minute.

    Authorization: Actors-Mac TIME.BODY.SIGNATURE

`TIME` is in Unix milliseconds, `BODY` the SHA-256 of the body. `SIGNATURE` is an HMAC-SHA256 by a key that only the
app's workers have (`secret`), over time, body, method, the origin that the receiver announced, path with query, and the
partitions that are asked for. A program that makes a worker ask it gets nothing that another worker would take: each
worker looks for its own origin, not for the one that a request names.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import NamedTuple

SCHEME = "Actors-Mac"
PURPOSE = b"hop"
HOP = "Actors-Hop"
"""A request with this header was passed on by a worker, and isn't passed on again."""
APP = "Actors-App"
"""The app of the worker that passed a request on: another app's worker may be at an address that was announced."""
PARTITIONS = "Actors-Partitions"
"""The partitions that a worker that passed a request on wants to hear of."""
MAX_AGE_S = 60
"""How far the clocks of two workers may differ, with the time that a request takes."""


class SignedRequest(NamedTuple):
    """A request, as far as it is signed; `origin` is the receiver's, `path` has the query."""

    method: str
    origin: str
    path: str
    partitions: str = ""


def sign(key: bytes, asked: SignedRequest, body: bytes | None, now_ms: int) -> str:
    """Return the value of `Authorization` for a request."""
    digest = digest_of(body or b"")
    return f"{SCHEME} {now_ms}.{digest}.{_mac(key, asked, str(now_ms), digest)}"


def check(keys: Iterable[bytes], asked: SignedRequest, given: str, now_ms: int) -> str:
    """Return the digest that the request's body has to have.

    Raises:
        ValueError: the signature isn't of this request, or not of now; the text says so to the worker that asked.
    """
    scheme, _, content = given.partition(" ")
    at_ms, _, rest = content.partition(".")
    digest, _, mac = rest.partition(".")
    raw = mac.encode("utf-8", "surrogateescape")
    is_known = [hmac.compare_digest(_mac(key, asked, at_ms, digest).encode(), raw) for key in keys]
    if scheme != SCHEME or not any(is_known):
        raise ValueError(
            f"the signature isn't by a key of this worker, {asked.origin or 'which has no address'}, for this request: "
            "the workers need the same worker_secret, or the same tokens, and this worker has to be reached at the "
            "address that it announces (canonical_url)"
        )
    # It was signed, so it is a number.
    off_s = (now_ms - int(at_ms)) / 1000
    if abs(off_s) > MAX_AGE_S:
        side = "ago" if off_s > 0 else "in the future"
        raise ValueError(
            f"it was signed {abs(off_s):.0f} s {side} by this worker's clock, and {MAX_AGE_S} s are taken: set the "
            "clocks of both workers right (NTP)"
        )
    return digest


def digest_of(body: bytes) -> str:
    """Return the digest of a body."""
    return hashlib.sha256(body).hexdigest()


def _mac(key: bytes, asked: SignedRequest, at_ms: str, digest: str) -> str:
    # A line for each: none of them can have a line end.
    text = "\n".join((at_ms, digest, *asked))
    return hmac.digest(key, text.encode("utf-8", "surrogateescape"), "sha256").hex()
