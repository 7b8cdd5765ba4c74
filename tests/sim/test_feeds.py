"""Event time through partitions and hops doesn't depend on when a record is read.

`SEED=n` replays one seed with its trace, `SIM_SEEDS=n` runs a quarter of so many of each kind.
"""

from __future__ import annotations

import os

import pytest

from tests.sim.feeds import damages
from tests.sim.feeds.simulation import check, simulate
from tests.sim.planted import Patch

SEEDS = max(int(os.environ.get("SIM_SEEDS", "20")) // 4, 2)
REPLAYED = os.environ.get("SEED")
NO_FAULTS: tuple[str, ...] = ()
GROWTH = ("grow", "slow_actor")


@pytest.mark.parametrize("seed", range(SEEDS) if REPLAYED is None else [int(REPLAYED)])
@pytest.mark.parametrize("faults", [None, NO_FAULTS, GROWTH], ids=["faults", "none", "growth"])
def test_results_are_those_of_all_records_by_time(seed: int, faults: tuple[str, ...] | None) -> None:
    check(seed, faults=faults, print_trace=REPLAYED is not None)


@pytest.mark.parametrize("seed", range(SEEDS) if REPLAYED is None else [int(REPLAYED)])
@pytest.mark.parametrize("faults", [None, NO_FAULTS, GROWTH], ids=["faults", "none", "growth"])
def test_windows_across_users_are_those_of_all_records_by_time(seed: int, faults: tuple[str, ...] | None) -> None:
    check(seed, faults=faults, is_across=True, print_trace=REPLAYED is not None)


def test_a_run_repeats() -> None:
    first, second = simulate(7), simulate(7)
    assert first.trace == second.trace
    assert first.counted == second.counted


PLANTED = [
    (damages.take_the_largest_time, NO_FAULTS, 0, "late"),
    (damages.take_the_largest_time_upstream, NO_FAULTS, 0, "late"),
    (damages.take_the_fetched_position_for_the_end, NO_FAULTS, 1, "late"),
    (damages.take_the_last_stable_offset_for_the_end, NO_FAULTS, 1, "late"),
    (damages.count_no_markers, NO_FAULTS, 0, "first stage lacks"),
    (damages.send_no_later_than_stream_time, NO_FAULTS, 0, "late"),
    (damages.count_what_is_fetched, GROWTH, 12, "late"),
    (damages.forget_timers_that_wait, NO_FAULTS, 10, "late"),
    (damages.forget_output_time, ("slow_actor", "crash"), 11, "time of"),
    (damages.believe_at_once, None, 302, "late"),
    (damages.follow_at_once, None, 304, "late"),
]


@pytest.mark.parametrize(("damage", "faults", "seed", "violated"), PLANTED, ids=[one[0].__name__ for one in PLANTED])
def test_a_damage_is_found(
    damage: object, faults: tuple[str, ...] | None, seed: int, violated: str, monkeypatch: Patch
) -> None:
    damage(monkeypatch)  # type: ignore[operator]
    violations = simulate(seed, faults=faults).violations
    assert any(violation.startswith(violated) for violation in violations), violations


ACROSS = [
    (damages.keep_what_changed, 2),
    (damages.add_a_change_once, 2),
    (damages.forget_closes_that_wait, 9),
    (damages.take_the_largest_time_upstream, 0),
]


@pytest.mark.parametrize(("damage", "seed"), ACROSS, ids=[one[0].__name__ for one in ACROSS])
def test_a_damage_across_users_is_found(damage: object, seed: int, monkeypatch: Patch) -> None:
    damage(monkeypatch)  # type: ignore[operator]
    violations = simulate(seed, faults=NO_FAULTS, is_across=True).violations
    assert any(violation.startswith(("second stage has", "late")) for violation in violations), violations
