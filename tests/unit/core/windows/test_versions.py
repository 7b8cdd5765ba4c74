"""Versions of keys beside a plain list of all that was put."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from actors._core.windows.versions import MARK_KEY, History, Latest, decode_mark, decode_versions, segment_row

KEYS = (b"a", b"ab", b"b")


class Rows(dict[bytes, bytes]):
    """Rows in a dict."""

    def set(self, row: bytes, value: bytes) -> None:
        self[row] = value

    def delete(self, row: bytes) -> bool:
        return self.pop(row, None) is not None

    def items(self, start: bytes | None = None, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:  # type: ignore[override]
        return iter([(row, self[row]) for row in sorted(self) if (start or b"") <= row and (end is None or row < end)])


class World:
    """A table with a history as `Table` keeps it, and the list."""

    def __init__(self, history_ms: int, at_once: int = 3) -> None:
        self.history_ms = history_ms
        self.at_once = at_once
        self.rows = Rows()
        self.values: dict[bytes, tuple[int, bytes]] = {}
        self.put: list[tuple[bytes, int, bytes | None]] = []
        self.newest_ms = -1

    def history(self) -> History:
        raw = self.rows.get(MARK_KEY)
        return History(self.rows, self.history_ms, None if raw is None else decode_mark(raw))

    def latest(self, key: bytes) -> Latest | None:
        if key in self.values:
            return Latest(*self.values[key])
        deleted_ms = self.history().deleted_ms(key)
        return None if deleted_ms is None else Latest(deleted_ms, None)

    def record(self, key: bytes, at_ms: int, value: bytes | None) -> bool:
        history = self.history()
        if history.is_forgotten(at_ms):
            assert at_ms < self.newest_ms - self.history_ms
            return False
        history.move_on(at_ms, self.at_once)
        latest = self.latest(key)
        is_latest = history.put(key, latest, at_ms, value)
        if is_latest:
            if value is None:
                self.values.pop(key, None)
            else:
                self.values[key] = (at_ms, value)
        self.put.append((key, at_ms, value))
        self.newest_ms = max(self.newest_ms, at_ms)
        return True

    def expected(self, key: bytes, at_ms: int) -> bytes | None:
        """Look through the list: of one time the last that was put counts."""
        found = [(put_ms, number, value) for number, (of, put_ms, value) in enumerate(self.put) if of == key]
        if not found:
            return None
        last_ms = max(found)[0]
        if at_ms < self.newest_ms - self.history_ms and at_ms < last_ms:
            return None
        return max((one for one in found if one[0] <= at_ms), default=(0, 0, None))[2]


puts = st.lists(
    st.tuples(st.sampled_from(KEYS), st.integers(0, 60), st.one_of(st.none(), st.binary(min_size=1, max_size=2))),
    max_size=30,
)


@given(puts, st.integers(1, 70), st.integers(1, 5))
def test_each_time_shows_what_held_then(
    records: list[tuple[bytes, int, bytes | None]], history_ms: int, few: int
) -> None:
    world = World(history_ms, few)
    for key, at_ms, value in records:
        world.record(key, at_ms, value)
        for other in KEYS:
            latest = world.latest(other)
            for asked_ms in range(-2, 62):
                assert world.history().as_of(other, latest, asked_ms) == world.expected(other, asked_ms)


@given(puts, st.integers(1, 20))
def test_what_is_before_the_history_goes(records: list[tuple[bytes, int, bytes | None]], history_ms: int) -> None:
    world = World(history_ms)
    for key, at_ms, value in records:
        world.record(key, at_ms, value)
    for number in range(40):
        # Enough records, far enough on, for all to be removed.
        world.record(b"last", 1_000 + number, b"x")
    left = {row for row in world.rows if not row.endswith(b"last")}
    assert left == {MARK_KEY}
    assert set(world.values) == {key for key in KEYS if world.expected(key, 2_000) is not None} | {b"last"}


def test_versions_of_a_segment_share_a_row() -> None:
    world = World(160)
    for at_ms in (0, 3, 5, 12):
        world.record(b"a", at_ms, b"%d" % at_ms)
    shown = {
        segment: [
            (one.start_ms, one.end_ms, one.value) for one in decode_versions(world.rows[segment_row(segment, b"a")])
        ]
        for segment in (0, 1)
    }
    assert shown == {0: [(0, 3, b"0"), (3, 5, b"3")], 1: [(5, 12, b"5")]}


def test_a_row_of_a_far_time_that_was_there_before_the_history_costs_few_looks() -> None:
    looks = []

    class Counted(Rows):
        def get(self, row: bytes, default: bytes | None = None) -> bytes | None:  # type: ignore[override]
            looks.append(row)
            if len(looks) > 1_000:
                raise AssertionError("it looks at every segment of time until then")
            return super().get(row, default)

    now_ms, far = 1_700_000_000_000, Latest(253_402_300_799_999, b"far")
    rows = Counted()

    def history() -> History:
        raw = rows.get(MARK_KEY)
        return History(rows, 3_600_000, None if raw is None else decode_mark(raw))

    # A query, before the history has anything.
    assert history().as_of(b"a", far, now_ms) is None
    for number in range(5):
        at_ms, value = now_ms + number * 1_000_000, b"%d" % number
        now = history()
        now.move_on(at_ms, 256)
        assert not now.put(b"a", far, at_ms, value)
        assert history().as_of(b"a", far, at_ms) == history().as_of(b"a", far, at_ms + 5) == value
    assert history().as_of(b"a", far, now_ms + 1_500_000) == b"1"
    assert history().as_of(b"a", far, far.start_ms) == b"far"
