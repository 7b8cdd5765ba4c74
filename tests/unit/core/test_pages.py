"""Pages of a range over several partitions and owners, against a sorted list."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors._core.pages import Part, decode_base64, decode_place, encode_place, merge_parts, resume_at

Rows = dict[tuple[bytes, int], int]
keys = st.binary(max_size=3)
rows = st.dictionaries(st.tuples(keys, st.integers(0, 4)), st.integers(), max_size=40)


def part_of(content: Rows, partitions: list[int], start: bytes | None, after: object, look: int) -> Part[int]:
    """What an owner of some partitions says that looks at so many rows at most."""
    found = []
    for partition in partitions:
        first = resume_at(start, after, partition)
        found += [
            (place, row)
            for place, row in content.items()
            if place[1] == partition and (first is None or place[0] >= first)
        ]
    found.sort()
    if len(found) <= look:
        return Part(found, None)
    return Part(found[:look], found[look - 1][0])


def walk(
    content: Rows,
    owners: list[list[int]],
    limit: int,
    looks: list[int],
    start: bytes | None,
    merge: Callable = merge_parts,
) -> list:
    seen, after = [], None
    for _ in range(500):
        parts = [part_of(content, owned, start, after, look) for owned, look in zip(owners, looks, strict=True)]
        page = merge(parts, limit)
        assert len(page.rows) <= limit
        seen += page.rows
        if page.through is None:
            return seen
        after = decode_place(encode_place(page.through))
    raise AssertionError("it never ends")


@given(
    content=rows,
    start=st.none() | keys,
    limit=st.integers(1, 7),
    looks=st.lists(st.integers(1, 9), min_size=2, max_size=2),
)
def test_pages_have_each_row_once_in_order(content: Rows, start: bytes | None, limit: int, looks: list[int]) -> None:
    expected = sorted((place, row) for place, row in content.items() if start is None or place[0] >= start)
    assert walk(content, [[0, 3], [1, 2, 4]], limit, looks, start) == expected


def test_a_merge_beyond_what_all_looked_at_is_noticed() -> None:
    """The check above can fail: this merge takes the furthest that a part looked for what all did."""

    def damaged(parts: list[Part[int]], limit: int) -> Part[int]:
        furthest = max((part.through for part in parts if part.through is not None), default=None)
        return merge_parts([Part(part.rows, furthest) for part in parts], limit)

    content = {(b"%d" % number, number % 3): number for number in range(9)}
    assert walk(content, [[0], [1, 2]], 5, [1, 4], None) == sorted(content.items())
    assert walk(content, [[0], [1, 2]], 5, [1, 4], None, damaged) != sorted(content.items())


@given(st.binary())
def test_base64_of_either_alphabet_is_read(raw: bytes) -> None:
    import base64

    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        text = encode(raw).decode()
        assert decode_base64(text) == decode_base64(text.rstrip("=")) == raw


@pytest.mark.parametrize("text", ["@", "a", "é", "aaa aaa", None, 5, ["a"]])
def test_what_isnt_base64_is_refused(text: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  its text is the user's
        decode_base64(text)


def test_a_cursor_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="too short"):
        decode_place("AAA")
