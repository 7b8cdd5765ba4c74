"""What must be true of the join of a run, from what is in Kafka alone: independent of the code under test.

The order in which offers and bids are handled isn't known, so neither is which of them are late. But the late ones are
in a topic of their own, and all others meet: each two of them that are close are a pair, whichever came first. Each
call states the stream time at which it was made, which is that of the slower input. A record is called without a match
if its window closed before all of its pairs, if there are any, were called.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from tests.crash import rules
from tests.crash.checks import Record, in_order
from tests.crash.chore_checks import ChoreFindings

COUNTS = (
    "pairs_lost",
    "pairs_doubled",
    "pairs_unasked",
    "pairs_out_of_order",
    "lone_lost",
    "lone_doubled",
    "lone_unasked",
    "lone_out_of_order",
    "calls_wrong_time",
    "late_halves_doubled",
    "late_halves_unasked",
)
OFFER, BID = 0, 1
SPANS_MS = (rules.AFTER_MS, rules.BEFORE_MS)
"""How long after a record of each side its last match may be."""


class Call(NamedTuple):
    """What the join was called for."""

    partition: int
    key: bytes
    offer: int | None
    bid: int | None
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinEvidence:
    """What a run left: offers and bids, what the join was called for, and the records that were too late."""

    offers: Sequence[Record]
    bids: Sequence[Record]
    called: Sequence[Record]
    late: Sequence[Record]


@dataclass(slots=True)
class _Half:
    """An offer or a bid.

    Attributes:
        closed_ms: the last stream time at which its window is open.
        first_ms: the stream time of its first pair.
    """

    partition: int
    key: bytes
    side: int
    number: int
    at_ms: int
    first_ms: int | None = None

    @property
    def closed_ms(self) -> int:
        return self.at_ms + SPANS_MS[self.side] + rules.GRACE_MS

    @property
    def alone(self) -> Call:
        """The call for it without a match."""
        numbers = (self.number, None) if self.side == OFFER else (None, self.number)
        return Call(self.partition, self.key, *numbers, self.at_ms)


def check_joins(evidence: JoinEvidence) -> ChoreFindings:
    """Compare what the join was called for with what the inputs ask for."""
    findings = ChoreFindings.of(COUNTS)
    halves = [*_halves(evidence.offers, OFFER), *_halves(evidence.bids, BID)]
    ends: dict[int, int] = {}
    for one in halves:
        ends[one.partition] = max(one.at_ms, ends.get(one.partition, -1))
    late = Counter(json.loads(record.value or b"")["number"] for record in evidence.late)
    # Whether a record is late depends on how far the slower input was read, so any record may be in time.
    may_be_late = {one.number for one in halves if late[one.number] and one.closed_ms < ends[one.partition]}
    findings.once("late_halves", may_be_late, late)
    in_time = {one.number: one for one in halves if not late[one.number]}
    said = [(_call(record), json.loads(record.value or b"")["stream_ms"]) for record in in_order(evidence.called)]
    pairs = [(call, stream_ms) for call, stream_ms in said if None not in (call.offer, call.bid)]
    lone = [(call, stream_ms) for call, stream_ms in said if None in (call.offer, call.bid)]
    findings.once("pairs", _pairs(in_time.values()), Counter(call for call, _ in pairs))
    _check_pairs(pairs, in_time, ends, findings)
    over = (one for one in in_time.values() if one.closed_ms < ends[one.partition])
    wanted = (one.alone for one in over if one.first_ms is None or one.first_ms > one.closed_ms)
    findings.once("lone", wanted, Counter(call for call, _ in lone))
    _check_lone(lone, in_time, findings)
    findings.seen["pairs"] = len(pairs)
    findings.seen["lone_offers"] = sum(call.bid is None for call, _ in lone)
    findings.seen["lone_bids"] = sum(call.offer is None for call, _ in lone)
    findings.seen["late_halves"] = late.total()
    return findings


def _call(record: Record) -> Call:
    told = json.loads(record.value or b"")
    return Call(record.partition, record.key or b"", told["offer"], told["bid"], told["at_ms"])


def _halves(records: Sequence[Record], side: int) -> Iterator[_Half]:
    for record in in_order(records):
        told = msgspec.json.decode(record.value or b"", type=rules.Click)
        yield _Half(record.partition, record.key or b"", side, told.number, told.at_ms)


def _pairs(halves: Iterable[_Half]) -> Iterator[Call]:
    """Give each two that are close."""
    bids: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
    offers = []
    for one in halves:
        if one.side == OFFER:
            offers.append(one)
        else:
            bids[one.key].append((one.at_ms, one.number))
    for held in bids.values():
        held.sort()
    for offer in offers:
        held = bids[offer.key]
        first = bisect_left(held, (offer.at_ms - rules.BEFORE_MS, -1))
        end = bisect_right(held, (offer.at_ms + rules.AFTER_MS + 1, -1))
        for at_ms, number in held[first:end]:
            yield Call(offer.partition, offer.key, offer.number, number, max(offer.at_ms, at_ms))


def _check_pairs(
    pairs: Sequence[tuple[Call, int]], halves: dict[int, _Half], ends: dict[int, int], findings: ChoreFindings
) -> None:
    """See that pairs were called while one of both was in time, and in the order of stream time."""
    last: dict[int, int] = {}
    for call, stream_ms in pairs:
        both = [halves[number] for number in (call.offer, call.bid) if number in halves]
        for one in both:
            one.first_ms = stream_ms if one.first_ms is None else min(one.first_ms, stream_ms)
        latest_ms = max((one.closed_ms for one in both), default=-1)
        if not stream_ms <= min(latest_ms, ends.get(call.partition, -1)):
            findings.note("calls_wrong_time", f"{call} was called at {stream_ms}, its window closed at {latest_ms}")
        if stream_ms < last.get(call.partition, -1):
            findings.note("pairs_out_of_order", f"{call} was called at {stream_ms} after {last[call.partition]}")
        last[call.partition] = max(stream_ms, last.get(call.partition, -1))


def _check_lone(lone: Sequence[tuple[Call, int]], halves: dict[int, _Half], findings: ChoreFindings) -> None:
    """See that records without a match were called as of the end of their windows, and in their order."""
    last: dict[int, int] = {}
    for call, stream_ms in lone:
        one = halves.get(call.bid if call.offer is None else call.offer)
        if one is None:
            continue
        if stream_ms != one.closed_ms:
            findings.note("calls_wrong_time", f"{call} was called at {stream_ms}, its window closed at {one.closed_ms}")
        if one.closed_ms < last.get(call.partition, -1):
            findings.note("lone_out_of_order", f"{call} came after one that closed at {last[call.partition]}")
        last[call.partition] = max(one.closed_ms, last.get(call.partition, -1))
