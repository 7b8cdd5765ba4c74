"""Each check of the crash run's join by a foreign key finds the damage that it is there for."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace

import msgspec
import pytest

from tests.crash import rules
from tests.crash.checks import Record
from tests.crash.foreign_checks import COUNTS, ForeignEvidence, check_deliveries
from tests.crash.harness import FOREIGN_KINDS

PARCELS = 2_000
PARCELS_PER_DEPOT = 4


class Run:
    """Both tables and their join, in which subscriptions and answers take some time; all of it in one partition."""

    def __init__(self) -> None:
        self.inputs: dict[str, list[Record]] = {"parcels": [], "depots": []}
        self.deliveries: list[Record] = []
        self._rng = random.Random(7)
        self._parcels: dict[bytes, rules.Parcel] = {}
        self._depots: dict[str, rules.Depot] = {}
        self._named: dict[str, dict[bytes, int]] = {}
        self._shown: set[bytes] = set()
        self._answers: dict[bytes, list[tuple[int, rules.Depot | None]]] = {}

    def go(self) -> ForeignEvidence:
        """Give what it leaves."""
        for number in range(PARCELS):
            self._put(*rules.parcel(number))
            if number % PARCELS_PER_DEPOT == 0:
                self._name(*rules.depot(number // PARCELS_PER_DEPOT))
            for key in self._rng.sample(sorted(self._answers), len(self._answers) // 3):
                self._answered(key)
        while self._answers:
            self._answered(next(iter(self._answers)))
        return ForeignEvidence(deliveries=self.deliveries, **self.inputs)

    def _log(self, log: list[Record], key: bytes, value: object) -> None:
        log.append(Record(0, len(log), key, None if value is None else msgspec.json.encode(value)))

    def _put(self, key: bytes, row: rules.Parcel | None) -> None:
        self._log(self.inputs["parcels"], key, row)
        former = self._parcels.pop(key, None)
        if former is not None and former.depot is not None:
            del self._named[former.depot][key]
        if row is None:
            if key in self._shown:
                self._shown.discard(key)
                self._log(self.deliveries, key, None)
            return
        self._parcels[key] = row
        if row.depot is None:
            self._show(key, row.number, None)
            return
        self._named.setdefault(row.depot, {})[key] = row.number
        self._answer(key, row.number, self._depots.get(row.depot))

    def _name(self, raw_key: bytes, row: rules.Depot | None) -> None:
        key = raw_key.decode()
        self._log(self.inputs["depots"], raw_key, row)
        if row is None and key not in self._depots:
            return
        self._depots.pop(key, None)
        if row is not None:
            self._depots[key] = row
        for parcel, number in self._named.get(key, {}).items():
            self._answer(parcel, number, row)

    def _answer(self, key: bytes, number: int, row: rules.Depot | None) -> None:
        self._answers.setdefault(key, []).append((number, row))

    def _answered(self, key: bytes) -> None:
        for number, row in self._answers.pop(key):
            held = self._parcels.get(key)
            if held is not None and held.number == number:
                self._show(key, number, row)

    def _show(self, key: bytes, number: int, row: rules.Depot | None) -> None:
        self._shown.add(key)
        self._log(self.deliveries, key, {"parcel": number, "depot": None if row is None else row.number})


@pytest.fixture(scope="module")
def good() -> ForeignEvidence:
    """What a good run leaves."""
    return Run().go()


def counted(run: ForeignEvidence, deliveries: list[Record]) -> dict[str, int]:
    again = [one._replace(offset=offset) for offset, one in enumerate(deliveries)]
    return {name: count for name, count in check_deliveries(replace(run, deliveries=again)).counts.items() if count}


def some(run: ForeignEvidence, count: int) -> list[ForeignEvidence]:
    """Give what is of one parcel each, of the first so many."""
    keys = list(dict.fromkeys(one.key for one in run.parcels))[:count]
    return [
        replace(
            run,
            parcels=[one for one in run.parcels if one.key == key],
            deliveries=[one for one in run.deliveries if one.key == key],
        )
        for key in keys
    ]


def told(record: Record) -> tuple[int | None, int | None]:
    content = {"parcel": None, "depot": None} if record.value is None else json.loads(record.value)
    return content["parcel"], content["depot"]


def test_a_good_run_is_clean(good: ForeignEvidence) -> None:
    found = check_deliveries(good)
    assert found.counts == dict.fromkeys(COUNTS, 0), found.examples
    assert all(found.seen[kind] > 30 for kind in FOREIGN_KINDS), found.seen


def test_each_result_that_comes_twice_is_found(good: ForeignEvidence) -> None:
    for run in some(good, 10):
        for at in range(len(run.deliveries)):
            twice = [*run.deliveries[: at + 1], *run.deliveries[at:]]
            assert counted(run, twice) == {"deliveries_doubled": 1}


def test_each_result_that_is_missing_is_found(good: ForeignEvidence) -> None:
    """Not the first one of a row, which may have been subscribed later."""
    missed = 0
    for run in some(good, 10):
        rows = [told(one)[0] for one in run.deliveries]
        for at, row in enumerate(rows):
            if row is None or at == len(rows) - 1 or (at and rows[at - 1] == row == rows[at + 1]):
                missed += 1
                assert counted(run, [*run.deliveries[:at], *run.deliveries[at + 1 :]]), run.deliveries[at]
    assert missed > 100


def test_results_in_another_order_are_found(good: ForeignEvidence) -> None:
    swapped = 0
    for run in some(good, 10):
        for at, (first, second) in enumerate(itertools.pairwise(run.deliveries)):
            # Without a depot a row may be of several states of it.
            if None not in (told(first)[1], told(second)[1]):
                changed = [*run.deliveries[:at], second, first, *run.deliveries[at + 2 :]]
                assert counted(run, changed), (first, second)
                swapped += 1
    assert swapped > 30


def test_results_that_nobody_asked_for_are_found(good: ForeignEvidence) -> None:
    run = next(one for one in some(good, 100) if one.parcels[-1].value is not None)
    at, one = next((at, one) for at, one in enumerate(run.deliveries) if told(one)[1] is not None)
    for row, depot in ((99_999, None), (told(one)[0], 99_999)):
        stray = one._replace(value=json.dumps({"parcel": row, "depot": depot}).encode())
        assert counted(run, [*run.deliveries[: at + 1], stray, *run.deliveries[at + 1 :]])
        assert counted(run, [stray, *run.deliveries])
    assert counted(run, [*run.deliveries, one._replace(value=None)]) == {"deliveries_unasked": 1}
