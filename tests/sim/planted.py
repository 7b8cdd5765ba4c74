"""Plants damages into the product: what the tests of the invariants are made with."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.sim.simulation import simulate

MAX_SEEDS = 400
Patch = pytest.MonkeyPatch


def rewritten(function: Any, *edits: tuple[str, str], **names: object) -> Any:
    """The function with its source changed; an edit that doesn't fit any more is an error."""
    lines = inspect.getsource(function)
    lines = inspect.cleandoc("\n" + lines) if lines.startswith(" ") else lines
    for old, new in edits:
        assert lines.count(old) == 1, f"{function.__qualname__} has {lines.count(old)} times {old!r}"
        lines = lines.replace(old, new)
    scope = {**function.__globals__, **names}
    exec(compile(f"from __future__ import annotations\n{lines}", f"<damaged {function.__name__}>", "exec"), scope)
    return scope[function.__name__]


@dataclass(frozen=True)
class Planted:
    """A damage, the invariant that has to break, and the faults that bring it to light (none named: any).

    `first_seed` spares the time until the first seed that shows it; another one will do as well.
    """

    damage: Callable[[Patch], None]
    invariant: str
    faults: tuple[str, ...] = ()
    check_phases: bool = True
    first_seed: int = 0
    features: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "-".join((self.damage.__name__, *self.features))

    def seed(self, patch: Patch) -> int | None:
        """Give the first seed that shows it, None when none does."""
        self.damage(patch)
        for seed in range(self.first_seed, self.first_seed + MAX_SEEDS):
            violations = simulate(
                seed, check_phases=self.check_phases, faults=self.faults, features=self.features
            ).violations
            if any(violation.startswith(self.invariant) for violation in violations):
                return seed
        return None
