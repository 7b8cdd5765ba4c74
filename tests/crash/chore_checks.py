"""What must be true of the second actor's run, from what is in Kafka and outside: independent of the code under test.

The inputs say what has to happen, `said` says what happened, in order, and in which commit. Keys of the changelogs of
timers and effects are as `actors.runtime.timers.timers` and `actors.runtime.outbox.calls` describe them.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import msgspec

from tests.crash import rules
from tests.crash.checks import Record, in_order

COUNTS = (
    "chores_lost",
    "chores_doubled",
    "chores_unasked",
    "chores_out_of_order",
    "timers_lost",
    "timers_doubled",
    "timers_unasked",
    "timers_early",
    "timers_left",
    "expired_lost",
    "expired_doubled",
    "expired_unasked",
    "expired_out_of_order",
    "expired_left",
    "kept_lost",
    "effects_lost",
    "effects_doubled",
    "effects_unasked",
    "effects_out_of_order",
    "effects_of_two_ids",
    "results_lost",
    "results_doubled",
    "results_unasked",
    "outbox_left",
)
EXAMPLES = 3
"""So many of each count are kept."""
_TIMER = b"n"
_NAME_AT = 5


class Line(NamedTuple):
    """A call of an effect, as its function wrote it outside."""

    id: str
    key: str
    label: str
    token: int
    attempt: int


class Happened(NamedTuple):
    """A committed record of `said`."""

    partition: int
    key: str
    what: str
    name: str
    offset: int
    timestamp_ms: int


class Asked(NamedTuple):
    """An input, decoded."""

    record: Record
    message: rules.Chore


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a run left: inputs, what was said, the changelogs, and the lines outside in the order of their writing."""

    inputs: Sequence[Record]
    said: Sequence[Record]
    state: Sequence[Record]
    kept: Sequence[Record]
    timers: Sequence[Record]
    effects: Sequence[Record]
    lines: Sequence[Line]


@dataclass(slots=True)
class ChoreFindings:
    """How often something was wrong; the first examples in words; how often what was checked happened.

    What is wrong in itself is lost, and something that nobody asked for.
    """

    counts: dict[str, int]
    examples: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, counts: Iterable[str]) -> Self:
        """Return findings of nothing wrong by these names."""
        return cls(dict.fromkeys(counts, 0))

    @property
    def clean(self) -> bool:
        """Whether nothing was wrong."""
        return not any(self.counts.values())

    @property
    def is_waiting(self) -> bool:
        """Whether something is still to happen, or never will."""
        return any(times for name, times in self.counts.items() if name.endswith(("_lost", "_left")))

    def note(self, count: str, text: str, times: int = 1) -> None:
        """Count something."""
        if times:
            if self.counts[count] < EXAMPLES:
                self.examples.append(f"{count}: {text}")
            self.counts[count] += times

    def once(self, what: str, wanted: Iterable[object], got: Mapping[object, int]) -> None:
        """Check that each of `wanted` happened once, and nothing else."""
        wanted = set(wanted)
        for name in wanted - got.keys():
            self.note(f"{what}_lost", f"{name} didn't happen")
        for name, times in got.items():
            if name not in wanted:
                self.note(f"{what}_unasked", f"{name} happened", times)
            else:
                self.note(f"{what}_doubled", f"{name} happened {times} times", times - 1)


def read_lines(raw: bytes) -> list[Line]:
    """Give the calls that were written whole."""
    found = []
    for text in raw.splitlines():
        try:
            found.append(Line(**json.loads(text)))
        except (ValueError, TypeError):
            # Empty, or cut short by a full disk, in which case the call failed.
            continue
    return found


def check_chores(evidence: Evidence) -> ChoreFindings:
    """Compare what happened with what the inputs ask for."""
    findings = ChoreFindings.of(COUNTS)
    inputs = [
        Asked(record, msgspec.json.decode(record.value or b"", type=rules.Chore))
        for record in in_order(evidence.inputs)
    ]
    happened = [_happened(record) for record in in_order(evidence.said)]
    findings.seen.update(event.what for event in happened)
    findings.seen["calls"] = len(evidence.lines)
    _check_inputs(inputs, happened, findings)
    _check_timers(inputs, happened, evidence.timers, findings)
    _check_expiry(inputs, happened, findings)
    _check_kept(inputs, evidence, findings)
    _check_effects(inputs, happened, evidence.lines, findings)
    _check_results(happened, evidence.lines, findings)
    for key in _held(evidence.effects):
        findings.note("outbox_left", f"the outbox still has {key!r}")
    return findings


def _happened(record: Record) -> Happened:
    told = json.loads(record.value or b"")
    key = (record.key or b"").decode()
    return Happened(record.partition, key, told["what"], told["name"], told["offset"], record.timestamp_ms)


def _named(happened: Iterable[Happened], *whats: str) -> Counter[object]:
    return Counter(event.name for event in happened if event.what in whats)


def _held(changelog: Iterable[Record]) -> dict[bytes, bytes]:
    """Give what a changelog leaves, by key."""
    last = {record.key or b"": record.value for record in in_order(changelog)}
    return {key: value for key, value in last.items() if value is not None}


def _check_inputs(inputs: Sequence[Asked], happened: Sequence[Happened], findings: ChoreFindings) -> None:
    """Each input was handled once, in its place, but for those that are to be refused."""
    wanted = {
        (record.partition, record.offset, str(message.number))
        for record, message in inputs
        if not isinstance(message, rules.Refuse)
    }
    handled = [event for event in happened if event.what == "handled"]
    findings.once("chores", wanted, Counter((event.partition, event.offset, event.name) for event in handled))
    last: dict[int, int] = {}
    for event in handled:
        if event.offset < last.get(event.partition, -1):
            findings.note("chores_out_of_order", f"partition {event.partition}: {event.offset} after a later one")
        last[event.partition] = max(event.offset, last.get(event.partition, -1))


def _check_timers(
    inputs: Sequence[Asked], happened: Sequence[Happened], changelog: Sequence[Record], findings: ChoreFindings
) -> None:
    """Each timer fired or was cancelled, once and not early; those that are far away are still there."""
    wound = {str(message.number): (record, message) for record, message in inputs if isinstance(message, rules.Wind)}
    ended = _named(happened, "rang", "cancelled")
    far = {name for name, (_, message) in wound.items() if message.wait_ms == rules.FAR_MS}
    wanted = (wound.keys() - far) | (far & _named(happened, "cancelled").keys())
    findings.once("timers", wanted, ended)
    for event in happened:
        record, message = wound.get(event.name, (None, None))
        if event.what != "rang" or record is None or message is None or message.by_stream:
            continue
        early_ms = record.timestamp_ms + message.wait_ms - event.timestamp_ms
        if early_ms > 0:
            findings.note("timers_early", f"{event.name} rang {early_ms} ms early")
    left = {_timer_name(key) for key in _held(changelog) if key[:1] == _TIMER}
    for name in left ^ (far - ended.keys()):
        findings.note("timers_left", f"{name} is {'still' if name in left else 'not any more'} in the changelog")


def _timer_name(key: bytes) -> str:
    return key[_NAME_AT + int.from_bytes(key[1:_NAME_AT]) :].decode()


def _check_expiry(inputs: Sequence[Asked], happened: Sequence[Happened], findings: ChoreFindings) -> None:
    """The hook of the store was called once for each value with a time, that of the state once for each number."""
    keeps = [(record, message) for record, message in inputs if isinstance(message, rules.Keep)]
    mortal = {str(message.number) for _, message in keeps if message.ttl_ms is not None}
    findings.once("expired", mortal, _named(happened, "expired"))
    left = [event for event in happened if event.what == "left"]
    findings.once("expired", (str(message.number) for _, message in keeps), _named(left, "left"))
    places = {str(message.number): number for number, (_, message) in enumerate(keeps)}
    last: dict[str, int] = {}
    for event in left:
        place = places.get(event.name, -1)
        if place < last.get(event.key, -1):
            findings.note("expired_out_of_order", f"{event.name} left {event.key} after a later one")
        last[event.key] = place


def _check_kept(inputs: Sequence[Asked], evidence: Evidence, findings: ChoreFindings) -> None:
    """What expired has a tombstone, what doesn't is there."""
    asked = {message.number: message.ttl_ms for _, message in inputs if isinstance(message, rules.Keep)}
    immortal = {b"%d" % number: b"%d" % number for number, ttl_ms in asked.items() if ttl_ms is None}
    written = {record.key for record in evidence.kept}
    held = _held(evidence.kept)
    for key in held.keys() - immortal.keys():
        findings.note("expired_left", f"{key!r} of the store has no tombstone")
    for number in asked:
        if b"%d" % number not in written:
            findings.note("expired_left", f"{number} of the store was never in the changelog")
    for key in _held(evidence.state):
        findings.note("expired_left", f"{key!r} of the state has no tombstone")
    for key, value in immortal.items():
        if held.get(key) != value:
            findings.note("kept_lost", f"{key!r} is {held.get(key)!r}")


def _check_effects(
    inputs: Sequence[Asked], happened: Sequence[Happened], lines: Sequence[Line], findings: ChoreFindings
) -> None:
    """Each call that a commit asked for succeeded, with one id, after all that its key had asked for before."""
    asked = [event for event in happened if event.what == "asked"]
    names = {event.name for event in asked}
    for name in _due_labels(inputs, happened) - names:
        findings.note("effects_lost", f"{name} was never asked for")
    done = {line.label for line in lines if not rules.act_fails(line.label, line.attempt)}
    for name in names - done:
        findings.note("effects_lost", f"{name} never succeeded")
    _check_order(asked, lines, findings)
    pairs = {(line.label, line.id) for line in lines}
    for side in zip(*pairs, strict=True):
        for name, times in Counter(side).items():
            findings.note("effects_of_two_ids", f"{name} has more than one on the other side", times - 1)


def _check_order(asked: Sequence[Happened], lines: Sequence[Line], findings: ChoreFindings) -> None:
    """No call was made that nothing asked for, and none before all that its key had asked for earlier succeeded."""
    places: dict[tuple[str, str], int] = {}
    waiting: dict[str, list[str]] = defaultdict(list)
    for event in asked:
        if (event.key, event.name) in places:
            findings.note("effects_doubled", f"{event.name} was asked for again")
        else:
            places[event.key, event.name] = len(waiting[event.key])
            waiting[event.key].append(event.name)
    succeeded: Counter[str] = Counter()
    for line in lines:
        place = places.get((line.key, line.label))
        if place is None:
            findings.note("effects_unasked", f"{line} was called")
            continue
        if place > succeeded[line.key]:
            findings.note("effects_out_of_order", f"{line} came before {waiting[line.key][succeeded[line.key]]}")
        if place == succeeded[line.key] and not rules.act_fails(line.label, line.attempt):
            succeeded[line.key] += 1


def _due_labels(inputs: Sequence[Asked], happened: Sequence[Happened]) -> set[str]:
    """Give what has to be asked for: by messages, and by what timers and hooks said in the same commits."""
    called = {f"call-{message.number}" for _, message in inputs if isinstance(message, rules.Call)}
    rang = {f"ring-{event.name}" for event in happened if event.what == "rang" and rules.ring_acts(int(event.name))}
    gone = {
        f"expired-{event.name}" for event in happened if event.what == "expired" and rules.expiry_acts(int(event.name))
    }
    return called | rang | gone


def _check_results(happened: Sequence[Happened], lines: Sequence[Line], findings: ChoreFindings) -> None:
    """Each call that answers had its answer handled once."""
    done = {line.label for line in lines if not rules.act_fails(line.label, line.attempt)}
    findings.once("results", filter(rules.act_answers, done), _named(happened, "done"))
