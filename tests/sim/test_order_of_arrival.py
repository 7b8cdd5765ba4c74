"""Windows, joins and closes are those of all records by time, in whichever order partitions and inputs are read."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors._core.partitioner import MURMUR2
from actors.testing import ActorTestDriver
from tests.sim.feeds.damages import take_the_largest_time
from tests.sim.feeds.oracle import Read, first_stage, second_stage, waits_in_vain
from tests.sim.feeds.program import (
    CLICKS,
    DIRECT,
    FIRST,
    LATE,
    LATE_SECOND,
    ONE_MANY,
    RESULTS,
    Event,
    Found,
    Shape,
    entry,
    make_app,
)

EXAMPLES = max(int(os.environ.get("SIM_SEEDS", "20")) // 10, 8)
PARTITIONS = 2
USERS = ("u0", "u1", "u2")
BEGIN_MS = 1_700_000_000_000
KINDS = ("tumbling", "sliding", "session", "emit", "join", ONE_MANY, "timers", "history", "across", "across changes")


@st.composite
def runs(draw: st.DrawFn) -> tuple[Shape, list[Read], list[list[int]], list[bool]]:
    """Return a program, the records of its sources, an interleaving in chunks, and where a crash comes between."""
    kind = draw(st.sampled_from(KINDS))
    across = draw(st.sampled_from(("remove", "again"))) if kind.startswith("across") else ""
    shape = Shape(
        kind={"across": "tumbling", "across changes": "emit"}.get(kind, kind),
        has_direct=True,
        has_notes=False,
        span_ms=3_000,
        grace_ms=0,
        second_ms=3_000 if across else 8_000,
        concurrency=1,
        is_ordered=kind == "history" or (kind != "join" and not across and draw(st.booleans())),
        across=across,
    )
    sources = [(topic, number) for topic in (CLICKS, DIRECT) for number in range(PARTITIONS)]
    times = {source: draw(st.lists(st.integers(0, 30_000), max_size=7)) for source in sources}
    records, places = [], defaultdict[tuple[str, int], list[int]](list)
    for topic, number in sources:
        for at_ms in sorted(times[topic, number]):
            users = [user for user in USERS if topic == CLICKS or MURMUR2.home(user.encode(), PARTITIONS) == number]
            if users:
                places[topic, number].append(len(records))
                user = draw(st.sampled_from(users))
                records.append(
                    Read(len(records) + 1, user, topic, number, len(places[topic, number]) - 1, BEGIN_MS + at_ms)
                )
    left, chunks = {source: list(indexes) for source, indexes in places.items()}, []
    while left:
        source = draw(st.sampled_from(sorted(left)))
        size = draw(st.integers(1, len(left[source])))
        chunks.append(left[source][:size])
        left[source] = left[source][size:]
        if not left[source]:
            del left[source]
    return shape, records, chunks, [draw(st.booleans()) for _ in chunks]


@settings(max_examples=EXAMPLES, deadline=None)
@given(runs())
def test_results_dont_depend_on_the_order_in_which_partitions_are_read(
    run: tuple[Shape, list[Read], list[list[int]], list[bool]],
) -> None:
    shape, records, chunks, crashes = run
    with ActorTestDriver(make_app(shape), partitions=PARTITIONS) as driver:
        deliver(driver, records, chunks, crashes)
        compare(shape, records, driver)


def deliver(driver: ActorTestDriver, records: list[Read], chunks: list[list[int]], crashes: list[bool]) -> None:
    # No source is silent before it has delivered everything: what a chunk leads to isn't waited for.
    for chunk, is_crash in zip(chunks, crashes, strict=True):
        for index in chunk:
            post(driver, records[index])
        driver.advance(0.02, settle=False)
        if is_crash:
            driver.crash(settle=False)
    driver.settle()
    for topic, user in ((CLICKS, USERS[0]), (DIRECT, USERS[0])):
        post(driver, Read(1_000_000, user, topic, 0, 0, BEGIN_MS + 100_000))
    driver.settle()


def post(driver: ActorTestDriver, record: Read) -> None:
    value = msgspec.json.encode(Event(record.id, record.user, record.at_ms))
    key = record.user.encode()
    number = None if record.id == 1_000_000 else record.partition
    driver.post(record.topic, key=key, value=value, partition=number, timestamp_ms=record.at_ms, raw=True)


def compare(shape: Shape, records: list[Read], driver: ActorTestDriver) -> None:
    events = {record.id: Event(record.id, record.user, record.at_ms) for record in records}
    records = [replace(record, user=shape.group_of(record.topic, events[record.id])) for record in records]
    late = sorted(one.value.id for one in driver.outputs(LATE) if one.value.id != 1_000_000)
    assert late == [record.id for record in records if waits_in_vain(shape, record, records)]
    if shape.across:
        assert sum(driver.late("total").values()) == 0
    else:
        assert driver.outputs(LATE_SECOND) == []
    sent = [one for one in driver.outputs(FIRST) if 1_000_000 not in one.value.ids]
    results = [(one.value.user, one.value.from_ms, one.value.to_ms, tuple(one.value.ids)) for one in sent]
    if shape.kind == "emit":
        results = list({result[:3]: result for result in results}.values())
        sent = (
            list({(one.key, one.value.user, one.value.from_ms): one for one in sent}.values()) if shape.across else sent
        )
    wanted: Counter[Any] = sum(first_stage(shape, records).values(), Counter())
    assert Counter(results) == wanted
    inputs = [(one.key, one.value.from_ms if shape.across else one.timestamp_ms, entry(one.value)) for one in sent]
    totals = {(one.value.group, one.value.from_ms): one.value.entries for one in driver.outputs(RESULTS)}
    assert {window: totals.get(window) for window in second_stage(shape, inputs)} == second_stage(shape, inputs)


def test_the_oracle_knows_a_result() -> None:
    shape = Shape("tumbling", True, False, span_ms=3_000, grace_ms=0, second_ms=8_000, concurrency=1)
    records = [Read(number, "u0", CLICKS, 0, number, at_ms) for number, at_ms in ((1, 10), (2, 2_999), (3, 3_000))]
    assert first_stage(shape, records) == {"u0": Counter({("u0", 0, 3_000, (1, 2)): 1, ("u0", 3_000, 6_000, (3,)): 1})}
    found = Found("u0", 0, 3_000, [1, 2])
    assert second_stage(shape, [("g0", 2_999, entry(found))]) == {("g0", 0): [[0, 3_000, 1, 2]]}


def test_a_damage_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    take_the_largest_time(monkeypatch)
    shape = Shape("tumbling", True, False, span_ms=3_000, grace_ms=0, second_ms=8_000, concurrency=1)
    home = MURMUR2.home(USERS[0].encode(), PARTITIONS)
    records = [
        Read(number + 1, USERS[0], (DIRECT, CLICKS)[number % 2], home, number // 2, BEGIN_MS + number * 1_000)
        for number in range(20)
    ]
    with ActorTestDriver(make_app(shape), partitions=PARTITIONS) as driver:
        deliver(driver, records, [list(range(0, 20, 2)), list(range(1, 20, 2))], [False] * 2)
        with pytest.raises(AssertionError):
            compare(shape, records, driver)
