"""What windows have to hold, and what has to be emitted of them, computed anew from what the handler said of events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from actors.testing.fakes.cluster import EPOCH_MS

Place = tuple[int, int]
"""Start and end of a window, milliseconds since the simulation's first day."""


@dataclass
class Held:
    """A window with what is in it."""

    start_ms: int
    end_ms: int
    count: int = 0
    total: int = 0
    is_closed: bool = False

    def add(self, count: int, total: int) -> None:
        self.count += count
        self.total += total

    @property
    def place(self) -> Place:
        return self.start_ms, self.end_ms

    @property
    def told(self) -> str:
        return f"{self.start_ms}~{self.end_ms}~{self.count}~{self.total}"


def end_of_interval(stream_ms: int, every_ms: int) -> int:
    """Give the end of the interval that a stream time lies in."""
    return ((stream_ms + EPOCH_MS) // every_ms + 1) * every_ms - EPOCH_MS


class Slides:
    """The sliding windows of the keys of a partition: of all events of a key, those that are near enough.

    An event whose own window is closed goes into the windows that are there; which ones are there then depends on
    earlier windows alone. Windows around such an event are unclear: nothing is said of them. So are those around an
    event whose own window is open for the longest grace and closed for the least one.
    """

    def __init__(self, length_ms: int, graces_ms: Sequence[int]) -> None:
        self._length_ms = length_ms
        self._least_ms, self._most_ms = min(graces_ms), max(graces_ms)
        self._events: defaultdict[bytes, list[tuple[int, int]]] = defaultdict(list)
        self._unclear: defaultdict[bytes, list[int]] = defaultdict(list)
        self.windows: defaultdict[bytes, dict[Place, Held]] = defaultdict(dict)

    def is_clear(self, key: bytes, start_ms: int) -> bool:
        reach_ms = 2 * self._length_ms + 2
        return all(abs(start_ms - at_ms) > reach_ms for at_ms in self._unclear[key])

    def add(self, key: bytes, number: int, at_ms: int, stream_ms: int) -> list[Held]:
        """Take an event, and give the windows that change."""
        if at_ms + self._length_ms + self._most_ms + 1 <= stream_ms:
            return []
        if at_ms + self._least_ms + 1 <= stream_ms:
            self._unclear[key].append(at_ms)
            return []
        length_ms, events, windows = self._length_ms, self._events[key], self.windows[key]
        starts = {at_ms - length_ms}
        # Just behind each event there is a window, if others are in it.
        starts |= {before + 1 for before, _ in events if before < at_ms <= before + 1 + length_ms}
        starts |= {start for start, end in windows if start <= at_ms <= end}
        behind = at_ms + 1, at_ms + 1 + length_ms
        if behind not in windows and any(behind[0] <= other <= behind[1] for other, _ in events):
            starts.add(behind[0])
        events.append((at_ms, number))
        changed = []
        for start_ms in sorted(starts):
            place = start_ms, start_ms + length_ms
            inside = [one for other, one in events if place[0] <= other <= place[1]]
            is_closed = place in windows and windows[place].is_closed
            windows[place] = Held(*place, len(inside), sum(inside), is_closed)
            changed.append(windows[place])
        return changed


class Emits:
    """What is to be emitted of windows: each that changed in an interval once, as it was changed last in it.

    A change goes into all that waits for an interval which isn't over: there may be several when intervals had another
    length before. What begins at one time is one window, though a session's end moves.
    """

    def __init__(self) -> None:
        self.every_ms = 0
        self._waiting: dict[tuple[int, str, bytes, int], Held] = {}
        self._ends: dict[str, int] = {}

    def changed(self, store: str, key: bytes, held: Held, stream_ms: int) -> None:
        until_ms = end_of_interval(stream_ms, self.every_ms)
        for end_ms in {until_ms, *self._open(store, key, held.start_ms, stream_ms)}:
            self._waiting[end_ms, store, key, held.start_ms] = Held(*held.place, held.count, held.total)

    def _open(self, store: str, key: bytes, start_ms: int, stream_ms: int) -> list[int]:
        """Give the ends of the intervals that aren't over and that what begins then waits for."""
        return [end_ms for end_ms, *of in self._waiting if end_ms > stream_ms and of == [store, key, start_ms]]

    def replaced(self, store: str, key: bytes, place: Place, stream_ms: int) -> None:
        """Forget a session that another one takes the place of, but for intervals that are over."""
        for end_ms in self._open(store, key, place[0], stream_ms):
            del self._waiting[end_ms, store, key, place[0]]

    def emitted(self, store: str, key: bytes, held: Held, at_ms: int) -> Iterator[str]:
        """Take a window that was emitted with the time `at_ms`, and say what is wrong with that."""
        found = self._waiting.pop((at_ms + 1, store, key, held.start_ms), None)
        if found != held:
            yield f"emitted {held} of {store} at {at_ms}, and there is {found}"
        if at_ms < self._ends.get(store, at_ms):
            yield f"emitted {held} of {store} at {at_ms} after {self._ends[store]}"
        self._ends[store] = at_ms

    def missed(self, stream_ms: int) -> Iterator[str]:
        """Say what is over and was never emitted."""
        for (end_ms, store, key, _), held in self._waiting.items():
            if end_ms <= stream_ms:
                yield f"{key!r}: {held} of {store} changed before {end_ms} and was never emitted"
