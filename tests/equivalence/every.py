"""`emit=Every` beside Kafka Streams: its updates, gathered by interval, and its own `suppress(untilTimeLimit)`.

docs/explanation/equivalence.md has the rules and their reasons.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.equivalence.generate import Case

Output = tuple[Any, ...]
Both = tuple[Sequence[Output], Sequence[Output]]
"""What comes of a record: its updates, and what `suppress` lets through."""
Emitted = tuple[int, int, Any, int]
"""(window's start, its end, value, timestamp)."""


def every_differences(case: Case, judged: Sequence[Both], emitted: Mapping[str, Sequence[Emitted]]) -> Iterator[str]:
    """Yield what differs: what is emitted, in order, and what is emitted last of each window."""
    expected = by_intervals(case, [updates for updates, _ in judged])
    for key in sorted(expected.keys() | emitted.keys()):
        theirs, here = expected.get(key, []), list(emitted.get(key, []))
        if theirs != here:
            yield f"key {key}: Kafka Streams' updates by interval {theirs}, here {here}"
    last: dict[tuple[str, int, int], Any] = {}
    for _, suppressed in judged:
        last.update({(key, start_ms, end_ms): value for key, start_ms, end_ms, value, _ in suppressed})
    ours = {(key, start, end): value for key, of_key in emitted.items() for start, end, value, _ in of_key}
    # A session that another one takes the place of leaves a tombstone there, and nothing here.
    for window in sorted(last.keys() | ours.keys()):
        value = last.get(window)
        if value is not None and value != ours.get(window):
            yield f"window {window}: suppress emits {value} last, here {ours.get(window)}"
        if window not in last:
            yield f"window {window}: suppress emits nothing, here {ours[window]}"


def by_intervals(case: Case, judged: Sequence[Sequence[Output]]) -> dict[str, list[Emitted]]:
    """Return the last update of each window and interval of stream time, in the order of intervals and of starts."""
    every_ms, stream_ms = case.config.every_ms, -1
    waiting: defaultdict[int, dict[tuple[str, int, int], Any]] = defaultdict(dict)
    found: defaultdict[str, list[Emitted]] = defaultdict(list)
    for record, updates in zip(case.records, judged, strict=True):
        stream_ms = max(stream_ms, record.timestamp_ms)
        for over_ms in sorted(end_ms for end_ms in waiting if end_ms <= stream_ms):
            changed = waiting.pop(over_ms)
            for key, start_ms, end_ms in sorted(changed):
                found[key].append((start_ms, end_ms, changed[key, start_ms, end_ms], over_ms - 1))
        interval = waiting[(stream_ms // every_ms + 1) * every_ms]
        for key, start_ms, end_ms, value, _ in updates:
            interval.pop((key, start_ms, end_ms), None)
            if value is not None:
                interval[key, start_ms, end_ms] = value
    return dict(found)
