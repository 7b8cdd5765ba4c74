"""Questions that a busy worker looks at together, a hundred times a second.

What a question runs through has left the processor's caches when the worker is at its records: looked at one by one
questions cost three times what they cost one behind the other. A busy worker is nearly always at a commit, for whose
end a question waits in any case, so a few milliseconds more change little. Where no question waits for a commit, none
waits here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

ROUND_S = 0.01
BUSY_S = 0.1
"""For so long after a question had to wait for a commit all take part."""

Turn = Callable[[], bool]
"""Looks at a question; tells whether that was the last time."""


class Rounds:
    """The questions of one web server that wait."""

    def __init__(self) -> None:
        self._turns: list[Turn] = []
        self._timer: asyncio.TimerHandle | None = None
        self._until_s = float("-inf")

    def __len__(self) -> int:
        return len(self._turns)

    def are_on(self, now_s: float) -> bool:
        """Tell whether a question that comes now takes part; `now_s` is the loop's time."""
        return now_s < self._until_s

    def begin(self, now_s: float) -> None:
        """Have all that come soon take part."""
        self._until_s = now_s + BUSY_S

    def add(self, turn: Turn) -> None:
        """Look at a question in the next round, and in each after it until that was the last time."""
        self._turns.append(turn)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(ROUND_S, self._run)

    def _run(self) -> None:
        turns, self._turns, self._timer = self._turns, [], None
        for turn in turns:
            if not turn():
                self.add(turn)
