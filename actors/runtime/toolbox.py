"""What handlers reach through their context beside stores."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actors.ports import Clock
    from actors.runtime.answers import Answers
    from actors.runtime.asks import Asker
    from actors.runtime.effects import Effects
    from actors.runtime.publishing import Publications
    from actors.runtime.timers import Timers


@dataclass(slots=True)
class Tools:
    """What an actor has beside stores, as far as it was declared to; `clock` is there in every worker.

    `latest_ms` is the latest time that a handler was told, which the next commit keeps.
    """

    clock: Clock | None = None
    timers: Timers | None = None
    effects: Effects | None = None
    asks: Asker | None = None
    answers: Answers | None = None
    published: Publications = field(default_factory=dict)
    latest_ms: int = 0

    def now_ms(self, least_ms: int) -> int:
        """Return the partition's time, which isn't below `least_ms` and never goes back."""
        wall_ms = 0 if self.clock is None else self.clock.wall_ms()
        self.latest_ms = max(self.latest_ms, least_ms, wall_ms)
        return self.latest_ms
