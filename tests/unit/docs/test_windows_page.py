"""The code of the page on windows does what the page says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from actors import App, Context, Session, Tumbling, Window, aggregates
from actors.testing import ActorTestDriver
from tests.documents import block

NOON_MS = 1_700_049_600_000
GRACE = timedelta(seconds=30)
WORDS = {"Context": Context, "Tumbling": Tumbling, "Window": Window, "aggregates": aggregates}


def test_the_first_example_sends_each_minute_once() -> None:
    names = block("docs/reference/windows.md", "Windows").run({})
    sales, totals, sale = names["sales"], names["totals"], names["Sale"]
    with ActorTestDriver(names["app"], partitions=1) as driver:
        for cents, at_s in ((100, 5), (20, 61), (3, 50), (1, 90)):
            driver.send(sales, key="berlin", value=sale(cents, NOON_MS + at_s * 1000))
        assert [sent.value for sent in driver.outputs(totals)] == [103]
        driver.advance_stream_time(names["count_sale"], NOON_MS + 150_000)
        assert [sent.value for sent in driver.outputs(totals)] == [21]
        driver.crash(keep_disk=False)
        assert driver.windows(names["minutes"], "berlin") == {
            (NOON_MS, NOON_MS + 60_000): 103,
            (NOON_MS + 60_000, NOON_MS + 120_000): 21,
        }


def test_a_second_stage_has_all_of_the_first_in_any_order_of_a_backlog() -> None:
    app = App("market", broker="kafka://127.0.0.1:1")
    sales = app.topic("sales", key_type=str, value_type=str)
    minutes = app.window_store("minutes", Tumbling(minutes=1), grace=GRACE, aggregate=aggregates.count())

    @app.actor(sales, by=lambda shop: shop, stores=[minutes])
    async def count_sale(ctx: Context, shop: str) -> None:
        minutes.add(ctx.key, shop)

    given = {"app": app, "minutes": minutes, "count_sale": count_sale, **WORDS}
    names = block("docs/reference/windows.md", "Topics between actors").run(given)
    times = range(NOON_MS, NOON_MS + 300_000, 100)
    backlog = [(f"customer-{number}", f"shop-{number % 7}", at_ms) for number, at_ms in enumerate(times)]
    for order in (1, 2):
        with ActorTestDriver(app) as driver:
            driver.backlog({sales: backlog}, order=order)
            driver.close_windows()
            largest = {sent.timestamp_ms - NOON_MS: sent.value for sent in driver.outputs(names["busiest"])}
            assert largest == {end * 60_000 - 1: 86 for end in range(1, 6)}
            assert driver.late(names["compare"]) == {"largest": 0}


def test_an_aggregate_of_ones_own_merges() -> None:
    names = block("docs/reference/windows.md", "Aggregates").run({"aggregates": aggregates})
    app = App("shops", broker="kafka://127.0.0.1:1")
    events = app.topic("events", key_type=str, value_type=float)
    store = app.window_store("spreads", Session(timedelta(seconds=10)), aggregate=names["spread"])

    @app.actor(events, stores=[store])
    async def add(ctx: Context, value: float) -> None:
        store.add(ctx.key, value)

    with ActorTestDriver(app, partitions=1) as driver:
        for value, at_s in ((5.0, 0), (2.0, 15), (4.0, 8)):
            driver.send(events, key="a", value=value, timestamp_ms=NOON_MS + at_s * 1000)
        assert list(driver.windows(store, "a").values()) == [3.0]


def test_changes_are_handed_out_once_per_interval_of_stream_time() -> None:
    names = block("docs/reference/windows.md", "Changes once per interval").run({})
    app, sales, totals, count_sale = (names[name] for name in ("app", "sales", "totals", "count_sale"))
    with ActorTestDriver(app, partitions=1) as driver:
        for cents, at_s in ((100, 5), (20, 9), (3, 12), (1, 50)):
            driver.send(sales, key="berlin", value=cents, timestamp_ms=NOON_MS + at_s * 1000)
        assert [sent.value for sent in driver.outputs(totals)] == [120, 123]
        driver.crash(keep_disk=False)
        driver.advance_stream_time(count_sale, NOON_MS + 300_000)
        assert [sent.value for sent in driver.outputs(totals)] == [124]


def test_the_hottest_auction_is_that_of_all_keys() -> None:
    names = block("docs/reference/windows.md", "Windows over keys").run({})
    bids, bid = names["bids"], names["Bid"]
    with ActorTestDriver(names["app"]) as driver:
        records = [(f"b{number}", bid("xyzzy"[number], 1), NOON_MS + number * 60_000) for number in range(5)]
        driver.backlog({bids: records})
        driver.close_windows()
        sent = {one.timestamp_ms + 1: (one.value.auction, one.value.count) for one in driver.outputs(names["hot"])}
        assert sent[NOON_MS + 300_000] == sent[NOON_MS + 600_000] == ("z", 2)
        assert sent[NOON_MS + 60_000] == ("x", 1)
        assert len(sent) == 14
        assert {store: late for actor in ("count_bid", "hottest") for store, late in driver.late(actor).items()} == {
            "per-auction": 0,
            "hottest": 0,
        }


def test_the_clock_of_the_driver_counts_for_idle_inputs() -> None:
    app = App("shops", broker="kafka://127.0.0.1:1")
    events = app.topic("events", key_type=str, value_type=int)
    store = app.window_store(
        "sums", Tumbling(minutes=1), aggregate=aggregates.sum(), close_when_idle=timedelta(seconds=10)
    )

    @app.actor(events, stores=[store])
    async def add(ctx: Context, value: int) -> None:
        store.add(ctx.key, value)

    noon = datetime.fromtimestamp(NOON_MS / 1000, UTC)
    for now, sums in ((noon + timedelta(hours=1), []), (noon, [3])):
        with ActorTestDriver(app, now=now, partitions=1) as driver:
            for value in (1, 2):
                driver.send(events, key="a", value=value, timestamp_ms=NOON_MS + value)
            assert list(driver.windows(store, "a").values()) == sums
            assert driver.late(add) == {"sums": 0}
