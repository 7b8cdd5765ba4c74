"""The runtime under faults, in virtual time.

`SEED=n` replays one seed with its trace, `SIM_SEEDS=n` runs n of them.
"""

from __future__ import annotations

import os

import pytest

from tests.sim.simulation import check, simulate

SEEDS = int(os.environ.get("SIM_SEEDS", "300"))
REPLAYED = os.environ.get("SEED")


@pytest.mark.parametrize("seed", range(SEEDS) if REPLAYED is None else [int(REPLAYED)])
def test_exactly_once_under_faults(seed: int) -> None:
    check(seed, print_trace=REPLAYED is not None)


def test_a_seed_is_one_run() -> None:
    first, again = simulate(3), simulate(3)
    assert first.trace == again.trace
    assert (first.virtual_s, first.takeovers) == (again.virtual_s, again.takeovers)
