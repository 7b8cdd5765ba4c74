"""What a task knows of its right to write."""

from __future__ import annotations

import enum
from contextvars import ContextVar
from dataclasses import dataclass


class Phase(enum.Enum):
    """What the task that is running knows of its right to write."""

    NEW = "new"
    FENCED = "has fenced the others and not asked the group since"
    OWNER = "was confirmed by the group after it fenced"
    UNKNOWN = "has a commit of unknown outcome"
    MIGRATED = "was told that it isn't the owner"


@dataclass
class Ownership:
    """What a task knows since its last fence; its commits, which run beside it, know the same.

    `before` is what it knew before it was told that it isn't the owner.
    """

    phase: Phase = Phase.NEW
    before: Ownership | None = None


ownership: ContextVar[Ownership] = ContextVar("ownership")


def phase() -> Phase:
    return ownership.get(Ownership()).phase


def enter(phase: Phase) -> None:
    """Go on to a phase; a commit that runs on from before it has no right to write any more."""
    ownership.get(Ownership()).phase = Phase.FENCED
    ownership.set(Ownership(phase))
