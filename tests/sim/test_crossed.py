"""All pairs of features, and each feature with each fault: what meets only by chance in the runs of a seed.

In the nightly run all of them, one run of each for 2,500 of `SIM_SEEDS`; else a few, spread over all.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations, product

import pytest

from tests.sim.model import NOT_WITH_PARK, completed
from tests.sim.nemesis import Nemesis
from tests.sim.simulation import (
    NOT_WITH_EXPIRED,
    NOT_WITH_SWAPPED,
    NOT_WITH_UNPARKING,
    WITH_GROWN,
    WITH_RECREATED,
    check,
)
from tests.sim.test_simulation import EVERY, NOT_WITH_INPUTS, OTHERS, REPLAYED, SEEDS

FIRST = 800_000
"""The first seed: others than those of the other runs."""
ALL_FROM = 2_500
"""From so many seeds on, all are run."""
NOT_WITH = {
    # With a changelog and the group's offsets gone, nothing is left of a commit that a killed worker didn't store.
    "expired": NOT_WITH_EXPIRED | {"replaced"},
    # An operator has inputs handled again or never, and the oracle of tables knows each input once.
    "foreign": {"operator"},
    # Their books are in the changelogs, which are deleted then.
    "replaced": {"asks", "queries"},
    "swapped": NOT_WITH_SWAPPED,
    "unparking": NOT_WITH_UNPARKING,
    "park": NOT_WITH_PARK,
    "inputs": NOT_WITH_INPUTS,
}
ONLY_WITH = {"grow": WITH_GROWN, "recreate": WITH_RECREATED}
FAULTS = tuple(name for name in vars(Nemesis) if not name.startswith("_") and name not in ("run", "heal"))


def fit(features: Collection[str]) -> bool:
    """Whether the oracles know of these features together."""
    whole = frozenset(completed(features))
    return (
        all(whole.isdisjoint(NOT_WITH.get(name, ())) for name in whole)
        and all(whole <= ONLY_WITH.get(name, whole) | {name} for name in whole)
        and ("unparking" not in whole or "park" in whole)
    )


def some(runs: list[tuple[tuple[str, ...], tuple[str, ...]]]) -> list[object]:
    """Give the runs of this time, with their seeds."""
    if REPLAYED is not None:
        return []
    each = SEEDS // ALL_FROM
    chosen = [(FIRST + number + len(runs) * more, *run) for more in range(each or 1) for number, run in enumerate(runs)]
    chosen = chosen if each else chosen[SEEDS % 7 :: -(-len(chosen) // OTHERS)]
    return [pytest.param(*run, id="-".join(map(str, (run[0], *run[1], *run[2])))) for run in chosen]


PAIRS = [((), pair) for pair in combinations(sorted(EVERY), 2) if fit(pair)]
WITH_FAULTS = [((fault,), (feature,)) for feature, fault in product(sorted(EVERY), FAULTS) if fit((feature,))]


@pytest.mark.parametrize(("seed", "faults", "features"), some(PAIRS))
def test_every_invariant_holds_where_two_features_meet(
    seed: int, faults: tuple[str, ...], features: tuple[str, ...]
) -> None:
    check(seed, faults=faults, features=features)


@pytest.mark.parametrize(("seed", "faults", "features"), some(WITH_FAULTS))
def test_every_invariant_holds_where_a_feature_meets_a_fault(
    seed: int, faults: tuple[str, ...], features: tuple[str, ...]
) -> None:
    check(seed, faults=faults, features=features)
