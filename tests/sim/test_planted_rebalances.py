"""The simulation sees rebalances that break their rules."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

import tests.sim.fakes.source as source
from actors._core.group import assign, placement
from actors._core.group.members import Member, TaskId
from actors.runtime.task.task import Task
from actors.runtime.worker import Worker
from tests.sim.planted import MAX_SEEDS, Patch, Planted


def end_slowly(self: Worker, task: Task) -> None:
    """Let a task go on for a while, as one does whose handler is slow."""
    self._ending[task.id] = task
    asyncio.get_running_loop().call_later(5.0, task.request_stop)


def give_at_once(patch: Patch) -> None:
    """The leader gives a task to its next owner while the last one has it."""
    place = source.place

    def place_now(members: list[Member], *rest: object) -> object:
        return place([replace(member, kept=False) for member in members], *rest)

    patch.setattr(source, "place", place_now)


def claim_nothing_that_leaves(patch: Patch) -> None:
    """A worker joins as if what it is still handing over were free."""
    patch.setattr(Worker, "leaving", ())
    patch.setattr(Worker, "_end", end_slowly)


def commit_what_may_be_anothers(patch: Patch) -> None:
    """A worker joins while slow tasks have to be handed over, and those that an assignment doesn't name go on."""

    async def handed_over(self: Worker) -> None:
        """Wait for nothing."""
        self._leaving.clear()

    patch.setattr(Worker, "handed_over", handed_over)
    patch.setattr(Worker, "_end", end_slowly)
    patch.setattr(Worker, "_drop", lambda *_: None)


def believe_the_older_claim(patch: Patch) -> None:
    """Of two members that claim a task the one of the older generation has it."""
    original = assign.last_owners

    def last_owners(members: Sequence[Member]) -> dict[TaskId, int]:
        return original([replace(member, generation=-member.generation) for member in members])

    patch.setattr(assign, "last_owners", last_owners)
    patch.setattr(placement, "last_owners", last_owners)


def start_anew(patch: Patch) -> None:
    """Tasks that stay are started anew."""
    patch.setattr(Worker, "_goes_on", lambda *_: False)


SLOW = ("slow_disk", "rebalance", "bounce", "pause")
PLANTED = (
    Planted(give_at_once, "handed over", first_seed=16),
    Planted(claim_nothing_that_leaves, "handed over", SLOW, first_seed=58),
    Planted(commit_what_may_be_anothers, "one owner", SLOW, check_phases=False, first_seed=67),
    Planted(believe_the_older_claim, "handed over", first_seed=16),
    Planted(start_anew, "kept"),
)


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_damage_breaks_its_invariant(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    assert planted.seed(monkeypatch) is not None, f"no seed of {MAX_SEEDS} shows it"
