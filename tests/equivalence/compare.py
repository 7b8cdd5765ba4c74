"""Compares what both sides say about a case. docs/explanation/equivalence.md has the rules and their reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from actors._core.windows import rows
from tests.equivalence.every import every_differences
from tests.equivalence.generate import EVERY, Batch, Case, Config
from tests.equivalence.judge import Output
from tests.equivalence.ours import Answer, Row, Update, reach

Judged = Sequence[Sequence[Output]]
"""The outputs of each record."""


Rerun = Callable[[Case], Answer]


@dataclass(frozen=True, slots=True)
class Known:
    """A difference that is meant.

    Attributes:
        name: for the report; the page has the reason.
        explains: tells whether it is all that differs in a case. The rule is exact: without the cause, or with Kafka
            Streams' way of doing it put into the product, both sides agree.
    """

    name: str
    explains: Callable[[Case, Judged, Rerun], bool]


def _by_nulls(case: Case, judged: Judged, rerun: Rerun) -> bool:
    left = [number for number, record in enumerate(case.records) if record.value is not None]
    if case.config.kind != "sliding" or len(left) == len(case.records):
        return False
    smaller = replace(case, records=tuple(case.records[number] for number in left))
    kept = [judged[number] for number in left]
    found = difference(smaller, kept, rerun(smaller))
    return found is None or _by_previous(smaller, kept, rerun)


def _by_previous(case: Case, judged: Judged, rerun: Rerun) -> bool:
    if case.config.kind != "sliding":
        return False
    with _kafkas_previous():
        return difference(case, judged, rerun(case)) is None


@contextmanager
def _kafkas_previous() -> Iterator[None]:
    """Let the record before one be the last of the window that ends before it, where there is one."""
    around = rows._around

    def as_kafka_streams(held: Sequence[rows.Held], at_ms: int, own_start: int) -> Any:
        found = around(held, at_ms, own_start)
        if found.before is not None:
            found.previous_ms = found.before.last_ms
        return found

    rows._around = as_kafka_streams
    try:
        yield
    finally:
        rows._around = around


KNOWN = (
    Known("sliding: a late record's right window", _by_previous),
    Known("sliding: null values", _by_nulls),
)


def difference(case: Case, judged: Judged, ours: Answer) -> str | None:
    """Return the first difference, None if there is none."""
    if case.config.emit == EVERY:
        return next(every_differences(case, [(one, other) for one, other in judged], ours.finals), None)
    found = _updates(case, judged, ours) if case.config.emit == "updates" else _finals(case, judged, ours)
    return next(found, None)


def known_difference(case: Case, judged: Judged, rerun: Rerun) -> Known | None:
    """Return the known difference that explains all that differs in a case, None if none does."""
    return next((known for known in KNOWN if known.explains(case, judged, rerun)), None)


def alone(batch: Batch, case: Case) -> Batch:
    """Return a batch of one case."""
    return replace(batch, cases=(case,))


def _updates(case: Case, judged: Judged, ours: Answer) -> Iterator[str]:
    """Compare record by record: the windows that changed, and what the key's windows are then."""
    tables: dict[str, dict[tuple[int, int], Any]] = {}
    for number, (record, outputs) in enumerate(zip(case.records, judged, strict=True)):
        table = tables.setdefault(record.key, {})
        changed: dict[tuple[int, int], Any] = {}
        for _, start_ms, end_ms, value, _ in outputs:
            window = (start_ms, end_ms)
            if value is None:
                del table[window]
            else:
                table[window] = changed[window] = value
        from_ms, to_ms = reach(case.config, record.timestamp_ms)
        near = {window: value for window, value in table.items() if from_ms <= window[0] <= to_ms}
        here = ours.updates.get(number)
        expected = Update(record.key, _rows(changed), _rows(near))
        if here != expected and (here is not None or changed):
            yield f"record {number} {record}: Kafka Streams {expected}, here {here}"


def _finals(case: Case, judged: Judged, ours: Answer) -> Iterator[str]:
    """Compare key by key: the windows that closed, in order, each once."""
    expected: dict[str, list[tuple[int, int, Any, int]]] = {}
    for outputs in judged:
        for key, start_ms, end_ms, value, timestamp_ms in outputs:
            at_ms = _final_timestamp(case.config, end_ms, timestamp_ms)
            expected.setdefault(key, []).append((start_ms, end_ms, value, at_ms))
    for key in sorted(expected.keys() | ours.finals.keys()):
        theirs, here = expected.get(key, []), ours.finals.get(key, [])
        if theirs != here:
            yield f"key {key}: Kafka Streams {theirs}, here {here}"


def _final_timestamp(config: Config, end_ms: int, timestamp_ms: int) -> int:
    """Return the time of a final result: here it is the window's last millisecond."""
    if config.kind == "session":
        return timestamp_ms
    return end_ms if config.kind == "sliding" else end_ms - 1


def _rows(windows: dict[tuple[int, int], Any]) -> list[Row]:
    return [(*window, value) for window, value in sorted(windows.items())]
