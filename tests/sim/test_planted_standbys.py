"""The simulation sees copies that break their rules."""

from __future__ import annotations

import pytest

from actors._core.group.placement import Copies
from actors.runtime.replicas.standbys import Standbys
from tests.sim.planted import MAX_SEEDS, Patch, Planted


def copies_go_on(patch: Patch) -> None:
    """What was a copy is followed although its task is here now."""

    def assign(self: Standbys, copies: Copies) -> None:
        original(self, Copies(copies.standbys | set(self._wanted), copies.warm_ups))

    async def release(self: Standbys, actor: str, partition: int) -> None:
        """Nobody is let go."""

    original = Standbys.assign
    patch.setattr(Standbys, "assign", assign)
    patch.setattr(Standbys, "release", release)


@pytest.mark.parametrize(
    "planted", [Planted(copies_go_on, "one writer", first_seed=10, features=("standbys",))], ids=str
)
def test_damage_breaks_its_invariant(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    assert planted.seed(monkeypatch) is not None, f"no seed of {MAX_SEEDS} shows it"
