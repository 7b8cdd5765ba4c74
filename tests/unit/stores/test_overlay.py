"""The overlay, case by case: what the state machine can't say clearly."""

from struct import pack

import pytest

from stores._core.overlay import KEPT_VALUE_BYTES, MessageScope, Overlay, with_metadata
from stores._core.record import Position, encode_metadata
from stores.memory import MemoryStore

POSITION = Position(1, 1, 1, 1, "id")


def overlay(*keys: bytes, now_ms: int = 1_000) -> tuple[Overlay, MessageScope]:
    base = MemoryStore()
    base.apply([(key, pack(">BQqq", 1, 1, 1, 0) + b"base") for key in keys], POSITION)
    scope = MessageScope(epoch=7, source_offset=42, now_ms=now_ms)
    return Overlay(base, scope), scope


def test_a_write_carries_the_scope_s_metadata_of_its_moment():
    state, scope = overlay()
    state.set(b"a", b"x", 5_000)
    scope.epoch, scope.source_offset = 8, 43
    state.set(b"b", b"y")
    assert state.writes == {
        b"a": (pack(">BQqq", 1, 7, 42, 5_000), b"x"),
        b"b": (pack(">BQqq", 1, 8, 43, 0), b"y"),
    }
    assert with_metadata(state.writes[b"a"]) == pack(">BQqq", 1, 7, 42, 5_000) + b"x"


def test_a_delete_carries_metadata_and_is_nothing_to_a_store():
    state, _ = overlay(b"a")
    assert state.delete(b"a")
    assert state.writes == {b"a": (pack(">BQqq", 1, 7, 42, 0), None)}
    assert with_metadata(state.writes[b"a"]) is None


def test_deleting_an_absent_key_writes_nothing():
    state, scope = overlay(b"a")
    assert state.delete(b"a")
    scope.release()
    assert not state.delete(b"a")
    assert not state.delete(b"b")
    assert scope.undo == []
    assert list(state.writes) == [b"a"]


def test_deleting_an_expired_key_removes_what_is_left_of_it():
    state, scope = overlay()
    state.set(b"a", b"x", 1_001)
    assert state.get(b"a") == b"x"
    scope.now_ms = 1_001
    assert state.get(b"a") is None
    assert not state.delete(b"a")
    assert state.writes[b"a"][1] is None


def test_an_empty_value_is_a_value():
    state, _ = overlay()
    state.set(b"a", b"")
    assert state.get(b"a") == b""
    assert list(state.items()) == [(b"a", b"")]
    assert state.delete(b"a")


def test_one_scope_takes_back_the_writes_of_all_its_overlays():
    first, scope = overlay(b"a")
    second = Overlay(MemoryStore(), scope)
    first.set(b"kept", b"1")
    scope.release()
    first.delete(b"a")
    first.set(b"kept", b"2")
    second.set(b"b", b"1")
    second.set(b"b", b"2")
    scope.rollback()
    assert list(first.items()) == [(b"a", b"base"), (b"kept", b"1")]
    assert second.writes == {}
    scope.rollback()
    assert first.get(b"kept") == b"1"


def test_rollback_of_a_message_after_freeze_leaves_the_commit_alone():
    state, scope = overlay()
    state.set(b"a", b"1")
    scope.release()
    frozen = state.freeze()
    state.set(b"a", b"2")
    state.delete(b"a")
    scope.rollback()
    assert frozen[b"a"][1] == b"1"
    assert state.get(b"a") == b"1"


def test_freeze_refuses_a_second_commit_and_a_message_in_the_middle():
    state, scope = overlay()
    state.set(b"a", b"1")
    with pytest.raises(RuntimeError, match="inside a message"):
        state.freeze()
    scope.release()
    state.freeze()
    with pytest.raises(RuntimeError, match="under way"):
        state.freeze()
    state.settle()
    assert state.freeze() == {}


def test_rollback_after_discard_brings_nothing_back():
    state, scope = overlay()
    other = Overlay(MemoryStore(), scope)
    state.set(b"a", b"1")
    other.set(b"b", b"1")
    state.discard()
    scope.rollback()
    assert state.writes == {}
    assert other.writes == {}
    assert state.get(b"a") is None


def test_bytes_held_is_never_too_low():
    state, scope = overlay()
    state.set(b"key", b"x" * 100)
    scope.release()
    one = state.bytes_held
    assert one >= 103 + 25
    state.set(b"key", b"x")
    scope.rollback()
    assert state.bytes_held >= one
    state.set(b"key", b"x" * 100)
    assert state.bytes_held == one
    state.set(b"key", b"x" * 150)
    assert state.bytes_held == one + 50
    state.set_all([(b"key", b"x" * 150), (b"new", b"x" * 100)])
    assert state.bytes_held == one + 50 + one
    scope.release()
    state.freeze()
    assert state.bytes_held == 0
    state.set(b"key", b"")
    state.discard()
    assert state.bytes_held == 0


@pytest.mark.parametrize("prefix", [b"", b"\xff", b"\xff\xff", b"a\xff", b"a", b"b", b"\x00"])
def test_prefixes_up_to_the_end_of_the_key_space(prefix):
    keys = [
        b"\x00",
        b"a",
        b"a\xfe",
        b"a\xff",
        b"a\xff\xff\xff",
        b"a\xffb",
        b"b",
        b"\xfe",
        b"\xff",
        b"\xff\xff\xff",
    ]
    state, _ = overlay(*keys[::2])
    for key in keys[1::2]:
        state.set(key, b"x")
    assert [key for key, _ in state.prefix(prefix)] == sorted(k for k in keys if k[: len(prefix)] == prefix)


def test_items_are_as_of_the_call_even_when_not_begun():
    state, scope = overlay(b"a", b"c")
    state.set(b"b", b"1", 1_500)
    rows = state.items()
    state.set(b"b", b"2")
    state.delete(b"a")
    state.set(b"d", b"1")
    scope.now_ms = 2_000
    assert list(rows) == [(b"a", b"base"), (b"b", b"1"), (b"c", b"base")]


def test_items_outlive_the_commit_of_their_layer():
    state, scope = overlay(b"a")
    state.set(b"b", b"1")
    scope.release()
    state.freeze()
    rows = state.items(reverse=True)
    state.settle()
    assert list(rows) == [(b"b", b"1"), (b"a", b"base")]


def test_values_that_were_read_are_kept_until_they_are_written() -> None:
    base, scope, reads = MemoryStore(), MessageScope(now_ms=100), []
    rows = {b"a": b"1", b"b": b"2", b"c": b"3", b"large": bytes(KEPT_VALUE_BYTES)}
    base.apply([(key, encode_metadata(1, 1) + value) for key, value in rows.items()], Position(1, 1, 1, 1, ""))
    get = base.get
    base.get = lambda key: (reads.append(key), get(key))[1]  # type: ignore[method-assign]
    overlay = Overlay(base, scope, kept_values=2)
    for _ in range(2):
        assert [overlay.get(key) for key in rows] == list(rows.values())
        assert overlay.get(b"absent") is None
    assert [reads.count(key) for key in (*rows, b"absent")] == [1, 1, 2, 2, 2]
    overlay.set(b"a", b"new")
    scope.release()
    writes = overlay.freeze()
    base.apply([(key, with_metadata(entry)) for key, entry in writes.items()], Position(2, 2, 2, 1, ""))
    overlay.settle()
    assert overlay.get(b"a") == b"new"
    assert overlay.get(b"c") == b"3"
    assert reads.count(b"c") == 3, "there is room for others after each commit"
    assert overlay.get(b"c") == b"3"
    assert reads.count(b"c") == 3


def test_a_value_that_was_kept_is_the_one_that_was_committed_last() -> None:
    base, scope = MemoryStore(), MessageScope(now_ms=100)
    base.apply([(b"a", encode_metadata(1, 1) + b"1")], POSITION)
    overlay = Overlay(base, scope, kept_values=10)
    assert overlay.get(b"a") == b"1"
    overlay.set(b"a", b"2")
    scope.release()
    writes = overlay.freeze()
    base.apply([(key, with_metadata(entry)) for key, entry in writes.items()], POSITION)
    overlay.settle()
    assert overlay.get(b"a") == b"2"
