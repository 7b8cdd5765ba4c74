"""The history of an app that goes to another number of partitions: see `tests.kafka.apps.moved_app`."""

from __future__ import annotations

import time
from typing import Any

from tests.kafka.helpers import partition_for

BEFORE = 4
"""How many partitions the app has before."""
KEYS = [f"k{number}" for number in range(16)]
START_MS = (int(time.time()) // 60 - 180) * 60_000
Record = tuple[str, str, Any, int]
"""Topic, key, value, seconds behind the start."""


def order(key: str, number: int, at_s: int, what: str = "") -> Record:
    return "orders", key, {"number": number, "what": what}, at_s


def first() -> list[Record]:
    """Partitions come unequally far, and one has no record at all."""
    records: list[Record] = []
    for place, key in enumerate(KEYS):
        home = partition_for(key.encode(), BEFORE)
        if home == BEFORE - 1:
            continue
        reach_s = (240, 110, 40)[home]
        for at_s in range(place % 7, reach_s, 13):
            records.append(order(key, 1000 * place + at_s, at_s))
            records.append(("payments", key, at_s, at_s))
            if at_s % 2:
                records.append(("bills", key, at_s, at_s + 3))
        for number, what in enumerate(("remind", "ship", "poison", "") if place % 4 == 0 else ("remind", "ship")):
            records.append(order(key, 1000 * place + 900 + number, reach_s, what))
        records.append(("bills", key, -1, reach_s))
    return sorted(records, key=lambda record: record[3])


def second() -> list[Record]:
    """Records that come twice, late ones, further ones, and those that close everything."""
    again = [order(key, 1000 * place + 900, 240, "remind") for place, key in enumerate(KEYS)]
    late = [
        record
        for place, key in enumerate(KEYS)
        if partition_for(key.encode(), BEFORE) == 0
        for record in (order(key, 1000 * place + 990, 30), ("bills", key, -2, 100), ("payments", key, -3, 100))
    ]
    further, last = [], []
    for place, key in enumerate(KEYS):
        for at_s in (250, 262, 290):
            further += [order(key, 1000 * place + 1 + at_s, at_s), ("payments", key, at_s, at_s)]
            further.append(("bills", key, at_s, at_s + 1))
        last += [order(key, 1000 * place + 999, 1000), ("payments", key, -4, 1000), ("bills", key, -4, 1000)]
    return again + late + sorted(further, key=lambda record: record[3]) + last
