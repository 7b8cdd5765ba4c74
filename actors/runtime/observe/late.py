"""The log's lines about late records: one a minute for each store that had some."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable

from actors._core.event_time import utc_text
from actors._core.logs import escaping
from actors.errors import show_bytes
from actors.ports import Clock
from actors.runtime.meters import LateMeter
from actors.runtime.task.task import Task

logger = escaping(logging.getLogger(__name__))

REPORT_S = 60.0
WARNED_PART = 0.01
"""More late records of all that were handled are worth a warning."""


class LateReport:
    """Compares what tasks have counted with what they had a minute before."""

    def __init__(self) -> None:
        self._late: dict[tuple[str, int, str], int] = {}
        self._records: dict[tuple[str, int], int] = {}

    def minute(self, tasks: Iterable[Task]) -> None:
        """Log a line for each store for which messages were late since the last call."""
        stores: dict[tuple[str, str], list[tuple[int, LateMeter, Task]]] = {}
        records: dict[str, int] = {}
        for task in tasks:
            actor, partition, meters = task.spec.name, task.partition, task.meters
            before, self._records[actor, partition] = self._records.get((actor, partition), 0), meters.records
            records[actor] = records.get(actor, 0) + meters.records - before
            for store, meter in meters.late.items():
                count = meter.count - self._late.get((actor, partition, store), 0)
                self._late[actor, partition, store] = meter.count
                if count > 0:
                    stores.setdefault((actor, store), []).append((count, meter, task))
        for (actor, store), parts in stores.items():
            count = sum(part for part, _, _ in parts)
            _, newest, task = max(parts, key=lambda part: part[1].handled_at_ms)
            # What isn't committed yet is counted as late, and not as handled.
            of = max(count, records[actor])
            level = logging.WARNING if newest.is_warned or count > of * WARNED_PART else logging.INFO
            logger.log(
                level,
                "actor %s: %d of %d records were too late for %s in this minute. The newest: %s offset %d key %s, its "
                "time %s is %g s behind stream time %s%s",
                actor,
                count,
                of,
                store,
                newest.source,
                newest.offset,
                show_bytes(newest.key),
                utc_text(newest.at_ms),
                (newest.stream_ms - newest.at_ms) / 1000,
                utc_text(newest.stream_ms),
                _ahead(task),
            )


def _ahead(task: Task) -> str:
    feed, time_ms = (None, 0) if task.time is None else task.time.foremost
    return "" if feed is None else f"; {feed} is ahead, at {utc_text(time_ms)}"


async def report_late(tasks: Callable[[], Collection[Task]], clock: Clock) -> None:
    """Report once a minute until cancelled."""
    report = LateReport()
    while True:
        await clock.sleep(REPORT_S)
        report.minute(list(tasks()))
