"""Write metadata and positions of actors with several inputs, beside those of one input."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.runtime.state.restore import stored_writes
from stores._core.record import (
    INPUT_PLACE,
    MAX_INPUTS,
    METADATA_HEADER,
    Position,
    WriteMetadata,
    decode_metadata,
    decode_position,
    encode_metadata,
    encode_position,
    with_epoch,
)
from stores._core.replay import NO_METADATA, advance
from tests.logs import Record

AT = Position(source_offset=5, changelog_offset=9, wall_time_ms=1, epoch=3, changelog_id="x")
NOTHING = Position(source_offset=0, changelog_offset=0, wall_time_ms=1, epoch=0, changelog_id="x")


@given(st.integers(0, 2**60), st.integers(-1, 2**46), st.integers(0, 2**60), st.integers(0, MAX_INPUTS - 1))
def test_metadata_says_the_input(epoch: int, offset: int, expires_at_ms: int, place: int) -> None:
    raw = encode_metadata(epoch, offset, expires_at_ms, input=place)
    assert decode_metadata(raw) == WriteMetadata(epoch, offset, expires_at_ms, place)
    assert raw[17:25] == encode_metadata(epoch, offset, expires_at_ms)[17:25]
    assert int.from_bytes(raw[INPUT_PLACE], "big") == place
    assert decode_metadata(with_epoch(raw, 7)) == WriteMetadata(7, offset, expires_at_ms, place)


def test_one_input_is_written_as_version_1() -> None:
    assert encode_metadata(3, 4)[0] == 1
    assert decode_metadata(encode_metadata(3, 4)).input == 0
    assert "more_offsets" not in json.loads(encode_position(AT))


def test_an_input_that_no_actor_can_have_isnt_read() -> None:
    with pytest.raises(ValueError, match="write metadata of input 64, an actor has up to 64"):
        decode_metadata(encode_metadata(1, 1, input=MAX_INPUTS))


def test_positions_have_the_offsets_of_all_inputs() -> None:
    position = AT.at([5, 8])
    assert decode_position(encode_position(position)) == position
    assert (position.offsets, position.offset_of(1), position.offset_of(2)) == ((5, 8), 8, None)
    assert decode_position(encode_position(AT)) == AT


def test_a_position_covers_what_lies_before_it_in_the_same_input() -> None:
    position = AT.at([5, 8])
    assert position.covers(WriteMetadata(3, 4))
    assert not position.covers(WriteMetadata(3, 5))
    assert position.covers(WriteMetadata(3, 7, input=1))
    assert not position.covers(WriteMetadata(3, 0, input=2))
    assert position.covers(WriteMetadata(2, 99, input=1))
    assert not position.covers(WriteMetadata(4, 0))


def test_a_replay_moves_the_offset_of_each_input() -> None:
    moved = advance(AT.at([5, 8]), [encode_metadata(3, 6, input=0), encode_metadata(3, 20, input=1)], 30)
    assert (moved.offsets, moved.epoch, moved.changelog_offset) == ((7, 21), 3, 30)
    assert advance(AT.at([5, 8]), [NO_METADATA], 30).offsets == (5, 8)
    newer = advance(AT.at([5, 8]), [encode_metadata(2, 99, input=0), encode_metadata(4, 2, input=1)], 30)
    assert (newer.offsets, newer.epoch) == ((0, 3), 4)
    assert advance(AT, [encode_metadata(3, 1, input=2)], 30).offsets == (5, 0, 2)


owned = st.builds(
    encode_metadata, st.integers(0, 3), st.integers(-1, 9), st.sampled_from((0, 5)), input=st.none() | st.integers(0, 3)
)


@given(st.lists(owned, max_size=12), st.randoms(), st.integers(1, 5))
def test_a_replay_depends_neither_on_the_order_of_inputs_nor_on_chunks(metadata, random, size) -> None:
    records = [Record(n, b"k", b"v", ((METADATA_HEADER, raw),)) for n, raw in enumerate(metadata)]
    _, newest = stored_writes(records)
    at_once = advance(NOTHING, newest, len(records))
    random.shuffle(newest)
    assert advance(NOTHING, newest, len(records)) == at_once
    in_chunks = NOTHING
    for first in range(0, len(records), size):
        _, newest = stored_writes(records[first : first + size])
        in_chunks = advance(in_chunks, newest, min(first + size, len(records)))
    if records:
        assert in_chunks == at_once


@pytest.mark.parametrize("place", [None, 0, 2])
def test_what_was_written_before_the_first_input_hides_no_later_write(place: int | None) -> None:
    offsets = [encode_metadata(1, offset, input=place) for offset in (-1, 5, 3)]
    records = [Record(n, b"k", b"v", ((METADATA_HEADER, raw),)) for n, raw in enumerate(offsets)]
    _, newest = stored_writes(records)
    assert advance(NOTHING, newest, 3).offset_of(place or 0) == 6
    _, newest = stored_writes(records[:1])
    position = advance(NOTHING, newest, 1)
    assert (position.epoch, position.offset_of(place or 0)) == (1, 0)
    assert position.covers(WriteMetadata(1, -1, input=place or 0))
