"""Which effect runs next: the lines of the outbox whose head is due.

    ready      the head may run
    waiting    the head's next attempt is due later
    held       the head is under way, or its outcome isn't committed: whoever has taken it says so
    parked     the head is given up, or can't be read: nothing of the line runs until somebody acts

Only what is committed is looked at. Lines are found by a walk through the store, and after each commit that changed
them. The walk stops when enough is known, and goes on when that is done; lines for which there was no room then are
found by the next.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Callable

import msgspec

from actors._core.logs import escaping
from actors.ports import Clock
from actors.runtime.message.task_state import TaskState
from actors.runtime.outbox.calls import (
    END,
    PREFIX,
    UNKNOWN_EFFECT,
    EffectRecord,
    Head,
    Mark,
    decoded,
    line_bounds,
    line_of,
)
from actors.runtime.spec import ActorSpec
from stores._core.record import METADATA_BYTES
from stores.ports import PartitionStore

logger = escaping(logging.getLogger(__name__))

HELD_LINES = 1_000
"""How many lines are known to be ready, how many to wait, and how many to be parked."""
WALK_KEYS = 1_000
"""How many keys of the store are looked at in one go."""
LOOK_AGAIN_S = 1.0
_AT_ONCE_S = 0.001
_UNREADABLE = EffectRecord(id="", name="", args=[], kwargs={}, parked=True)
"""In the place of a record that can't be read: it holds its line up as a parked one does."""


class Lines:
    """The lines of a partition's outbox, from a takeover to the next.

    `committed` is the outbox as it is committed; `is_held` tells whether a line's head is under way.
    """

    def __init__(
        self,
        spec: ActorSpec,
        state: TaskState,
        committed: PartitionStore,
        clock: Clock,
        *,
        is_held: Callable[[bytes], bool],
    ) -> None:
        self._spec = spec
        self._state = state
        self._committed = committed
        self._clock = clock
        self._is_held = is_held
        self._is_walking, self._missed = True, False
        self._cursor: bytes = PREFIX
        self._walked: bytes | None = None
        self._look_again_s = math.inf
        self._ready: dict[bytes, Mark] = {}
        self._waiting: dict[bytes, tuple[float, Mark]] = {}
        self._alarms: list[tuple[float, bytes]] = []
        self._damaged: set[bytes] = set()
        self._parked: set[bytes] = set()
        self._more_are_parked = False

    @property
    def is_busy(self) -> bool:
        """Return whether a line is ready, or one may be found."""
        return self._is_walking or bool(self._ready) or self.wait_s() <= 0.0

    @property
    def is_ready(self) -> bool:
        """Return whether `take` returns a line."""
        return bool(self._ready)

    @property
    def parked(self) -> int:
        """How many lines are known to be parked; there may be more while a walk goes on, or from `HELD_LINES` on."""
        return len(self._parked)

    def wait_s(self) -> float:
        """Return the seconds until `look` finds something, infinity if unknown."""
        if self._can_walk:
            return 0.0
        first_s = min(self._look_again_s, self._alarms[0][0] if self._alarms else math.inf)
        left_s = first_s - self._clock.monotonic()
        return left_s if left_s > _AT_ONCE_S else 0.0

    def look(self) -> None:
        """Make lines ready whose wait is over, and look for others."""
        self._ring()
        if self._can_walk:
            self._walk()

    def take(self) -> tuple[bytes, Head] | None:
        """Return the next line that is ready, with its head; None when there is none."""
        while self._ready:
            raw_key = next(iter(self._ready))
            del self._ready[raw_key]
            head = self.head(raw_key)
            if head is not None and not head.record.parked:
                return raw_key, head
        return None

    @property
    def _can_walk(self) -> bool:
        return self._is_walking and len(self._ready) < HELD_LINES // 2

    def _ring(self) -> None:
        """Make the lines ready whose wait is over."""
        now_s = self._clock.monotonic() + _AT_ONCE_S
        while self._alarms and self._alarms[0][0] <= now_s:
            due_s, raw_key = heapq.heappop(self._alarms)
            waited = self._waiting.get(raw_key)
            if waited is not None and waited[0] == due_s:
                del self._waiting[raw_key]
                self._make_ready(raw_key, waited[1])
        if self._look_again_s <= now_s:
            self._look_again_s = math.inf
            self._miss()

    def _walk(self) -> None:
        """Look at the next keys of the store."""
        if self._cursor == PREFIX:
            self._more_are_parked = False
        for count, (store_key, raw) in enumerate(self._committed.scan(self._cursor, END)):
            if count >= WALK_KEYS or len(self._ready) >= HELD_LINES:
                self._cursor = store_key
                return
            raw_key = line_of(store_key)
            if raw_key is None:
                self._say_damaged(store_key)
            elif raw_key != self._walked:
                self._walked = raw_key
                if not self._is_held(raw_key):
                    self.place(raw_key, self._head_of(store_key, raw))
        self._cursor, self._walked = PREFIX, None
        self._is_walking, self._missed = self._missed, False

    def _miss(self) -> None:
        """Note that there are lines that the walk under way doesn't come by any more."""
        self._missed = self._is_walking
        self._is_walking = True

    def place(self, raw_key: bytes, head: Head | None) -> None:
        """Make a line ready, or let it wait, as its head says."""
        if head is None or head.record.parked:
            self._ready.pop(raw_key, None)
            self._waiting.pop(raw_key, None)
            if head is None:
                self._isnt_parked(raw_key)
            else:
                self._is_parked(raw_key)
            return
        self._isnt_parked(raw_key)
        waited = self._waiting.get(raw_key)
        if self._ready.get(raw_key) == head.mark or (waited is not None and waited[1] == head.mark):
            return
        self._ready.pop(raw_key, None)
        self._waiting.pop(raw_key, None)
        ahead_s = (head.record.next_ms - max(self._state.scope.now_ms, self._clock.wall_ms())) / 1000
        effect = self._spec.effect_functions.get(head.record.name)
        if effect is None or ahead_s <= 0:
            self._make_ready(raw_key, head.mark)
        else:
            # The monotonic clock measures the wait: the wall's may have been set, here or where this was written.
            self._wait(raw_key, head.mark, min(ahead_s, effect.longest_wait.total_seconds()))

    def _is_parked(self, raw_key: bytes) -> None:
        if len(self._parked) < HELD_LINES or raw_key in self._parked:
            self._parked.add(raw_key)
        else:
            self._more_are_parked = True

    def _isnt_parked(self, raw_key: bytes) -> None:
        if raw_key in self._parked:
            self._parked.remove(raw_key)
            if self._more_are_parked:
                # There is room now for one of those that weren't kept.
                self._look_again_s = min(self._look_again_s, self._clock.monotonic() + LOOK_AGAIN_S)

    def _make_ready(self, raw_key: bytes, mark: Mark) -> None:
        if len(self._ready) >= HELD_LINES:
            self._miss()
        else:
            self._ready[raw_key] = mark

    def _wait(self, raw_key: bytes, mark: Mark, seconds: float) -> None:
        now_s = self._clock.monotonic()
        if len(self._waiting) >= HELD_LINES:
            self._look_again_s = min(self._look_again_s, now_s + max(seconds, LOOK_AGAIN_S))
            return
        due_s = now_s + seconds
        self._waiting[raw_key] = due_s, mark
        heapq.heappush(self._alarms, (due_s, raw_key))

    def head(self, raw_key: bytes) -> Head | None:
        """Return the committed head of a line; None for an empty line. One that can't be read counts as parked."""
        found = next(self._committed.scan(*line_bounds(raw_key)), None)
        return None if found is None else self._head_of(*found)

    def _head_of(self, store_key: bytes, raw: bytes) -> Head:
        record = decoded(raw[METADATA_BYTES:])
        if record is None:
            self._say_damaged(store_key)
            return Head(store_key, _UNREADABLE)
        if record.parked and record.name in self._spec.effect_functions and UNKNOWN_EFFECT in (record.error or ""):
            # An older program had the partition meanwhile. It didn't give up: it never tried.
            record = msgspec.structs.replace(record, parked=False)
        return Head(store_key, record)

    def _say_damaged(self, store_key: bytes) -> None:
        if store_key in self._damaged or len(self._damaged) >= HELD_LINES:
            return
        self._damaged.add(store_key)
        logger.error(
            "actor %s, partition %d: the outbox's record with the key %s (hexadecimal) isn't an effect's call; it is "
            "left as it is, and the effects of its key wait behind it: run the release that wrote it",
            self._spec.name,
            self._state.partition,
            store_key.hex(),
        )
