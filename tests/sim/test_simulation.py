"""The runtime under faults, in virtual time.

`SEED=n` replays one seed with its trace (`FAULTS=crash,pause` restricts it), `SIM_SEEDS=n` runs n of them.
"""

from __future__ import annotations

import os

import pytest

from actors.testing import Process, VirtualLoop
from tests.sim.nemesis import STEPS
from tests.sim.simulation import check, simulate

SEEDS = int(os.environ.get("SIM_SEEDS", "300"))
REPLAYED = os.environ.get("SEED")
FAULTS = tuple(filter(None, os.environ.get("FAULTS", "").split(",")))

FOUND = (
    # A store was opened while its task was cancelled: it stayed open, and nobody could open it again.
    (97, ()),
    (107, ()),
    (273, ()),
    (35, ("slow_disk", "rebalance")),
    (50, ("slow_disk", "rebalance")),
    # A call in a thread failed after its caller was cancelled: nobody read the error.
    (6, ("slow_disk", "rebalance")),
    (825, ()),
    # A restore died between its last load and the wipe: its checkpoint was at the log's end, so old as it was.
    (344, ()),
    (350, ()),
    (170, ("long_absence",)),
    (173, ("long_absence",)),
)
"""Runs that found a defect once, and what it was."""


def runs() -> list[object]:
    if REPLAYED is not None:
        return [pytest.param(int(REPLAYED), FAULTS)]
    wanted = dict.fromkeys([*((seed, ()) for seed in range(SEEDS)), *FOUND])
    return [pytest.param(*run, id="-".join(map(str, (run[0], *run[1])))) for run in wanted]


@pytest.mark.parametrize(("seed", "faults"), runs())
def test_exactly_once_under_faults(seed: int, faults: tuple[str, ...]) -> None:
    check(seed, faults=faults, print_trace=REPLAYED is not None)


def test_a_seed_is_one_run() -> None:
    first, again = simulate(3), simulate(3)
    assert first.trace == again.trace
    assert (first.virtual_s, first.takeovers) == (again.virtual_s, again.takeovers)


def test_every_step_is_come_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that waits for a step that never comes would be no fault."""
    reached: set[str] = set()
    original = Process.__init__

    def watched(self: Process, loop: VirtualLoop, name: str) -> None:
        original(self, loop, name)
        self.on_step = reached.add

    monkeypatch.setattr(Process, "__init__", watched)
    for seed in range(30):
        simulate(seed)
        if reached.issuperset(STEPS):
            return
    pytest.fail(f"nobody came to {set(STEPS) - reached}")
