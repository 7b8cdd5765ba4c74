"""Nexmark's three streams: people who open auctions and bid in them.

Of 50 events one is a person, three are auctions and 46 are bids, as in Nexmark. Some bids and auctions name an auction
or a seller that comes later, as there. Each topic has its events in an order that is up to `DISORDER_MS` away from that
of their times. The run lies around a midnight.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import msgspec

from actors.testing.fakes.cluster import EPOCH_MS

DISORDER_MS = 2_000
STEP_MS = 10
EVERY = 50
"""Of so many events the first is a person, and the next three are auctions."""
DAY_MS = 86_400_000
MIDNIGHT_MS = EPOCH_MS // DAY_MS * DAY_MS
END_MS = MIDNIGHT_MS + 3 * DAY_MS // 4
"""When the last event of each partition is: behind the end of everything but the second day."""
_LEAD = 10
_HOT = 20
_FIRST = 1_000
_LAST_IDS = range(10_000_000, 10_000_032)


class Person(msgspec.Struct, frozen=True):
    id: int
    name: str
    city: str
    state: str
    at_ms: int


class Auction(msgspec.Struct, frozen=True):
    id: int
    item: str
    seller: int
    category: int
    at_ms: int
    expires_ms: int


class Bid(msgspec.Struct, frozen=True):
    id: int
    auction: int
    bidder: int
    price: int
    channel: str
    url: str
    extra: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Events:
    """The events of a run, each stream in the order in which it is written."""

    persons: list[Person]
    auctions: list[Auction]
    bids: list[Bid]


def generate(count: int, seed: int = 1, *, step_ms: int = STEP_MS, bids: bool = True) -> Events:
    """Return so many events, `step_ms` after each other, and a last one for each partition; without `bids` no others.

    Args:
        count: of all events, left out or not.
    """
    random, begin_ms = Random(seed), MIDNIGHT_MS - count * step_ms // 2
    events = Events([], [], [])
    for number in range(count):
        at_ms, place = begin_ms + number * step_ms, number % EVERY
        if place == 0:
            events.persons.append(_person(random, _FIRST + len(events.persons), at_ms))
        elif place <= 3:
            identity, people = _FIRST + len(events.auctions), len(events.persons)
            events.auctions.append(_auction(random, identity, _recent(random, people, hot=4), at_ms))
        elif bids:
            auction = _recent(random, len(events.auctions), hot=2)
            bidder = _recent(random, len(events.persons), hot=4)
            events.bids.append(_bid(random, len(events.bids), (auction, bidder), at_ms))
    shuffled = [
        sorted(stream, key=lambda event: event.at_ms + random.random() * DISORDER_MS)
        for stream in (events.persons, events.auctions, events.bids)
    ]
    events = Events(*shuffled)
    for identity in _LAST_IDS:
        events.persons.append(_person(random, identity, END_MS))
        events.auctions.append(_auction(random, identity, identity, END_MS))
        events.bids.append(_bid(random, identity, (identity, identity), END_MS))
    return events


def _recent(random: Random, count: int, *, hot: int) -> int:
    """Return an id that is hot once in `hot` times, and else of the last 100, or of some that are still to come."""
    if random.random() * hot < 1:
        return _FIRST + count // _HOT * _HOT
    return _FIRST + random.randrange(max(count - 100, 0), count + _LEAD)


def _person(random: Random, identity: int, at_ms: int) -> Person:
    state = random.choice(["AZ", "CA", "ID", "OR", "WA", "WY"])
    return Person(identity, f"name-{random.randrange(1000)}", f"city-{random.randrange(10)}", state, at_ms)


def _auction(random: Random, identity: int, seller: int, at_ms: int) -> Auction:
    expires_ms = at_ms + random.randrange(1, 32_000)
    return Auction(identity, f"item-{random.randrange(100)}", seller, random.randrange(10, 15), at_ms, expires_ms)


def _bid(random: Random, identity: int, names: tuple[int, int], at_ms: int) -> Bid:
    price, channel = int(100 * 10 ** (random.random() * 6)), f"channel-{random.randrange(6)}"
    url = f"https://www.nexmark.com/{channel}/{random.randrange(50)}/item.htm?query=1"
    extra = "".join(random.choices("abcdef", k=10))
    return Bid(identity, *names, price, channel, url, extra, at_ms)
