"""What is said to the actors of the crash run, and what has to come of it: shared by its app and its checks.

Everything follows from a message's number, so that the input topic alone says what has to happen.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

CHORE_KEYS = 100
LONGEST_WAIT_MS = 5_000
FAR_MS = 86_400_000
STATE_TTL_MS = 2_000


class Wind(msgspec.Struct, tag="wind", frozen=True):
    """Ring after `wait_ms`, by the timestamps of the messages if `by_stream`."""

    number: int
    wait_ms: int
    by_stream: bool = False


class Unwind(msgspec.Struct, tag="unwind", frozen=True):
    """Don't ring `target`."""

    number: int
    target: int


class Keep(msgspec.Struct, tag="keep", frozen=True):
    """Keep the number for `ttl_ms`, for ever if it is None."""

    number: int
    ttl_ms: int | None


class Call(msgspec.Struct, tag="call", frozen=True):
    """Act outside."""

    number: int


class Refuse(msgspec.Struct, tag="refuse", frozen=True):
    """Do all of the above, and raise: nothing of it must happen."""

    number: int


class Tick(msgspec.Struct, tag="tick", frozen=True):
    """Let stream time go on."""

    number: int


Chore: TypeAlias = Wind | Unwind | Keep | Call | Refuse | Tick


def chore_key(number: int) -> bytes:
    """Give one of the `CHORE_KEYS` keys."""
    return b"chore-%03d" % number


def chore(number: int) -> tuple[bytes, Chore]:
    """Give a message's key, and the message."""
    kind, decade = number % 10, number // 10
    if kind == 3:
        # From right behind the timer's beginning to long after its end.
        target = 10 * (decade - min(decade, decade * 37 % 61))
        return chore(target)[0], Unwind(number, target)
    key = chore_key(number * 7919 % 104_729 % CHORE_KEYS)
    if kind < 3:
        wait_ms = FAR_MS if number % 20 == 0 else number * 37 % LONGEST_WAIT_MS
        return key, Wind(number, wait_ms, by_stream=decade % 4 == 1)
    if kind < 6:
        return key, Keep(number, None if number % 20 == 4 else 1 + number * 53 % 4_000)
    if kind == 9 and decade % 3 == 0:
        return key, Refuse(number)
    return key, Call(number)


def ring_acts(number: int) -> bool:
    """Whether a timer's message acts outside."""
    return number % 3 == 0


def expiry_acts(number: int) -> bool:
    """Whether the hook of an expired value does."""
    return number % 3 == 1


def number_of(label: str) -> int:
    """Give the number at the end of an effect's label, `call-7`."""
    return int(label.rpartition("-")[2])


def act_fails(label: str, attempt: int) -> bool:
    """Whether an attempt fails."""
    number = number_of(label)
    return number // 10 % 5 == 1 and attempt <= 1 + number % 2


def act_answers(label: str) -> bool:
    """Whether a success has a result."""
    return number_of(label) % 2 == 0


CLICK_KEYS = 12
STEP_MS = 50
"""So far event time goes on with each click; clicks are up to `LATEST_MS` older than that, some `FAR_BEHIND_MS`."""
LATEST_MS = 2_503
FAR_BEHIND_MS = 60_000
SPAN_MS = 2_000
GAP_MS = 500
GRACE_MS = 1_500


class Click(msgspec.Struct, frozen=True):
    """Something that happened at a time of its own, Unix milliseconds."""

    number: int
    at_ms: int


def click_key(number: int) -> bytes:
    """Give one of the `CLICK_KEYS` keys."""
    return b"visitor-%02d" % number


def click(number: int, begin_ms: int) -> tuple[bytes, Click]:
    """Give a click's key, and the click; the first one is at about `begin_ms`."""
    behind_ms = FAR_BEHIND_MS if number % 41 == 7 else number * number * 7919 % LATEST_MS
    return click_key(number * 31 % CLICK_KEYS), Click(number, begin_ms + number * STEP_MS - behind_ms)


MATCH_KEYS = 24
BEFORE_MS, AFTER_MS = 400, 800
"""A bid matches an offer if it is at most so much earlier, or later."""


def match_key(number: int) -> bytes:
    """Give one of the `MATCH_KEYS` keys."""
    return b"lot-%02d" % number


def half(side: int, number: int, begin_ms: int) -> tuple[bytes, Click]:
    """Give the key and the record of an offer (side 0) or a bid (side 1); each has a number of its own."""
    behind_ms = FAR_BEHIND_MS if number % 41 == 7 + side else number * number * (7919 + 18 * side) % LATEST_MS
    at_ms = begin_ms + number * STEP_MS - behind_ms
    return match_key(number * (31 - 14 * side) % MATCH_KEYS), Click(2 * number + side, at_ms)


PARCEL_KEYS, DEPOT_KEYS = 120, 16


class Parcel(msgspec.Struct, frozen=True):
    """A row of the left table, and the key of the row of the right one that it names, if it names any."""

    number: int
    depot: str | None


class Depot(msgspec.Struct, frozen=True):
    """A row of the right table."""

    number: int


def parcel_key(number: int) -> bytes:
    """Give one of the `PARCEL_KEYS` keys."""
    return b"parcel-%03d" % number


def depot_key(number: int) -> bytes:
    """Give one of the `DEPOT_KEYS` keys."""
    return b"depot-%02d" % number


def parcel(number: int) -> tuple[bytes, Parcel | None]:
    """Give a left key, and its row or a tombstone; a row may name no depot, and each time another one."""
    key = parcel_key(number * 7919 % 104_729 % PARCEL_KEYS)
    if number % 7 == 3:
        return key, None
    depot = None if number % 11 == 5 else depot_key(number * number * 31 % 101 % DEPOT_KEYS).decode()
    return key, Parcel(number, depot)


def depot(number: int) -> tuple[bytes, Depot | None]:
    """Give a right key, and its row or a tombstone."""
    return depot_key(number * 37 % 101 % DEPOT_KEYS), None if number % 5 == 2 else Depot(number)
