"""The messages between the two actors of a join by a foreign key, and the rows of subscriptions.

A subscription is MessagePack `[left key, digest or nil, is page]`. With the digest of the left value it subscribes,
without it unsubscribes. A page goes on with the answers from that left key; its digest is that of the right value, nil
if there is none. An answer is `[digest of the left value, right value or nil]`, the value as it came in its topic.

The row of a subscription is the length of the foreign key (4 bytes, big-endian), that key and the left key; its value
is the digest of the left value.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from actors._core.outside import MALFORMED

DIGEST_BYTES = 16
_LENGTH_BYTES = 4


class Subscription(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A message to the owner of the right rows, from the owner of a left row or from itself."""

    left_key: bytes
    digest: bytes | None
    is_page: bool = False


class Answer(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The right row's value, None if there is none, for the left value with that digest."""

    digest: bytes
    right: bytes | None


encode_message = msgspec.msgpack.Encoder().encode
_decode_subscription = msgspec.msgpack.Decoder(Subscription).decode
_decode_answer = msgspec.msgpack.Decoder(Answer).decode


def decode_subscription(raw: bytes) -> Subscription:
    """Return the subscription that `encode_message` was given.

    Raises:
        ValueError: it is something else.
    """
    try:
        return _decode_subscription(raw)
    except MALFORMED as error:
        raise ValueError(f"not a subscription of a join, {error}: {raw[:50]!r}") from error


def decode_answer(raw: bytes) -> Answer:
    """Return the answer that `encode_message` was given.

    Raises:
        ValueError: it is something else.
    """
    try:
        return _decode_answer(raw)
    except MALFORMED as error:
        raise ValueError(f"not an answer of a join, {error}: {raw[:50]!r}") from error


def digest(raw: bytes) -> bytes:
    """Return a digest of a value."""
    return blake2b(raw, digest_size=DIGEST_BYTES).digest()


def within(outer: bytes, inner: bytes) -> bytes:
    """Return the key of one of the rows that belong to `outer`; they lie together, in order of their own keys."""
    return len(outer).to_bytes(_LENGTH_BYTES) + outer + inner
