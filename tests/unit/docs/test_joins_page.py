"""The code of the page on joins does what the page says."""

from __future__ import annotations

from actors.testing import ActorTestDriver
from tests.documents import block

NOON_MS = 1_700_049_600_000
MINUTE_MS = 60_000


def test_the_example_sends_what_is_paid_and_once_what_is_not() -> None:
    names = block("docs/reference/joins.md", "Streams with streams").run({})
    orders, payments, order, payment = (names[name] for name in ("orders", "payments", "Order", "Payment"))
    with ActorTestDriver(names["app"], partitions=1) as driver:
        for key in ("a", "b"):
            driver.send(orders, key=key, value=order(500), timestamp_ms=NOON_MS)
        driver.send(payments, key="a", value=payment(300), timestamp_ms=NOON_MS + 15 * MINUTE_MS)
        assert [(one.key, one.value) for one in driver.outputs(names["paid_orders"])] == [("a", 300)]
        driver.advance_stream_time(names["paid"], NOON_MS + 16 * MINUTE_MS)
        assert driver.outputs(names["unpaid_orders"]) == []
        driver.advance_stream_time(names["paid"], NOON_MS + 16 * MINUTE_MS + 1)
        driver.crash(keep_disk=False)
        assert [(one.key, one.timestamp_ms) for one in driver.outputs(names["unpaid_orders"])] == [("b", NOON_MS)]


def test_one_with_many_sends_offers_and_once_what_is_unsold() -> None:
    names = block("docs/reference/joins.md", "One with many").run({})
    auctions, bids, auction = (names[name] for name in ("auctions", "bids", "Auction"))
    with ActorTestDriver(names["app"], partitions=1) as driver:
        driver.send(bids, key="a", value=100, timestamp_ms=NOON_MS)
        for key in ("a", "b"):
            driver.send(auctions, key=key, value=auction("lamp", NOON_MS + MINUTE_MS), timestamp_ms=NOON_MS)
        driver.send(bids, key="a", value=200, timestamp_ms=NOON_MS + MINUTE_MS - 1)
        driver.send(bids, key="a", value=300, timestamp_ms=NOON_MS + MINUTE_MS)
        assert [(one.key, one.value) for one in driver.outputs(names["offers"])] == [("a", 100), ("a", 200)]
        driver.advance_stream_time(names["collect"], NOON_MS + MINUTE_MS + 4_999)
        assert driver.outputs(names["unsold"]) == []
        driver.advance_stream_time(names["collect"], NOON_MS + MINUTE_MS + 5_000)
        driver.crash(keep_disk=False)
        times = [(one.key, one.timestamp_ms) for one in driver.outputs(names["unsold"])]
        assert times == [("b", NOON_MS + MINUTE_MS - 1)]
        driver.close_windows()
        assert driver.late(names["collect"]) == {"collect": 1}


def test_a_handler_that_reads_a_view_joins_with_the_latest_row() -> None:
    names = block("docs/reference/joins.md", "Streams with a view").run({})
    orders, order, bills = names["orders"], names["Order"], names["bills"]
    prices = names["app"].topic("prices", key_type=str, value_type=int)
    with ActorTestDriver(names["app"], partitions=3) as driver:
        driver.send(orders, key="a", value=order("pen", 2))
        assert driver.outputs(bills) == []
        for cents in (100, 150):
            driver.send(prices, key="pen", value=cents)
        driver.send(orders, key="b", value=order("pen", 2))
        driver.crash(keep_disk=False)
        driver.send(prices, key="pen", value=None)
        driver.send(orders, key="c", value=order("pen", 2))
        assert [(one.key, one.value) for one in driver.outputs(bills)] == [("b", 300)]
