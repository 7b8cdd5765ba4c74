"""Lists that grow at their end beside lists that are encoded as a whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from actors._core.windows.join_rows import Kept, decode_chunk, encode_chunk, with_last_chunk, with_record
from actors._core.windows.lists import count_of, number_of
from actors._core.windows.rows import Held, decode_list, encode_list, last_of, with_last

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
