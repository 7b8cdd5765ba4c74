"""The reason that stream time waits, in words: which feed holds it back, how far that is, and why it doesn't go on."""

from __future__ import annotations

from collections.abc import Iterable

from actors._core.event_time import utc_text
from actors.runtime.clock import SECONDS_BEFORE_MS
from actors.runtime.observe.status import FeedStatus, TaskStatus, WorkerStatus
from stores._core.printable import moment

HELD_S = 10.0
"""The shortest hold that is named: a feed that catches up holds stream time, too."""
CLOCK_BEHIND_MS = 60_000
_GOES_ON = ("running", "committing")


class HeldTimes:
    """Names what tasks wait for, by the statuses of all workers that answer; `now_ms` is the time here."""

    def __init__(self, workers: Iterable[WorkerStatus], now_ms: int) -> None:
        self._readers: dict[tuple[str, int], tuple[TaskStatus, int]] = {}
        for worker in workers:
            for task in worker.tasks:
                for topic in (task.topic, *(one.topic for one in task.inputs)):
                    self._readers[topic, task.partition] = task, now_ms - worker.at_ms

    def text(self, task: TaskStatus) -> str:
        """Return the task's wait as text, "" if there is none: "waits for raw-data[3], which is at 12:04:11: why"."""
        feed = task.waits_for
        if feed is None or task.held_s < HELD_S:
            return ""
        # A task upstream may wait itself: what it waits for is the cause.
        passed = {feed}
        while (further := self._waits_for(feed)) is not None and further not in passed:
            feed = further
            passed.add(feed)
        at = "has no time" if feed.time_ms is None else f"is at {utc_text(feed.time_ms)}"
        why = self._why(feed)
        return f"waits for {feed}, which {at}{f': {why}' if why else ''}"

    def _waits_for(self, feed: FeedStatus) -> FeedStatus | None:
        reader = self._readers.get((feed.topic, feed.partition))
        return None if reader is None else reader[0].waits_for

    def _why(self, feed: FeedStatus) -> str:
        if (feed.topic, feed.partition) not in self._readers:
            return "no worker that answers has this partition"
        reader, behind_ms = self._readers[feed.topic, feed.partition]
        lag = next((one.lag for one in reader.inputs if one.topic == feed.topic), reader.lag)
        if reader.reason is not None or reader.state not in _GOES_ON:
            return f"actor {reader.actor} is {reader.state} there{f': {reader.reason}' if reader.reason else ''}"
        if reader.paused_at_ms is not None:
            return f"actor {reader.actor} is paused there, since {moment(reader.paused_at_ms)}, by {reader.paused_by}"
        if feed.time_ms is not None and feed.time_ms < SECONDS_BEFORE_MS:
            return "its records have times from before 1973, perhaps seconds in place of milliseconds"
        if behind_ms > CLOCK_BEHIND_MS:
            return f"the clock of its worker is {behind_ms / 1000:g} s behind"
        if lag:
            return f"{lag} of its records wait for actor {reader.actor}"
        if feed.time_ms is None:
            return "it had no record with a usable time, and isn't at its end for idle_after"
        return ""
