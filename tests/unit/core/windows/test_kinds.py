"""Which windows there are."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from actors._core.windows.kinds import Hopping, Session, Sliding, Tumbling, Window
from stores._core.windows import Progress, decode_progress, encode_progress

MS = timedelta(milliseconds=1)
HOUR_MS = 3_600_000


def at_ms(zone, *parts):
    return int(datetime(*parts, tzinfo=ZoneInfo(zone)).timestamp()) * 1000


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("Europe/Berlin", (2024, 3, 31), 23),
        ("Europe/Berlin", (2024, 10, 27), 25),
        ("Europe/Berlin", (2024, 6, 1), 24),
        ("America/Havana", (2024, 3, 10), 23),
        ("America/Havana", (2024, 11, 3), 25),
        ("America/Havana", (2024, 11, 4), 24),
    ],
)
def test_a_day_is_as_long_as_its_clocks_say(zone, day, hours):
    kind = Tumbling(days=1, tz=zone)
    (window,) = kind.holding(at_ms(zone, *day, 12))
    assert (window.end_ms - window.start_ms) / HOUR_MS == hours
    for moment in (window.start_ms, window.end_ms - 1):
        assert list(kind.holding(moment)) == [window]
    (before,), (after,) = kind.holding(window.start_ms - 1), kind.holding(window.end_ms)
    assert (before.end_ms, after.start_ms) == (window.start_ms, window.end_ms)
    assert kind.starting(window.start_ms) == window
    assert list(kind.starts(before.start_ms, after.start_ms)) == [before.start_ms, window.start_ms, after.start_ms]
    assert list(kind.starts(before.start_ms + 1, after.start_ms - 1)) == [window.start_ms]


def test_a_time_is_in_its_day_though_clocks_went_back_over_midnight() -> None:
    # At 00:01 on 7 November 2010 it was 23:01 again.
    kind, midnight_ms = Tumbling(days=1, tz="America/St_Johns"), at_ms("America/St_Johns", 2010, 11, 7)
    for minutes in (0, 1, 30, 61, 24 * 60):
        assert kind.holding(midnight_ms + minutes * 60_000) == (
            Window(midnight_ms, at_ms("America/St_Johns", 2010, 11, 8)),
        )


def test_a_week_begins_on_monday():
    (week,) = Tumbling(days=7, tz="Europe/Berlin").holding(at_ms("Europe/Berlin", 2024, 4, 3, 5))
    monday = at_ms("Europe/Berlin", 2024, 4, 1), at_ms("Europe/Berlin", 2024, 4, 8)
    assert week == monday


def test_hopping_windows_begin_no_earlier_than_1970():
    kind = Hopping(10 * MS, 4 * MS)
    assert [tuple(window) for window in kind.holding(0)] == [(0, 10)]
    assert [tuple(window) for window in kind.holding(9)] == [(0, 10), (4, 14), (8, 18)]
    assert [tuple(window) for window in kind.holding(10)] == [(4, 14), (8, 18)]
    assert list(kind.starts(-5, 8)) == [0, 4, 8]
    assert list(kind.starts(1, 7)) == [4]


def test_when_windows_close():
    assert Tumbling(10 * MS).closes_ms(Window(0, 10), 3) == 13
    assert Sliding(10 * MS).closes_ms(Window(0, 10), 3) == 14
    assert Session(5 * MS).closes_ms(Window(0, 10), 3) == 19


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Tumbling(), "has to be a millisecond or longer"),
        (lambda: Tumbling(timedelta(microseconds=5)), "has to be a millisecond or longer"),
        (lambda: Tumbling(hours=5, tz="Europe/Berlin"), "whole days"),
        (lambda: Tumbling(days=1, tz="Europe/Nowhere"), "no such time zone"),
        (lambda: Hopping(10 * MS, 11 * MS), "make advance at most the size"),
        (lambda: Hopping(10 * MS, timedelta(0)), "advance"),
        (lambda: Sliding(-MS), "difference"),
        (lambda: Session(10), "give a timedelta"),
    ],
)
def test_windows_that_cannot_be(make, reason):
    with pytest.raises(ValueError, match=reason):
        make()


def test_stream_time_is_eight_bytes_behind_the_letter():
    progress = Progress(1_700_000_000_123, b"w\x00", 5, "Tumbling(0:00:10)", 7, True)
    raw = encode_progress(progress)
    assert decode_progress(raw) == progress
    assert raw[1:9].hex() == f"{1_700_000_000_123:016x}"
    assert decode_progress(encode_progress(Progress())) == Progress()
