"""Each check of the crash run's join finds the damage that it is there for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest

from tests.crash import rules
from tests.crash.checks import Record
from tests.crash.harness import JOIN_KINDS
from tests.crash.join_checks import BID, COUNTS, OFFER, JoinEvidence, check_joins

HALVES = 800
BEGIN_MS = 1_700_000_000_000
BEHIND = range(300, 360)
"""Bids that are handled after all offers of the same numbers: some are late by these alone."""


@dataclass
class Held:
    """A record that was in time."""

    key: bytes
    side: int
    click: rules.Click
    is_matched: bool = False
    is_called: bool = False

    @property
    def closed_ms(self) -> int:
        return self.click.at_ms + (rules.AFTER_MS, rules.BEFORE_MS)[self.side] + rules.GRACE_MS

    def fits(self, other: Held) -> bool:
        offer, bid = (self, other) if self.side == OFFER else (other, self)
        apart_ms = bid.click.at_ms - offer.click.at_ms
        return self.key == other.key and self.side != other.side and -rules.BEFORE_MS <= apart_ms <= rules.AFTER_MS


def held(side: int, number: int) -> Held:
    key, click = rules.half(side, number, BEGIN_MS)
    return Held(key, side, click)


def handled() -> Iterator[Held]:
    """Give the records in the order in which they are handled."""
    for number in range(HALVES):
        for side in (OFFER, BID):
            if side == OFFER or number not in BEHIND:
                yield held(side, number)
        if number == BEHIND[-1]:
            yield from (held(BID, late) for late in BEHIND)


def good() -> JoinEvidence:
    """Give what a good run leaves, all in one partition, record by record."""
    inputs: tuple[list[Record], list[Record]] = ([], [])
    late: list[Record] = []
    called: list[Record] = []
    kept: list[Held] = []
    ends = [-1, -1]

    def call(key: bytes, offer: int | None, bid: int | None, at_ms: int, when_ms: int) -> None:
        told = {"offer": offer, "bid": bid, "at_ms": at_ms, "stream_ms": when_ms}
        called.append(Record(0, len(called), key, json.dumps(told).encode()))

    def call_alone(stream_ms: int) -> None:
        due = (one for one in kept if one.closed_ms < stream_ms and not (one.is_matched or one.is_called))
        for over in sorted(due, key=lambda one: one.closed_ms):
            over.is_called = True
            numbers = (over.click.number, None) if over.side == OFFER else (None, over.click.number)
            call(over.key, *numbers, over.click.at_ms, over.closed_ms)

    for one in handled():
        record = Record(0, len(inputs[one.side]), one.key, msgspec.json.encode(one.click))
        inputs[one.side].append(record)
        ends[one.side] = max(ends[one.side], one.click.at_ms)
        stream_ms = min(ends)
        if one.closed_ms < stream_ms:
            late.append(record)
        else:
            for other in filter(one.fits, kept):
                offer, bid = (one, other) if one.side == OFFER else (other, one)
                at_ms = max(one.click.at_ms, other.click.at_ms)
                call(one.key, offer.click.number, bid.click.number, at_ms, stream_ms)
                one.is_matched = one.is_matched or stream_ms <= one.closed_ms
                other.is_matched = other.is_matched or stream_ms <= other.closed_ms
            kept.append(one)
        call_alone(stream_ms)
    # Both inputs are at their ends: neither holds the other back.
    call_alone(max(ends))
    return JoinEvidence(offers=inputs[OFFER], bids=inputs[BID], called=called, late=late)


def counted(evidence: JoinEvidence) -> dict[str, int]:
    """Give the counts that aren't 0."""
    findings = check_joins(evidence)
    assert not findings.clean
    return {name: times for name, times in findings.counts.items() if times}


def told(record: Record) -> dict[str, int]:
    return json.loads(record.value or b"")


def is_lone(record: Record) -> bool:
    return None in (told(record)["offer"], told(record)["bid"])


def some(run: JoinEvidence, *, lone: bool) -> Record:
    """Give a call for a pair, or for a record without a match."""
    return next(record for record in run.called if is_lone(record) is lone)


def test_a_good_run_is_clean_and_has_everything() -> None:
    findings = check_joins(good())
    assert findings.clean, findings.examples
    assert all(findings.seen[kind] for kind in JOIN_KINDS)


def test_some_are_late_and_some_pairs_come_after_a_close() -> None:
    run = good()
    assert run.late
    lone = {told(record)[side] for record in run.called if is_lone(record) for side in ("offer", "bid")} - {None}
    pairs = {told(record)[side] for record in run.called if not is_lone(record) for side in ("offer", "bid")}
    assert lone & pairs


def test_every_count_has_a_test() -> None:
    text = Path(__file__).read_text()
    assert [name for name in COUNTS if f'"{name}"' not in text] == []


def test_a_call_that_is_lost_or_comes_twice() -> None:
    run = good()
    for lone, lost, doubled in ((False, "pairs_lost", "pairs_doubled"), (True, "lone_lost", "lone_doubled")):
        one = some(run, lone=lone)
        assert counted(replace(run, called=[each for each in run.called if each is not one]))[lost] == 1
        assert counted(replace(run, called=[*run.called, one])) == {doubled: 1}


@pytest.mark.parametrize("name", ["offer", "bid", "at_ms"])
def test_a_call_that_says_something_else(name: str) -> None:
    run = good()
    for lone, counts in ((False, ("pairs_lost", "pairs_unasked")), (True, ("lone_lost", "lone_unasked"))):
        one = next(each for each in run.called if is_lone(each) is lone and told(each)[name] is not None)
        other = one._replace(value=json.dumps({**told(one), name: told(one)[name] + 2}).encode())
        found = counted(replace(run, called=[other if each is one else each for each in run.called]))
        assert set(counts) <= set(found)


@pytest.mark.parametrize("lone", [False, True])
def test_a_call_at_a_wrong_time(lone: bool) -> None:
    run = good()
    one = some(run, lone=lone)
    at_ms = told(one)["at_ms"] + (-1 if lone else rules.AFTER_MS + rules.BEFORE_MS + rules.GRACE_MS + 1)
    wrong = one._replace(value=json.dumps({**told(one), "stream_ms": at_ms}).encode())
    assert "calls_wrong_time" in counted(replace(run, called=[wrong if each is one else each for each in run.called]))


def test_calls_out_of_order() -> None:
    run = good()
    for lone, count in ((False, "pairs_out_of_order"), (True, "lone_out_of_order")):
        calls = [record for record in run.called if is_lone(record) is lone]
        first, last = calls[0], calls[-1]
        swapped = {first: last._replace(offset=first.offset), last: first._replace(offset=last.offset)}
        assert count in counted(replace(run, called=[swapped.get(each, each) for each in run.called]))


def test_a_record_without_a_match_that_has_one() -> None:
    """As if a match hadn't taken its record out of those without one."""
    run = good()
    alone = {told(record)["offer"] for record in run.called if is_lone(record)}
    pair = next(each for each in run.called if not is_lone(each) and told(each)["offer"] not in alone)
    offer = next(each for each in run.offers if told(each)["number"] == told(pair)["offer"])
    at_ms = told(offer)["at_ms"]
    more = {"offer": told(pair)["offer"], "bid": None, "at_ms": at_ms}
    more["stream_ms"] = at_ms + rules.AFTER_MS + rules.GRACE_MS
    called = [*run.called, Record(0, len(run.called), offer.key, json.dumps(more).encode())]
    assert counted(replace(run, called=called))["lone_unasked"] == 1


def test_a_late_record_that_is_lost_comes_twice_or_was_in_time() -> None:
    run = good()
    assert counted(replace(run, late=[*run.late, run.late[0]])) == {"late_halves_doubled": 1}
    lost = counted(replace(run, late=run.late[1:]))
    assert set(lost) & {"pairs_lost", "lone_lost"}
    assert counted(replace(run, late=[*run.late, run.offers[-1]]))["late_halves_unasked"] == 1
