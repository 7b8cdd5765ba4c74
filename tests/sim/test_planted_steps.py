"""The simulation sees clocks that are followed too far, and a time that goes back."""

from __future__ import annotations

import pytest

from actors.runtime.clock import PartitionClock, SystemClock
from tests.sim.planted import MAX_SEEDS, Patch, Planted

FEATURES = ("expiry", "steps", "timers")


def forget_the_time(patch: Patch) -> None:
    """A new owner begins with its own clock."""
    patch.setattr(PartitionClock, "go_on_from", lambda self, committed_ms: None)


def believe_the_machine(patch: Patch) -> None:
    """Whatever the machine's clock says is the time."""
    patch.setattr(SystemClock, "wall_ms", lambda self: self._wall_ns() // 1_000_000)


PLANTED = (
    Planted(forget_the_time, "expiry", first_seed=82, features=FEATURES),
    Planted(believe_the_machine, "timers", ("clock_step",), features=FEATURES),
    Planted(believe_the_machine, "timers", first_seed=3, features=(*FEATURES, "standbys")),
)


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_the_damage_is_found(planted: Planted, monkeypatch: Patch) -> None:
    assert planted.seed(monkeypatch) is not None, f"{MAX_SEEDS} seeds, and nobody noticed"
