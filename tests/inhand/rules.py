"""What is said to the actors of the run, shared by its app and its feeder: everything follows from a number.

Event time goes on by `STEP_MS` with each number, far faster than the run, so that days of windows close within it. No
record is later than `GRACE_MS`, so none is late by its own input.
"""

from __future__ import annotations

import msgspec

STEP_MS = 400_000
GRACE_MS = 600_000
SPAN_MS = 3_600_000
HOP_MS = 7_200_000
SLIDE_MS = 1_800_000
GAP_MS = 1_800_000
SHIFT_MS = 21_600_000
EVERY_MS = 1_200_000
ZONE = "Europe/Berlin"
BEFORE_MS, AFTER_MS = 1_800_000, 3_600_000
"""A right record matches a left one if it is at most so much earlier, or later."""
FLUSH_MS = 3 * 86_400_000
"""So far behind the last number the records are that close everything."""
SLOW_S = 0.02
CALL_S = 0.05
TTL_MS = 2_000
KEYS, CLICK_KEYS, CHORE_KEYS = 40, 9, 30


class Click(msgspec.Struct, frozen=True):
    """Something that happened at a time of its own, Unix milliseconds."""

    number: int
    at_ms: int


class Job(msgspec.Struct, tag="job", frozen=True):
    """Do all chores for a number."""

    number: int


class Tick(msgspec.Struct, tag="tick", frozen=True):
    """Let stream time go on."""


class Ring(msgspec.Struct, tag="ring", frozen=True):
    """A timer's message."""

    number: int


class Done(msgspec.Struct, tag="done", frozen=True):
    """An effect's result."""

    number: int


class Question(msgspec.Struct, tag="question", frozen=True):
    """A number for an actor that counts."""

    number: int


def is_slow(number: int) -> bool:
    """Whether what a number leads to takes `SLOW_S`."""
    return number % 2 == 0


def is_refused(number: int) -> bool:
    """Whether the handler raises while the app is broken."""
    return number % 5 == 0


def mixed(number: int, factor: int, count: int) -> int:
    """Give one of `count` numbers in an order without a pattern; `factor` makes that of each topic another one."""
    return number * factor % 104_729 % count


def key(number: int, factor: int = 7919) -> bytes:
    """Give one of the `KEYS` keys."""
    return b"key-%02d" % mixed(number, factor, KEYS)


def click_key(number: int) -> bytes:
    """Give one of the `CLICK_KEYS` keys."""
    return b"visitor-%d" % mixed(number, 7919, CLICK_KEYS)


def chore_key(number: int) -> bytes:
    """Give one of the `CHORE_KEYS` keys."""
    return b"chore-%02d" % mixed(number, 7919, CHORE_KEYS)


HALVES = {"offers": 7937, "bids": 7949, "orders": 7951, "payments": 7963}
"""The inputs of joins, each with its factor."""


def click(number: int, begin_ms: int, *, factor: int) -> Click:
    """Give the record of a number; `factor` makes those of several topics differ."""
    behind_ms = number * number * factor % GRACE_MS
    return Click(number, begin_ms + number * STEP_MS - behind_ms)
