"""A record reads what concerns it alone of a list: the rest isn't decoded, which its damage would show."""

from datetime import timedelta
from typing import Any

from actors import App, Context, Session, aggregates
from actors._core.windows.lists import LIST_HEAD_BYTES
from actors.testing import ActorTestDriver
from stores._core.record import METADATA_BYTES

SECOND = timedelta(seconds=1)
BEGIN_MS = 1_700_000_000_000
NO_MESSAGE_PACK = b"\xc1"
"""The byte that MessagePack never uses."""


def _damage_first(driver: ActorTestDriver, letter: bytes) -> None:
    """Damage the first element of each list whose row begins with a letter."""
    for files in driver._disk.files():
        for row, raw in files.data.items():
            if row[:1] == letter:
                at = METADATA_BYTES + LIST_HEAD_BYTES
                files.data[row] = raw[:at] + NO_MESSAGE_PACK + raw[at + 1 :]


def test_a_record_of_the_last_session_decodes_no_other() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=int)
    visits = app.window_store("visits", Session(5 * SECOND), aggregate=aggregates.sum())

    @app.actor(orders, stores=[visits])
    async def count(ctx: Context, amount: int) -> None:
        results.extend(visits.add(ctx.key, amount))

    results: list[Any] = []
    with ActorTestDriver(app, partitions=1) as driver:
        for at_ms in (0, 20_000, 40_000):
            driver.send(orders, key="ada", value=1, timestamp_ms=BEGIN_MS + at_ms)
        _damage_first(driver, b"k")
        for at_ms in (41_000, 60_000):
            driver.send(orders, key="ada", value=1, timestamp_ms=BEGIN_MS + at_ms)
    begins = [(window.start_ms - BEGIN_MS, total) for window, total in results]
    assert begins == [(0, 1), (20_000, 1), (40_000, 1), (40_000, 2), (60_000, 1)]


def test_a_record_close_to_the_bound_of_two_lists_decodes_no_other() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=int)
    visits = app.window_store("visits", Session(5 * SECOND), grace=60 * SECOND, aggregate=aggregates.sum())
    bound_ms = (BEGIN_MS // visits.segment_ms + 1) * visits.segment_ms

    @app.actor(orders, stores=[visits])
    async def count(ctx: Context, amount: int) -> None:
        results.extend((ctx.key, window.start_ms - bound_ms, total) for window, total in visits.add(ctx.key, amount))

    results: list[Any] = []
    with ActorTestDriver(app, partitions=1) as driver:
        for key, at_ms in (("ada", -40_000), ("ada", -20_000), ("bob", 2_000)):
            driver.send(orders, key=key, value=1, timestamp_ms=bound_ms + at_ms)
        _damage_first(driver, b"k")
        for at_ms in (-16_000, 3_000, 3_500):
            driver.send(orders, key="ada", value=1, timestamp_ms=bound_ms + at_ms)
        lists = [
            row for files in driver._disk.files() for row in files.data if row[:1] == b"k" and row.endswith(b"ada")
        ]
    assert results[3:] == [("ada", -20_000, 2), ("ada", 3_000, 1), ("ada", 3_000, 2)]
    assert len(lists) == 2


def test_a_record_of_a_join_decodes_none_of_its_own_side() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=int)
    payments = app.topic("payments", key_type=str, value_type=int)

    @app.join(orders, payments, within=60 * SECOND)
    async def pair(ctx: Context, order: int, payment: int) -> None: ...

    with ActorTestDriver(app, partitions=1) as driver:
        driver.send(orders, key="ada", value=1, timestamp_ms=BEGIN_MS)
        _damage_first(driver, b"j")
        driver.send(orders, key="ada", value=2, timestamp_ms=BEGIN_MS + 1)
        [files] = driver._disk.files()
        [chunk] = [raw for row, raw in files.data.items() if row[:1] == b"j"]
        assert chunk.endswith(b"2")
