"""Lists that grow at their end beside lists that are encoded as a whole; values that are replaced in rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from actors._core.windows.join_rows import (
    Early,
    Kept,
    One,
    decode_chunk,
    encode_chunk,
    encode_early,
    encode_headers,
    encode_ones,
    with_last_chunk,
    with_record,
)
from actors._core.windows.lists import count_of, number_of
from actors._core.windows.rows import VALUE, Held, decode_list, encode_list, encode_times, last_of, with_last
from stores._core.windows import Progress, encode_progress, with_values

TIMES = st.integers(0, 1 << 50)
WINDOWS = st.builds(Held, TIMES, TIMES, st.binary(max_size=300), TIMES, st.booleans(), st.booleans())
RECORDS = st.builds(Kept, TIMES, st.binary(max_size=300))


@given(st.lists(st.tuples(WINDOWS, st.booleans()), min_size=1, max_size=40))
def test_a_list_that_grew_is_the_list_of_its_windows(steps: list[tuple[Held, bool]]) -> None:
    raw, windows = None, list[Held]()
    for window, is_new in steps:
        raw = with_last(raw, window, is_new=is_new or raw is None)
        windows[len(windows) if is_new else -1 :] = [window]
        assert raw == encode_list(windows)
        assert (decode_list(raw), last_of(raw)) == (windows, window)


@given(st.lists(RECORDS, min_size=1, max_size=40), st.integers(0, (1 << 32) - 1))
def test_a_chunk_that_grew_is_the_chunk_of_its_records(records: list[Kept], number: int) -> None:
    raw = None
    for record in records:
        raw = with_record(raw, record)
    assert raw is not None
    assert raw == encode_chunk(records)
    first = with_last_chunk(raw, number)
    assert (decode_chunk(first), count_of(first), number_of(first)) == (records, len(records), number)
    assert number_of(with_record(first, records[0])) == number, "the first chunk keeps the number of the last one"


VALUES = st.binary(max_size=300)
ONES = st.builds(One, TIMES, TIMES, VALUES, st.booleans())
WAITING = st.builds(Early, TIMES, st.lists(st.tuples(st.text(max_size=5), VALUES), max_size=3), VALUES)


def longer(value: bytes) -> bytes:
    return value + b"!" * (len(value) % 3)


@given(st.lists(WINDOWS, min_size=1, max_size=20), st.lists(RECORDS, min_size=1, max_size=20), st.integers(0, 9))
def test_values_of_windows_and_records_are_replaced(windows: list[Held], records: list[Kept], number: int) -> None:
    raw = encode_list(windows)
    assert with_values(raw, lambda value: value) == raw
    others = [replace(window, value=longer(window.value)) for window in windows]
    assert with_values(raw, longer) == encode_list(others)
    assert last_of(with_values(raw, longer)) == others[-1]
    chunk = with_last_chunk(encode_chunk(records), number)
    assert with_values(chunk, lambda value: value) == chunk
    others = [replace(record, value=longer(record.value)) for record in records]
    assert with_values(chunk, longer) == with_last_chunk(encode_chunk(others), number)


@given(st.lists(ONES, min_size=1, max_size=20), st.lists(WAITING, min_size=1, max_size=20))
def test_values_of_one_and_of_many_that_wait_are_replaced(ones: list[One], waiting: list[Early]) -> None:
    longer_ones = [replace(one, value=longer(one.value)) for one in ones]
    assert with_values(encode_ones(ones), longer) == encode_ones(longer_ones)
    chunk, others = (
        encode_chunk([Kept(at_ms, encode_early(early)) for at_ms, early in enumerate(records)])
        for records in (waiting, [replace(early, value=longer(early.value)) for early in waiting])
    )
    assert with_values(chunk, longer, waits=True) == others


@pytest.mark.parametrize(
    "raw", [b"", encode_headers([("name", b"x")]), encode_times([5, 7]), encode_progress(Progress(stream_ms=5))]
)
def test_rows_without_values_stay(raw: bytes) -> None:
    assert with_values(raw, longer) == raw


def test_an_aligned_window_has_one_value() -> None:
    assert with_values(VALUE + b"abcd", longer) == VALUE + b"abcd!"


@pytest.mark.parametrize("raw", [b"l", b"lxxxx\x05", b"c\0\0\0\0\x91\x05", b"o\x91"])
def test_other_bytes_are_no_values(raw: bytes) -> None:
    with pytest.raises(ValueError, match="not values of windows, or of a join"):
        with_values(raw, longer)
