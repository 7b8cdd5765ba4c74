"""The simulation of event time finds damages to joins of one with many."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from actors.declare.streams import joins as declared
from actors.runtime.windows import closes, joins
from actors.runtime.windows.joins import OneStore
from tests.sim.feeds.simulation import check, simulate
from tests.sim.planted import Patch, rewritten


def forget_what_waits(patch: Patch) -> None:
    """Records of many that come before their one aren't kept."""
    patch.setattr(OneStore, "_keep", lambda *_: None)


def call_what_waits_once_more(patch: Patch) -> None:
    """What has waited for its one goes on waiting."""
    patch.setattr(OneStore, "_wait_again", lambda *_: None)


def take_what_is_beyond_the_end(patch: Patch) -> None:
    """A one that is open matches whatever comes."""
    edit = ("one.at_ms - self.waits_ms <= at_ms < one.until_ms", "one.at_ms - self.waits_ms <= at_ms")
    patch.setattr(OneStore, "one_of", rewritten(OneStore.one_of, edit))


def take_what_is_older_than_the_retention(patch: Patch) -> None:
    """A one matches what came long before it, as long as that waits."""
    edit = ("max(at_ms, open_ms) - self.waits_ms <= match.at_ms", "match.at_ms")
    patch.setattr(OneStore, "put", rewritten(OneStore.put, edit))


def forget_a_match(patch: Patch) -> None:
    """That a one has matched isn't written."""
    edit = ("one.is_matched = True", "pass")
    patch.setattr(OneStore, "one_of", rewritten(OneStore.one_of, edit))


def forget_to_wait_for_the_end(patch: Patch) -> None:
    """No entry says when a one ends."""
    expect = OneStore._expect

    def leave_out(self: OneStore, overlay: object, state: object, row: bytes) -> None:
        if joins.unmatched_parts(row).side != joins.LEFT:
            expect(self, overlay, state, row)  # type: ignore[arg-type]

    patch.setattr(OneStore, "_expect", leave_out)


def send_no_later_than_stream_time(patch: Patch) -> None:
    """The output time leaves out how far behind stream time a one without a match is sent."""
    patch.setattr(closes._Ended, "output_lag_ms", property(lambda _: 0, lambda *_: None), raising=False)


def say_nothing_of_what_waited_in_vain(patch: Patch) -> None:
    """What found no one isn't late."""
    patch.setattr(declared._OneMany, "unmatched", declared._Join.unmatched)


PLANTED = [
    (forget_what_waits, 23, "in vain"),
    (call_what_waits_once_more, 31, "late"),
    (take_what_is_beyond_the_end, 50, "first stage has"),
    (take_what_is_older_than_the_retention, 31, "first stage has"),
    (forget_a_match, 66, "first stage has"),
    (forget_to_wait_for_the_end, 31, "first stage lacks"),
    (send_no_later_than_stream_time, 31, "late"),
    (say_nothing_of_what_waited_in_vain, 23, "in vain"),
]


@pytest.mark.parametrize(("damage", "seed", "violated"), PLANTED, ids=[one[0].__name__ for one in PLANTED])
def test_a_damage_is_found(damage: Callable[[Patch], None], seed: int, violated: str, monkeypatch: Patch) -> None:
    damage(monkeypatch)
    violations = simulate(seed, faults=()).violations
    assert any(violation.startswith(violated) for violation in violations), violations


@pytest.mark.parametrize("seed", [23, 31, 50, 66])
def test_these_seeds_find_nothing_else(seed: int) -> None:
    check(seed, faults=())


@pytest.mark.parametrize("seed", [54, 67])
def test_kills_and_clean_stops_change_nothing(seed: int) -> None:
    check(seed, faults=("crash", "crash_at_step", "rebalance", "bounce"))
