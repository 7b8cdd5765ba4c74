"""The state of a worker's standbys, for status and dashboard."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Role(enum.StrEnum):
    """Why a copy is kept."""

    STANDBY = "standby"
    WARM_UP = "warm-up"


@dataclass(frozen=True, slots=True)
class StandbyState:
    """A store's partition as this worker's copy has it.

    `position` is the next changelog offset to apply, `lag` how many offsets it lacked at the last look, None if that
    isn't known. `current_ms` is the time of the last look whose end it has reached, None before the first one,
    `looked_ms` that of the last look at all: an old one tells that the copy isn't followed now.
    """

    actor: str
    store: str
    partition: int
    role: Role
    position: int
    lag: int | None
    current_ms: int | None
    looked_ms: int
