"""Every invariant of what a worker checks before it runs fails on the damage it is there for."""

from __future__ import annotations

import pytest

from actors._faust.startup.registry import StoreRegistry
from tests.sim.planted import MAX_SEEDS, Patch, Planted, rewritten
from tests.sim.simulation import simulate

UNPARKING = ("park", "unparking")


async def do_nothing(*_: object, **__: object) -> None:
    """Stands in for a check that is left out."""


def leave_behind_what_waits(patch: Patch) -> None:
    """A start doesn't look at stores that an actor isn't declared with any more."""
    patch.setattr(StoreRegistry, "_check_stranded", do_nothing)


def count_what_is_resolved(patch: Patch) -> None:
    """An entry that was deleted counts as one that waits."""
    edit = ("(held.discard if record.value is None else held.add)(record.key)", "held.add(record.key)")
    patch.setattr(StoreRegistry, "_live", rewritten(StoreRegistry._live, edit))


PLANTED = (
    Planted(leave_behind_what_waits, "unparking: a program", features=UNPARKING),
    Planted(leave_behind_what_waits, "unparking: inputs/", first_seed=1, features=UNPARKING),
    Planted(count_what_is_resolved, "unparking: a start is refused", features=UNPARKING),
)


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_the_damage_is_found(planted: Planted, monkeypatch: Patch) -> None:
    assert planted.seed(monkeypatch) is not None, f"{MAX_SEEDS} seeds, and nobody noticed"


def test_every_outcome_of_a_start_comes() -> None:
    left = {
        "start refused",
        "refused with parked messages",
        "started without parking",
    }
    for seed in range(50):
        left -= simulate(seed, features=UNPARKING).counted.keys()
        if not left:
            return
    pytest.fail(f"nobody came to {left}")
