"""Damages of pauses, each of which breaks an invariant."""

from __future__ import annotations

import pytest

from actors._core.task.pauses import Pause
from actors.runtime import pauses
from actors.runtime.inputs.inbox import Inbox
from actors.runtime.task.task import Task
from tests.sim.planted import MAX_SEEDS, Patch, Planted, rewritten


def take_over_without_a_look(patch: Patch) -> None:
    """A task sees a pause only when the worker looks at the registry the next time."""
    edit = ("        self.pause(self._services.owners.pause_of(self.spec.name, self.partition))\n", "")
    patch.setattr(Task, "_found", rewritten(Task._found, (edit[0].lstrip(), "pass\n")))


def look_in_takeovers_only(patch: Patch) -> None:
    """A pause of a task that runs isn't seen."""
    edit = ("task.pause(owners.pause_of(name, partition))", "pass")
    patch.setattr(pauses, "_follow", rewritten(pauses._follow, edit))


def handle_on(patch: Patch) -> None:
    """A task that is paused goes on with what comes."""
    patch.setattr(Inbox, "pause", lambda self, is_paused: None)


def stay_paused_for_ever(patch: Patch) -> None:
    """Nobody resumes a task."""
    original = Task.pause

    def pause(self: Task, told: Pause | None) -> None:
        original(self, self.paused if told is None else told)

    patch.setattr(Task, "pause", pause)


PLANTED = (
    Planted(take_over_without_a_look, "pauses", features=("pauses",)),
    Planted(look_in_takeovers_only, "pauses", features=("pauses",)),
    Planted(handle_on, "pauses", features=("pauses",)),
    Planted(handle_on, "pauses", features=("inputs", "pauses")),
    Planted(stay_paused_for_ever, "progress", features=("pauses",)),
)


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_the_damage_is_found(planted: Planted, monkeypatch: Patch) -> None:
    assert planted.seed(monkeypatch) is not None, f"{MAX_SEEDS} seeds, and nobody noticed"
