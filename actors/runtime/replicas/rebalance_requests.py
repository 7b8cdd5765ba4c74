"""When a worker asks for a rebalance because copies that it warmed up are warm."""

from __future__ import annotations

from actors._core.group.assign import TaskId
from actors.ports import Clock

PATIENCE_S = 10.0
"""How long the first warm copy waits for the others."""
FIRST_REST_S, LAST_REST_S = 5.0, 60.0
"""The time after any rebalance, and between two that this worker asks for: each stops all tasks of the group."""
BLIND_REST_S = 600.0
"""The longest time where the leader's limit isn't known, and may be one that the copy never keeps to."""


class Asking:
    """When to ask for a rebalance: not for each warm copy, and less often when it moves nothing."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.in_vain = 0
        """How often in a row it moved nothing."""
        self._rest_s = FIRST_REST_S
        self._not_before_s = float("-inf")
        self._first_warm_s: float | None = None
        self._asked_for: set[TaskId] = set()

    def assigned(self, warm_ups: set[TaskId], *, is_limit_known: bool) -> None:
        """Note an assignment: what was asked for and is a warm-up still came to nothing."""
        if self._asked_for:
            if self._asked_for & warm_ups:
                self._rest_s = min(2 * self._rest_s, LAST_REST_S if is_limit_known else BLIND_REST_S)
                self.in_vain += 1
            else:
                self._rest_s = FIRST_REST_S
                self.in_vain = 0
            self._asked_for = set()
        self._first_warm_s = None
        # Whoever asked for this one: many new members that ask one after the other would stop the group all the time.
        self._not_before_s = max(self._not_before_s, self._clock.monotonic() + FIRST_REST_S)

    def is_due(self, warm: set[TaskId], wanted: int) -> bool:
        """Tell whether to ask now, for these of so many; then it counts as done."""
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
