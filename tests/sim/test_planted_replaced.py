"""Every invariant of changelogs that are replaced fails on the damage it is there for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import actors._core.task.takeover as takeover
from actors._core.task.takeover import Restore
from actors.runtime.state.restore import Restorer
from actors.runtime.task import lost_changelog as lost
from tests.sim.planted import MAX_SEEDS, Patch, Planted

FAULTS = ("replace_changelog", "rebalance", "bounce", "slow_disk", "bad_network", "crash")


def wipe_what_is_of_another_topic(patch: Patch) -> None:
    """Another topic of the changelog's name is taken for the truth."""
    plan = takeover.plan_restore

    def wiping(position: Any, bounds: Any, topic_id: str, *, claimed_id: str = "") -> Restore:
        if position is not None and position.changelog_id != topic_id:
            return Restore(bounds.start, bounds.end, "the topic was made anew")
        return plan(position, bounds, topic_id)

    patch.setattr(takeover, "plan_restore", wiping)


def believe_the_store_alone(patch: Patch) -> None:
    """What the last commit says of its changelog isn't looked at: an empty disk begins with an empty state."""
    patch.setattr(
        "actors.runtime.task.task.last_commit",
        lambda *said: replace(lost.last_commit(*said), changelog_id=""),
    )


def look_at_no_ids_while_running(patch: Patch) -> None:
    """A takeover takes the topic for the one that was there when the worker started."""

    patch.setattr("actors.runtime.task.task.require_changelogs", lambda *_: None)


def write_any_copy_back(patch: Patch) -> None:
    """A store that lacks what was committed last is written to the new topic."""

    async def take_any(self: Restorer, *_: object) -> None:
        return

    patch.setattr(Restorer, "_require_newest", take_any)


PLANTED = (
    Planted(wipe_what_is_of_another_topic, "exactly once", faults=FAULTS, features=("replaced",)),
    Planted(believe_the_store_alone, "exactly once", faults=FAULTS, first_seed=3, features=("replaced",)),
    Planted(look_at_no_ids_while_running, "", faults=FAULTS, first_seed=13, features=("replaced",)),
    Planted(write_any_copy_back, "exactly once", faults=FAULTS, features=("replaced",)),
)


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_the_damage_is_found(planted: Planted, monkeypatch: Patch) -> None:
    assert planted.seed(monkeypatch) is not None, f"{MAX_SEEDS} seeds, and nobody noticed"
