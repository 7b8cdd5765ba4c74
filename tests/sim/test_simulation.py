"""The runtime under faults, in virtual time.

`SEED=n` replays one seed with its trace (`FAULTS=crash,pause` restricts it), `SIM_SEEDS=n` runs n of them.
"""

from __future__ import annotations

import os

import pytest

from tests.sim.simulation import check, simulate

SEEDS = int(os.environ.get("SIM_SEEDS", "300"))
REPLAYED = os.environ.get("SEED")
FAULTS = tuple(filter(None, os.environ.get("FAULTS", "").split(",")))

FOUND = (
    (97, ()),
    (107, ()),
    (273, ()),
    (6, ("slow_disk", "rebalance")),
    (35, ("slow_disk", "rebalance")),
    (50, ("slow_disk", "rebalance")),
    (170, ("long_absence",)),
    (173, ("long_absence",)),
)
"""Runs that found a defect once."""

STORE_LEFT_OPEN = "a store that is opened while its task is cancelled stays open, and nobody can open it again"
UNREAD_ERROR = "finish_in_thread leaves the error of a cancelled call unread"
INTERRUPTED_REBUILD = (
    "a restore that dies between its last load and the wipe leaves a checkpoint at the log's end: the next one "
    "doesn't look at its age"
)
DEFECTS = {
    (97, ()): STORE_LEFT_OPEN,
    (107, ()): STORE_LEFT_OPEN,
    (273, ()): STORE_LEFT_OPEN,
    (6, ("slow_disk", "rebalance")): UNREAD_ERROR,
    (35, ("slow_disk", "rebalance")): STORE_LEFT_OPEN,
    (50, ("slow_disk", "rebalance")): STORE_LEFT_OPEN,
    (170, ("long_absence",)): INTERRUPTED_REBUILD,
    (173, ("long_absence",)): INTERRUPTED_REBUILD,
}
"""Those of them that aren't mended, and why they fail."""


def runs() -> list[object]:
    if REPLAYED is not None:
        return [pytest.param(int(REPLAYED), FAULTS)]
    wanted = dict.fromkeys([*((seed, ()) for seed in range(SEEDS)), *FOUND])
    return [
        pytest.param(*run, marks=pytest.mark.xfail(strict=True, reason=DEFECTS[run]) if run in DEFECTS else ())
        for run in wanted
    ]


@pytest.mark.parametrize(("seed", "faults"), runs())
def test_exactly_once_under_faults(seed: int, faults: tuple[str, ...]) -> None:
    check(seed, faults=faults, print_trace=REPLAYED is not None)


def test_a_seed_is_one_run() -> None:
    first, again = simulate(3), simulate(3)
    assert first.trace == again.trace
    assert (first.virtual_s, first.takeovers) == (again.virtual_s, again.takeovers)
