"""Whole programs of calendars, readers and fan-in: what they do."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from actors import EffectCall
from actors.testing import ActorTestDriver
from tests.programs import at_most_ten, long_rides, mails_per_minute, nightly_report, order_readers, word_counts

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR_MS, START_MS = 3_600_000, int(NOW.timestamp()) * 1000


def test_the_report_is_made_each_night_also_when_the_clocks_change() -> None:
    with ActorTestDriver(nightly_report.app, now=datetime(2026, 3, 27, 12, tzinfo=UTC)) as driver:
        for keep_disk in (True, False, True):
            driver.advance(86_400)
            driver.crash(keep_disk=keep_disk)
        sent = {(record.key, record.value) for record in driver.outputs(nightly_report.reports)}
        assert sent == {("2026-03-28", "report 1"), ("2026-03-29", "report 2"), ("2026-03-30", "report 3")}


def test_a_batch_is_added_up_once_whoever_crashes() -> None:
    with ActorTestDriver(word_counts.app) as driver:
        for number in range(6):
            driver.post(word_counts.batches, key=f"b{number}", value=["one", "two words", "and three words"] * number)
            driver.crash(keep_disk=number % 2 == 0, settle=False)
        driver.settle()
        sums = {record.key: record.value for record in driver.outputs(word_counts.sums)}
        assert sums == {f"b{number}": 6 * number for number in range(6)}


@pytest.mark.parametrize("order", [("start", "end"), ("end", "start")])
@pytest.mark.parametrize(("hours", "is_long"), [(1, False), (3, True)])
def test_long_rides_are_told_in_any_order(order: tuple[str, str], hours: int, is_long: bool) -> None:
    ride = {
        "start": long_rides.Ride(7, True, START_MS),
        "end": long_rides.Ride(7, False, START_MS + hours * HOUR_MS),
    }
    with ActorTestDriver(long_rides.app, partitions=1, now=NOW) as driver:
        for kind in order:
            driver.send(long_rides.rides, key="any", value=ride[kind])
            driver.crash(keep_disk=False)
        driver.send(long_rides.rides, key="any", value=long_rides.Ride(8, False, START_MS + 9 * HOUR_MS))
        driver.send(long_rides.rides, key="any", value=long_rides.Ride(9, False, START_MS + 10 * HOUR_MS))
        assert [record.key for record in driver.outputs(long_rides.alerts)] == [7] * is_long


def test_a_ride_without_an_end_is_told_when_its_time_is_over() -> None:
    with ActorTestDriver(long_rides.app, partitions=1, now=NOW) as driver:
        driver.send(long_rides.rides, key="any", value=long_rides.Ride(7, True, START_MS))
        driver.send(long_rides.rides, key="any", value=long_rides.Ride(8, True, START_MS + 3 * HOUR_MS))
        assert [record.key for record in driver.outputs(long_rides.alerts)] == [7]


def test_both_readers_see_each_order() -> None:
    with ActorTestDriver(order_readers.app) as driver:
        for cents in (5, 6, 7, 8):
            driver.send(order_readers.orders, key="ada", value=cents)
            driver.crash(keep_disk=False)
        assert driver.items(order_readers.totals) == {"ada": 26}
        assert [record.value for record in driver.outputs(order_readers.warnings)] == [7]


def test_ten_renders_run_at_a_time() -> None:
    running = [0, 0]

    async def render(call: EffectCall, image: str) -> None:
        running[0] += 1
        running[1] = max(running)
        await asyncio.sleep(1)
        running[0] -= 1

    with ActorTestDriver(at_most_ten.app, effects={at_most_ten.render: render}) as driver:
        for number in range(40):
            driver.post(at_most_ten.images, key=str(number), value=f"image {number}")
        driver.settle()
    assert running == [0, 10]


def test_a_hundred_mails_of_a_tenant_go_out_in_a_minute() -> None:
    times: dict[str, list[float]] = {"acme": [], "beta": []}

    async def send(call: EffectCall, mail: dict[str, str]) -> None:
        times[mail["tenant"]].append(asyncio.get_running_loop().time())

    with ActorTestDriver(mails_per_minute.app, effects={mails_per_minute.send: send}) as driver:
        for number in range(150):
            tenant = "beta" if number > 145 else "acme"
            driver.post(mails_per_minute.mails, key=str(number), value={"tenant": tenant, "text": "hello"})
        driver.settle()
    assert [len(times[tenant]) for tenant in ("acme", "beta")] == [146, 4]
    acme = times["acme"]
    assert all(later - earlier >= 60 for earlier, later in zip(acme, acme[100:], strict=False))
    assert max(times["beta"]) < 30
