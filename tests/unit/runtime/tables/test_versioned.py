"""Tables with a history on the test driver: values as of a time, in whatever order their records come."""

from __future__ import annotations

import logging
import random
from datetime import timedelta
from typing import Any

import pytest

from actors import App, ConfigurationError, Context, HandlerFailedError, Table, UndecodableRecordError
from actors.testing import ActorTestDriver

NOON_MS = 1_700_049_600_000
YEAR_9999_MS = 253_370_764_800_000
HISTORY_MS = 1_000


class Rates:
    """Asked for a rate as of a time."""

    def __init__(self, history_ms: int = HISTORY_MS, **options: Any) -> None:
        self.app = app = App("rates", broker="kafka://127.0.0.1:1", **options)
        self.questions = app.topic("questions", key_type=str, value_type=int)
        self.rates = app.topic("rates", key_type=str, value_type=int)
        self.out = app.topic("out", key_type=str, value_type=list)
        self.table: Table[str, int] = app.table(self.rates, history=timedelta(milliseconds=history_ms))

        @app.actor(self.questions, stores=[self.table])
        async def answer(ctx: Context, at_ms: int) -> None:
            rate = self.table.get(ctx.key, as_of=at_ms)
            ctx.send(self.out, key=ctx.key, value=[at_ms - NOON_MS, rate, self.table.get(ctx.key)])

        self.answer = answer

    def say(self, driver: ActorTestDriver, at: int, rate: int | None, key: str = "eur") -> None:
        driver.post(self.rates, key=key, value=rate, timestamp_ms=NOON_MS + at)
        driver.settle()

    def ask(self, driver: ActorTestDriver, at: int, key: str = "eur") -> tuple[int | None, int | None]:
        driver.send(self.questions, key=key, value=NOON_MS + at)
        (found,) = driver.outputs(self.out)
        assert found.value[0] == at
        return found.value[1], found.value[2]


def test_the_last_value_at_or_before_a_time() -> None:
    rates = Rates()
    with ActorTestDriver(rates.app) as driver:
        rates.say(driver, 100, 1)
        rates.say(driver, 300, 3)
        rates.say(driver, 200, 2)
        rates.say(driver, 400, None)
        for at, rate in ((99, None), (100, 1), (199, 1), (200, 2), (299, 2), (300, 3), (399, 3), (400, None)):
            assert rates.ask(driver, at) == (rate, None)
        driver.crash(keep_disk=False)
        rates.say(driver, 350, 4)
        assert [rates.ask(driver, at)[0] for at in (300, 349, 350, 399, 400)] == [3, 3, 4, 4, None]
        rates.say(driver, 500, 5)
        assert [rates.ask(driver, at)[0] for at in (399, 400, 499, 500, 9_999)] == [4, None, None, 5, 5]


def test_what_is_older_than_the_history_is_dropped_and_counted() -> None:
    rates = Rates()
    with ActorTestDriver(rates.app, partitions=1) as driver:
        rates.say(driver, 0, 1)
        rates.say(driver, 10, 2)
        rates.say(driver, 1_010, 3, key="usd")
        rates.say(driver, 9, 9)
        assert rates.ask(driver, 10) == (2, 2)
        assert rates.ask(driver, 9) == (None, 2)
        rates.say(driver, 1_020, 4, key="usd")
        # The latest value never goes; what was before it does.
        assert rates.ask(driver, 10) == (2, 2)
        assert driver._worker is not None
        assert [task.meters.late["rates"].count for task in driver._worker.tasks] == [1]


def test_timestamps_in_seconds_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """Among rows in milliseconds they are before the history, and would only be counted."""
    rates = Rates()
    with ActorTestDriver(rates.app, partitions=1) as driver, caplog.at_level(logging.WARNING):
        rates.say(driver, 0, 1)
        for number in range(3):
            driver.send(rates.rates, key="eur", value=2, timestamp_ms=NOON_MS // 1000 + number)
        assert rates.ask(driver, 0) == (1, 1)
    (line,) = [one.getMessage() for one in caplog.records if "timestamps are milliseconds" in one.getMessage()]
    assert f"rates[0] offset 1: the timestamp {NOON_MS // 1000} is in 1970" in line


def test_rows_of_what_is_before_the_history_are_removed() -> None:
    rates = Rates(history_ms=160)
    with ActorTestDriver(rates.app, partitions=1) as driver:
        for at in range(0, 2_000, 7):
            rates.say(driver, at, at, key=f"k{at % 3}")
        rates.say(driver, 1_995, None, key="k0")
        assert driver.items(rates.table).keys() == {"k1", "k2"}
        assert rates.table.history is not None
        rows = len(driver.items(rates.table.history))
        assert 3 < rows < 60
        rates.say(driver, 9_000, 1, key="usd")
        assert set(driver.items(rates.table.history)) == {b"m"}


def test_against_a_list_through_kills() -> None:
    rng = random.Random(5)
    rates = Rates(history_ms=50)
    with ActorTestDriver(rates.app, partitions=1) as driver:
        put: list[tuple[str, int, int | None]] = []
        newest = -1
        for number in range(150):
            key, at = rng.choice("ab"), max(0, number * 2 + rng.randint(-70, 5))
            rate = None if rng.random() < 0.2 else number
            driver.post(rates.rates, key=key, value=rate, timestamp_ms=NOON_MS + at)
            if at >= newest - 50:
                put.append((key, at, rate))
                newest = max(newest, at)
            if number % 20 == 19:
                if number % 40 == 19:
                    driver.crash(keep_disk=number % 80 == 19, settle=False)
                driver.settle()
                for asked in range(newest - 60, newest + 5, 3):
                    for key in "ab":
                        found = [one for one in put if one[0] == key]
                        last = max((one[1] for one in found), default=0)
                        before = [(of, place, value) for place, (_, of, value) in enumerate(found) if of <= asked]
                        expected = max(before, default=(0, 0, None))[2]
                        if asked < newest - 50 and asked < last:
                            expected = None
                        assert rates.ask(driver, asked, key)[0] == expected, (number, key, asked)


@pytest.mark.parametrize(
    ("timestamp_ms", "text"),
    [
        (YEAR_9999_MS, "ahead of this worker's clock, more than max_time_ahead=86400 s: it would end the history"),
        (-1, "its timestamp is -1, and table rates goes by it"),
    ],
)
def test_a_time_that_cant_be_meant_is_an_error_by_policy(timestamp_ms: int, text: str) -> None:
    rates = Rates()
    with ActorTestDriver(rates.app) as driver, pytest.raises(UndecodableRecordError, match=text):
        driver.send(rates.rates, key="eur", value=1, timestamp_ms=timestamp_ms)


def test_another_history_over_existing_rows_is_refused() -> None:
    with ActorTestDriver(Rates().app) as driver:
        rates = Rates(history_ms=2_000)
        rates.say(driver, 0, 1)
        driver.restart(rates.app)
        with pytest.raises(Exception, match="declared with another history than 0:00:02") as raised:
            rates.say(driver, 1, 2)
        assert not isinstance(raised.value, ConfigurationError | HandlerFailedError)
