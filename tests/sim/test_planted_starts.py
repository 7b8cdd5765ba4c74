"""Every invariant of what a worker checks before it runs fails on the damage it is there for."""

from __future__ import annotations

import pytest

from actors._faust.startup.registry import StoreRegistry
from tests.sim.planted import MAX_SEEDS, Patch, Planted, rewritten
from tests.sim.simulation import simulate

UNPARKING = ("park", "unparking")


async def do_nothing(*_: object, **__: object) -> None:
    """Stands in for a check that is left out."""


def look_at_no_rival(patch: Patch) -> None:
    """A start doesn't look at what other apps have claimed."""
    patch.setattr(StoreRegistry, "_check_rivals", do_nothing)


def look_before_the_claim_only(patch: Patch) -> None:
    """A start doesn't look again after its claim: two that start at once don't see each other."""
    edit = ("await self._check_rivals(claims, current, is_claimed=True)", "pass")
    patch.setattr(StoreRegistry, "confirm", rewritten(StoreRegistry.confirm, edit))


def look_after_the_claim_only(patch: Patch) -> None:
    """A start that is refused leaves a claim."""
    edit = ("await self._check_rivals(claims, current, is_claimed=False)", "pass")
    patch.setattr(StoreRegistry, "_checked", rewritten(StoreRegistry._checked, edit))


def leave_behind_what_waits(patch: Patch) -> None:
    """A start doesn't look at stores that an actor isn't declared with any more."""
    patch.setattr(StoreRegistry, "_check_stranded", do_nothing)


def count_what_is_resolved(patch: Patch) -> None:
    """An entry that was deleted counts as one that waits."""
    edit = ("(held.discard if record.value is None else held.add)(record.key)", "held.add(record.key)")
    patch.setattr(StoreRegistry, "_live", rewritten(StoreRegistry._live, edit))


PLANTED = (
    Planted(look_at_no_rival, "rival", features=("rival",)),
    Planted(look_before_the_claim_only, "rival: ['app", features=("rival",)),
    Planted(look_after_the_claim_only, "rival: it claims", features=("rival",)),
    Planted(leave_behind_what_waits, "unparking: a program", features=UNPARKING),
    Planted(leave_behind_what_waits, "unparking: inputs/", first_seed=1, features=UNPARKING),
    Planted(count_what_is_resolved, "unparking: a start is refused", features=UNPARKING),
)


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_the_damage_is_found(planted: Planted, monkeypatch: Patch) -> None:
    assert planted.seed(monkeypatch) is not None, f"{MAX_SEEDS} seeds, and nobody noticed"


def test_every_outcome_of_a_start_comes() -> None:
    left = {
        "app uses the changelog",
        "app-eu uses the changelog",
        "rival refused",
        "rival retired",
        "rival withdrawn",
        "start refused",
        "refused with parked messages",
        "started without parking",
    }
    for seed in range(50):
        left -= simulate(seed, features=("rival", *UNPARKING)).counted.keys()
        if not left:
            return
    pytest.fail(f"nobody came to {left}")
