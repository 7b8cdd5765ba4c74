"""A question whose answer is owed."""

from __future__ import annotations

import msgspec


class AnswerLater(msgspec.Struct, frozen=True):
    """A question whose answer is still owed: opaque, and JSON, so that it can be kept in the state of its key.

    Attributes:
        question: its id.
        reply_to: where the answer goes unless it was asked again.
        key: the key that was asked.
        kind: the type of message that it was.
        is_kept: whether the answer is kept, for when the question is asked again after it.
    """

    question: bytes
    reply_to: bytes
    key: bytes
    kind: str
    is_kept: bool = True
