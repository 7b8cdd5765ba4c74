"""The rows of the table: what each reads, what it computes, and an oracle that has all records at once."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

COUNT, JOIN, BOTH = "count", "join", "both"
"""Results of a row: records by key and window; a left join; keys that both inputs have in a window."""
LIVE = "live_join"
EXAMPLE = "unpaid_orders"
END = "end-"
"""What the keys of the last records begin with: they let windows close, and have no result."""
SECOND_MS, MINUTE_MS = 1_000, 60_000
_DISORDER_MS = 2_000
_LIVE_S, _LIVE_RATE = 30, 200


class Record(NamedTuple):
    """A record of an input; a value is another key, by which `by=` reads the record."""

    at_ms: int
    input: int
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table.

    Attributes:
        title: What it is called in the table.
        result: `COUNT`, `JOIN` or `BOTH`.
        size_ms: The size of windows, or how far the two records of a pair may be apart.
        records: Returns the records, each input in the order in which it is written.
        by: The input that is read by its values; None if each is read by its own keys.
        inputs: The number of inputs.
        idle_ms: `max_task_idle` of ours.
    """

    title: str
    result: str
    size_ms: int
    grace_ms: int
    records: Callable[[int, int], Iterator[Record]]
    by: int | None = None
    inputs: int = 2
    idle_ms: int = 0

    def key(self, record: Record) -> str:
        """Return the key by which a record is counted or joined."""
        return record.value if record.input == self.by else record.key

    def expected(self, records: Iterable[Record]) -> dict[str, list[str]]:
        """Return the right results by their ids."""
        if self.result == JOIN:
            return self._joined(records)
        windows: defaultdict[str, Counter[int]] = defaultdict(Counter)
        for record in records:
            windows[f"{self.key(record)}@{record.at_ms // self.size_ms * self.size_ms}"][record.input] += 1
        if self.result == COUNT:
            return {window: [str(inputs.total())] for window, inputs in windows.items()}
        return {window: ["both"] for window, inputs in windows.items() if len(inputs) == self.inputs}

    def _joined(self, records: Iterable[Record]) -> dict[str, list[str]]:
        sides: tuple[defaultdict[str, list[int]], ...] = (defaultdict(list), defaultdict(list))
        for record in records:
            sides[record.input][self.key(record)].append(record.at_ms)
        results: dict[str, list[str]] = {}
        for key, times_ms in sides[0].items():
            results[key] = []
            for left_ms in times_ms:
                pairs = sum(abs(left_ms - right_ms) <= self.size_ms for right_ms in sides[1].get(key, ()))
                results[key] += ["paid"] * pairs or ["unpaid"]
        return results


def wrong(expected: dict[str, list[str]], results: Iterable[tuple[str, str]]) -> int:
    """Count the ids whose results are missing, come too often, or are others; those of the last records don't count."""
    outputs: defaultdict[str, list[str]] = defaultdict(list)
    for key, value in results:
        if not key.startswith(END):
            outputs[key].append(value)
    return sum(sorted(outputs[key]) != sorted(expected.get(key, ())) for key in {*expected, *outputs})


def views(count: int, begin_ms: int) -> Iterator[Record]:
    """One view of a page each 100 ms."""
    for number in range(count):
        yield Record(begin_ms + number * 100, 0, f"page-{number % 997}", f"user-{number % 101}")


def orders_and_payments(step_ms: int, after_ms: int = MINUTE_MS) -> Callable[[int, int], Iterator[Record]]:
    """One order each `step_ms`, each paid `after_ms` later."""

    def records(count: int, begin_ms: int) -> Iterator[Record]:
        return _by_time(
            Record(begin_ms + number * step_ms + is_payment * after_ms, is_payment, key, f"o{number}")
            for number in range(count // 2)
            for is_payment, key in enumerate((f"o{number}", f"p{number}"))
        )

    return records


def equal_keys(records: Callable[[int, int], Iterator[Record]]) -> Callable[[int, int], Iterator[Record]]:
    """The same, each payment with the key of its order."""
    return lambda count, begin_ms: (record._replace(key=record.value) for record in records(count, begin_ms))


def shops(count: int, begin_ms: int) -> Iterator[Record]:
    """Orders and payments of 20 shops, by the shop."""
    for record in orders_and_payments(SECOND_MS)(count, begin_ms):
        yield record._replace(key=f"shop-{int(record.value[1:]) % 20}")


def live(count: int, begin_ms: int) -> Iterator[Record]:
    """Orders at 200/s for half a minute and longer, each paid at most 4 s later."""
    random = Random(1)
    records = []
    for number in range(_LIVE_RATE * (_LIVE_S + 15 * count // 40_000)):
        at_ms, order = begin_ms + number * SECOND_MS // _LIVE_RATE, f"o{number}"
        records += [Record(at_ms, 0, order, order), Record(at_ms + random.randrange(4_000), 1, order, order)]
    return _by_time(records)


def newcomers(count: int, begin_ms: int) -> Iterator[Record]:
    """Nexmark's persons, and three auctions for each, of sellers who came lately or come soon; 2 s out of order."""
    random = Random(1)
    records = []
    for number in range(count // 4):
        at_ms = begin_ms + number * 500
        records.append(Record(at_ms, 0, f"person-{number}", f"person-{number}"))
        for auction in range(3 * number, 3 * number + 3):
            seller = random.randrange(max(0, number - 100), number + 10)
            records.append(Record(at_ms, 1, f"auction-{auction}", f"person-{seller}"))
    yield from sorted(records, key=lambda record: record.at_ms + random.random() * _DISORDER_MS)


def _by_time(records: Iterable[Record]) -> Iterator[Record]:
    return iter(sorted(records, key=lambda record: record.at_ms))


def last(row: Row, at_ms: int, keys: Sequence[str]) -> Iterator[Record]:
    """Return records that go from each partition of each input to each of the partitions by which it is read.

    Args:
        keys: one of each partition.
    """
    for number in range(row.inputs):
        for key in keys:
            for value in keys:
                yield Record(at_ms, number, END + key, END + value)


def encode(name: str, record: Record) -> bytes:
    """Return a record's value as its row's program reads it."""
    if name != EXAMPLE:
        return record.value.encode()
    order = {"order": record.value} if record.input else {}
    return json.dumps({**order, "cents": 100, "at_ms": record.at_ms}).encode()


_JOIN_MS = 15 * MINUTE_MS
_paid_by = orders_and_payments(500)
_paid = equal_keys(_paid_by)
ROWS = {
    "windows_by": Row("counts per 10 s, read with `by=`", COUNT, 10_000, MINUTE_MS, views, by=0, inputs=1),
    "windows_own_key": Row("the same, read by its own key", COUNT, 10_000, MINUTE_MS, views, inputs=1),
    "left_join": Row("left join, equal keys", JOIN, _JOIN_MS, MINUTE_MS, _paid),
    "left_join_idle": Row("the same with `max_task_idle` of 5 s", JOIN, _JOIN_MS, MINUTE_MS, _paid, idle_ms=5_000),
    "left_join_by": Row("left join, payments read with `by=`", JOIN, _JOIN_MS, MINUTE_MS, _paid_by, by=1),
    "hours_join": Row(
        "left join, hours of backlog", JOIN, _JOIN_MS, MINUTE_MS, equal_keys(orders_and_payments(SECOND_MS))
    ),
    "hours_windows": Row("windows of 1 min over two inputs, hours of backlog", COUNT, MINUTE_MS, MINUTE_MS, shops),
    LIVE: Row("live join at 200/s, the worker away for 15 s", JOIN, 5_000, 2_000, live),
    EXAMPLE: Row("`examples/unpaid_orders.py`", JOIN, _JOIN_MS, MINUTE_MS, _paid_by, by=1),
    "nexmark_q8": Row("Nexmark Q8, grace 5 s", BOTH, 10_000, 5_000, newcomers, by=1),
}
