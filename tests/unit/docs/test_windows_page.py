"""The code of the page on windows does what the page says."""

from __future__ import annotations

from datetime import timedelta

from actors import App, Context, Session, aggregates
from actors.testing import ActorTestDriver
from tests.documents import block

NOON_MS = 1_700_049_600_000


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
