"""The driver hands out a backlog as a broker does, and ends all windows stage by stage."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from itertools import groupby, pairwise
from typing import Any

import pytest

from actors import App, Context, Tumbling, Window, aggregates
from actors.errors import UsageError
from actors.testing import ActorTestDriver

NOON_MS = 1_700_049_600_000
SECOND = 1_000
COUNT = 600


def handled_in(order: int | str) -> list[tuple[int, int]]:
    """Return partition and value of each record as they were handled."""
    app, seen = App("backlog-app"), []
    orders = app.topic("orders", key_type=str, value_type=int)

    @app.actor(orders)
    async def see(ctx: Context, number: int) -> None:
        seen.append((ctx.partition, number))

    with ActorTestDriver(app) as driver:
        driver.backlog({orders: [(f"k{number}", number, NOON_MS + number) for number in range(COUNT)]}, order=order)
    return seen


def test_partitions_come_one_after_the_other_in_chunks_by_the_seed() -> None:
    seen = handled_in(1)
    assert len(seen) == COUNT
    by_partition = {partition: [n for at, n in seen if at == partition] for partition in range(3)}
    assert all(numbers == sorted(numbers) for numbers in by_partition.values())
    runs = [len(list(run)) for _, run in groupby(seen, key=lambda one: one[0])]
    # Times are all mixed up, as on a broker.
    assert max(runs) > 20
    assert sum(one > other for (_, one), (_, other) in pairwise(seen)) >= 2
    assert handled_in(1) == seen
    assert len({tuple(handled_in(seed)) for seed in (1, 2, "three")}) == 3


class Shop:
    """Orders and payments by order, and counts per ten seconds and city in two stages."""

    def __init__(self, **late: Any) -> None:
        self.app = app = App("backlog-app")
        self.orders = app.topic("orders", key_type=str, value_type=int)
        self.payments = app.topic("payments", key_type=int, value_type=str)
        self.pairs: Counter[tuple[int, bool]] = Counter()
        self.totals = app.topic("totals", key_type=str, value_type=int)

        @app.join(
            self.orders,
            self.payments,
            within=timedelta(seconds=60),
            how="left",
            by={self.payments: lambda order: order},
            **late,
        )
        async def paid(ctx: Context, number: int, payment: str | None) -> None:
            self.pairs[number, payment is not None] += 1

        self.paid = paid

    def records(self) -> dict[Any, list[tuple[Any, Any, int]]]:
        orders = [(f"o{n}", n, NOON_MS + n * SECOND) for n in range(COUNT)]
        return {self.orders: orders, self.payments: [(n, f"o{n}", NOON_MS + (n + 50) * SECOND) for n in range(COUNT)]}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("crashes", [False, True])
def test_a_join_behind_a_backlog_finds_all_pairs(seed: int, crashes: bool) -> None:
    shop = Shop()
    with ActorTestDriver(shop.app) as driver:
        driver.backlog(shop.records(), order=seed, settle=not crashes)
        if crashes:
            driver.advance(0.05, settle=False)
            driver.crash()
        driver.close_windows()
        assert driver.late(shop.paid) == {"paid": 0}
        assert {pair for pair in shop.pairs if pair[1]} == {(number, True) for number in range(COUNT)}
        assert {pair for pair in shop.pairs if not pair[1]} == set()


def test_what_is_late_within_its_own_partition_is_late() -> None:
    shop = Shop()
    with ActorTestDriver(shop.app) as driver:
        driver.backlog({shop.orders: [("a", 1, NOON_MS + 10_000 * SECOND)]})
        driver.backlog({shop.orders: [("a", 2, NOON_MS)]})
        assert driver.late(shop.paid) == {"paid": 1}


def staged() -> tuple[App, Any, Any]:
    app = App("stages-app")
    clicks = app.topic("clicks", key_type=str, value_type=str)
    tens = app.window_store("tens", Tumbling(seconds=10), aggregate=aggregates.count())
    minutes = app.window_store("minutes", Tumbling(minutes=1), aggregate=aggregates.sum(), grace=timedelta(seconds=5))
    finals = app.topic("finals", key_type=str, value_type=int)

    @app.actor(clicks, stores=[tens])
    async def count(ctx: Context, _: str) -> None:
        tens.add(ctx.key, 1)

    per_ten = app.topic("per-ten", key_type=str, value_type=int, writers=[count])

    @tens.on_close
    async def send(ctx: Context, _: Window, number: int) -> None:
        ctx.send(per_ten, key="all", value=number)

    @app.actor(per_ten, stores=[minutes], late="stop")
    async def total(ctx: Context, number: int) -> None:
        minutes.add(ctx.key, number)

    @minutes.on_close
    async def send_total(ctx: Context, _: Window, number: int) -> None:
        ctx.send(finals, key=ctx.key, value=number)

    return app, clicks, finals


def test_all_windows_end_stage_by_stage() -> None:
    app, clicks, finals = staged()
    with ActorTestDriver(app) as driver:
        driver.backlog({clicks: [(f"k{n % 7}", "", NOON_MS + n * SECOND) for n in range(120)]}, order=3)
        driver.close_windows()
        assert [sent.value for sent in driver.outputs(finals)] == [60, 60]
        driver.close_windows()
        assert driver.outputs(finals) == []


def test_records_of_a_backlog_have_a_key_a_value_and_a_time() -> None:
    app, clicks, _ = staged()
    with ActorTestDriver(app) as driver, pytest.raises(UsageError, match=r"driver.backlog\(\): .*\(key, value, times"):
        driver.backlog({clicks: [("k", "v")]})
