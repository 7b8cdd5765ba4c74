"""What must be true of a run's join by a foreign key, from what is in Kafka alone: independent of the code under test.

The results of a parcel are in one partition, in order. Those for one of its rows follow the depot that the row names:
from its state when the row was subscribed on, each change once, and none left out while the row is there. A row that
names no depot has one result. A parcel that is deleted has one end, if it had a result. So each result has its place in
what both tables went through, and the last one is that of the last rows.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.crash.checks import Record, in_order
from tests.crash.chore_checks import ChoreFindings

COUNTS = ("deliveries_lost", "deliveries_doubled", "deliveries_unasked", "deliveries_out_of_order")
States = Mapping[str, Sequence[int | None]]
"""What each depot's row went through: the numbers of its rows, None without one, from None on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignEvidence:
    """What a run left: the rows of both tables, and what the join was called for."""

    parcels: Sequence[Record]
    depots: Sequence[Record]
    deliveries: Sequence[Record]


def check_deliveries(evidence: ForeignEvidence, *, is_paged: bool = False) -> ChoreFindings:
    """Compare the results of the join with what both tables went through.

    If changes of a depot are told in pages, rows that are subscribed meanwhile may be told twice, and rows of later
    pages not at all if another change comes. Then all that is checked is that no result is older than the last one.
    """
    findings = ChoreFindings.of(COUNTS)
    states: dict[str, list[int | None]] = defaultdict(lambda: [None])
    for key, told in _told(evidence.depots):
        if told is not None or states[key][-1] is not None:
            states[key].append(None if told is None else told["number"])
    parcels: dict[str, _Parcel] = defaultdict(lambda: _Parcel(findings, states, is_paged=is_paged))
    for key, told in _told(evidence.parcels):
        parcels[key].rows.append((None, None) if told is None else (told["number"], told["depot"]))
    for key, told in _told(evidence.deliveries):
        parcels[key].key = key
        parcels[key].take(told)
    for key, parcel in parcels.items():
        parcel.key = key
        parcel.end()
    return findings


def _told(records: Sequence[Record]) -> list[tuple[str, Any]]:
    """Return keys and values."""
    return [
        ((one.key or b"").decode(), None if one.value is None else json.loads(one.value)) for one in in_order(records)
    ]


@dataclass(slots=True)
class _Parcel:
    """A parcel: its rows, and which result of which row came last.

    Attributes:
        rows: (number, depot) of each; both are None where it was deleted.
        at: the row of the last result, -1 before the first.
        is_shown: whether there is a result.
        states_at: the states of its depot that the last result may be of.
    """

    findings: ChoreFindings
    states: States
    is_paged: bool = False
    key: str = ""
    rows: list[tuple[int | None, str | None]] = field(default_factory=list)
    at: int = -1
    is_shown: bool = False
    states_at: set[int] = field(default_factory=set)
    least: dict[str, int] = field(default_factory=dict)

    def take(self, told: dict[str, int | None] | None) -> None:
        """Take the next result."""
        if told is None:
            self._take_end()
            return
        number = told["parcel"]
        at = next((at for at, (one, _) in enumerate(self.rows) if one == number), None)
        if at is None:
            self._note("unasked", f"{told}, and there is no such row")
        elif at < self.at:
            self._note("out_of_order", f"{told} after a result of row {self.rows[self.at]}")
        elif at == self.at and self.is_shown:
            self._take_change(told)
        else:
            self._pass(at)
            self._take_first(at, told)

    def _take_end(self) -> None:
        deleted = next((at for at in range(self.at + 1, len(self.rows)) if self.rows[at] == (None, None)), None)
        if not self.is_shown or deleted is None:
            self._note("doubled" if not self.is_shown else "unasked", "an end")
            return
        self._pass(deleted)
        self.at, self.is_shown, self.states_at = deleted, False, set()
        self.findings.seen["ends"] += 1

    def _take_change(self, told: dict[str, int | None]) -> None:
        depot = self.rows[self.at][1]
        states = () if depot is None else self.states[depot]
        if self.is_paged:
            after = range(min(self.states_at, default=0), len(states))
        else:
            after = [at + 1 for at in self.states_at if at + 1 < len(states)]
        next_at = {at for at in after if states[at] == told["depot"]}
        if next_at:
            self.states_at = next_at
            self.findings.seen["changes"] += 1
        elif any(states[at] == told["depot"] for at in self.states_at) or depot is None:
            self._note("doubled", f"{told}")
        else:
            self._note("out_of_order", f"{told}, and the depot had {states} of which the last one was {self.states_at}")

    def _take_first(self, at: int, told: dict[str, int | None]) -> None:
        former, depot = self.rows[self.at][1] if self.is_shown else None, self.rows[at][1]
        self.at, self.is_shown = at, True
        self.findings.seen["deliveries"] += 1
        if depot is None:
            self.states_at = set()
            self.findings.seen["nowhere"] += 1
            if told["depot"] is not None:
                self._note("unasked", f"{told}, and the row names no depot")
            return
        self.findings.seen["moves"] += former is not None and former != depot
        states, least = self.states[depot], self.least.get(depot, 0)
        self.states_at = {at for at, state in enumerate(states) if state == told["depot"] and at >= least}
        if not self.states_at:
            self._note("out_of_order", f"{told}, and depot {depot} had {states}, of which {least} were shown")
            self.states_at = {least}
        self.least[depot] = min(self.states_at)

    def _pass(self, until: int) -> None:
        """See that nothing is missing of the rows before one of which there is a result."""
        for at in range(self.at + 1, until):
            number, depot = self.rows[at]
            if number is None and self.is_shown:
                self._note("lost", f"the end at row {at}")
                self.is_shown = False
            elif number is not None and depot is None:
                self._note("lost", f"that of row {number}, which names no depot")
                self.is_shown = True

    def end(self) -> None:
        """See that the last result is that of the last rows."""
        if not self.rows:
            return
        last = len(self.rows) - 1
        number, depot = self.rows[last]
        if number is None or depot is None:
            self._pass(last + 1)
            return
        self._pass(last)
        if self.at != last or len(self.states[depot]) - 1 not in self.states_at:
            self._note("lost", f"the last one, of row {number} and depot {depot}, which has {self.states[depot][-1]}")

    def _note(self, what: str, text: str) -> None:
        self.findings.note(f"deliveries_{what}", f"{self.key}: {text}")
