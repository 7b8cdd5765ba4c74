"""What must be true of a run, from what its topics hold alone: each input has exactly the effects that it is to have.

A topic's life goes from its creation to its deletion. In each of its partitions a record is to be handled once, and
once more or less for each time that an operator had the partition begin elsewhere. The workers' word isn't asked.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.crash.checks import Record

RINGS_EVERY = 5
"""Of every so many inputs one is to ring."""


class Jump(NamedTuple):
    """A partition was at an offset, and went on at another one, as an operator chose."""

    partition: int
    at: int
    to: int


@dataclass(slots=True)
class Life:
    """A topic, from its creation to its deletion.

    `reached` has the committed offsets as they were before anybody tampered with them. `waiting` are partitions of a
    topic that was created again for which nobody has chosen a start. `tampered` are those whose committed offset
    somebody else set or deleted. `forgotten` are offsets whose writes to the state a remedy gave up.
    """

    topic: str
    partitions: int
    waiting: set[int] = field(default_factory=set)
    tampered: set[int] = field(default_factory=set)
    reached: dict[int, int] = field(default_factory=dict)
    jumps: list[Jump] = field(default_factory=list)
    forgotten: list[Jump] = field(default_factory=list)
    records: Sequence[Record] = ()
    end: str = ""
    """"deleted": what wasn't handled is gone; "carried": it was copied to another topic; "" while the topic lives."""

    def times(self, record: Record) -> tuple[int, int]:
        """Return how often at least and at most the record is to be handled."""
        if record.partition in self.waiting:
            return 0, 0
        times = 1
        for partition, at, to in self.jumps:
            if partition == record.partition:
                times += (to <= record.offset < at) - (at <= record.offset < to)
        if self.end and record.offset >= self.reached.get(record.partition, 0):
            # A deleted topic's last commit may have come after the offset was read.
            return (0, times) if self.end == "deleted" else (times - 1, times - 1)
        return times, times

    def forgets(self, record: Record) -> bool:
        """Tell whether a remedy gave up what the record wrote to the state."""
        return any(part == record.partition and at <= record.offset < to for part, at, to in self.forgotten)


def may_start_at(
    offset: int, life: Life, partition: int, committed: int | None, end: int, chosen: Mapping[str, str]
) -> bool:
    """Tell whether a partition may go on at an offset: where it was, or where the settings of this start say.

    Args:
        offset: where it went on.
        life: of the topic, as it was before the start.
        partition: the partition.
        committed: the group's offset before the start, None without one.
        end: of the partition after the start.
        chosen: the settings of the start.
    """
    reached = life.reached.get(partition, 0)
    is_missing = partition in life.waiting or committed is None
    if partition not in life.waiting and (committed is None or committed == reached):
        is_untouched = partition not in life.tampered or committed == reached
        if is_untouched and offset == reached:
            return True
    if chosen.get("MOVED_OFFSET") == "accept" and committed is not None and offset == committed:
        return partition in life.tampered
    choice = chosen.get("MISSING_OFFSET") if is_missing else None
    return (choice == "earliest" and offset == 0) or (choice == "latest" and reached <= offset <= end)


@dataclass(slots=True)
class Findings:
    """How often something was wrong, and the first examples in words."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def note(self, kind: str, text: str, times: int = 1) -> None:
        """Count it, and keep an example."""
        self.counts[kind] += times
        if len(self.examples) < 40:
            self.examples.append(f"{kind}: {text}")


def check(
    lives: Iterable[Life],
    said: Iterable[Record],
    state: Iterable[Record],
    *,
    unsure: Collection[int] = (),
    has_timers: bool = False,
) -> Findings:
    """Compare effects and state with what the lives of the inputs wanted.

    Args:
        lives: of all inputs, with their records.
        said: the output topic.
        state: the changelog of the actor with state.
        unsure: inputs that a producer may have sent to a topic while it was being deleted.
        has_timers: whether the actor with state rings.
    """
    findings = Findings()
    least, most = Counter[int](), Counter[int]()
    forgetful: set[bytes | None] = set()
    for life in lives:
        for record in life.records:
            number, (low, high) = int(record.value or b"0"), life.times(record)
            least[number] += low
            most[number] += high
            if life.forgets(record):
                forgetful.add(record.key)
    effects = [(record, json.loads(record.value or b"{}")) for record in said]
    did = Counter[int](effect["number"] for _, effect in effects if effect["what"] == "did")
    for number in unsure:
        most[number] = max(most[number], 1)
    _compare("", least, most, did, findings)
    if has_timers:
        kept = {effect["number"] for _, effect in effects if effect["held"]}
        rings = {number: times for number, times in did.items() if number in kept and number % RINGS_EVERY == 0}
        of_forgetful = {effect["number"] for record, effect in effects if record.key in forgetful}
        sure = {number: times for number, times in rings.items() if number not in of_forgetful}
        rang = Counter[int](effect["number"] for _, effect in effects if effect["what"] == "rang")
        _compare("rings ", sure, rings, rang, findings)
    _check_held(effects, forgetful, findings)
    _check_state(effects, state, forgetful, findings)
    return findings


def _compare(
    what: str, least: Mapping[int, int], most: Mapping[int, int], found: Mapping[int, int], findings: Findings
) -> None:
    for number in sorted(least.keys() | found.keys()):
        times, low, high = found.get(number, 0), least.get(number, 0), most.get(number, 0)
        if times < low:
            findings.note(f"{what}lost", f"input {number}: {times} times, at least {low} are right", low - times)
        if times > high:
            findings.note(f"{what}doubled", f"input {number}: {times} times, at most {high} are right", times - high)


def _check_held(
    effects: Iterable[tuple[Record, Mapping]], forgetful: Collection[bytes | None], findings: Findings
) -> None:
    """Each input of a key found all inputs of the key that were handled before it in the state."""
    held = Counter[bytes | None]()
    for record, effect in sorted(effects, key=lambda found: (found[1]["app"], found[0].partition, found[0].offset)):
        if effect["what"] != "did" or not effect["held"] or record.key in forgetful:
            continue
        held[record.key] += 1
        if effect["held"] != held[record.key]:
            text = f"input {effect['number']} found {effect['held'] - 1} of key {record.key!r}, not"
            findings.note("wrong running values", f"{text} {held[record.key] - 1}")
            held[record.key] = effect["held"]


def _check_state(
    effects: Iterable[tuple[Record, Mapping]],
    state: Iterable[Record],
    forgetful: Collection[bytes | None],
    findings: Findings,
) -> None:
    """The last write of each key has each number as often as it was handled."""
    last: dict[bytes | None, Counter[int]] = {}
    for record in sorted(state, key=lambda record: (record.partition, record.offset)):
        last[record.key] = Counter(json.loads(record.value or b"[]"))
    wanted: dict[bytes | None, Counter[int]] = {}
    for record, effect in effects:
        if effect["what"] == "did" and effect["held"]:
            wanted.setdefault(record.key, Counter())[effect["number"]] += 1
    for key in wanted.keys() | last.keys():
        has, should = last.get(key, Counter()), wanted.get(key, Counter())
        if has != should and key not in forgetful:
            findings.note("wrong state", f"key {key!r} lacks {should - has}, and has {has - should} too many")
