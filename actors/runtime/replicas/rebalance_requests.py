"""When a worker asks for a rebalance because copies that it warmed up are warm."""

from __future__ import annotations

from actors._core.backoff import Backoff
from actors._core.group.members import TaskId
from actors.ports import Clock

PATIENCE_S = 10.0
"""How long the first warm copy waits for the others."""
REST = Backoff(5.0, longest_s=60.0)
"""The time after any rebalance, and between two that this worker asks for: each stops all tasks of the group."""


class Asking:
    """When to ask for a rebalance: not for each warm copy, and less often when it moves nothing."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rest_s = REST.first_s
        self._not_before_s = float("-inf")
        self._first_warm_s: float | None = None
        self._asked_for: set[TaskId] = set()

    def assigned(self, warm_ups: set[TaskId]) -> None:
        """Note an assignment: what was asked for and is a warm-up still came to nothing."""
        if self._asked_for:
            self._rest_s = REST.longer_s(self._rest_s) if self._asked_for & warm_ups else REST.first_s
            self._asked_for = set()
        self._first_warm_s = None
        # Whoever asked for this one: many new members that ask one after the other would stop the group all the time.
        self._not_before_s = max(self._not_before_s, self._clock.monotonic() + REST.first_s)

    def is_due(self, warm: set[TaskId], wanted: int) -> bool:
        """Return whether to ask now, when `warm` of `wanted` copies are warm; if so, it is noted as asked."""
        now_s = self._clock.monotonic()
        if not warm:
            self._first_warm_s = None
            return False
        if self._first_warm_s is None:
            self._first_warm_s = now_s
        if len(warm) < wanted and now_s - self._first_warm_s < PATIENCE_S:
            return False
        if now_s < self._not_before_s:
            return False
        self._not_before_s = now_s + self._rest_s
        self._asked_for = set(warm)
        return True
