"""Rows of an app that goes to another number of partitions: everything comes there, and exactly once."""

from __future__ import annotations

import functools
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from actors import App, Context, aggregates
from actors.ports import TopicPartition
from actors.testing import ActorTestDriver
from stores._core.layouts import KEYS as LAYOUT
from stores._core.layouts import OWN, own_rows
from stores._core.record import METADATA_HEADER, NEVER, decode_metadata, encode_metadata
from stores._core.windows import Progress, decode_progress, encode_progress, merge_progress
from tests.kafka.apps import moved_app as program
from tests.kafka.helpers import partition_for
from tests.moved import BEFORE, KEYS, START_MS, Record, first, second

Rows = dict[str, list[dict[bytes, tuple[bytes, int]]]]
"""By store and partition the rows: value and expiry."""


def post(driver: ActorTestDriver, records: list[Record]) -> None:
    topics = {"orders": program.orders, "payments": program.payments, "bills": program.bills}
    for topic, key, value, at_s in records:
        content = program.Order(**value) if topic == "orders" else value
        driver.send(topics[topic], key=key, value=content, timestamp_ms=START_MS + 1000 * at_s)


def results(driver: ActorTestDriver) -> Counter[tuple[str, ...]]:
    return Counter((sent.key, *map(str, sent.value)) for sent in driver.outputs(program.out))


def rows_of(driver: ActorTestDriver, app: App = program.app) -> Rows:
    found: Rows = {}
    for name in app.stores:
        topic = app.decoder(name).changelog
        found[name] = [{} for _ in range(BEFORE)]
        for number, rows in enumerate(found[name]):
            for record in driver._cluster.fetch(TopicPartition(topic, number), 0, 1 << 30)[0]:
                rows.pop(record.key, None)
                if record.value is not None:
                    metadata = decode_metadata(dict(record.headers)[METADATA_HEADER])
                    rows[record.key] = record.value, metadata.expires_at_ms
    return found


def message_key(layout: str, row: bytes) -> bytes | None:
    for letter, (at, is_sized) in LAYOUT[layout].items():
        if row.startswith(letter):
            size = int.from_bytes(row[at : at + 4]) if is_sized else len(row)
            return row[at + 4 * is_sized :][:size]
    return None


def moved(rows: Rows, partitions: int, app: App = program.app) -> Rows:
    """Place rows by their messages' keys, and merge those of partitions: what `spark_replay publish` does."""
    found: Rows = {}
    for name, before in rows.items():
        layout = app.decoder(name).layout
        after: list[dict[bytes, tuple[bytes, int]]] = [{} for _ in range(partitions)]
        own = OWN[layout][0] if layout in OWN else None
        for number, part in enumerate(before):
            for row, value in part.items():
                if row == own:
                    continue
                key = message_key(layout, row)
                assert key is not None, (name, row)
                assert partition_for(key, BEFORE) == number, (name, row)
                after[partition_for(key, partitions)][row] = value
        if own is not None:
            raws = [part[own][0] if own in part else None for part in before]
            for part, raw in zip(after, own_rows(layout, raws, partitions), strict=True):
                if raw is not None:
                    part[own] = raw, NEVER
        found[name] = after
    return found


def begin(driver: ActorTestDriver, rows: Rows, app: App = program.app) -> None:
    """Restore the worker from changelogs with these rows."""
    for name, parts in rows.items():
        topic = app.decoder(name).changelog
        for number, part in enumerate(parts):
            for row, (value, expires_at_ms) in part.items():
                headers = [(METADATA_HEADER, encode_metadata(0, 0, expires_at_ms))]
                driver._produce(topic, row, value, headers, number, START_MS)
    driver.crash(keep_disk=False)


def finish(driver: ActorTestDriver) -> Counter[tuple[str, ...]]:
    post(driver, second())
    for key in KEYS:
        if driver.parked(program.take, key):
            driver.retry_parked(program.take, key)
    driver.advance(3_600)
    assert not driver.parked(program.take)
    return results(driver)


@pytest.mark.parametrize("partitions", [*(pytest.param(count, marks=pytest.mark.nightly) for count in (3, 6)), 8, 1])
def test_everything_comes_once_in_another_number_of_partitions(monkeypatch: pytest.MonkeyPatch, partitions: int):
    effects, now = {program.ship: program.ship.function}, datetime.fromtimestamp(START_MS / 1000 + 7_200, UTC)
    start: Any = functools.partial(ActorTestDriver, program.app, effects=effects, now=now)
    with start(partitions=BEFORE) as driver:
        post(driver, first())
        before, rows = results(driver), rows_of(driver)
        monkeypatch.setenv("APP_MENDED", "1")
        expected = before + finish(driver)
    assert {row[1] for row in expected} == {
        "sum",
        "changed",
        "visit",
        "kinds",
        "reminded",
        "shipped",
        "counted",
        "paid",
    }
    with start(partitions=partitions) as driver:
        begin(driver, moved(rows, partitions))
        both = before + finish(driver)
    assert (both - expected, expected - both) == (Counter(), Counter())


@pytest.mark.parametrize("partitions", [3, 8])
def test_tables_their_aggregates_and_joins_by_a_foreign_key_go_on(partitions: int):
    app = App("moved-tables", broker="kafka://127.0.0.1:9092")
    out = app.topic("moved-tables-out", key_type=str, value_type=list)
    orders = app.table(app.topic("moved-tables-orders", key_type=str, value_type=list), name="orders")
    customers = app.table(app.topic("moved-tables-customers", key_type=str, value_type=int), name="customers")

    async def changed(ctx: Context, count: int | None) -> None:
        ctx.send(out, key=ctx.key, value=["count", count])

    orders.aggregate("by_customer", by=lambda order: order[0], aggregate=aggregates.count(), on_change=changed)

    @app.join(orders, customers, on=lambda order: order[0])
    async def enriched(ctx: Context, order: list[Any] | None, customer: int | None) -> None:
        ctx.send(out, key=ctx.key, value=["order", order, customer])

    def sent(driver: ActorTestDriver) -> Counter[tuple[str, ...]]:
        return Counter((record.key, *map(str, record.value)) for record in driver.outputs(out))

    def change(driver: ActorTestDriver, number: int) -> Counter[tuple[str, ...]]:
        for place, key in enumerate(KEYS):
            driver.send(customers.topic, key=key, value=number + place)
            if place % 3 == number % 3:
                driver.send(orders.topic, key=key, value=None)
            else:
                driver.send(orders.topic, key=key, value=[KEYS[(place + number) % 7], number])
        return sent(driver)

    with ActorTestDriver(app, partitions=BEFORE) as driver:
        change(driver, 1)
        rows = rows_of(driver, app)
        expected = change(driver, 2)
        assert {row[1] for row in expected} == {"count", "order"}
    with ActorTestDriver(app, partitions=partitions) as driver:
        begin(driver, moved(rows, partitions, app), app)
        assert sent(driver) == Counter()
        assert change(driver, 2) == expected


ROWS = [
    encode_progress(Progress(stream_ms, closed, layout="by 5", grace_ms=2, expired=b"w" + bytes(8)))
    for stream_ms, closed in ((50, b"w2"), (20, b"w1"), (20, b"w3"))
]


def test_a_merged_partition_keeps_the_times_of_the_former_ones():
    assert own_rows("windows", [*ROWS, None], 8) == [*ROWS, None] * 2
    merged = own_rows("windows", ROWS, 2)
    assert merged[0] == merged[1]
    progress = decode_progress(merged[0] or b"")
    assert (progress.stream_ms, progress.closed, progress.latest_ms, progress.layout) == (20, b"w1", 50, "by 5")
    assert (progress.former, progress.former_partitions) == ({0: (50, b"w2"), 2: (20, b"w3")}, 3)
    assert decode_progress(own_rows("windows", [*ROWS, None], 1)[0] or b"").stream_ms == -1
    # Of four partitions, two each come to one of two.
    halves = [decode_progress(row or b"") for row in own_rows("windows", [*ROWS, ROWS[0]], 6)]
    assert [half.stream_ms for half in halves] == [20, 20] * 3
    assert [sorted(half.former) for half in halves] == [[0, 2], [3]] * 3


def test_what_cannot_be_merged_is_refused():
    other = encode_progress(Progress(5, layout="by 5", grace_ms=3))
    with pytest.raises(ValueError, match="by one grace period"):
        own_rows("windows", [ROWS[0], other], 3)
    with pytest.raises(ValueError, match="were merged before"):
        own_rows("windows", [merge_progress(dict(enumerate(ROWS)), 3), ROWS[0]], 3)
    with pytest.raises(ValueError, match="equally far"):
        own_rows("taken", [b"a", b"nk"], 1)
    assert own_rows("taken", [b"a", b"nk"], 4) == [b"a", b"nk"] * 2
    assert own_rows("timers", [(9).to_bytes(8), (7).to_bytes(8) + b"\x01"], 1) == [(7).to_bytes(8) + b"\x01"]
    assert own_rows("timers", [(9).to_bytes(8), None], 1) == [None]
