"""The order of several inputs, and how long one is waited for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.runtime.inputs import inbox
from actors.runtime.inputs.inbox import LOOK_AGAIN_S, MERGED_RECORDS, Inbox, MergedInbox, merged


def records(*timestamps: int, start: int = 0) -> list[Any]:
    return [SimpleNamespace(offset=start + place, timestamp=at) for place, at in enumerate(timestamps)]


class World:
    """An inbox with two inputs; `now_s` is its clock, `more` the inputs that aren't at their ends."""

    def __init__(self, max_idle_s: float = 0.0, limit: int = 1_000) -> None:
        self.now_s = 0.0
        self.more: set[int] = set()
        self.room = 0
        self.inbox = MergedInbox(
            limit,
            self._has_room,
            turns=(0, 1),
            max_idle_s=max_idle_s,
            has_more=lambda index: index in self.more,
            monotonic=lambda: self.now_s,
        )
        self.inbox.open([0, 0])

    def _has_room(self) -> None:
        self.room += 1


def taken(of: Inbox) -> list[tuple[int, int]]:
    """Take all that may be taken now: (input, timestamp)."""
    found = []
    while of:
        parts = of.take()
        runs = merged(parts, [index for index, _ in parts])
        found += [(index, record.timestamp) for index, run in runs for record in run]
    return found


def as_documented(inputs: list[list[int]]) -> list[tuple[int, int]]:
    """Merge as the documentation says: the lowest head goes first, of equal ones that of the first input."""
    left, found = [list(timestamps) for timestamps in inputs], []
    while any(left):
        _, index = min((timestamps[0], index) for index, timestamps in enumerate(left) if timestamps)
        found.append((index, left[index].pop(0)))
    return found


@given(st.lists(st.lists(st.integers(-1, 5), max_size=8), min_size=2, max_size=2), st.integers(1, 8), st.integers(1, 8))
def test_the_lowest_head_goes_first(inputs: list[list[int]], size: int, at_a_time: int) -> None:
    world = World()
    for index, timestamps in enumerate(inputs):
        for start in range(0, len(timestamps), size):
            world.inbox.put(index, records(*timestamps[start : start + size], start=start))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inbox, "MERGED_RECORDS", at_a_time)
        assert taken(world.inbox) == as_documented(inputs)
    assert world.inbox.queued == 0


def test_so_many_records_of_an_input_are_put_in_order_at_a_time() -> None:
    world = World(limit=10_000)
    for index in (0, 1):
        world.inbox.put(index, records(*range(index, 4_000, 2)))
    parts = world.inbox.take()
    assert [(index, len(batch)) for index, batch in parts] == [(0, MERGED_RECORDS), (1, MERGED_RECORDS - 1)]
    assert [at for _, at in taken(world.inbox)] == list(range(2 * MERGED_RECORDS - 1, 4_000))


def test_of_one_timestamp_the_input_whose_turn_is_first_goes_first() -> None:
    # Records of tables do, wherever the table is declared.
    stream, table = records(5, 6), records(5, 5, 6)
    order = [
        (one, record.timestamp) for one, run in merged([("stream", stream), ("table", table)], [1, 0]) for record in run
    ]
    assert order == [("table", 5), ("table", 5), ("stream", 5), ("table", 6), ("stream", 6)]


def test_records_without_a_timestamp_go_first_and_hold_no_other_input_up() -> None:
    world = World()
    world.inbox.put(0, records(7, 8))
    world.inbox.put(1, records(-1, -1, 9, -1))
    # An undated record comes right behind the one before it.
    assert taken(world.inbox) == [(1, -1), (1, -1), (0, 7), (0, 8), (1, 9), (1, -1)]


def test_by_default_an_input_at_its_end_isnt_waited_for() -> None:
    world = World()
    world.inbox.put(1, records(5))
    assert taken(world.inbox) == [(1, 5)]


def test_an_input_is_waited_for_from_its_own_end_on_not_from_that_of_another() -> None:
    world = World(max_idle_s=2.0)
    world.inbox.put(0, records(5))
    assert world.inbox.wait_s == 2.0
    world.now_s = 2.0
    # Input 0 is at its end before input 1 gets on, and nothing looks at the inbox between the two.
    assert world.inbox
    world.inbox.take()
    world.inbox.put(1, records(9))
    assert world.inbox.wait_s == 2.0
    world.now_s = 4.0
    assert taken(world.inbox) == [(1, 9)]


@pytest.mark.parametrize("max_idle_s", [0.0, 2.0])
def test_an_input_that_isnt_at_its_end_is_waited_for_however_long_it_takes(max_idle_s: float) -> None:
    world = World(max_idle_s=max_idle_s)
    world.more = {0}
    world.inbox.put(1, records(5))
    assert not world.inbox
    assert world.inbox.wait_s == LOOK_AGAIN_S
    world.now_s = 10_000.0
    assert not world.inbox
    world.inbox.put(0, records(3))
    assert taken(world.inbox) == [(0, 3)]
    # What was left of it were markers: it is at its end without a record.
    world.more = set()
    world.now_s += world.inbox.wait_s
    assert taken(world.inbox) == [(1, 5)]


def test_the_records_of_an_input_that_isnt_at_its_end_have_room_while_other_queues_are_full() -> None:
    world = World(limit=2)
    world.more = {0}
    world.inbox.put(1, records(5, 6))
    assert not world.inbox.has_room(1)
    assert world.inbox.has_room(0)
    assert not world.inbox
    world.inbox.put(0, records(7))
    assert taken(world.inbox) == [(1, 5), (1, 6), (0, 7)]
    assert world.inbox.has_room(1)


def test_an_input_at_its_end_is_waited_for_and_no_longer_than_told() -> None:
    world = World(max_idle_s=2.0)
    world.inbox.put(1, records(5))
    assert not world.inbox
    assert world.inbox.wait_s == 2.0
    world.now_s = 1.5
    assert not world.inbox
    assert world.inbox.wait_s == 0.5
    world.inbox.put(0, records(3))
    assert taken(world.inbox)[:1] == [(0, 3)]
    world.now_s = 2.0
    assert not world.inbox
    world.now_s = 4.0
    assert taken(world.inbox) == [(1, 5)]


def test_each_wait_begins_anew() -> None:
    world = World(max_idle_s=2.0)
    world.inbox.put(1, records(5))
    assert not world.inbox
    world.now_s = 2.0
    assert taken(world.inbox) == [(1, 5)]
    assert world.inbox.wait_s == float("inf")
    world.inbox.put(1, records(6, start=1))
    assert not world.inbox


def test_room_is_counted_for_each_input_and_a_part_of_a_batch_waits() -> None:
    world = World(limit=3)
    world.inbox.put(0, records(1, 5, 6))
    assert not world.inbox.has_room(0)
    assert world.inbox.has_room(1)
    world.inbox.put(1, records(4))
    assert [(index, len(batch)) for index, batch in world.inbox.take()] == [(0, 1), (1, 1)]
    assert (world.room, world.inbox.queued) == (1, 2)
    assert [record.offset for record in world.inbox.queues[0].records()] == [1, 2]
    world.inbox.clear()
    assert (world.inbox.queued, list(world.inbox.queues[0].records())) == (0, [])


def test_what_is_taken_ends_with_a_batch_so_that_what_came_meanwhile_has_its_place() -> None:
    world = World()
    world.inbox.put(0, records(1, 3, 5))
    world.inbox.put(1, records(2))
    assert [(index, [record.timestamp for record in batch]) for index, batch in world.inbox.take()] == [
        (0, [1]),
        (1, [2]),
    ]
    world.inbox.put(1, records(4, start=1))
    assert taken(world.inbox) == [(0, 3), (1, 4), (0, 5)]
