"""The simulation sees rebalances that break their rules."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tests.sim.fakes.source as source
from actors._core.group.members import Member
from actors.runtime.task.committer import CommitterLog
from actors.runtime.worker import Worker
from tests.sim.planted import MAX_SEEDS, Patch, Planted


def give_at_once(patch: Patch) -> None:
    """The leader gives a task to its next owner while the last one has it."""
    place = source.place

    def place_now(members: list[Member], *rest: object) -> object:
        return place([replace(member, kept=False) for member in members], *rest)

    patch.setattr(source, "place", place_now)


def claim_nothing_that_leaves(patch: Patch) -> None:
    """A worker joins as if what it is still handing over were free."""
    patch.setattr(Worker, "leaving", ())


def hand_over_in_the_middle(patch: Patch) -> None:
    """A worker joins without what is to be handed over before that is committed, and commits it later."""

    async def handed_over(self: Worker) -> None:
        self._leaving.clear()

    patch.setattr(Worker, "handed_over", handed_over)
    patch.setattr(CommitterLog, "end", lambda _: None)


def keep_when_forgotten(patch: Patch) -> None:
    """Tasks go on although the group has forgotten the worker."""
    patch.setattr(Worker, "dropped", lambda self: self._member.settle())


def keep_what_was_missed(patch: Patch) -> None:
    """A generation in which the leader took the worker's tasks for another's doesn't matter."""
    patch.setattr(
        source.FakeSource, "_note_generation", lambda self: setattr(self, "last_generation", self.identity().generation)
    )


def start_anew(patch: Patch) -> None:
    """Tasks that stay are started anew."""
    patch.setattr(Worker, "_goes_on", lambda *_: False)


PLANTED = (
    Planted(give_at_once, "handed over"),
    Planted(claim_nothing_that_leaves, "handed over"),
    Planted(hand_over_in_the_middle, "one owner", check_phases=False),
    Planted(keep_when_forgotten, "", check_phases=False),
    Planted(keep_what_was_missed, "", features=("static",), check_phases=False),
    Planted(start_anew, "kept"),
)


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_damage_breaks_its_invariant(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    assert planted.seed(monkeypatch) is not None, f"no seed of {MAX_SEEDS} shows it"
