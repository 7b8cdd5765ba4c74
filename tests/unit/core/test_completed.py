"""Which inputs are finished: against a set of offsets, whatever the order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors._core.task.commit import CommitMark, parse_mark
from actors._core.task.completed import SPAN, CompletedOffsets, decode_finished, encode_finished


@given(st.data())
def test_the_next_offset_is_the_first_unfinished_one(data: st.DataObject):
    offsets = sorted(data.draw(st.sets(st.integers(0, 60), min_size=1)))
    inherited = data.draw(st.sets(st.sampled_from(offsets)))
    progress = CompletedOffsets(offsets[0] if offsets[0] not in inherited else 0, inherited)
    running: list[int] = []
    finished: set[int] = set()
    left = list(offsets)
    while left or running:
        if left and (not running or data.draw(st.booleans())):
            offset = left.pop(0)
            assert progress.begin(offset) == (offset not in inherited)
            finished.add(offset) if offset in inherited else running.append(offset)
        else:
            offset = running.pop(data.draw(st.integers(0, len(running) - 1)))
            progress.finish(offset)
            finished.add(offset)
        assert all(offset in finished for offset in offsets if offset < progress.next_offset)
        assert running == [] or progress.next_offset <= min(running)
        behind = {offset for offset in finished | inherited if offset >= progress.next_offset}
        assert progress.finished == behind
        assert progress.reached == max(finished | inherited, default=-1) + 1 or progress.reached == progress.next_offset
    assert progress.next_offset == offsets[-1] + 1
    assert not progress.finished


@given(st.integers(0, 1 << 60), st.sets(st.integers(0, SPAN - 1)))
def test_the_finished_ones_go_through_the_metadata(base: int, steps: set[int]):
    finished = {base + step for step in steps}
    mark = CommitMark(3, 7, "nonce", encode_finished(base, finished))
    found = parse_mark(mark.encode())
    assert found == mark
    assert decode_finished(base, found.finished) == finished
    assert len(mark.encode()) < 4_096


def test_none_leave_the_mark_as_it_was():
    assert CommitMark(3, 7, "nonce", encode_finished(5, ())).encode() == "3;7;nonce~,0"


@pytest.mark.parametrize("metadata", ["1;2;n~,0;%%%", "1;2;n~,0;AAA", "1;2", "1;2;n~,0;AA==;x"])
def test_a_damaged_mark_is_none(metadata: str):
    assert parse_mark(metadata) is None


def test_what_is_far_behind_an_unfinished_one_waits():
    progress = CompletedOffsets(5)
    assert progress.may_begin(5 + SPAN)
    progress.begin(5)
    assert progress.may_begin(4 + SPAN)
    assert not progress.may_begin(5 + SPAN)
    progress.finish(5)
    assert progress.may_begin(5 + SPAN)


def test_a_jump_forgets_what_lies_before_it():
    progress = CompletedOffsets(5, {7, 9})
    progress.skip_to(8)
    assert (progress.next_offset, progress.finished, progress.reached) == (8, {9}, 10)
